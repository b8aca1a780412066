"""The cluster that the hook's arguments select."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow.light import LightSite

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow.hooks.tfjob import TFJobHook
from tf_dist.errors import ClusterError


@pytest.mark.parametrize(("context", "namespace"), [(None, "default"), ("team", "vision")])
def test_cluster_context_selects_kubeconfig_context(light: LightSite, context: str | None, namespace: str) -> None:
    config = json.loads(Path(light.kubeconfig).read_text())
    present = next(one for one in config["contexts"] if one["name"] == config["current-context"])
    config["contexts"].append({"name": "team", "context": {**present["context"], "namespace": "vision"}})
    own = light.folder / "own"
    own.write_text(json.dumps(config))
    hook = TFJobHook(None, config_file=str(own), cluster_context=context)
    try:
        assert hook.get_namespace() == namespace
    finally:
        hook.close()


def hook_of_extra(extra: str, light: LightSite, monkeypatch: pytest.MonkeyPatch) -> TFJobHook:
    """A hook of a connection with this extra, which Airflow reads from the environment."""
    monkeypatch.setenv("KUBECONFIG", light.kubeconfig)
    monkeypatch.setenv("AIRFLOW_CONN_TEAM", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    return TFJobHook("team")


@pytest.mark.parametrize("extra", ['{"namespace": "SECRET"', '"SECRET"', '["SECRET"]', "5", "true", "NaN"])
def test_extra_that_is_not_json_object_is_refused(
    extra: str, light: LightSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match="extra of connection team is not a JSON object") as caught:
        hook_of_extra(extra, light, monkeypatch).get_namespace()
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("extra", ["", "null", "{}"])
def test_connection_without_extras_names_no_cluster(
    extra: str, light: LightSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = hook_of_extra(extra, light, monkeypatch)
    try:
        assert hook.get_namespace() == "default"
    finally:
        hook.close()

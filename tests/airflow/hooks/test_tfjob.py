"""The cluster that the hook's arguments select."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow.light import LightSite

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

from tf_dist.airflow.hooks.tfjob import TFJobHook


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

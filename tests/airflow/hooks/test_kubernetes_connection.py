"""The cluster that a connection and the other arguments select, and the errors if they select none."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.airflow.site import Site
from tests.cluster.client.secure import Authority, door, kubeconfig
from tf_dist.airflow.hooks.kubernetes_connection import ClusterArguments, open_connection
from tf_dist.cluster.api import PODS
from tf_dist.errors import ClusterError

NOTHING = ClusterArguments(kubernetes_conn_id=None)


@pytest.mark.parametrize("prefix", ["", "extra__kubernetes__"], ids=["as it is", "as it was"])
@pytest.mark.parametrize("form", ["path", "text", "dict"])
def test_connection_accepts_every_form_of_kubeconfig(
    cluster_site: Site, form: str, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = Path(cluster_site.kubeconfig).read_text()
    given: dict[str, Any] = {
        "path": {"kube_config_path": cluster_site.kubeconfig},
        "text": {"kube_config": text},
        "dict": {"kube_config": yaml.safe_load(text)},
    }
    extras = {f"{prefix}{key}": value for key, value in {**given[form], "namespace": "research"}.items()}
    connection = open_connection(NOTHING, extras)
    try:
        assert connection.namespace == "research"
        assert connection.place is not None
    finally:
        connection.close()
    assert list(tmp_path.iterdir()) == [], "a kubeconfig with its secrets was left behind"


@pytest.mark.parametrize(
    "extras",
    [
        {"kube_config": "token: SECRET ["},
        {"kube_config": "SECRET"},
        {"kube_config": {"users": "SECRET"}},
        {"kube_config": "{}", "kube_config_path": "x"},
        {"in_cluster": "True", "kube_config_path": "x"},
    ],
)
def test_invalid_connection_error_contains_no_secret(extras: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match="kube_config") as caught:
        open_connection(NOTHING, extras)
    assert "SECRET" not in str(caught.value)
    assert tempfile.gettempdir() not in str(caught.value)


@pytest.mark.parametrize(
    "extras",
    [
        {"in_cluster": "maybe"},
        {"disable_verify_ssl": ["SECRET"]},
        {"kube_config_path": ["SECRET"]},
        {"cluster_context": {"SECRET": 1}},
        {"namespace": 7},
        {"namespace": "Team A"},
    ],
    ids=str,
)
def test_extra_of_wrong_type_is_refused(extras: dict[str, Any]) -> None:
    (name,) = extras
    with pytest.raises(ClusterError, match=name) as caught:
        open_connection(NOTHING, extras)
    assert caught.value.hint
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("form", ["kube_config_path", "kube_config"])
def test_connection_warns_about_unverified_certificate(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority.create(tmp_path)
    with door(authority) as server:
        url = f"https://127.0.0.1:{server.port}"
        path = kubeconfig(tmp_path / "config", url)  # has no authority, and the system does not trust ours
        named = {form: path if form == "kube_config_path" else Path(path).read_text()}
        connection = open_connection(NOTHING, {**named, "disable_verify_ssl": "true"})
        try:
            assert connection.cluster.list(PODS).items == []
        finally:
            connection.close()
        assert f"the certificate of {url} is not verified" in caplog.text

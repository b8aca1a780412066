"""Malformed kubeconfigs raise only ClusterError, and its message contains no secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.malformed import BOMBS, disfigured, places, put
from tf_dist.cluster.client import client_config
from tf_dist.cluster.client.kubeconfig_file import kubeconfig_files
from tf_dist.errors import ClusterError

SECRET = "s3cr3t-t0ken"
EXTENSIONS = [{"name": "tf-dist.dev/embedded", "extension": {"addresses": "/a"}}]
PROVIDER = {"auth-provider": {"name": "oidc", "config": {"id-token": SECRET}}}
FILES = {"client-certificate": "/none", "client-key": "/none", "tokenFile": "/none"}


def config() -> dict[str, Any]:
    user = {"token": SECRET, "password": SECRET, "username": "me", "client-key-data": SECRET}
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "env": [{"name": "A", "value": SECRET}]}
    return {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": "https://127.0.0.1:6443",
                    "certificate-authority-data": "x",
                    "extensions": EXTENSIONS,
                },
            }
        ],
        "users": [
            {"name": "u", "user": user},
            {"name": "v", "user": {"exec": {**plugin, "args": [SECRET]}}},
            *({"name": "w", "user": PROVIDER}, {"name": "f", "user": FILES}),
        ],
    }


def reads(path: Path, document: Any) -> None:
    try:
        path.write_text(json.dumps(document))
    except (ValueError, UnicodeError):
        return  # a file cannot contain this document
    problem = ""
    try:
        found = client_config.load_config(str(path))
        found.source()
        found.cluster().close()
    except ClusterError as error:
        problem = f"{error} {error.hint}"
    assert SECRET not in problem


@pytest.mark.parametrize("user", ["u", "v", "w", "f"])
def test_malformed_values_raise_only_cluster_errors(user: str, tmp_path: Path) -> None:
    whole = config()
    whole["contexts"][0]["context"]["user"] = user
    for position, path in enumerate(places(whole)):
        for bomb in BOMBS[position % 4 :: 4]:
            found = json.loads(json.dumps(whole))
            put(found, path, bomb)
            reads(tmp_path / "config", found)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_malformed_documents_raise_only_cluster_errors(tmp_path: Path, data: st.DataObject) -> None:
    reads(tmp_path / "config", data.draw(disfigured(config())))


def test_folder_and_missing_file_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is a folder, not a kubeconfig") as caught:
        client_config.load_config(str(tmp_path))
    assert caught.value.hint == "name the file in --kubeconfig"
    with pytest.raises(ClusterError, match="there is no kubeconfig"):
        client_config.load_config(str(tmp_path / "config"))


LONG = "x" * 5000


@pytest.mark.parametrize(
    ("option", "variable", "told"),
    [
        (LONG, "", f"cannot read .*{LONG}: File name too long"),
        ("", LONG, f"cannot read .*{LONG}: File name too long"),
        ("~nobody-at-all/config", "", "there is no kubeconfig ~nobody-at-all/config"),
        ("", "~nobody-at-all/config", "no file in .KUBECONFIG exists"),
    ],
)
def test_impossible_path_is_reported(monkeypatch: pytest.MonkeyPatch, option: str, variable: str, told: str) -> None:
    monkeypatch.setenv("KUBECONFIG", variable)
    with pytest.raises(ClusterError, match=told):
        client_config.load_config(option)


def test_user_without_home_directory_has_no_default_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user that the system does not know
    assert kubeconfig_files(None, {}) == ()

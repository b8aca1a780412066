"""Configuration from kubeconfigs and pods: the cluster, the credentials, and the error messages."""

from __future__ import annotations

import base64
import json
import os
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.client.secure import Authority, Door, door, kubeconfig
from tests.cluster.support import wait_for
from tests.waiting import until
from tf_dist.cluster.api import CONFIG_MAPS, NAMESPACES, PODS, Resource
from tf_dist.cluster.api_errors import NotServed, QuotaExceeded, Unauthorized
from tf_dist.cluster.client import client_config, kubeconfig_file
from tf_dist.cluster.client.client_config import proxy_for
from tf_dist.errors import ClusterError, Forbidden, NotFound, Unavailable


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("pki"))


@pytest.fixture(autouse=True)
def nothing_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes the kubeconfig, the service account and the proxies of this machine from the environment."""
    for name in (*os.environ,):
        if name.lower().endswith("_proxy") or name.startswith(("KUBECONFIG", "KUBERNETES_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def list_pods(path: str, **options: Any) -> None:
    with client_config.load_config(path).cluster(**{"retries": 0, **options}) as cluster:
        assert cluster.list(PODS).items == []


# Which cluster


def test_current_context_determines_server_and_namespace(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", "https://10.0.0.1:6443/", name="prod", namespace="research")
    found = client_config.load_config(path)
    assert (found.name, found.server, found.namespace) == ("prod", "https://10.0.0.1:6443", "research")


def test_kubeconfig_of_home_folder_has_default_namespace(tmp_path: Path) -> None:
    kubeconfig(tmp_path / "home" / ".kube" / "config", "https://home.test")
    assert (client_config.load_config().server, client_config.load_config().namespace) == (
        "https://home.test",
        "default",
    )


def test_first_of_merged_kubeconfigs_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = kubeconfig(tmp_path / "a" / "one", "https://one.test", name="same", current=False)
    two = kubeconfig(tmp_path / "b" / "two", "https://two.test", name="same")
    three = kubeconfig(tmp_path / "c" / "three", "https://three.test", name="third")
    empty = tmp_path / "empty"
    empty.touch()
    files = [one, str(tmp_path / "missing"), str(empty), two, three]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))
    assert (client_config.load_config().name, client_config.load_config().server) == ("same", "https://one.test")
    assert client_config.load_config(context="third").server == "https://three.test"


def test_relative_paths_resolve_from_folder_of_kubeconfig(tmp_path: Path) -> None:
    user = {
        "client-certificate": "me.crt",
        "client-key": "keys/me.key",
        "exec": {"command": "./login", "apiVersion": "client.authentication.k8s.io/v1"},
    }
    path = kubeconfig(tmp_path / "x" / "config", "https://a.test", user=user, **{"certificate-authority": "ca.crt"})
    found = kubeconfig_file.resolve_context([Path(path)])
    folder = tmp_path / "x"
    assert found.cluster["certificate-authority"] == str(folder / "ca.crt")
    assert found.user["client-certificate"] == str(folder / "me.crt")
    assert found.user["client-key"] == str(folder / "keys" / "me.key")
    assert Path(found.user["exec"]["command"]) == folder / "login"


def test_pod_uses_its_own_cluster_and_rereads_token(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("token", "one\n"), ("namespace", "research"), ("ca.crt", authority.text("ca.crt"))):
        (tmp_path / name).write_text(text)
    with door(authority, known={"Bearer one"}) as server:
        inside = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        found = client_config.in_cluster_config(inside, tmp_path)
        assert found is not None
        assert (found.name, found.namespace) == ("in-cluster", "research")
        with found.cluster(retries=0) as cluster:
            cluster.list(PODS)
            # The kubelet replaces the file before its token expires.
            (tmp_path / "token").write_text("two\n")
            server.known = {"Bearer two"}
            cluster.list(PODS)
    assert [request["Authorization"] for request in server.requests] == ["Bearer one", "Bearer one", "Bearer two"]
    other = client_config.in_cluster_config(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path
    )
    assert other is not None
    assert other.server == "https://[fd00::1]:443"
    assert client_config.in_cluster_config(inside, tmp_path / "nowhere") is None
    assert client_config.in_cluster_config({}, tmp_path) is None


def test_missing_cluster_hint_lists_all_options() -> None:
    with pytest.raises(Unavailable) as raised:
        client_config.load_config()
    for way in ("tf-dist local up", "--kubeconfig", "--context", "$KUBECONFIG", "~/.kube/config"):
        assert way in raised.value.hint


def test_context_without_kubeconfig_is_a_permanent_error() -> None:
    with pytest.raises(ClusterError, match="there is no context prod: no kubeconfig was found") as raised:
        client_config.load_config(context="prod")
    assert not isinstance(raised.value, Unavailable)
    assert raised.value.hint == "name its file: --kubeconfig FILE, $KUBECONFIG"


def test_file_without_contexts_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("kind: TFJob")
    with pytest.raises(ClusterError, match="current-context is not set") as raised:
        client_config.load_config(str(tmp_path / "config"))
    assert raised.value.hint == "it has no contexts: check that it is a kubeconfig"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just text", "it is not a mapping"),
        ("a: [", "it is not YAML, line"),
        ("contexts: {}\nclusters: 5", "clusters is not a list"),
        ("contexts: [{context: {}}]", "an entry of contexts has no name"),
        ("contexts: [{name: a, context: b}]", "context a is not a mapping"),
        ("apiVersion: v1", "current-context is not set"),
        ("current-context: a\ncontexts: [{name: a, context: {cluster: b}}]", "of cluster 'b', which is not defined"),
        (
            "current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n"
            "clusters: [{name: b, cluster: {server: 'https://x'}}]",
            "of user 'c', which is not defined",
        ),
        (
            "current-context: a\ncontexts: [{name: a, context: {cluster: b}}]\nclusters: [{name: b}]",
            "has no server",
        ),
    ],
)
def test_mistakes_in_kubeconfig_are_reported(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClusterError, match=says) as raised:
        client_config.load_config(str(path))
    assert str(path) in str(raised.value) or "context a" in str(raised.value)


def test_missing_files_and_contexts_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kubeconfig(tmp_path / "config", "https://a.test", name="production")
    with pytest.raises(ClusterError, match="there is no context prodution") as raised:
        client_config.load_config(path, "prodution")
    assert raised.value.hint == "did you mean production? There are: production"
    with pytest.raises(ClusterError, match="there is no kubeconfig"):
        client_config.load_config(str(tmp_path / "missing"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ClusterError, match=r"no file in \$KUBECONFIG exists"):
        client_config.load_config()


# Trust


def test_only_certificate_authority_of_cluster_is_trusted(tmp_path: Path, authority: Authority) -> None:
    with door(authority) as server:
        url = f"https://127.0.0.1:{server.port}"
        good, bad = authority.text("ca.crt"), authority.text("other-ca.crt")
        list_pods(kubeconfig(tmp_path / "data", url, **{"certificate-authority-data": data(good)}))
        (tmp_path / "ca.crt").write_text(good)
        list_pods(kubeconfig(tmp_path / "file", url, **{"certificate-authority": "ca.crt"}))
        list_pods(kubeconfig(tmp_path / "none", url, **{"insecure-skip-tls-verify": True}))
        for name, cluster in (("bad", {"certificate-authority-data": data(bad)}), ("system", {})):
            with pytest.raises(Unavailable, match="no answer") as raised:
                list_pods(kubeconfig(tmp_path / name, url, **cluster))
            assert "certificate-authority" in raised.value.hint
    assert len(server.requests) == 3


def test_certificate_must_match_server_name(tmp_path: Path, authority: Authority) -> None:
    trust = {"certificate-authority-data": data(authority.text("ca.crt"))}
    with door(authority) as server:
        url = f"https://localhost:{server.port}"
        with pytest.raises(Unavailable):
            list_pods(kubeconfig(tmp_path / "wrong", url, **trust))
        list_pods(kubeconfig(tmp_path / "named", url, **trust, **{"tls-server-name": "api.tf-dist.test"}))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("cluster", "user", "says"),
    [
        ({"certificate-authority-data": "!"}, {}, "certificate-authority"),
        ({"certificate-authority-data": data("none")}, {}, "certificate-authority"),
        ({"certificate-authority": "missing"}, {}, "cannot read the kubeconfig's certificate-authority"),
        ({}, {"client-certificate-data": data("x")}, "no client-key"),
        ({}, {"client-certificate-data": data("x"), "client-key-data": data("x")}, "client certificate and key"),
    ],
)
def test_invalid_certificates_are_reported(tmp_path: Path, cluster: Any, user: Any, says: str) -> None:
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=user, **cluster)
    with pytest.raises(ClusterError, match=says):
        list_pods(path)


# Credentials


@contextmanager
def known_as(authority: Authority, *known: str) -> Iterator[tuple[Door, str, dict[str, str]]]:
    """A server that accepts only these credentials, its URL, and the cluster fields to trust it."""
    with door(authority, set(known)) as server:
        trust = {"certificate-authority-data": data(authority.text("ca.crt"))}
        yield server, f"https://127.0.0.1:{server.port}", trust


def test_client_certificate_leaves_no_file(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    written: list[str] = []
    make = tempfile.NamedTemporaryFile

    def noted(*args: Any, **options: Any) -> Any:
        written.append("a file")
        return make(*args, **options)

    monkeypatch.setattr(tempfile, "mkstemp", noted)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", noted)
    user = {
        "client-certificate-data": data(authority.text("alice.crt")),
        "client-key-data": data(authority.text("alice.key")),
    }
    with known_as(authority, "alice") as (server, url, trust):
        list_pods(kubeconfig(tmp_path / "data", url, user=user, **trust))
        files = {"client-certificate": authority.path("alice.crt"), "client-key": authority.path("alice.key")}
        list_pods(kubeconfig(tmp_path / "files", url, user=files, **trust))
        list_pods(kubeconfig(tmp_path / "again", url, user=user, **trust))
    assert server.callers == ["alice"] * 3
    assert list(scratch.iterdir()) == []
    if hasattr(os, "memfd_create"):
        assert written == []


def test_certificate_with_key_of_other_user_is_refused(tmp_path: Path, authority: Authority) -> None:
    user = {"client-certificate": authority.path("alice.crt"), "client-key": authority.path("bob.key")}
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=user)
    with pytest.raises(ClusterError, match="client certificate and key") as raised:
        list_pods(path)
    assert "belong together" in raised.value.hint


def test_encrypted_key_is_refused_without_password_prompt(tmp_path: Path, authority: Authority) -> None:
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkcs8", "-topk8", "-in", authority.path("alice.key"), "-passout", "pass:x", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    user = {"client-certificate": authority.path("alice.crt"), "client-key": str(locked)}
    with pytest.raises(ClusterError, match="client certificate and key"):
        list_pods(kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=user))


def test_tokens_and_passwords_are_sent(tmp_path: Path, authority: Authority) -> None:
    basic = f"Basic {data('jane:secret')}"
    with known_as(authority, "Bearer abc", basic) as (server, url, trust):
        list_pods(kubeconfig(tmp_path / "token", url, user={"token": "abc\n"}, **trust))
        list_pods(kubeconfig(tmp_path / "basic", url, user={"username": "jane", "password": "secret"}, **trust))
        list_pods(kubeconfig(tmp_path / "url", url.replace("://", "://jane:secret@"), **trust))
        assert "secret" not in client_config.load_config(str(tmp_path / "url")).server
        with pytest.raises(Unauthorized) as raised:
            list_pods(kubeconfig(tmp_path / "wrong", url, user={"token": "wrong"}, **trust), retries=3)
        assert "log in" in raised.value.hint
    assert [request.get("Authorization") for request in server.requests] == ["Bearer abc", basic, basic, "Bearer wrong"]


def test_token_file_is_reread(tmp_path: Path, authority: Authority) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    with known_as(authority, "Bearer one") as (server, url, trust):
        path = kubeconfig(tmp_path / "config", url, user={"tokenFile": "token"}, **trust)
        with client_config.load_config(path).cluster(retries=0) as cluster:
            cluster.list(PODS)
            token.write_text("two")
            server.known = {"Bearer two"}
            cluster.list(PODS)
            token.unlink()
            server.known = {"Bearer three"}
            with pytest.raises(Unauthorized, match="cannot read the token"):
                cluster.list(PODS)


def test_impersonation_headers_are_sent(tmp_path: Path, authority: Authority) -> None:
    user = {"token": "abc", "as": "jane", "as-groups": ["team"], "as-uid": "7"}
    with known_as(authority, "Bearer abc") as (server, url, trust):
        list_pods(kubeconfig(tmp_path / "config", url, user=user, **trust))
    (sent,) = server.requests
    assert [sent.get(f"Impersonate-{what}") for what in ("User", "Group", "Uid")] == ["jane", "team", "7"]
    several = kubeconfig(tmp_path / "several", url, user={"as": "jane", "as-groups": ["a", "b"]}, **trust)
    with pytest.raises(ClusterError, match="as-groups"):
        client_config.load_config(several)


@pytest.mark.parametrize("token", ["", " ", "a b\nc", "täöken"])
def test_invalid_token_file_is_unauthorized(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user={"tokenFile": "token"})
    with pytest.raises(Unauthorized) as raised:
        list_pods(path)
    assert "töken" not in str(raised.value)


# Plugins

API = "client.authentication.k8s.io/v1"


def plugin(folder: Path, body: str, **fields: Any) -> dict[str, Any]:
    """A user with this Python code as login plugin.

    In the code, ``give(**status)`` prints a credential, and ``runs`` is the number of runs.
    """
    script = folder / "login"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        f"count = pathlib.Path({str(folder / 'runs')!r})\n"
        "count.write_text(str(int(count.read_text()) + 1) if count.exists() else '1')\n"
        "runs = int(count.read_text())\n"
        f"def give(**status): print(json.dumps(dict(apiVersion={API!r}, kind='ExecCredential', status=status)))\n"
        f"{body}\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": API, "command": "./login", **fields}}


def runs(folder: Path) -> int:
    return int((folder / "runs").read_text())


def later(**time: float) -> str:
    return (datetime.now(UTC) + timedelta(**time)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_plugin_runs_again_when_token_is_refused(tmp_path: Path, authority: Authority) -> None:
    user = plugin(tmp_path, f"give(token=f't{{runs}}', expirationTimestamp={later(hours=1)!r})")
    with known_as(authority, "Bearer t1") as (server, url, trust):
        path = kubeconfig(tmp_path / "config", url, user=user, **trust)
        with client_config.load_config(path).cluster(retries=0) as cluster:
            for _ in range(3):
                cluster.list(PODS)
            assert runs(tmp_path) == 1
            server.known = {"Bearer t2"}
            cluster.list(PODS)
            assert runs(tmp_path) == 2
            server.known = set()
            with pytest.raises(Unauthorized):
                cluster.list(PODS)
    assert runs(tmp_path) == 3


@pytest.mark.parametrize(("expiry", "least", "most"), [("hours=1", 3500, 3600), ("hours=-1", 1, 1), ("", None, None)])
def test_plugin_token_lifetime_is_read(tmp_path: Path, expiry: str, least: float | None, most: float | None) -> None:
    name, _, value = expiry.partition("=")
    moment = f", expirationTimestamp={later(**{name: float(value)})!r}" if expiry else ""
    user = plugin(tmp_path, f"give(token='t'{moment})")
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=user)
    seconds = client_config.load_config(path).source().seconds
    assert seconds is None if least is None or most is None else seconds is not None and least <= seconds <= most


def test_plugin_can_renew_certificate(tmp_path: Path, authority: Authority) -> None:
    body = (
        f"folder, name = pathlib.Path({str(authority.folder)!r}), 'alice' if runs == 1 else 'bob'\n"
        "give(clientCertificateData=(folder / f'{name}.crt').read_text(),"
        " clientKeyData=(folder / f'{name}.key').read_text())"
    )
    with known_as(authority, "alice") as (server, url, trust):
        path = kubeconfig(tmp_path / "config", url, user=plugin(tmp_path, body), **trust)
        with client_config.load_config(path).cluster(retries=0) as cluster:
            cluster.list(PODS)
            server.known = {"bob"}
            cluster.list(PODS)
    assert server.callers == ["alice", "alice", "bob"]


def test_plugin_gets_arguments_environment_and_cluster(tmp_path: Path, authority: Authority) -> None:
    body = (
        "told = json.loads(os.environ['KUBERNETES_EXEC_INFO'])['spec']['cluster']\n"
        "give(token='-'.join([*sys.argv[1:], os.environ['WHO'], told['server'].partition(':')[0],"
        " str('certificate-authority-data' in told)]))"
    )
    (tmp_path / "ca.crt").write_text(authority.text("ca.crt"))
    user = plugin(tmp_path, body, args=["a", "b"], env=[{"name": "WHO", "value": "me"}], provideClusterInfo=True)
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=user, **{"certificate-authority": "ca.crt"})
    assert client_config.load_config(path).source().headers == {"Authorization": "Bearer a-b-me-https-True"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit('your session is over')", "your session is over"),
        ("print('nonsense')", "failed to decode"),
        ("print('{}')", "missing key"),
        ("give()", "neither a token nor a certificate"),
        ("give(clientCertificateData='x')", "neither a token nor a certificate"),
        ("print('[]')", "login failed"),
    ],
)
def test_plugin_failure_is_reported_with_reason(tmp_path: Path, body: str, says: str) -> None:
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=plugin(tmp_path, body))
    with pytest.raises(Unauthorized, match=says) as raised:
        list_pods(path, retries=3)
    assert "login" in str(raised.value)
    assert runs(tmp_path) == 1


def test_missing_plugin_is_reported_with_install_hint(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": API, "command": "no-such-login", "installHint": "apt install no-such-login"}}
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=user)
    with pytest.raises(Unauthorized, match="cannot run the login plugin no-such-login") as raised:
        list_pods(path)
    assert raised.value.hint == "apt install no-such-login"


@pytest.mark.parametrize(
    "user",
    [
        {"exec": {"apiVersion": API, "command": "some-login"}},
        {"auth-provider": {"name": "some-login", "config": {}}},
    ],
)
def test_missing_official_client_is_reported_with_install_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any]
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "kubernetes"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(Unauthorized, match="some-login needs the package kubernetes") as raised:
        list_pods(kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=user))
    assert "pip install kubernetes" in raised.value.hint
    assert "the pod's service account" in raised.value.hint


# Providers


def jwt(**claims: Any) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part(claims)}.c2ln"


def test_openid_connect_token_is_used(tmp_path: Path, authority: Authority) -> None:
    token = jwt(exp=int(time.time()) + 86400)
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    with known_as(authority, f"Bearer {token}") as (server, url, trust):
        list_pods(kubeconfig(tmp_path / "config", url, user=user, **trust))
    assert len(server.requests) == 1


def test_auth_provider_leaves_no_file(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official client writes the certificates of a kubeconfig to files, and removes them when Python exits."""
    scratch, token = tmp_path / "scratch", jwt(exp=int(time.time()) + 86400)
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr("kubernetes.config.kube_config._temp_files", {})  # by their content
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    with known_as(authority, f"Bearer {token}") as (_, url, trust):
        list_pods(kubeconfig(tmp_path / "config", url, user=user, **trust))
    assert list(scratch.iterdir()) == []


def test_unknown_auth_provider_is_unauthorized(tmp_path: Path) -> None:
    user = {"auth-provider": {"name": "unheard-of", "config": {}}}
    path = kubeconfig(tmp_path / "config", "https://127.0.0.1:9", user=user)
    with pytest.raises(Unauthorized, match="the auth-provider unheard-of gave no token"):
        list_pods(path)


# Proxies


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://api.test", {}, ""),
        ("https://api.test", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.test", {"https_proxy": "p:1"}, "http://p:1"),
        ("https://api.test", {"HTTP_PROXY": "http://p:1"}, ""),
        ("http://api.test", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://10.96.0.1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://11.96.0.1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://p:1"),
        ("https://api.test", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "x,.test"}, ""),
        ("https://api.test", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "test"}, ""),
        ("https://api.test", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "est"}, "http://p:1"),
        ("https://api.test:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "api.test:6443"}, ""),
        ("https://api.test:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "api.test:443"}, "http://p:1"),
        ("https://api.test", {"HTTPS_PROXY": "http://p:1", "no_proxy": "*"}, ""),
    ],
)
def test_proxy_is_read_from_environment(server: str, environ: dict[str, str], proxy: str) -> None:
    assert proxy_for(server, environ=environ) == proxy
    assert proxy_for(server, "http://given:2", environ) == "http://given:2"


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy that tunnels one connection, or forwards one request. Its URL, and the first line of the request."""
    asked: list[str] = []

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while found := source.recv(65536):
                target.sendall(found)
            target.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += client.recv(65536)
                asked.append(head.decode().splitlines()[0])
                asked.extend(line for line in head.decode().splitlines() if line.lower().startswith("proxy-auth"))
                place = asked[0].split()[1].removeprefix("http://").partition("/")[0]
                with socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2]))) as server:
                    if asked[0].startswith("CONNECT"):
                        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    else:
                        server.sendall(head)
                    back = threading.Thread(target=pump, args=(server, client))
                    back.start()
                    pump(client, server)
                    back.join(30)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://me:p%40ss@127.0.0.1:{listener.getsockname()[1]}", asked
        thread.join(60)


def test_requests_go_through_proxy(tmp_path: Path, authority: Authority) -> None:
    login = f"Proxy-Authorization: Basic {data('me:p@ss')}"
    with known_as(authority, "Bearer abc") as (server, url, trust), proxy() as (between, asked):
        path = kubeconfig(tmp_path / "a", url, user={"token": "abc"}, **trust, **{"proxy-url": between})
        list_pods(path)
    assert asked[0].startswith(f"CONNECT 127.0.0.1:{server.port} ")
    assert asked[1].lower() == login.lower()
    with door(None, {"Bearer abc"}) as plain, proxy() as (between, asked):
        url = f"http://127.0.0.1:{plain.port}"
        list_pods(kubeconfig(tmp_path / "b", url, user={"token": "abc"}, **{"proxy-url": between}))
    assert asked[0] == f"GET {url}/api/v1/pods HTTP/1.1"
    assert plain.requests[0]["Host"] == f"127.0.0.1:{plain.port}"


def test_invalid_proxy_url_is_refused(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "a", "https://127.0.0.1:9", **{"proxy-url": "gopher://x:1"})
    with pytest.raises(ClusterError, match="is not a proxy"):
        client_config.load_config(path).cluster()


def test_server_url_may_have_path(tmp_path: Path, authority: Authority) -> None:
    with known_as(authority, "Bearer abc") as (server, url, trust):
        list_pods(kubeconfig(tmp_path / "a", f"{url}/k8s/clusters/c-1/", user={"token": "abc"}, **trust))
    assert server.paths == ["/k8s/clusters/c-1/api/v1/pods"]


# A real API server

SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")


@pytest.fixture
def space(kubeconfig: str) -> Iterator[str]:
    """A namespace of the real cluster for one test."""
    with client_config.load_config(kubeconfig).cluster() as cluster:
        name = f"kube-{os.getpid()}-{time.time_ns() % 1_000_000}"
        cluster.create(NAMESPACES, None, {"metadata": {"name": name}})
        wait_for(cluster, SERVICE_ACCOUNTS, name, "default", lambda account: account is not None)
        yield name
        with suppress(NotFound):
            cluster.delete(NAMESPACES, None, name)


@pytest.mark.cluster
def test_real_server_accepts_kubeconfig(kubeconfig: str, space: str) -> None:
    with client_config.load_config(kubeconfig).cluster() as cluster:
        cluster.create(CONFIG_MAPS, space, {"metadata": {"name": "a"}, "data": {"x": "1"}})
        with cluster.watch(CONFIG_MAPS, space, fields="metadata.name=a") as events:
            assert next(events).object["data"] == {"x": "1"}
        with pytest.raises(NotServed):
            cluster.list(Resource("none.test", "v1", "None", "nones"), space)


@pytest.mark.cluster
def test_commands_in_hint_grant_missing_permission(kubeconfig: str, space: str, tmp_path: Path) -> None:
    document = yaml.safe_load(Path(kubeconfig).read_text())
    document["users"][0]["user"]["as"] = "jane"
    limited = tmp_path / "limited"
    limited.touch(mode=0o600)
    limited.write_text(yaml.safe_dump(document))
    body = {"metadata": {"name": "a"}}
    with client_config.load_config(str(limited)).cluster() as jane:
        with pytest.raises(Forbidden, match=f"create configmaps in namespace {space}") as raised:
            jane.create(CONFIG_MAPS, space, body)
        commands = raised.value.hint.removeprefix("grant it: ").partition(" (")[0]
        for command in commands.split(" && "):
            subprocess.run([*shlex.split(command), "--kubeconfig", kubeconfig], check=True, capture_output=True)

        def allowed() -> bool:
            try:
                return bool(jane.create(CONFIG_MAPS, space, body))
            except Forbidden:
                return False

        until(allowed, 60)  # the authorizer notices the new role a moment later


@pytest.mark.cluster
def test_real_server_quota_error_is_quota_exceeded(kubeconfig: str, space: str) -> None:
    with client_config.load_config(kubeconfig).cluster() as cluster:
        quota = {"metadata": {"name": "small"}, "spec": {"hard": {"count/configmaps": "0"}}}
        cluster.create(QUOTAS, space, quota)

        def refused() -> bool:
            """The admission of the server notices the quota a moment later, by a watch."""
            try:
                cluster.create(CONFIG_MAPS, space, {"metadata": {"name": f"a-{uuid.uuid4().hex}"}})
            except QuotaExceeded as error:
                return "exceeded quota" in str(error)
            return False

        until(refused, 60)

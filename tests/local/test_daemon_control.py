"""The local daemon as a process: concurrent starts, kills and restarts."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tests.cluster.kubelet.bench import processes_with
from tests.controller.harness import container, tfjob
from tests.waiting import until
from tf_dist.cluster.api import NAMESPACES, PODS, TFJOBS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.cluster.kubelet.node.runtime_client import RuntimeClient
from tf_dist.errors import ClusterError, Forbidden, Unavailable
from tf_dist.local.daemon import log_to_file, settings_of
from tf_dist.local.daemon_control import (
    ENDPOINT_FILE,
    DaemonEndpoint,
    DaemonSettings,
    daemon_client,
    daemon_status,
    down,
    read_endpoint,
    state_home,
    up,
)
from tf_dist.local.embedded import EmbeddedSettings

_UP = """
import sys
from tf_dist.local.daemon_control import DaemonSettings as LocalSettings, up
print(up(LocalSettings(state_dir=sys.argv[1], workdir="/")).pid)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A state folder. Its daemon ends with the test."""
    folder = tmp_path / "local"
    yield folder
    down(folder)


def _up(home: Path) -> DaemonEndpoint:
    return up(DaemonSettings(state_dir=str(home), workdir="/"))


def _job(command: str) -> Object:
    job = tfjob()
    for spec in job["spec"]["tfReplicaSpecs"].values():
        spec["template"]["spec"]["containers"] = [container("sh", "-c", command, cpu="10m")]
    return job


def _phase(endpoint: DaemonEndpoint) -> str:
    return str(daemon_client(endpoint).get(TFJOBS, "default", "mnist").get("status", {}).get("tfDist", {}).get("phase"))


@pytest.mark.slow
def test_concurrent_starts_share_one_daemon(home: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", _UP, str(home)], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    pids = {process.communicate()[0].strip() for process in processes}
    endpoint = daemon_status(home)
    assert endpoint is not None
    assert pids == {str(endpoint.pid)}


def test_restarted_daemon_finds_jobs_and_running_pods(home: Path, tmp_path: Path) -> None:
    first = _up(home)
    go_on = tmp_path / "go-on"
    daemon_client(first).create(TFJOBS, "default", _job(f"until [ -e {go_on} ]; do sleep 0.05; done"))
    until(lambda: _phase(first) == "Running", 90)
    before = {
        pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in daemon_client(first).list(PODS, "default").items
    }
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    assert daemon_status(home) is None
    second = _up(home)
    go_on.touch()
    until(lambda: _phase(second) == "Completed", 90)
    pods = daemon_client(second).list(PODS, "default").items
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}.items() <= before.items()
    assert all(c["restartCount"] == 0 for pod in pods for c in pod["status"]["containerStatuses"])


def test_down_ends_daemon_and_keeps_jobs(home: Path) -> None:
    first = _up(home)
    daemon_client(first).create(TFJOBS, "default", _job("exec sleep 600"))
    until(lambda: _phase(first) == "Running", 90)
    assert down(home)
    assert daemon_status(home) is None
    second = _up(home)
    assert [job["metadata"]["name"] for job in daemon_client(second).list(TFJOBS, "default").items] == ["mnist"]


def test_down_ends_pods_of_killed_daemon(home: Path, tmp_path: Path) -> None:
    first = _up(home)
    word = tmp_path / "word"
    word.touch()
    daemon_client(first).create(TFJOBS, "default", _job(f"exec tail -F {word}"))
    until(lambda: _phase(first) == "Running", 90)
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    other = RuntimeClient(lambda uid: None, lambda: None)  # as of a daemon that is starting, or that hangs
    until(lambda: other.connect(home / "node") is not None, 90)
    with pytest.raises(Unavailable, match="does not answer"):
        down(home, timeout=0)
    other.disconnect()
    assert processes_with(str(word))
    assert down(home)
    assert not processes_with(str(word))
    assert not down(home)


# Secrets and the owner of the folder


@pytest.mark.slow
def test_daemon_never_reuses_token(home: Path) -> None:
    """While no daemon runs, any process can listen on its port and receive the token from clients."""
    first = _up(home)
    lasting = daemon_client(first)
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    port = int(first.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)) as squatter, daemon_client(first, retries=0) as late:
        asking = threading.Thread(target=lambda: suppress_cluster_errors(late))
        asking.start()
        caller, _ = squatter.accept()
        with caller:
            heard = caller.recv(4096)
        asking.join()
        assert first.token.encode() in heard
        second = _up(home)
    assert second.url != first.url
    assert second.token != first.token
    os.kill(second.pid, signal.SIGKILL)
    os.waitpid(second.pid, 0)
    third = _up(home)
    assert third.url == second.url
    assert third.token not in (first.token, second.token)
    stolen = RestCluster(third.url, token=first.token, retries=0)
    with stolen, pytest.raises(Forbidden, match="Unauthorized"):
        stolen.get(NAMESPACES, None, "default")
    config = yaml.safe_load(third.kubeconfig.read_text())
    assert config["users"][0]["user"]["token"] == third.token
    with daemon_client(second) as survivor:  # a client of the previous daemon at the same URL
        assert survivor.get(NAMESPACES, None, "default")
    lasting.close()


def suppress_cluster_errors(cluster: RestCluster) -> None:
    with suppress(ClusterError):
        cluster.get(NAMESPACES, None, "default")


def test_user_without_home_directory_must_name_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TF_DIST_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user that the system does not know
    assert daemon_status() is None
    with pytest.raises(ClusterError, match="no home directory") as caught:
        state_home()
    assert "TF_DIST_HOME" in caught.value.hint
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # the daemon runs in another folder
    assert state_home() == Path.cwd() / "relative" / "tf-dist" / "local"


def test_folder_and_secrets_are_private(home: Path) -> None:
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    for name in ("kubeconfig", "cluster.sqlite", "daemon.log"):
        (home / name).touch(mode=0o666)
        (home / name).chmod(0o666)
    endpoint = _up(home)
    modes = {path.name: path.stat().st_mode & 0o777 for path in home.iterdir()}
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "node").stat().st_mode & 0o777 == 0o700
    for name in ("kubeconfig", "endpoint.json", "cluster.sqlite", "daemon.log"):
        assert modes[name] == 0o600, name
    assert endpoint.token in (home / "kubeconfig").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make folders of other users")
@pytest.mark.parametrize("what", ["folder", "link", "link to nothing", "file"])
def test_folder_of_another_user_is_rejected(home: Path, tmp_path: Path, what: str) -> None:
    theirs = tmp_path / "theirs"
    if what == "folder":
        home.mkdir()
        os.chown(home, 65534, 65534)
        lie = {"url": "http://127.0.0.1:1", "token": "t", "pid": os.getpid(), "network": {}}
        (home / "endpoint.json").write_text(json.dumps(lie))
    elif what == "file":
        home.touch()
    else:
        if what == "link":
            theirs.mkdir()  # our folder, but the other user can change the link
        home.symlink_to(theirs)
        os.lchown(home, 65534, 65534)
    assert daemon_status(home) is None
    assert not down(home)
    with pytest.raises(ClusterError, match=r"another user|not a folder") as refused:
        _up(home)
    assert refused.value.hint
    assert sorted(tmp_path.iterdir()) == sorted({home, *([theirs] if what == "link" else [])})


def test_daemon_log_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, ours = tmp_path / "daemon.log", [os.dup(number) for number in (1, 2)]
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    try:
        log_to_file(log, limit=10_000)
        for number in range(2000):
            logging.getLogger("x").warning("line %s", number)
            for descriptor in (1, 2):
                os.write(descriptor, b"past logging %d\n" % descriptor)
    finally:
        for number, descriptor in enumerate(ours, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for handler in logging.getLogger().handlers:
            handler.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["daemon.log", *(f"daemon.log.{number}" for number in range(1, 5))]
    assert sum(file.stat().st_size for file in files) < 5 * 12_000
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    found = re.findall(r"line 1999|past logging \d", log.read_text())
    assert found[-3:] == ["line 1999", "past logging 1", "past logging 2"]


def test_endpoint_file_names_are_stable(tmp_path: Path) -> None:
    endpoint = DaemonEndpoint(url="http://x", token="t", pid=0, network={}, state_dir=tmp_path)
    assert (endpoint.kubeconfig, ENDPOINT_FILE) == (tmp_path / "kubeconfig", "endpoint.json")


_ENDPOINT = {"url": "http://127.0.0.1:4711", "token": "t", "pid": 1, "network": {"mode": "shared", "reason": "r"}}
_ODD = [None, "", 0, -1, 1.5, 2**31, 10**30, True, [], {}, [1], "\n", "http://[", "http://x:99999"]


@pytest.mark.parametrize("field", [*_ENDPOINT, "mode", "reason", "limits", "unknown", "whole"])
def test_damaged_endpoint_counts_as_no_daemon(tmp_path: Path, field: str) -> None:
    """No value of the file raises another error, and no value leads to a signal to several processes."""
    for value in _ODD:
        found = value if field == "whole" else {**_ENDPOINT, field: value}
        if field in ("mode", "reason", "limits"):
            found = {**_ENDPOINT, "network": {"mode": "shared", "reason": "r", field: value}}
        (tmp_path / ENDPOINT_FILE).write_text(json.dumps(found))
        with suppress(ValueError):
            assert read_endpoint(tmp_path).pid == 1
        assert daemon_status(tmp_path) is None
        settings_of({"workdir": "/", "network": "auto", "capacity": {}, "entrypoints": {}}, tmp_path)


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff", b"\0", b'{"pid": ' + b"9" * 5000 + b"}"])
def test_half_written_endpoint_counts_as_no_daemon(tmp_path: Path, text: bytes) -> None:
    (tmp_path / ENDPOINT_FILE).write_bytes(text)
    assert daemon_status(tmp_path) is None
    settings_of({"workdir": "/", "network": "auto", "capacity": {}, "entrypoints": {}}, tmp_path)


def test_damaged_folder_is_reported_without_traceback(home: Path) -> None:
    (home / "kubeconfig").mkdir(parents=True)
    with pytest.raises(Unavailable, match="kubeconfig") as caught:
        _up(home)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "port"), [(json.dumps(_ENDPOINT), 4711), (json.dumps({**_ENDPOINT, "url": "http://x"}), 0), ("[", 0)]
)
def test_daemon_starts_with_settings_on_previous_port(tmp_path: Path, before: str, port: int) -> None:
    (tmp_path / ENDPOINT_FILE).write_text(before)
    given = DaemonSettings(
        state_dir=str(tmp_path), workdir="/w", network="shared", capacity={"cpu": "2"}, entrypoints={"tf": ("sh", "-c")}
    )
    assert settings_of(json.loads(json.dumps(asdict(given))), tmp_path) == EmbeddedSettings(
        state_dir=tmp_path,
        data_dir=tmp_path / "data",
        workdir=Path("/w"),
        network=NetworkMode.SHARED,
        capacity={"cpu": "2"},
        entrypoints={"tf": ("sh", "-c")},
        ephemeral=False,
        durable=True,
        port=port,
    )


_USER = """
import fcntl, os, sys
from tf_dist.local.daemon_control import DaemonSettings, up
file = open(sys.argv[2], "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.environ["TF_DIST_LOCAL_LOCK_FILE"] = sys.argv[2]
print(up(DaemonSettings(state_dir=sys.argv[1], workdir="/")).pid, flush=True)
sys.stdin.read()
"""


def test_daemon_ends_when_its_user_is_killed(home: Path, tmp_path: Path) -> None:
    """The system releases the lock of a killed process, so no daemon outlives a test run."""
    command = [sys.executable, "-c", _USER, str(home), str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        daemon = int(user.stdout.readline())
        assert daemon_status(home) is not None
        user.kill()
    until(lambda: not (home / ENDPOINT_FILE).exists() and not _runs(daemon), 60)
    assert "its user has ended" in (home / "daemon.log").read_text()


def _runs(pid: int) -> bool:
    """Whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""The local daemon as processes: started by several at once, killed, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.harness import container, tfjob
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS, Object
from tf_dist.driver.local import LocalEndpoint, LocalSettings, client, down, status, up

_UP = """
import sys
from tf_dist.driver.local import LocalSettings, up
print(up(LocalSettings(state_dir=sys.argv[1], workdir="/")).pid)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A state folder whose daemon ends with the test."""
    folder = tmp_path / "local"
    yield folder
    down(folder)


def _up(home: Path) -> LocalEndpoint:
    return up(LocalSettings(state_dir=str(home), workdir="/"))


def _job(command: str) -> Object:
    job = tfjob()
    for spec in job["spec"]["tfReplicaSpecs"].values():
        spec["template"]["spec"]["containers"] = [container("sh", "-c", command, cpu="10m")]
    return job


def _phase(endpoint: LocalEndpoint) -> str:
    return str(client(endpoint).get(TFJOBS, "default", "mnist").get("status", {}).get("tfDist", {}).get("phase"))


def test_several_who_start_it_at_once_get_the_same_daemon(home: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", _UP, str(home)], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    pids = {process.communicate()[0].strip() for process in processes}
    endpoint = status(home)
    assert endpoint is not None
    assert pids == {str(endpoint.pid)}


def test_a_killed_daemon_finds_its_jobs_and_running_pods_again(home: Path, tmp_path: Path) -> None:
    first = _up(home)
    go_on = tmp_path / "go-on"
    client(first).create(TFJOBS, "default", _job(f"until [ -e {go_on} ]; do sleep 0.05; done"))
    until(lambda: _phase(first) == "Running", 90)
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in client(first).list(PODS, "default").items}
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    assert status(home) is None
    second = _up(home)
    go_on.touch()
    until(lambda: _phase(second) == "Completed", 90)
    pods = client(second).list(PODS, "default").items
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}.items() <= before.items()
    assert all(c["restartCount"] == 0 for pod in pods for c in pod["status"]["containerStatuses"])


def test_stopping_it_ends_every_pod_and_keeps_the_jobs(home: Path) -> None:
    first = _up(home)
    client(first).create(TFJOBS, "default", _job("exec sleep 600"))
    until(lambda: _phase(first) == "Running", 90)
    assert down(home)
    assert status(home) is None
    second = _up(home)
    assert [job["metadata"]["name"] for job in client(second).list(TFJOBS, "default").items] == ["mnist"]

"""The embedded cluster ends everything that it starts, and notices steps of the clock."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.waiting import until
from tf_dist.cluster.api import PODS
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.controller.controller import ClockStepDetector
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings

PATIENCE = 60.0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_stopped_cluster_ends_pods_and_rejects_connections(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    with tempfile.TemporaryDirectory() as scratch:  # paths of sockets must be short
        embedded = EmbeddedCluster(EmbeddedSettings(state_dir=Path(scratch), network=NetworkMode.SHARED)).start()
        try:
            command = [
                "sh",
                "-c",
                f"echo $$$$ > {told}.new && mv {told}.new {told} && exec sleep 3600",
            ]  # Kubernetes replaces $$$$ by $$
            container = {"name": "main", "image": "any", "command": command}
            body = {"metadata": {"name": "sleeper"}, "spec": {"containers": [container]}}
            embedded.cluster.create(PODS, "default", body)
            until(told.exists, PATIENCE)
            pid = int(told.read_text())
            assert alive(pid)
            where = urlsplit(embedded.url)
            assert where.hostname is not None
            socket.create_connection((where.hostname, where.port or 0), PATIENCE).close()
        finally:
            embedded.stop()
        assert not alive(pid)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((where.hostname, where.port or 0), PATIENCE)


@pytest.mark.parametrize(("step", "noticed"), [(0.0, False), (0.5, False), (1.0, True), (-1.0, True), (3600.0, True)])
def test_clock_step_of_one_second_is_noticed_once(step: float, noticed: bool) -> None:
    now = {"wall": 1000.0, "monotonic": 5.0}
    steps = ClockStepDetector(lambda: now["wall"], lambda: now["monotonic"])
    now = {"wall": 1010.0 + step, "monotonic": 15.0}
    assert [steps.noticed(), steps.noticed()] == [noticed, False]


def test_small_clock_corrections_add_up() -> None:
    now = 0.0
    steps = ClockStepDetector(lambda: 1000.0 + now, lambda: 0.0)
    found = []
    for _ in range(4):
        now += 0.5
        found.append(steps.noticed())
    assert found == [False, True, False, True]

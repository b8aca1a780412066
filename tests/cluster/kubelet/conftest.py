"""Fixtures: real nodes on an embedded cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubelet.bench import Bench, MakeBench, settings, why_not_isolated
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[MakeBench]:
    """Makes benches that end with the test, and looks that nothing of them is left."""
    with ExitStack() as stack:

        def make(**changes: Any) -> Bench:
            if changes.get("network") == NetworkMode.ISOLATED and why_not_isolated():
                pytest.skip(why_not_isolated())
            cluster = stack.enter_context(MemoryCluster())
            kubelet = Kubelet(cluster, settings=settings(tmp_path, **changes))
            stack.callback(kubelet.stop)
            kubelet.start()
            return Bench(cluster, kubelet)

        yield make


@pytest.fixture(params=list(NetworkMode)[1:], ids=str)
def bench(request: pytest.FixtureRequest, benches: MakeBench) -> Bench:
    return benches(network=request.param)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may use (pytest's own are private)."""
    with tempfile.TemporaryDirectory(prefix="tf-dist-test-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def isolated(benches: MakeBench) -> Bench:
    return benches(network=NetworkMode.ISOLATED)


@pytest.fixture
def shared(benches: MakeBench) -> Bench:
    return benches(network=NetworkMode.SHARED)

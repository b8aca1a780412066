"""Fixtures: real nodes on an embedded cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubelet.bench import Bench, MakeBench, settings, why_not_isolated
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode


def _make(stack: ExitStack, folder: Path, **changes: Any) -> Bench:
    if changes.get("network") == NetworkMode.ISOLATED and why_not_isolated():
        pytest.skip(why_not_isolated())
    cluster = stack.enter_context(MemoryCluster())
    kubelet = Kubelet(cluster, settings=settings(folder, **changes))
    stack.callback(kubelet.stop)
    kubelet.start()
    return Bench(cluster, kubelet)


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[MakeBench]:
    """Makes benches that end with the test, for tests that change a node or need their own."""
    with ExitStack() as stack:
        yield lambda **changes: _make(stack, tmp_path, **changes)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[NetworkMode], Bench]]:
    """A node in each network mode, for the tests of a module."""
    made: dict[NetworkMode, Bench] = {}
    with ExitStack() as stack:

        def node(mode: NetworkMode) -> Bench:
            if mode not in made:
                made[mode] = _make(stack, tmp_path_factory.mktemp("node"), network=mode)
            return made[mode]

        yield node


def _emptied(bench: Bench) -> Iterator[Bench]:
    yield bench
    bench.clear()


@pytest.fixture(params=list(NetworkMode)[1:], ids=str)
def bench(request: pytest.FixtureRequest, nodes: Callable[[NetworkMode], Bench]) -> Iterator[Bench]:
    yield from _emptied(nodes(request.param))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may use. The folders of pytest are private."""
    with tempfile.TemporaryDirectory(prefix="tf-dist-test-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def isolated(nodes: Callable[[NetworkMode], Bench]) -> Iterator[Bench]:
    yield from _emptied(nodes(NetworkMode.ISOLATED))


@pytest.fixture
def shared(nodes: Callable[[NetworkMode], Bench]) -> Iterator[Bench]:
    yield from _emptied(nodes(NetworkMode.SHARED))

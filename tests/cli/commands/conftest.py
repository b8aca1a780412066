"""An API server over HTTP for commands that read a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster


@pytest.fixture
def memory() -> Iterator[MemoryCluster]:
    with MemoryCluster() as cluster:
        yield cluster


@pytest.fixture
def config(memory: MemoryCluster, tmp_path: Path) -> Iterator[str]:
    """The kubeconfig of an API server that serves ``memory``."""
    with ApiServer(memory) as server:
        file = tmp_path / "kubeconfig"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(make_kubeconfig(server.app.url, server.token)))
        yield str(file)

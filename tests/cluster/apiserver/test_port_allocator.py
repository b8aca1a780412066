"""The port allocator: each endpoint has a port, which stays the same until the job is deleted."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.support import job
from tf_dist.cluster.api import CONFIG_MAPS, TFJOBS
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.cluster.apiserver.handlers import ADDRESSES_PATH
from tf_dist.cluster.apiserver.port_allocator import PortAllocator, is_port_free
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.client_config import load_config
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import ClusterError, NotFound

ENDPOINTS = ["a-ps-0.default.svc:2222", "a-worker-0.default.svc:2222"]


def test_each_endpoint_keeps_its_own_port(memory: MemoryCluster) -> None:
    owner = memory.create(TFJOBS, "default", job("a"))
    first = PortAllocator(memory).addresses(owner, ENDPOINTS)
    assert set(first) == set(ENDPOINTS)
    assert len(set(first.values())) == 2
    assert all(address.startswith("127.0.0.1:") for address in first.values())
    # Another allocator for the same cluster, as after a restart.
    assert PortAllocator(memory).addresses(owner, ENDPOINTS) == first


def test_new_endpoint_gets_another_port(memory: MemoryCluster) -> None:
    owner = memory.create(TFJOBS, "default", job("a"))
    book = PortAllocator(memory)
    first = book.addresses(owner, ENDPOINTS[:1])
    both = book.addresses(owner, ENDPOINTS)
    assert both[ENDPOINTS[0]] == first[ENDPOINTS[0]]
    assert len(set(both.values())) == 2


def test_ports_are_released_when_job_is_deleted(memory: MemoryCluster) -> None:
    owner = memory.create(TFJOBS, "default", job("a"))
    book = PortAllocator(memory, ports=range(20_000, 20_002), free=lambda port: True)
    book.addresses(owner, ENDPOINTS)
    other = memory.create(TFJOBS, "default", job("b"))
    with pytest.raises(ClusterError, match="no free port"):
        book.addresses(other, ENDPOINTS)
    memory.delete(TFJOBS, "default", "a")
    assert memory.list(CONFIG_MAPS).items == []
    assert len(book.addresses(other, ENDPOINTS)) == 2


def test_concurrent_allocators_never_assign_a_port_twice(memory: MemoryCluster) -> None:
    owner = memory.create(TFJOBS, "default", job("a"))

    def ask(number: int) -> dict[str, str]:
        return dict(PortAllocator(memory, free=lambda port: True).addresses(owner, [f"w-{number % 8}:2222"]))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(64)))
    merged: dict[str, str] = {}
    for given in found:
        for endpoint, address in given.items():
            assert merged.setdefault(endpoint, address) == address
    assert len(set(merged.values())) == 8


def test_port_in_use_is_not_assigned(memory: MemoryCluster) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        assert not is_port_free(port)
        owner = memory.create(TFJOBS, "default", job("a"))
        with pytest.raises(ClusterError):
            PortAllocator(memory, ports=range(port, port + 1)).addresses(owner, ENDPOINTS[:1])


def test_cluster_uses_endpoint_resolver(memory: MemoryCluster) -> None:
    owner = memory.create(TFJOBS, "default", job("a"))
    assert memory.addresses(owner, ENDPOINTS) == {}
    memory.endpoint_resolver = PortAllocator(memory).addresses
    assert set(memory.addresses(owner, ENDPOINTS)) == set(ENDPOINTS)


def test_job_in_deleted_namespace_is_not_found(memory: MemoryCluster) -> None:
    owner = memory.create(TFJOBS, "default", job("a"))
    owner = {**owner, "metadata": {**owner["metadata"], "namespace": "gone"}}
    with pytest.raises(NotFound, match="gone"):
        PortAllocator(memory).addresses(owner, ENDPOINTS)


@pytest.mark.parametrize("text", ["", "{", "5", "[5]", '{"a": "b"}', '{"a": [1]}'])
def test_malformed_config_map_with_its_label_is_ignored(memory: MemoryCluster, text: str) -> None:
    labels = {"tf-dist.dev/addresses": "true"}
    foreign = {"metadata": {"name": "foreign", "labels": labels}, "data": {"addresses.json": text}}
    memory.create(CONFIG_MAPS, "default", foreign)
    owner = memory.create(TFJOBS, "default", job("a"))
    assert set(PortAllocator(memory).addresses(owner, ENDPOINTS)) == set(ENDPOINTS)


@contextmanager
def client(server: ApiServer, folder: Path, path: str = ADDRESSES_PATH) -> Iterator[RestCluster]:
    """A client with the kubeconfig of an embedded cluster."""
    file = folder / "kubeconfig"
    file.write_text(json.dumps(make_kubeconfig(server.app.url, server.token, addresses_path=path)))
    with load_config(str(file)).cluster(retries=0) as cluster:
        yield cluster


def test_client_gets_same_addresses_if_kubeconfig_has_path(memory: MemoryCluster, tmp_path: Path) -> None:
    owner = memory.create(TFJOBS, "default", job("a"))
    memory.endpoint_resolver = PortAllocator(memory).addresses
    with ApiServer(memory) as server:
        with client(server, tmp_path) as cluster:
            assert cluster.addresses(owner, ENDPOINTS) == memory.addresses(owner, ENDPOINTS)
        with client(server, tmp_path, path="") as cluster:
            assert cluster.addresses(owner, ENDPOINTS) == {}


def test_reports_errors_of_the_port_allocator_over_http(memory: MemoryCluster, tmp_path: Path) -> None:
    owner = memory.create(TFJOBS, "default", job("a"))
    memory.endpoint_resolver = PortAllocator(memory, ports=range(20_000, 20_001), free=lambda port: True).addresses
    with ApiServer(memory) as server, client(server, tmp_path) as cluster:
        with pytest.raises(ClusterError, match="no free port left"):
            cluster.addresses(owner, ENDPOINTS)
        with pytest.raises(BadRequest, match="metadata"):
            cluster.addresses({"kind": "TFJob"}, ENDPOINTS)

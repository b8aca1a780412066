"""Clusters to test: in memory, durable, over HTTP, and a real API server."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cluster.support import cluster_of_kubeconfig, real_kubeconfig, tf_job_definition, wait_for
from tf_dist.cluster.api import NAMESPACES, TFJOBS, Cluster, Resource
from tf_dist.cluster.apiserver.server import ApiServer
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.sqlite import SqliteJournal
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import AlreadyExists, NotFound

SERVICE_ACCOUNTS = Resource("", "v1", "ServiceAccount", "serviceaccounts")


@pytest.fixture
def memory() -> Iterator[MemoryCluster]:
    with MemoryCluster() as cluster:
        yield cluster


@pytest.fixture
def server(memory: MemoryCluster) -> Iterator[ApiServer]:
    with ApiServer(memory) as server:
        yield server


@pytest.fixture
def rest(server: ApiServer) -> Iterator[RestCluster]:
    with RestCluster(server.app.url, token=server.token) as cluster:
        yield cluster


DURABLE = pytest.param("durable", marks=pytest.mark.slow)  # test_sqlite covers the differences
EMBEDDED = ("memory", DURABLE, "http")
REAL = pytest.param("real", marks=pytest.mark.cluster)


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The kubeconfig in TF_DIST_TEST_KUBECONFIG, or of K3s in Docker. Without either, the test is skipped."""
    named = real_kubeconfig()
    if named:
        yield named
        return
    how = "set TF_DIST_TEST_KUBECONFIG, or start a Docker engine that can pull K3s"
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip(f"no API server and no Docker engine: {how}")
    from testcontainers.community.k3s import K3SContainer

    with ExitStack() as stack:
        try:
            container = stack.enter_context(K3SContainer(enable_cgroup_mount=False))
        except Exception as error:
            pytest.skip(f"K3s does not start ({error}): {how}")
        file = tmp_path_factory.mktemp("k3s") / "kubeconfig"
        file.touch(mode=0o600)
        file.write_text(container.config_yaml())
        yield str(file)


@pytest.fixture(params=[*EMBEDDED, REAL])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Each implementation of the protocol."""
    with ExitStack() as stack:
        if request.param == "real":
            yield stack.enter_context(_real(request.getfixturevalue("kubeconfig")))
            return
        journal = SqliteJournal(tmp_path / "cluster.db") if request.param == "durable" else None
        embedded = stack.enter_context(MemoryCluster(journal=journal))
        if request.param != "http":
            yield embedded
            return
        server = stack.enter_context(ApiServer(embedded))
        yield stack.enter_context(RestCluster(server.app.url, token=server.token))


def _real(kubeconfig: str) -> RestCluster:
    real = cluster_of_kubeconfig(kubeconfig)
    with suppress(AlreadyExists):
        real.create(CRDS, None, tf_job_definition())
    wait_for(real, CRDS, None, "tfjobs.kubeflow.org", lambda crd: crd is not None and _is_established(crd))
    return real


def _is_established(crd: dict) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.create(NAMESPACES, None, {"metadata": {"name": name}})
    if "real" in request.node.callspec.params.get("cluster", ""):
        # The server refuses pods until the namespace has its service account, and TFJobs until it serves their kind.
        wait_for(cluster, SERVICE_ACCOUNTS, name, "default", lambda account: account is not None)
        cluster.list(TFJOBS, name)
    yield name
    with suppress(NotFound):
        cluster.delete(NAMESPACES, None, name)

"""A real API server, and this machine as its node."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster import conftest
from tests.cluster.kubelet.bench import why_not_isolated
from tests.cluster.support import cluster_of_kubeconfig, tf_job_definition, wait_for
from tests.integration.node import NodeProcess
from tests.waiting import until
from tf_dist.cluster.api import NAMESPACES, NODES, TFJOBS, Cluster
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import AlreadyExists, NotFound

kubeconfig = conftest.kubeconfig  # the API server of the other tests


@pytest.fixture
def real(kubeconfig: str) -> Iterator[RestCluster]:
    """A real API server that serves TFJobs."""
    with cluster_of_kubeconfig(kubeconfig) as cluster:
        with suppress(AlreadyExists):
            cluster.create(CRDS, None, tf_job_definition())
        until(lambda: _serves_jobs(cluster), 60)
        yield cluster


def _serves_jobs(cluster: Cluster) -> bool:
    try:
        cluster.list(TFJOBS)
    except NotFound:
        return False
    return True


@pytest.fixture
def namespace(real: RestCluster) -> Iterator[str]:
    """A namespace for one test."""
    name = f"test-{secrets.token_hex(4)}"
    real.create(NAMESPACES, None, {"metadata": {"name": name}})
    wait_for(real, conftest.SERVICE_ACCOUNTS, name, "default", lambda account: account is not None)
    yield name
    with suppress(NotFound):
        real.delete(NAMESPACES, None, name)


@pytest.fixture
def node(real: RestCluster, kubeconfig: str, tmp_path: Path) -> Iterator[NodeProcess]:
    """This machine as a node, which the test starts. It is removed after the test."""
    if why_not_isolated():
        pytest.skip(why_not_isolated())
    node = NodeProcess(kubeconfig, tmp_path, f"node-{secrets.token_hex(4)}")
    yield node
    node.clean()
    with suppress(NotFound):
        real.delete(NODES, None, node.name)

"""A real API server, and this machine as a node of it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster import conftest
from tests.cluster.kubelet.bench import why_not_isolated
from tests.cluster.support import cluster_of_kubeconfig, tf_job_definition, wait_for
from tests.waiting import until
from tf_dist.cluster.api import NAMESPACES, NODES, TFJOBS, Cluster, Object
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import AlreadyExists, NotFound

kubeconfig = conftest.kubeconfig  # the same API server as for the other tests
ROOT = Path(__file__).parents[2]


class NodeProcess:
    """``tf-dist node`` as a process, whose output goes to a file."""

    def __init__(self, cluster: Cluster, kubeconfig: str, folder: Path, name: str, *options: str) -> None:
        self.name = name
        folder = Path(tempfile.mkdtemp(dir=folder))
        self.state = folder / "state"
        self.output = folder / "output"
        self._cluster = cluster
        self._command = [sys.executable, "-m", "tf_dist", "node", name, "--kubeconfig", kubeconfig]
        self._command += ["--state-dir", str(self.state), *options]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it says that it is ready."""
        self.spawn()
        until(self._said_ready, 60)

    def spawn(self) -> None:
        self.output.unlink(missing_ok=True)
        with self.output.open("wb") as file:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(
                self._command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=self.output.parent
            )

    def _said_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()
        return "is ready" in self.output.read_text()

    def object(self) -> Object:
        return self._cluster.get(NODES, None, self.name)

    def end(self, *, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end; the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def clean(self) -> None:
        """Nothing of it may outlive the test."""
        if not self.state.exists():
            return
        if self.process is not None and self.process.poll() is not None:
            with suppress(AssertionError):  # killed: its successor ends what it left
                self.start()
        self.end()


@pytest.fixture
def real(kubeconfig: str) -> Iterator[RestCluster]:
    """A real API server that knows TFJobs."""
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
    """A namespace of the test's own."""
    name = f"test-{secrets.token_hex(4)}"
    real.create(NAMESPACES, None, {"metadata": {"name": name}})
    wait_for(real, conftest.SERVICE_ACCOUNTS, name, "default", lambda account: account is not None)
    yield name
    with suppress(NotFound):
        real.delete(NAMESPACES, None, name)


MakeNode = Callable[..., NodeProcess]


@pytest.fixture
def nodes(real: RestCluster, kubeconfig: str, tmp_path: Path) -> Iterator[MakeNode]:
    """Makes this machine a node, not started yet, with the given options; in the end nothing of it is left."""
    if why_not_isolated():
        pytest.skip(why_not_isolated())
    made: list[NodeProcess] = []
    administrator = kubeconfig

    def make(*options: str, name: str = "", kubeconfig: str = "") -> NodeProcess:
        name = name or f"node-{secrets.token_hex(4)}"
        who = kubeconfig or administrator
        made.append(NodeProcess(real, who, tmp_path, name, "--workdir", str(tmp_path), *options))
        return made[-1]

    yield make
    for node in made:
        node.clean()
        with suppress(NotFound):
            real.delete(NODES, None, node.name)


@pytest.fixture
def node(nodes: MakeNode) -> NodeProcess:
    """A node whose logs anybody may read: not every API server says who it is."""
    return nodes("--insecure-logs")

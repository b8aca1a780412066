"""Failover of controller processes on a real API server: one is killed or frozen, another takes over."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cluster.conftest import SERVICE_ACCOUNTS, kubeconfig
from tests.cluster.support import cluster_of_kubeconfig, tf_job_definition, wait_for
from tests.controller.controller_processes import Process
from tests.controller.harness import tfjob
from tests.waiting import until
from tf_dist.cluster.api import LEASES, NAMESPACES, NODES, PODS, TFJOBS
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.lease import leader_lease
from tf_dist.core.model import names
from tf_dist.errors import AlreadyExists, NotFound

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
__all__ = ["kubeconfig"]


@pytest.fixture
def real(kubeconfig: str) -> Iterator[RestCluster]:
    with cluster_of_kubeconfig(kubeconfig) as real:
        with suppress(AlreadyExists):
            real.create(CRDS, None, tf_job_definition())
        until(lambda: _served(real), 60)
        yield real


def _served(real: RestCluster) -> bool:
    try:
        real.list(TFJOBS, "default")
    except NotFound:
        return False
    return True


class Scene:
    """A namespace with capacity for its jobs, a Lease, and controllers of only this namespace."""

    def __init__(self, real: RestCluster, kubeconfig: Path, folder: Path, stack: ExitStack) -> None:
        self.real = real
        self.namespace = f"test-{secrets.token_hex(4)}"
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._stack = stack
        real.create(NAMESPACES, None, {"metadata": {"name": self.namespace}})
        stack.callback(real.delete, NAMESPACES, None, self.namespace)
        wait_for(real, SERVICE_ACCOUNTS, self.namespace, "default", lambda account: account is not None)
        self._make_room()

    def _make_room(self) -> None:
        """Create a node without a kubelet. Admission counts its capacity, although no pods run there."""
        real, name = self.real, f"{self.namespace}-node"
        real.create(NODES, None, {"metadata": {"name": name}})
        self._stack.callback(real.delete, NODES, None, name)
        room = {"cpu": "64", "memory": "256Gi", "pods": "500"}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"allocatable": room, "capacity": room, "conditions": ready}
        real.patch(NODES, None, name, {"status": status}, subresource="status")

    def controller(self) -> Process:
        number = len(list(self._folder.glob("log-*")))
        log = self._folder / f"log-{number}"
        return self._stack.enter_context(Process(self._kubeconfig, log, "--namespace", self.namespace))

    def submit(self, name: str) -> None:
        job = tfjob(name)
        job["metadata"]["namespace"] = self.namespace
        self.real.create(TFJOBS, self.namespace, job)

    def pods(self, name: str) -> int:
        return len(self.real.list(PODS, self.namespace, labels=f"{names.JOB_NAME}={name}").items)

    def holder(self) -> str:
        """The holder of the Lease, or "" if the Lease does not exist or has no holder."""
        with suppress(NotFound):
            spec = self.real.get(LEASES, *leader_lease(TFJOBS, self.namespace)).get("spec") or {}
            return str(spec.get("holderIdentity") or "")
        return ""


@pytest.fixture
def scene(real: RestCluster, kubeconfig: str, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(real, Path(kubeconfig), tmp_path, stack)


def test_standby_takes_over_jobs_of_killed_controller(scene: Scene) -> None:
    one = scene.controller()
    until(one.leads, 60)
    two = scene.controller()
    scene.submit("first")
    until(lambda: scene.pods("first") == 3, 60)
    until(two.ready, 60)
    one.child.kill()
    scene.submit("second")
    until(lambda: scene.pods("second") == 3, 120)
    until(two.leads, 60)
    assert scene.pods("first") == 3


def test_thawed_controller_creates_no_pods(scene: Scene) -> None:
    one = scene.controller()
    until(one.leads, 60)
    before = scene.holder()
    two = scene.controller()
    until(two.ready, 60)
    one.child.send_signal(signal.SIGSTOP)
    until(lambda: scene.holder() not in ("", before), 120)
    scene.submit("meanwhile")
    until(lambda: scene.pods("meanwhile") == 3, 60)
    one.child.send_signal(signal.SIGCONT)
    until(lambda: one.ready() and not one.leads(), 60)
    scene.submit("after")
    until(lambda: scene.pods("after") == 3, 60)
    assert one.created() == 0, "the one that was frozen has made no pod"
    assert one.end() == 0
    assert two.end() == 0
    assert scene.holder() == ""

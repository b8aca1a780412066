"""Pods that a real kube-scheduler separates, or refuses to bind to their assigned nodes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.controller.harness import container, replica, tfjob
from tests.waiting import until
from tf_dist.cluster.api import NODES, PODS, TFJOBS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings

pytestmark = pytest.mark.cluster

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture
def nodes(admin: RestCluster, namespace: str) -> Iterator[list[str]]:
    """The sorted names of three nodes for this namespace."""
    names = [f"node-{namespace}-{number}" for number in range(3)]
    for name in names:
        admin.create(NODES, None, {"metadata": {"name": name, "labels": {HOSTNAME: name, "for": namespace}}})
        room = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        admin.patch(NODES, None, name, {"status": status}, subresource="status")
    yield names
    for pod in admin.list(PODS, namespace).items:
        admin.delete(PODS, namespace, pod["metadata"]["name"], grace_period=0)
    for name in names:
        admin.delete(NODES, None, name)


def apart(**labels: str) -> Object:
    return {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": labels}}]}}


def submit(admin: RestCluster, namespace: str, count: int, **spec: Any) -> None:
    """A job of workers with the label ``app: mnist``."""
    body = {"containers": [container()], "nodeSelector": {"for": namespace}, **spec}
    template = {"metadata": {"labels": {"app": "mnist"}}, "spec": body}
    job = tfjob()
    job["metadata"]["namespace"] = namespace
    job["spec"]["tfReplicaSpecs"] = {"Worker": {**replica(count), "template": template}}
    admin.create(TFJOBS, namespace, job)


class Driving:
    """A controller of a namespace that sees all nodes. Its clock can be advanced."""

    def __init__(self, admin: RestCluster, namespace: str) -> None:
        self._admin, self._namespace = admin, namespace
        self._ahead = 0.0
        settings = ControllerSettings(namespace=namespace, volcano_jobs=False)
        self._driver = Controller(admin, settings=settings, clock=lambda: time.time() + self._ahead)

    def until(self, condition: Callable[[], bool]) -> None:
        def passed() -> bool:
            self._driver.step()
            return condition()

        until(passed, 60)

    def later(self, seconds: float) -> None:
        self._ahead += seconds

    def pods(self) -> list[Object]:
        return [pod for pod in self._admin.list(PODS, self._namespace).items if "mnist" in pod["metadata"]["name"]]

    def nodes(self) -> list[str]:
        return sorted(pod["spec"].get("nodeName", "") for pod in self.pods())


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": apart(app="mnist")},
        {"containers": [container() | {"ports": [{"containerPort": 80, "hostPort": 8080}]}]},
        {"hostNetwork": True},
    ],
)
def test_each_replica_gets_its_own_node(
    admin: RestCluster, namespace: str, nodes: list[str], spec: dict[str, Any]
) -> None:
    submit(admin, namespace, 3, **spec)
    driving = Driving(admin, namespace)
    driving.until(lambda: driving.nodes() == nodes)


def test_gang_avoids_node_that_kube_scheduler_refused(admin: RestCluster, namespace: str, nodes: list[str]) -> None:
    hermit = {
        "metadata": {"name": f"hermit-{secrets.token_hex(3)}"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": nodes[0], "affinity": apart(app="mnist")},
    }
    admin.create(PODS, namespace, hermit)
    submit(admin, namespace, 2)
    driving = Driving(admin, namespace)

    def refused() -> bool:
        said = [one for pod in driving.pods() for one in pod.get("status", {}).get("conditions", ())]
        return [one["reason"] for one in said] == ["Unschedulable", "Unschedulable"]

    driving.until(refused)
    assert driving.nodes() == ["", ""]
    driving.later(31)
    driving.until(lambda: len(driving.nodes()) == 2 and set(driving.nodes()) <= set(nodes[1:]))
    status = admin.get(TFJOBS, namespace, "mnist")["status"]
    assert list(status["tfDist"]["refusedNodes"]) == [nodes[0]]

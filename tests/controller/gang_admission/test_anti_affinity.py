"""Jobs with host ports, anti-affinity, or constraints that only the scheduler can evaluate."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.support import node
from tests.controller.harness import World, container, replica, running, tfjob
from tf_dist.cluster.api import NODES, PODS, TFJOBS, Object
from tf_dist.cluster.apiserver.scheduler import Scheduler

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def apart(topology: str = HOSTNAME, **labels: str) -> dict[str, Any]:
    """An affinity that keeps pods away from pods with these labels."""
    return {"podAntiAffinity": {REQUIRED: [{"topologyKey": topology, "labelSelector": {"matchLabels": labels}}]}}


def workers(name: str, count: int, *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A job of equal workers."""
    template = {"metadata": {"labels": labels or {}}, "spec": {"containers": [container()], **spec}}
    job = tfjob(name)
    job["spec"]["tfReplicaSpecs"] = {"Worker": {**replica(count), "template": template}}
    return job


def with_port(name: str, count: int, port: int = 8080) -> Object:
    one = container() | {"ports": [{"containerPort": 80, "hostPort": port}]}
    return workers(name, count, containers=[one])


class Cluster(World):
    """A world of several nodes with the embedded cluster's scheduler. Decisions take no time."""

    def __init__(self, nodes: int = 3, **labels: str) -> None:
        super().__init__()
        self.memory.delete(NODES, None, "n1")
        for number in range(1, nodes + 1):
            one = node(f"n{number}", cpu="8", labels={HOSTNAME: f"n{number}", **labels})
            self.memory.create(NODES, None, one)
        self.scheduler = Scheduler(self.memory)

    def settle(self, most: int = 50) -> int:
        for _ in range(most):
            steps = super().settle(most)
            self.bury()
            bound = self.scheduler.step()
            for name, pod in self.pods().items():
                if pod["spec"].get("nodeName") and pod["status"].get("phase", "Pending") == "Pending":
                    self.set_status(name, running())
            if not steps and not bound:
                return steps
        raise AssertionError(self.describe())

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.settle()

    def nodes(self, prefix: str = "") -> list[str]:
        """The nodes of the pods. A pod without a node has the node ""."""
        pods = self.pods().items()
        return sorted(pod["spec"].get("nodeName", "") for name, pod in pods if name.startswith(prefix))

    def occupy(self, name: str, on: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """A pod of another owner."""
        body = {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": on, **spec},
        }
        self.memory.create(PODS, "default", body)


def test_workers_with_anti_affinity_get_separate_nodes() -> None:
    world = Cluster()
    world.submit(workers("mnist", 3, labels={"app": "mnist"}, affinity=apart(app="mnist")))
    world.settle()
    assert world.nodes() == ["n1", "n2", "n3"]
    assert world.status()["phase"] == "Running"


def test_second_gang_with_anti_affinity_waits_and_reports_reason() -> None:
    world = Cluster(2)
    world.submit(workers("first", 1, labels={"app": "tf"}, affinity=apart(app="tf")))
    world.submit(workers("second", 2, labels={"app": "tf"}, affinity=apart(app="tf")))
    world.settle()
    assert world.nodes("first") == ["n1"]
    assert world.nodes("second") == []
    message = world.status("second")["message"]
    assert "1 of them with its pod anti-affinity to app=tf free" in message
    world.memory.patch(TFJOBS, "default", "first", {"spec": {"runPolicy": {"suspend": True}}})
    world.settle()
    assert world.nodes("second") == ["n1", "n2"]


def test_more_anti_affinity_workers_than_nodes_never_fit() -> None:
    world = Cluster(2)
    world.submit(workers("mnist", 3, labels={"app": "mnist"}, affinity=apart(app="mnist")))
    world.settle()
    assert (world.nodes(), world.status()["reason"]) == ([], "NeverFits")
    assert "2 of them with its pod anti-affinity to app=mnist free" in world.status()["message"]


def test_host_port_is_used_once_per_node() -> None:
    world = Cluster(3)
    world.occupy(
        "web", "n2", containers=[{"name": "c", "image": "i", "ports": [{"hostPort": 8080, "containerPort": 1}]}]
    )
    world.submit(with_port("first", 2))
    world.submit(with_port("second", 1))
    world.submit(with_port("other", 3, port=9090))
    world.settle()
    assert world.nodes("first") == ["n1", "n3"]
    assert world.nodes("other") == ["n1", "n2", "n3"]
    assert world.nodes("second") == []
    assert "0 of them with its host port 8080 free" in world.status("second")["message"]


def test_host_network_reserves_container_ports_on_node() -> None:
    world = Cluster(2)
    world.submit(workers("first", 2, hostNetwork=True))
    world.submit(workers("second", 1, hostNetwork=True))
    world.settle()
    assert (world.nodes("first"), world.nodes("second")) == (["n1", "n2"], [])
    assert "host port 2222" in world.status("second")["message"]


def test_anti_affinity_to_pods_of_other_owners_is_respected() -> None:
    world = Cluster()
    world.occupy("noisy", "n1", labels={"app": "noisy"})
    world.submit(workers("mnist", 2, affinity=apart(app="noisy")))
    world.settle()
    assert (world.nodes("mnist"), world.status()["phase"]) == (["n2", "n2"], "Running")


def test_node_refused_by_scheduler_is_not_chosen_again() -> None:
    """Only the scheduler evaluates the anti-affinity of the pod on that node."""
    world = Cluster(2)
    world.occupy("hermit", "n1", affinity=apart(app="mnist"))
    world.submit(workers("mnist", 2, labels={"app": "mnist"}))
    world.settle()
    assert world.nodes("mnist") == ["", ""]
    world.wait(30)
    assert (world.nodes("mnist"), world.status()["phase"]) == (["n2", "n2"], "Running")
    assert list(world.status()["refusedNodes"]) == ["n1"]
    assert any(reason == "Unpinned" and "anti-affinity" in message for reason, message in world.events())


def test_gang_refused_by_all_nodes_reports_scheduler_message_and_starts_later() -> None:
    world = Cluster(2)
    for number in (1, 2):
        world.occupy(f"hermit-{number}", f"n{number}", affinity=apart(app="mnist"))
    world.submit(workers("mnist", 1, labels={"app": "mnist"}))
    world.settle()
    world.wait(30)
    world.wait(300)
    status = world.status()
    assert (status["reason"], world.nodes("mnist")) == ("ScheduleTimeout", [])
    assert "anti-affinity" in status["failure"]["message"]
    world.memory.delete(PODS, "default", "hermit-2", grace_period=0)
    world.wait(60)
    assert (world.nodes("mnist"), list(world.status()["refusedNodes"])) == (["n2"], ["n1"])


def test_refused_nodes_are_tried_again_later() -> None:
    world = Cluster(1)
    world.occupy("hermit", "n1", affinity=apart(app="mnist"))
    world.submit(workers("mnist", 1, labels={"app": "mnist"}))
    world.settle()
    world.wait(30)
    world.wait(300)
    world.wait(60)
    assert world.status()["reason"] == "NodesRefused"
    assert "left out for now, refused by the cluster's scheduler: n1" in world.status()["message"]
    world.memory.delete(PODS, "default", "hermit", grace_period=0)
    world.wait(600)
    assert (world.nodes("mnist"), world.status()["phase"]) == (["n1"], "Running")
    assert "refusedNodes" not in world.status()


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": apart("zone", app="mnist")},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule"}]},
        {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]},
    ],
)
def test_pods_are_not_pinned_when_only_scheduler_can_choose_node(spec: dict[str, Any]) -> None:
    world = Cluster(2, zone="a")
    world.submit(workers("mnist", 1, labels={"app": "mnist"}, **spec))
    world.settle()
    [pod] = world.pods().values()
    assert "nodeAffinity" not in pod["spec"].get("affinity", {})
    assert world.status()["phase"] == "Running"


def test_emulated_node_ignores_anti_affinity_and_host_ports() -> None:
    """A job written for a cluster also runs on a laptop."""
    world = Cluster(1, **{"tf-dist.dev/emulated": "true"})
    world.submit(workers("mnist", 2, labels={"app": "mnist"}, affinity=apart(app="mnist"), hostNetwork=True))
    world.settle()
    assert (world.nodes(), world.status()["phase"]) == (["n1", "n1"], "Running")

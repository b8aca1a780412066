"""Jobs whose pods the scheduler keeps apart or away: by host ports, anti-affinity, or what cannot be foreseen."""

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
    """The affinity of pods that will be near none of these labels."""
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
    """A world of several nodes, with the embedded cluster's scheduler; time stands still while it decides."""

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
        """Where the pods are, those without a node as ""."""
        pods = self.pods().items()
        return sorted(pod["spec"].get("nodeName", "") for name, pod in pods if name.startswith(prefix))

    def occupy(self, name: str, on: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """A pod of another owner."""
        body = {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": on, **spec},
        }
        self.memory.create(PODS, "default", body)


def test_workers_that_keep_apart_go_to_nodes_of_their_own() -> None:
    world = Cluster()
    world.submit(workers("mnist", 3, labels={"app": "mnist"}, affinity=apart(app="mnist")))
    world.settle()
    assert world.nodes() == ["n1", "n2", "n3"]
    assert world.status()["phase"] == "Running"


def test_of_gangs_whose_pods_keep_apart_the_second_waits_and_says_why() -> None:
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


def test_more_workers_than_nodes_never_fit_and_are_told_so() -> None:
    world = Cluster(2)
    world.submit(workers("mnist", 3, labels={"app": "mnist"}, affinity=apart(app="mnist")))
    world.settle()
    assert (world.nodes(), world.status()["reason"]) == ([], "NeverFits")
    assert "2 of them with its pod anti-affinity to app=mnist free" in world.status()["message"]


def test_a_host_port_is_on_a_node_once() -> None:
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


def test_the_host_s_network_makes_every_port_one_of_the_node() -> None:
    world = Cluster(2)
    world.submit(workers("first", 2, hostNetwork=True))
    world.submit(workers("second", 1, hostNetwork=True))
    world.settle()
    assert (world.nodes("first"), world.nodes("second")) == (["n1", "n2"], [])
    assert "host port 2222" in world.status("second")["message"]


def test_pods_of_others_are_kept_away_from() -> None:
    world = Cluster()
    world.occupy("noisy", "n1", labels={"app": "noisy"})
    world.submit(workers("mnist", 2, affinity=apart(app="noisy")))
    world.settle()
    assert (world.nodes("mnist"), world.status()["phase"]) == (["n2", "n2"], "Running")


def test_a_node_that_refuses_a_pod_is_left_and_not_chosen_again() -> None:
    """Its pod keeps ours away: that is seen by the scheduler only."""
    world = Cluster(2)
    world.occupy("hermit", "n1", affinity=apart(app="mnist"))
    world.submit(workers("mnist", 2, labels={"app": "mnist"}))
    world.settle()
    assert world.nodes("mnist") == ["", ""]
    world.wait(30)
    assert (world.nodes("mnist"), world.status()["phase"]) == (["n2", "n2"], "Running")
    assert list(world.status()["refusedNodes"]) == ["n1"]
    assert any(reason == "Unpinned" and "anti-affinity" in message for reason, message in world.events())


def test_where_no_node_takes_a_gang_it_waits_with_the_scheduler_s_words_and_starts_when_one_does() -> None:
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


def test_when_every_node_has_refused_they_are_tried_again_after_a_while() -> None:
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
def test_where_pods_may_go_is_left_to_the_scheduler_if_it_alone_can_tell(spec: dict[str, Any]) -> None:
    world = Cluster(2, zone="a")
    world.submit(workers("mnist", 1, labels={"app": "mnist"}, **spec))
    world.settle()
    [pod] = world.pods().values()
    assert "nodeAffinity" not in pod["spec"].get("affinity", {})
    assert world.status()["phase"] == "Running"


def test_the_machine_of_an_embedded_cluster_stands_for_many() -> None:
    """A job that was written for a cluster runs on a laptop all the same."""
    world = Cluster(1, **{"tf-dist.dev/emulated": "true"})
    world.submit(workers("mnist", 2, labels={"app": "mnist"}, affinity=apart(app="mnist"), hostNetwork=True))
    world.settle()
    assert (world.nodes(), world.status()["phase"]) == (["n1", "n1"], "Running")

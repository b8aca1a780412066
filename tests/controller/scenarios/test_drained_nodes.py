"""The admission of a gang when one of its nodes is drained."""

from __future__ import annotations

from typing import Any

from tests.controller.harness import World, tfjob
from tests.waiting import until
from tf_dist.cluster.api import NODES, PODS, Object
from tf_dist.controller.controller import Controller


def add_node(world: World, name: str, cpu: str) -> None:
    status = {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}
    made = world.memory.create(NODES, None, {"metadata": {"name": name}})
    world.memory.replace(NODES, None, name, {**made, "status": status}, subresource="status")


def pinned(pod: Object) -> str:
    """The node that a pod requires by name, or ""."""
    affinity: dict[str, Any] = pod["spec"].get("affinity") or {}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = affinity.get("nodeAffinity", {}).get(key, {}).get("nodeSelectorTerms", [])
    return next((rule["values"][0] for term in terms for rule in term.get("matchFields", ())), "")


def bind(world: World) -> None:
    """The cluster's scheduler binds pods to their required nodes, and the kubelet starts them."""
    for name, pod in world.pods().items():
        if not pod["spec"].get("nodeName") and pinned(pod):
            world.memory.bind("default", name, pinned(pod))
    world.run_pods()


def cordon(world: World, node: str) -> None:
    raw = world.memory.get(NODES, None, node)
    world.memory.replace(NODES, None, node, {**raw, "spec": {"unschedulable": True}})


def drain(world: World, node: str, grace_period: int = 0) -> None:
    cordon(world, node)
    for name, pod in world.pods().items():
        if pod["spec"].get("nodeName") == node:
            world.memory.delete(PODS, "default", name, grace_period=grace_period)


def gang_on_n1() -> World:
    world = World(cpu="2")
    world.submit(tfjob(workers=2, ps=0))
    world.settle()
    bind(world)
    world.settle()
    return world


def test_replicas_of_drained_node_are_assigned_to_other_nodes() -> None:
    world = gang_on_n1()
    add_node(world, "n2", "2")
    add_node(world, "n3", "2")
    drain(world, "n1")
    world.settle()
    nodes = {pinned(pod) for pod in world.pods().values()}
    assert len(world.pods()) == 2
    assert nodes
    assert nodes <= {"n2", "n3"}
    placed = world.status()["admission"]["placement"]["worker"]
    assert (sum(placed.values()), placed.keys() <= {"n2", "n3"}) == (2, True)


def test_waiting_gang_does_not_get_capacity_of_drained_replicas() -> None:
    world = gang_on_n1()
    world.submit(tfjob("waiting", workers=2, ps=0))
    world.settle()
    drain(world, "n1")
    add_node(world, "n2", "2")
    world.settle()
    assert "admission" not in world.status("waiting")
    for name in world.pods():
        world.memory.bind("default", name, "n2")
    world.run_pods()
    world.settle()
    assert "admission" not in world.status("waiting")
    assert world.status()["phase"] == "Running"


def test_capacity_is_held_while_pods_of_drained_node_stop() -> None:
    world = gang_on_n1()
    drain(world, "n1", grace_period=30)
    add_node(world, "n2", "2")
    world.submit(tfjob("waiting", workers=2, ps=0))
    world.settle()
    assert len(world.pods()) == 2
    assert world.status()["admission"]["placement"] == {"worker": {"n2": 2}}
    assert "admission" not in world.status("waiting")
    world.bury()
    world.settle()
    assert [pinned(pod) for pod in world.pods().values()] == ["n2", "n2"]
    bind(world)
    world.settle()
    assert "admission" not in world.status("waiting")
    assert world.status()["message"] == "2 of 2 replicas are running"


def test_pods_may_use_any_node_when_admission_finds_none() -> None:
    world = gang_on_n1()
    add_node(world, "n2", "1")
    drain(world, "n1")
    world.settle()
    assert [pinned(pod) for pod in world.pods().values()] == ["", ""]
    assert [why for reason, why in world.events() if reason == "NodesReassigned"] == [
        "2 worker cannot go to n1, which accepts no pods now; admission knows no other node with capacity, so the "
        "cluster's scheduler may choose any"
    ]
    assert "placement" not in world.status()["admission"]
    # Capacity that these pods may use is not free for other jobs.
    world.submit(tfjob("waiting", workers=1, ps=0))
    world.settle()
    assert "admission" not in world.status("waiting")


def test_cordon_does_not_affect_running_pods() -> None:
    world = gang_on_n1()
    add_node(world, "n2", "2")
    before = world.status(), world.pods()
    cordon(world, "n1")
    world.settle()
    assert (world.status(), world.pods()) == before


def test_replica_of_cordoned_node_restarts_on_another_node() -> None:
    world = gang_on_n1()
    add_node(world, "n2", "2")
    cordon(world, "n1")
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    world.clock.now += 60
    world.settle()
    assert {name: pinned(pod) for name, pod in world.pods().items()} == {"mnist-worker-0": "n1", "mnist-worker-1": "n2"}
    assert world.status()["admission"]["placement"] == {"worker": {"n1": 1, "n2": 1}}


def test_waiting_gang_is_admitted_when_its_node_is_uncordoned() -> None:
    world = World(cpu="2")
    cordon(world, "n1")
    driver = Controller(world.memory)
    driver.start()
    try:
        world.submit(tfjob(workers=2, ps=0))
        until(lambda: world.status().get("message"), 60)
        assert "admission" not in world.status()
        raw = world.memory.get(NODES, None, "n1")
        world.memory.replace(NODES, None, "n1", {**raw, "spec": {}})
        until(lambda: "admission" in world.status(), 30)
    finally:
        driver.stop()

"""Resources that no node has: they cost no memory, and gangs start when a node brings the resource later."""

from __future__ import annotations

from dataclasses import replace

from tests.core.gang.gangs import GPU, Snapshot, World, admit, gang, member, message, node, placed, reason, waiting
from tf_dist.core.gang.types import Gang, UnavailableNode
from tf_dist.core.model.assignment import Verdict

TPU = "google.com/tpu"


def asking(name: str, *resources: str, count: int = 1, at: float = 0) -> Gang:
    return gang(name, member("w", count, cpu=1, **dict.fromkeys(resources, 1)), at=at)


def spoken(world: World, name: str) -> Verdict:
    return world.scheduler.explain(name)


def test_gang_starts_when_new_node_has_missing_resource() -> None:
    world = World([node("n", cpu=9)])
    world.put(asking("a", GPU), asking("b", TPU, at=1), asking("c", TPU, count=2, at=2))
    world.settle(10)
    assert [reason(spoken(world, name)) for name in "abc"] == ["NeverFits"] * 3
    assert f"has only cpu 9, {TPU} 0 on 1 node" in message(spoken(world, "b"))
    world.put_node(node("m", cpu=9, **{TPU: 1}))
    verdicts = world.settle(20)
    assert waiting(world.scheduler) == ["a", "c"]
    assert reason(verdicts[0]["b"]) == "Admit"
    assert f"{GPU} 0 on 2 nodes" in message(spoken(world, "a"))
    world.put_node(node("o", cpu=9, **{TPU: 4, GPU: 1}))
    world.settle(30)
    assert waiting(world.scheduler) == []


def test_running_gang_keeps_resource_that_node_regains() -> None:
    """The device plugin stopped for a while, and the controller restarted in the meantime."""
    world = World([node("n", cpu=9)])
    world.put(placed(asking("a", GPU), {"w": {"n": 1}}), asking("b", GPU, at=1))
    world.settle(10)
    world.put_node(node("n", cpu=9, gpu=1))
    world.settle(20)
    assert waiting(world.scheduler) == ["b"]
    world.put_node(node("n", cpu=9, gpu=2))
    world.settle(30)
    assert waiting(world.scheduler) == []


def test_reports_unavailable_node_that_has_missing_resource() -> None:
    world = World([node("n", cpu=9)])
    world.put(asking("a", GPU))
    world.settle(10)
    assert reason(spoken(world, "a")) == "NeverFits"
    away = {"m": UnavailableNode(node("m", cpu=9, gpu=1), "cordoned")}
    world.scheduler.cache.put_unavailable(away)
    world.settle(20)
    assert reason(spoken(world, "a")) == "NodesUnavailable"
    assert reason(admit(replace(world.snapshot(20), unavailable=away))["a"]) == "NodesUnavailable"


def test_unknown_resources_add_no_columns_and_message_is_shortened() -> None:
    world = World([node(f"n{number}", cpu=9, gpu=1) for number in range(3)])
    snapshot = world.scheduler.cache.assumed_pods.snapshot
    snapshot.ready()
    before = snapshot.table.free.shape
    many = [f"example.com/r{number:03}" for number in range(100)]
    world.put(*(asking(f"a{number}", *(f"{one}-{number}" for one in many)) for number in range(20)))
    world.put(asking("b", GPU, at=1))
    world.settle(10)
    snapshot.ready()
    assert snapshot.table.free.shape == before
    assert "b" not in waiting(world.scheduler)
    said = message(spoken(world, "a7"))
    assert "example.com/r000-7 1, " in said
    assert "cpu 1, " in said
    assert "85 more resources) for w" in said
    assert len(said) < 2000


def test_snapshot_and_incremental_changes_give_same_reasons() -> None:
    gangs = asking("a", TPU), asking("b", GPU), asking("c", TPU, GPU)
    nodes = node("n", cpu=9), node("m", cpu=9, gpu=1), node("o", cpu=9, **{TPU: 1})
    world = World()
    world.put(*gangs)
    for number, one in enumerate(nodes):
        world.put_node(one)
        world.settle(10 * number)
    found = admit(Snapshot(gangs=gangs, nodes=nodes, now=20))
    ends = {name: reason(verdict) for name, verdict in found.items()}
    assert ends == {"a": "Admit", "b": "Admit", "c": "NeverFits"}
    assert {name: reason(spoken(world, name)) for name in "abc"} == ends

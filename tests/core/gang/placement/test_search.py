"""Which nodes are assigned to a gang."""

from __future__ import annotations

from tests.core.gang.placement.nodes import TAINT, member, node, state, wants
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import Node


def placed(nodes: list[Node], *members: object, **how: object) -> object:
    room = NodeSnapshot(nodes)
    return place_gang(room, wants(room, *members), **how)  # type: ignore[arg-type]


def test_prefers_single_node_with_least_remaining_capacity() -> None:
    nodes = [node("a", cpu=16), node("b", cpu=8), node("c", cpu=6), node("d", cpu=9)]
    assert placed(nodes, member("ps", 1, cpu=2), member("worker", 3, cpu=2)) == [{"b": 1}, {"b": 3}]


def test_pods_without_gpu_prefer_nodes_without_free_gpus() -> None:
    nodes = [node("gpu", cpu=8, gpu=4), node("taken", cpu=8, gpu=4, used={"gpu": 4}), node("plain", cpu=64)]
    assert placed(nodes, member(count=4, cpu=2)) == [{"plain": 4}]
    assert placed(nodes[:2], member(count=4, cpu=2)) == [{"taken": 4}]


def test_gpu_pods_prefer_node_with_fewest_remaining_gpus() -> None:
    nodes = [node("a", cpu=64, gpu=8), node("b", cpu=99, gpu=4), node("c", cpu=8, gpu=8, used={"gpu": 5})]
    assert placed(nodes, member(count=3, cpu=1, gpu=1)) == [{"c": 3}]
    assert placed(nodes, member(count=2, cpu=1, gpu=2)) == [{"b": 2}]


def test_abundant_extended_resource_does_not_affect_choice() -> None:
    nodes = [node("a", cpu=4, **{"rdma/shared": 1000}), node("b", cpu=8)]
    assert placed(nodes, member(cpu=4)) == [{"a": 1}]
    assert placed(nodes, member(cpu=1, **{"rdma/shared": 2})) == [{"a": 1}]


def test_uses_fewest_nodes_and_tightest_last_node() -> None:
    nodes = [node("a", gpu=8), node("b", gpu=2), node("c", gpu=8), node("d", gpu=3), node("e", gpu=4)]
    assert placed(nodes, member(count=19, gpu=1)) == [{"a": 8, "c": 8, "d": 3}]


def test_members_without_gpu_join_nodes_of_gpu_workers() -> None:
    nodes = [node("a", cpu=10, gpu=4), node("b", cpu=10, gpu=4), node("c", cpu=100)]
    chief, server, worker = member("chief", 1, cpu=1), member("ps", 2, cpu=3), member("worker", 8, cpu=1, gpu=1)
    assert placed(nodes, chief, server, worker) == [{"b": 1}, {"a": 2}, {"a": 4, "b": 4}]


def test_members_with_equal_requests_are_placed_together() -> None:
    nodes = [node("a", gpu=3), node("b", gpu=2), node("c", gpu=2)]
    assert placed(nodes, member("chief", 1, gpu=1), member("worker", 4, gpu=1)) == [{"a": 1}, {"b": 2, "a": 2}]


def test_reverse_member_order_is_tried_after_failure() -> None:
    # The two pods with 3 CPUs come first, and would take the only node that fits the pod with 5 CPUs.
    nodes = [node("a", cpu=5), node("b", cpu=3), node("c", cpu=3)]
    assert placed(nodes, member("worker", 2, cpu=3), member("chief", 1, cpu=5)) == [{"b": 1, "c": 1}, {"a": 1}]


def test_nodes_of_gang_are_preferred() -> None:
    nodes = [node("a", cpu=2), node("b", cpu=8), node("c", cpu=3)]
    assert placed(nodes, member(count=2, cpu=1)) == [{"a": 2}]
    assert placed(nodes, member(count=2, cpu=1), keep={"b": 3}) == [{"b": 2}]
    assert placed(nodes, member(count=5, cpu=1), keep={"gone": 1, "c": 1}) == [{"c": 3, "a": 2}]


def test_returns_member_that_does_not_fit_and_takes_nothing() -> None:
    room = NodeSnapshot([node("a", cpu=4, gpu=1), node("b", cpu=4)])
    before = state(room)
    assert place_gang(room, wants(room, member("ps", 1, cpu=1), member("worker", 2, cpu=1, gpu=1))) == 1
    assert place_gang(room, wants(room, member("none", 0, cpu=9), member("ps", 9, cpu=1))) == 1
    # Each member fits, but not both.
    assert place_gang(room, wants(room, member("ps", 2, cpu=3), member("worker", 1, cpu=2, gpu=1))) == 0
    assert state(room) == before


def test_refused_gang_is_placed_after_node_is_added() -> None:
    room = NodeSnapshot([node(f"n{number}", cpu=2) for number in range(4)])
    wanted = wants(room, member(count=9, cpu=1))
    for _ in range(3):
        assert place_gang(room, wanted) == 0
    room.put_node(node("n9", cpu=1))
    assert place_gang(room, wanted) == [{"n0": 2, "n1": 2, "n2": 2, "n3": 2, "n9": 1}]


def test_rollback_allows_placement_that_was_refused() -> None:
    room = NodeSnapshot([node("n", cpu=4)])
    wanted = wants(room, member(count=3, cpu=1))
    mark = room.mark()
    assert place_gang(room, wanted) == [{"n": 3}]
    assert place_gang(room, wanted) == 0
    room.rollback(mark)
    assert place_gang(room, wanted) == [{"n": 3}]


def test_gang_without_pods_needs_no_nodes() -> None:
    assert placed([], member(count=0, cpu=1)) == [{}]
    assert placed([], member(count=1, cpu=1)) == 0


def test_tainted_node_is_used_only_by_tolerating_member() -> None:
    tolerant = {"tolerations": [{"key": "team", "operator": "Exists"}]}
    nodes = [node("a", cpu=8, taints=[TAINT]), node("b", cpu=8)]
    ps, worker = member("ps", 2, cpu=3), member("worker", 3, cpu=3, constraints=tolerant)
    assert placed(nodes, ps, worker) == 0
    nodes.append(node("c", cpu=8))
    assert placed(nodes, ps, worker) == [{"b": 1, "c": 1}, {"a": 2, "b": 1}]


def test_node_order_reflects_take_and_give() -> None:
    room = NodeSnapshot([node("a", cpu=8), node("b", cpu=8)])
    one, three = room.shape(member(cpu=1)), room.shape(member(cpu=3))
    assert room.most(three) == 4
    assert place_gang(room, [(one, 1)]) == place_gang(room, [(one, 1)]) == [{"a": 1}]
    room.give(one, "a", 2)
    room.take(one, "b", 1)
    assert place_gang(room, [(three, 3)]) == [{"b": 2, "a": 1}]

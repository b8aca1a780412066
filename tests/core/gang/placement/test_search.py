"""Which nodes a gang is given."""

from __future__ import annotations

from tests.core.gang.placement.nodes import TAINT, member, node, state, wants
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import Node


def placed(nodes: list[Node], *members: object, **how: object) -> object:
    room = NodeSnapshot(nodes)
    return place_gang(room, wants(room, *members), **how)  # type: ignore[arg-type]


def test_one_node_for_all_and_of_several_that_hold_them_the_one_with_the_least_left() -> None:
    nodes = [node("a", cpu=16), node("b", cpu=8), node("c", cpu=6), node("d", cpu=9)]
    assert placed(nodes, member("ps", 1, cpu=2), member("worker", 3, cpu=2)) == [{"b": 1}, {"b": 3}]


def test_who_needs_no_gpu_goes_where_there_is_none_then_where_none_is_free() -> None:
    nodes = [node("gpu", cpu=8, gpu=4), node("taken", cpu=8, gpu=4, used={"gpu": 4}), node("plain", cpu=64)]
    assert placed(nodes, member(count=4, cpu=2)) == [{"plain": 4}]
    assert placed(nodes[:2], member(count=4, cpu=2)) == [{"taken": 4}]


def test_who_needs_gpus_goes_where_the_fewest_are_left_over() -> None:
    nodes = [node("a", cpu=64, gpu=8), node("b", cpu=99, gpu=4), node("c", cpu=8, gpu=8, used={"gpu": 5})]
    assert placed(nodes, member(count=3, cpu=1, gpu=1)) == [{"c": 3}]
    assert placed(nodes, member(count=2, cpu=1, gpu=2)) == [{"b": 2}]


def test_a_resource_of_which_nodes_have_many_pieces_makes_no_node_special() -> None:
    nodes = [node("a", cpu=4, **{"rdma/shared": 1000}), node("b", cpu=8)]
    assert placed(nodes, member(cpu=4)) == [{"a": 1}]
    assert placed(nodes, member(cpu=1, **{"rdma/shared": 2})) == [{"a": 1}]


def test_as_few_nodes_as_possible_and_the_last_one_tight() -> None:
    nodes = [node("a", gpu=8), node("b", gpu=2), node("c", gpu=8), node("d", gpu=3), node("e", gpu=4)]
    assert placed(nodes, member(count=19, gpu=1)) == [{"a": 8, "c": 8, "d": 3}]


def test_who_needs_no_gpu_goes_to_the_nodes_of_those_who_do() -> None:
    nodes = [node("a", cpu=10, gpu=4), node("b", cpu=10, gpu=4), node("c", cpu=100)]
    chief, server, worker = member("chief", 1, cpu=1), member("ps", 2, cpu=3), member("worker", 8, cpu=1, gpu=1)
    assert placed(nodes, chief, server, worker) == [{"b": 1}, {"a": 2}, {"a": 4, "b": 4}]


def test_members_that_ask_for_the_same_are_placed_as_one_and_shared_out() -> None:
    nodes = [node("a", gpu=3), node("b", gpu=2), node("c", gpu=2)]
    assert placed(nodes, member("chief", 1, gpu=1), member("worker", 4, gpu=1)) == [{"a": 1}, {"b": 2, "a": 2}]


def test_the_reverse_order_is_tried_when_the_first_one_fails() -> None:
    # Together the two with 3 CPUs take the node that alone the one with 5 could have had.
    nodes = [node("a", cpu=5), node("b", cpu=3), node("c", cpu=3)]
    assert placed(nodes, member("worker", 2, cpu=3), member("chief", 1, cpu=5)) == [{"b": 1, "c": 1}, {"a": 1}]


def test_nodes_that_the_gang_is_on_come_first() -> None:
    nodes = [node("a", cpu=2), node("b", cpu=8), node("c", cpu=3)]
    assert placed(nodes, member(count=2, cpu=1)) == [{"a": 2}]
    assert placed(nodes, member(count=2, cpu=1), keep={"b": 3}) == [{"b": 2}]
    assert placed(nodes, member(count=5, cpu=1), keep={"gone": 1, "c": 1}) == [{"c": 3, "a": 2}]


def test_the_want_that_lacks_room_is_named_and_nothing_is_taken() -> None:
    room = NodeSnapshot([node("a", cpu=4, gpu=1), node("b", cpu=4)])
    before = state(room)
    assert place_gang(room, wants(room, member("ps", 1, cpu=1), member("worker", 2, cpu=1, gpu=1))) == 1
    assert place_gang(room, wants(room, member("none", 0, cpu=9), member("ps", 9, cpu=1))) == 1
    # Each has room, but not both.
    assert place_gang(room, wants(room, member("ps", 2, cpu=3), member("worker", 1, cpu=2, gpu=1))) == 0
    assert state(room) == before


def test_a_refusal_costs_nothing_while_nothing_changes_and_ends_when_room_is_given() -> None:
    room = NodeSnapshot([node(f"n{number}", cpu=2) for number in range(4)])
    wanted = wants(room, member(count=9, cpu=1))
    for _ in range(3):
        assert place_gang(room, wanted) == 0
    room.put_node(node("n9", cpu=1))
    assert place_gang(room, wanted) == [{"n0": 2, "n1": 2, "n2": 2, "n3": 2, "n9": 1}]


def test_a_rollback_gives_room_to_what_was_refused_in_between() -> None:
    room = NodeSnapshot([node("n", cpu=4)])
    wanted = wants(room, member(count=3, cpu=1))
    mark = room.mark()
    assert place_gang(room, wanted) == [{"n": 3}]
    assert place_gang(room, wanted) == 0
    room.rollback(mark)
    assert place_gang(room, wanted) == [{"n": 3}]


def test_a_gang_without_pods_is_placed_nowhere() -> None:
    assert placed([], member(count=0, cpu=1)) == [{}]
    assert placed([], member(count=1, cpu=1)) == 0


def test_nodes_that_only_one_member_may_use_are_not_used_for_the_other() -> None:
    tolerant = {"tolerations": [{"key": "team", "operator": "Exists"}]}
    nodes = [node("a", cpu=8, taints=[TAINT]), node("b", cpu=8)]
    ps, worker = member("ps", 2, cpu=3), member("worker", 3, cpu=3, constraints=tolerant)
    assert placed(nodes, ps, worker) == 0
    nodes.append(node("c", cpu=8))
    assert placed(nodes, ps, worker) == [{"b": 1, "c": 1}, {"a": 2, "b": 1}]


def test_what_was_taken_and_given_since_the_last_gang_counts_in_the_order_of_nodes() -> None:
    room = NodeSnapshot([node("a", cpu=8), node("b", cpu=8)])
    one, three = room.shape(member(cpu=1)), room.shape(member(cpu=3))
    assert room.most(three) == 4
    assert place_gang(room, [(one, 1)]) == place_gang(room, [(one, 1)]) == [{"a": 1}]
    room.give(one, "a", 2)
    room.take(one, "b", 1)
    assert place_gang(room, [(three, 3)]) == [{"b": 2, "a": 1}]

"""Free capacity of nodes: taking, giving and rolling back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.gang.placement.nodes import (
    GPU,
    PATIENT,
    TAINT,
    TOLERATION,
    allowed,
    bits,
    clusters,
    free,
    gangs,
    less,
    member,
    members,
    node,
    nodes,
    state,
    wants,
)
from tests.thorough import examples
from tf_dist.core.gang.placement.node_snapshot import ALL_NODES, NodeSnapshot, pods_per_node
from tf_dist.core.gang.placement.pod_sets import ABSENT, PodClass
from tf_dist.core.gang.placement.predicates import InvalidConstraints
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import EXCLUSIVE_CAPACITY, Node, PodSet

NAMES = [f"n{number}" for number in range(6)]


def test_equal_requests_share_one_shape_in_any_order() -> None:
    room = NodeSnapshot([node("n", cpu=4)])
    one = member("worker", 3, cpu=1, gpu=0, constraints={"nodeSelector": {"a": "1", "b": "2"}, "affinity": {}})
    same = member("ps", 1, cpu="1.0", constraints={"nodeSelector": {"b": "2", "a": "1"}})
    assert room.shape(one) is room.shape(same)
    assert room.shape(one) is not room.shape(replace(same, constraints={}))
    assert room.shape(one) is not room.shape(member(cpu=2, constraints=one.constraints))
    assert len({room.shape(one), room.shape(same)}) == 1


def test_fitting_pods_are_counted_per_node() -> None:
    room = NodeSnapshot([node("a", cpu=4, used={"cpu": 1}), node("b", cpu=2, memory=100), node("c", gpu=8)])
    assert room.most(room.shape(member(cpu=1))) == 5
    assert room.most(room.shape(member(cpu=2))) == 2
    assert room.most(room.shape(member(cpu=2)), limit=1) == 1
    assert room.most_ever(room.shape(member(cpu=2))) == 3
    assert room.most(room.shape(member(cpu=1, memory=1))) == 2
    assert room.most(room.shape(member(gpu=3))) == 2
    assert room.most(room.shape(member(tpu=1))) == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda room, shape: room.nodes,
        lambda room, shape: free(room, "c"),
        lambda room, shape: room.domains("zone").names,
        lambda room, shape: np.asarray(room.mask(shape)).tolist(),
        lambda room, shape: room.capacity(shape).total,
        lambda room, shape: room.most_ever(shape),
        lambda room, shape: (room.take(shape, "c", 1), free(room, "c")),
    ],
)
def test_new_node_is_included_in_every_query(ask: Callable[[NodeSnapshot, PodClass], Any]) -> None:
    there = [node("a", cpu=4, labels={"zone": "x"}), node("b", cpu=2)]
    new = node("c", cpu=8, labels={"zone": "y"})
    room = NodeSnapshot(there)
    shape = room.shape(member(cpu=1, constraints={"nodeSelector": {"zone": "y"}}))
    assert room.most(shape) == 0
    room.put_node(new)
    assert ask(room, shape) == ask(NodeSnapshot([*there, new], room.catalogue), shape)


def test_requests_round_up_and_capacity_rounds_down() -> None:
    room = NodeSnapshot([node("n", cpu="1.9999", memory="10.5", gpu="1.5")])
    assert room.most(room.shape(member(cpu=1))) == 1
    assert room.most(room.shape(member(cpu="0.5"))) == 3
    assert room.most(room.shape(member(cpu="0.6661"))) == 3 - 1
    assert room.most(room.shape(member(memory="5.2"))) == 1
    assert room.most(room.shape(member(gpu="0.5"))) == 1
    assert free(room, "n") == {"cpu": Decimal("1.999"), "memory": 10, "pods": 0, GPU: 1}


def test_amounts_of_any_size_are_exact() -> None:
    """This includes requests that are not whole mebibytes. Giving restores exactly what was taken."""
    room = NodeSnapshot([node("n", memory=4 * 10**9, cpu=20_000)])
    assert room.most(room.shape(member(memory=10**9))) == 4
    assert room.most(room.shape(member(memory=10**9 + 1))) == 3
    assert room.most(room.shape(member(cpu="0.001"))) == 20_000_000
    assert room.most(room.shape(member(cpu="19999.999"))) == 1
    huge = room.shape(member(memory=10**30))
    assert (room.most(huge), room.most_ever(huge)) == (0, 0)
    before = free(room, "n")
    room.take(huge, "n", 20)
    room.give(huge, "n", 20)
    assert free(room, "n") == before


def test_overused_resource_does_not_exclude_pod_that_needs_none() -> None:
    room = NodeSnapshot([node("n", cpu=4, gpu=1, memory=10, used={"gpu": 3, "memory": 11})])
    assert room.most(room.shape(member(cpu=2, memory=0))) == 2
    assert room.most(room.shape(member(cpu=2, memory=1))) == 0


def test_selectors_and_taints_restrict_nodes() -> None:
    room = NodeSnapshot(
        [
            node("a", cpu=1, labels={"zone": "a"}),
            node("b", cpu=2, labels={"zone": "b"}),
            node("c", cpu=4, labels={"zone": "a"}, taints=[TAINT]),
        ]
    )
    assert room.most(room.shape(member(cpu=1))) == 3
    assert room.most(room.shape(member(cpu=1, constraints={"nodeSelector": {"zone": "a"}}))) == 1
    tolerant = room.shape(member(cpu=1, constraints={"nodeSelector": {"zone": "a"}, "tolerations": [TOLERATION]}))
    assert room.most(tolerant) == 5
    room.put_node(node("b", cpu=8, labels={"zone": "a"}))
    assert room.most(tolerant) == 13
    room.put_node(node("d", cpu=16, labels={"zone": "a"}))
    assert room.most(tolerant) == 29
    room.put_node(node("a", cpu=1, labels={"zone": "a"}, taints=[TAINT]))
    assert room.most(room.shape(member(cpu=1))) == 24


def test_unreadable_constraints_raise_when_shape_is_requested() -> None:
    room = NodeSnapshot([node("a", cpu=1), node("b", cpu=1)])
    nonsense = member(cpu=1, constraints={"affinity": {"nodeAffinity": ["x"]}})
    for _ in range(2):
        with pytest.raises(InvalidConstraints):
            room.shape(nonsense)
    # The unreadable affinity is evaluated only for a node with this label.
    picky = member(cpu=1, constraints={"nodeSelector": {"a": "1"}, "affinity": 3})
    room.shape(picky)
    room.put_node(node("c", cpu=1, labels={"a": "1"}))
    with pytest.raises(InvalidConstraints):
        room.shape(picky)
    room.remove_node("c")
    assert room.most(room.shape(picky)) == 0


def test_existing_pods_may_take_free_capacity_below_zero() -> None:
    room = NodeSnapshot([node("n", cpu=2)])
    shape = room.shape(member(cpu=1))
    room.take(shape, "n", 3)
    assert (free(room, "n")["cpu"], room.most(shape)) == (-1, 0)
    room.give(shape, "n", 2)
    assert (free(room, "n")["cpu"], room.most(shape)) == (1, 1)
    with pytest.raises(KeyError):
        room.take(shape, "gone", 1)


def test_rollback_of_outer_mark_reverts_inner_commit() -> None:
    room = NodeSnapshot([node("n", cpu=4)])
    shape = room.shape(member(cpu=1))
    outer = room.mark()
    inner = room.mark()
    place_gang(room, [(shape, 3)])
    room.commit(inner)
    assert room.most(shape) == 1
    room.rollback(outer)
    assert room.most(shape) == 4


def test_nodes_cannot_change_while_mark_is_open() -> None:
    room = NodeSnapshot([node("n", cpu=4)])
    mark = room.mark()
    with pytest.raises(ValueError, match="between a mark and its rollback"):
        room.put_node(node("n", cpu=5))
    with pytest.raises(ValueError, match="between a mark and its rollback"):
        room.remove_node("n")
    room.rollback(mark)
    room.put_node(node("n", cpu=5))
    assert room.most(room.shape(member(cpu=1))) == 5


def test_emptied_snapshot_accepts_same_shapes() -> None:
    room = NodeSnapshot([node("n", cpu=4, used={"cpu": 3}), node("m", cpu=1, used={"cpu": 1})])
    shape = room.shape(member(cpu=1))
    empty = room.emptied()
    assert place_gang(room, [(shape, 5)]) == 0
    assert place_gang(empty, [(shape, 5)]) == [{"n": 4, "m": 1}]
    early = room.shape(member(cpu=1, gpu=1))
    # The other snapshot does not know this resource.
    room.catalogue.outdated = False
    empty.put_node(node("m", cpu=2, gpu=1))
    assert room.catalogue.outdated  # so shapes have to be created again
    later = room.shape(member(cpu=1, gpu=1))
    assert (empty.most(later), room.most(later), room.most(shape)) == (1, 0, 1)
    assert (empty.most(early), room.most(early)) == (0, 0)


def test_resource_first_requested_after_new_node_counts_on_all_nodes() -> None:
    room = NodeSnapshot([node("a", cpu=4, **{"ephemeral-storage": 10})])
    room.put_node(node("b", cpu=4, **{"ephemeral-storage": 10}))
    assert room.most(room.shape(member(cpu=1, **{"ephemeral-storage": 5}))) == 4


def test_change_log_is_bounded() -> None:
    room = NodeSnapshot([node("n", cpu=4), node("m", cpu=4)])
    shape, other = room.shape(member(cpu=1)), room.shape(member(cpu=2))
    for _ in range(3000):
        assert place_gang(room, [(shape, 1)]) == [{"m": 1}]
        room.give(shape, "m", 1)
    assert len(room.table.touched) < 2000
    assert (room.most(other), room.most(shape)) == (4, 8)


def test_counts_are_correct_after_any_number_of_changes() -> None:
    room = NodeSnapshot([node(f"n{number}", cpu=4) for number in range(200)])
    shape, other = room.shape(member(cpu=1)), room.shape(member(cpu=4))
    assert (room.most(shape), room.most(other)) == (800, 200)
    left = 200
    for touched in (1, 20, 100):
        for number in range(touched):
            room.take(shape, f"n{200 - left + number}" if touched < 100 else f"n{number + 21}", 1)
        left -= touched
        assert (room.most(shape), room.most(other)) == (600 + left, left)


class Rooms(RuleBasedStateMachine):
    """After any operations, a snapshot equals a new snapshot of the same nodes."""

    @initialize(cluster=clusters(most=4))
    def begin(self, cluster: list[Node]) -> None:
        self.room = NodeSnapshot(cluster)
        self.nodes = {each.name: each for each in cluster}
        self.marks: list[tuple[int, dict[str, Node]]] = []
        self.pods: list[PodSet] = []

    @rule(changes=st.lists(st.sampled_from(NAMES).flatmap(lambda name: st.just(name) | nodes(name)), max_size=4))
    @precondition(lambda self: not self.marks)
    def change_nodes(self, changes: list[Node | str]) -> None:
        for each in changes:
            if isinstance(each, str):
                self.room.remove_node(each)
                self.nodes.pop(each, None)
            else:
                self.room.put_node(each)
                self.nodes[each.name] = each

    @rule(pod=members(), name=st.sampled_from(NAMES), count=st.integers(-3, 3))
    def change(self, pod: PodSet, name: str, count: int) -> None:
        # A new node cannot reproduce a rounded fraction.
        pod = replace(pod, requests={**pod.requests, "cpu": Decimal(2)})
        shape = self.room.shape(pod)
        # SchedulerCache makes requests of absent resources again when a node has them: see test_absent_resources.
        if name in self.nodes and all(column != ABSENT for column, _ in shape.requests):
            (self.room.take if count > 0 else self.room.give)(shape, name, abs(count))
            self.nodes[name] = less(self.nodes[name], pod, count)

    @rule(pods=gangs())
    def place_in_vain(self, pods: list[PodSet]) -> None:
        wanted = wants(self.room, *pods)
        self.room.ready()
        before = bits(self.room)
        mark = self.room.mark()
        place_gang(self.room, wanted)
        self.room.rollback(mark)
        assert bits(self.room) == before
        self.pods = pods

    @rule()
    def mark(self) -> None:
        self.marks.append((self.room.mark(), dict(self.nodes)))

    @rule()
    @precondition(lambda self: self.marks)
    def rollback(self) -> None:
        mark, self.nodes = self.marks.pop()
        self.room.rollback(mark)

    @rule()
    @precondition(lambda self: self.marks)
    def commit(self) -> None:
        mark, _ = self.marks.pop()
        self.room.commit(mark)

    @invariant()
    def is_what_a_new_room_would_be(self) -> None:
        fresh = NodeSnapshot(self.nodes.values(), self.room.catalogue)
        assert state(self.room) == state(fresh)
        assert bits(self.room) == bits(fresh)
        for pod in self.pods:
            shape = self.room.shape(pod)
            assert (self.room.most(shape), self.room.most_ever(shape)) == (fresh.most(shape), fresh.most_ever(shape))
            naive = sum(_count(pod, each) for each in self.nodes.values() if allowed(pod, each))
            assert self.room.most(shape) == naive
            assert self.room.domains("zone").names == fresh.domains("zone").names


def _count(pod: PodSet, on: Node) -> int:
    asked = {r: value for r, value in pod.requests.items() if value > 0}
    counts = [int(on.free.get(r, Decimal(0)) // _up(r, value)) for r, value in asked.items()]
    return max(
        0, min(counts + [int(on.free.get(one.name, EXCLUSIVE_CAPACITY)) // one.amount for one in pod.exclusives])
    )


def _up(resource: str, value: Decimal) -> Decimal:
    return Decimal("0.251") if value == Decimal("0.2505") else value


Rooms.TestCase.settings = settings(PATIENT, max_examples=examples(100), stateful_step_count=15)
TestRooms = pytest.mark.thorough(Rooms.TestCase)


@given(value=st.integers(1, 1 << 48), times=st.integers(0, 1 << 48), off=st.sampled_from((-1, 0, 1)))
def test_count_is_exact_for_large_amounts(value: int, times: int, off: int) -> None:
    there = max(0, min(value * times, 1 << 50) // value * value + off)

    counted = pods_per_node(np.array([[float(there)]]), ((0, value),), ALL_NODES)

    assert counted[0] == there // value

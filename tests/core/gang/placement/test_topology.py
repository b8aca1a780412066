"""Gangs that prefer or require one topology domain."""

from __future__ import annotations

from typing import Any

from tests.core.gang.placement.nodes import member, node, state, wants
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import Node, TopologyRequest

RACK = TopologyRequest(label="rack")
MUST = TopologyRequest(label="rack", required=True)


def rack(name: str, *cpus: int) -> list[Node]:
    return [node(f"{name}{number}", cpu=cpu, labels={"rack": name}) for number, cpu in enumerate(cpus)]


def placed(nodes: list[Node], count: int, locality: TopologyRequest, keep: Any = None, **asked: Any) -> object:
    room = NodeSnapshot(nodes)
    return place_gang(
        room, wants(room, member(count=count, **(asked or {"cpu": 1}))), locality=locality, keep=keep or {}
    )


def test_single_node_is_preferred_over_smaller_domain() -> None:
    assert placed([*rack("a", 2, 2), *rack("b", 4, 8)], 4, MUST) == [{"b0": 4}]


def test_smallest_fitting_domain_is_chosen() -> None:
    nodes = [*rack("a", 3, 3, 3), *rack("b", 3, 1), *rack("c", 3, 2), *rack("d", 3)]
    assert placed(nodes, 5, MUST) == [{"c0": 3, "c1": 2}]
    assert placed(nodes, 7, RACK) == [{"a0": 3, "a1": 3, "a2": 1}]


def test_node_without_label_is_in_no_domain() -> None:
    nodes = [node("x", cpu=9), *rack("a", 2, 2)]
    assert placed(nodes, 4, MUST) == [{"a0": 2, "a1": 2}]
    assert placed(nodes, 5, MUST) == 0
    assert placed(nodes, 5, RACK) == [{"x": 5}]


def test_without_fitting_domain_preferred_gang_spreads_and_required_fails() -> None:
    nodes = [*rack("a", 2, 2), *rack("b", 3, 3), *rack("c", 1), *rack("d", 3, 1)]
    room = NodeSnapshot(nodes)
    before = state(room)
    wanted = wants(room, member(count=7, cpu=1))
    assert place_gang(room, wanted, locality=MUST) == 0
    assert state(room) == before
    # The largest domain, and a domain that is just large enough for the rest.
    assert place_gang(room, wanted, locality=RACK) == [{"b0": 3, "b1": 3, "c0": 1}]


def test_domain_must_fit_every_member() -> None:
    gpus = [node("g0", cpu=1, gpu=2, labels={"rack": "a"}), node("g1", cpu=4, gpu=1, labels={"rack": "b"})]
    more = [node("g2", cpu=3, gpu=1, labels={"rack": "b"}), node("c0", cpu=9, labels={"rack": "c"})]
    room = NodeSnapshot([*gpus, *more])
    wanted = wants(room, member("ps", 1, cpu=3), member("worker", 2, gpu=1))
    assert place_gang(room, wanted, locality=MUST) == [{"g2": 1}, {"g2": 1, "g1": 1}]


def test_growing_gang_stays_in_its_domain() -> None:
    nodes = [*rack("a", 4, 2), *rack("b", 1, 1, 1)]
    assert placed(nodes, 2, RACK) == [{"a1": 2}]
    assert placed(nodes, 2, RACK, keep={"b0": 5}) == [{"b0": 1, "b1": 1}]
    assert placed(nodes, 4, MUST, keep={"b0": 5}) == 0
    assert placed(nodes, 4, RACK, keep={"b0": 5}) == [{"a0": 4}]


def test_domain_that_fits_members_only_separately_is_skipped() -> None:
    nodes = [node(f"a{number}", cpu=3, gpu=1, labels={"rack": "a"}) for number in range(2)]
    nodes += [node(f"b{number}", cpu=3, gpu=1, labels={"rack": "b"}) for number in range(3)]
    room = NodeSnapshot(nodes)
    wanted = wants(room, member("ps", 1, cpu=2), member("worker", 2, cpu=2, gpu=1))
    assert place_gang(room, wanted, locality=MUST) == [{"b2": 1}, {"b0": 1, "b1": 1}]


def test_label_change_moves_node_to_another_domain() -> None:
    room = NodeSnapshot([*rack("a", 2, 2), *rack("b", 2)])
    wanted = wants(room, member(count=6, cpu=1))
    assert place_gang(room, wanted, locality=MUST) == 0
    room.put_node(node("b0", cpu=2, labels={"rack": "a"}))
    assert place_gang(room, wanted, locality=MUST) == [{"a0": 2, "a1": 2, "b0": 2}]


def test_domain_sums_follow_take_and_give() -> None:
    room = NodeSnapshot([*rack("a", 1, 1), *rack("b", 1, 1, 1)])
    shape = room.shape(member(cpu=1))
    assert place_gang(room, [(shape, 2)], locality=MUST) == [{"a0": 1, "a1": 1}]
    assert place_gang(room, [(shape, 2)], locality=MUST) == [{"b0": 1, "b1": 1}]
    assert place_gang(room, [(shape, 2)], locality=MUST) == 0
    room.give(shape, "a1", 1)
    room.give(shape, "a0", 1)
    assert place_gang(room, [(shape, 2)], locality=MUST) == [{"a0": 1, "a1": 1}]


def test_preferred_domain_is_extended_if_members_fit_only_separately() -> None:
    racks = {"n0": "b", "n2": "a", "n3": "a"}
    cpus = {"n0": 3, "n1": 2, "n2": 3, "n3": 4}
    gpus = {"n2": 1}
    nodes = [
        node(n, cpu=cpu, gpu=gpus.get(n, 0), labels={"rack": racks[n]} if n in racks else {}) for n, cpu in cpus.items()
    ]
    room = NodeSnapshot(nodes)
    found = place_gang(room, wants(room, member("ps", 3, cpu=2), member("worker", 3, cpu=1)), locality=RACK)
    assert found == [{"n3": 2, "n0": 1}, {"n0": 1, "n2": 2}]

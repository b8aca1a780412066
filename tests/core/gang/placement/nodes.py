"""Builders and Hypothesis strategies of nodes and pods for the placement tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tf_dist.core.gang.placement import predicates
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_sets import ABSENT, PodClass
from tf_dist.core.gang.types import EXCLUSIVE_CAPACITY, ExclusiveResource, Node, PodSet, exclusive_resource

GPU = "nvidia.com/gpu"
# Tests must not fail because the machine is busy.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TAINT = {"key": "team", "value": "ads", "effect": "NoSchedule"}
TOLERATION = {"key": "team", "operator": "Exists"}


def amounts(values: Mapping[str, Any]) -> dict[str, Decimal]:
    names = {"gpu": GPU}
    return {names.get(key, key): Decimal(str(value)) for key, value in values.items()}


def node(name: str, *, labels: Any = None, taints: Any = (), used: Any = None, **values: Any) -> Node:
    whole, taken = amounts(values), amounts(used or {})
    free = {resource: value - taken.get(resource, 0) for resource, value in whole.items()}
    return Node(name=name, allocatable=whole, free=free, labels=labels or {}, taints=tuple(taints))


def member(type_: str = "worker", count: int = 1, *, constraints: Any = None, **values: Any) -> PodSet:
    return PodSet(type=type_, count=count, requests=amounts(values), constraints=constraints or {})


def wants(room: NodeSnapshot, *members: PodSet) -> list[tuple[PodClass, int]]:
    return [(room.shape(each), each.count) for each in members]


def free(room: NodeSnapshot, name: str) -> dict[str, Decimal]:
    """The free amounts on a node of the resources that pods have requested."""
    room.ready()
    row = room.table.row[name]
    columns = [(resource, column) for resource, column in room.catalogue.columns.items() if column != ABSENT]
    cells = {resource: Decimal(room.table.cells[column][row]) for resource, column in columns}
    return {resource: amount / 1000 if resource == "cpu" else amount for resource, amount in cells.items()}


def state(room: NodeSnapshot) -> dict[str, dict[str, Decimal]]:
    """All free amounts, by node."""
    return {name: free(room, name) for name in room.nodes}


def bits(room: NodeSnapshot) -> list[bytes]:
    """All values that a snapshot derives from free amounts, as bytes."""
    return [cells.tobytes() for cells in (room.table.free, room.table.key)]


def allowed(pod: PodSet, node: Node) -> bool:
    return predicates.matches_node_affinity(
        pod.constraints, node.name, node.labels
    ) and not predicates.untolerated_taint(pod.constraints, node.taints)


def less(node: Node, pod: PodSet, count: int) -> Node:
    """The node with ``count`` more of these pods."""
    asked = {resource: value * count for resource, value in pod.requests.items()}
    asked |= {one.name: Decimal(one.amount * count) for one in pod.exclusives}
    whole = {one.name: Decimal(EXCLUSIVE_CAPACITY) for one in pod.exclusives}
    free = {r: node.free.get(r, whole.get(r, Decimal(0))) - asked.get(r, Decimal(0)) for r in {*node.free, *asked}}
    return replace(node, free=free)


# Whole gibibytes, a power of ten, and another number, so that both ways of counting are tested.
MEMORY = st.sampled_from((0, 1 << 30, 3 << 30, 10**9, 2_500_000_001))
CONSTRAINTS = st.sampled_from(
    (
        {},
        {},
        {},
        {"nodeSelector": {"zone": "a"}},
        {"tolerations": [TOLERATION]},
        {"nodeSelector": {"zone": "b"}, "tolerations": [TOLERATION]},
    )
)


EXCLUSIVES = st.sampled_from(
    (
        (),
        (),
        (),
        (ExclusiveResource(exclusive_resource(0), EXCLUSIVE_CAPACITY, "a"),),
        (ExclusiveResource(exclusive_resource(0), 1, "a"), ExclusiveResource(exclusive_resource(1), 1, "b")),
    )
)


@st.composite
def members(draw: st.DrawFn, most: int = 4) -> PodSet:
    asked = {
        "cpu": draw(st.sampled_from((0, 1, 2, 3, "1.5", "0.2505"))),
        "memory": draw(MEMORY),
        "gpu": draw(st.sampled_from((0, 0, 1, 2))),
        "ephemeral-storage": draw(st.sampled_from((0, 0, 0, 5))),
    }
    constraints = draw(CONSTRAINTS)
    drawn = member("w", draw(st.integers(0, most)), constraints=constraints, pods=1, **asked)
    return replace(drawn, exclusives=draw(EXCLUSIVES))


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    # An overcommitted node has negative free amounts.
    whole = {
        "cpu": draw(st.sampled_from((1, 4, 6, 8))),
        "memory": draw(st.sampled_from((2 << 30, 4 * 10**9, 9 << 30))),
        "pods": draw(st.sampled_from((2, 5, 110))),
        **draw(st.sampled_from(({}, {}, {"gpu": 2}, {"gpu": 4}, {"gpu": 1, "kvm.io/kvm": 1000}, {"gpu": 200}))),
        **draw(st.sampled_from(({}, {"ephemeral-storage": 10}))),
    }
    used = {"cpu": draw(st.sampled_from((0, 0, 1, 9))), "gpu": draw(st.sampled_from((0, 0, 1)))}
    excluded = draw(
        st.sampled_from(({}, {}, {exclusive_resource(0): 1}, {exclusive_resource(0): 0, exclusive_resource(1): 5}))
    )
    zone = draw(st.sampled_from((None, "a", "b")))
    taints = [TAINT] if draw(st.integers(0, 5)) == 0 else []
    drawn = node(name, labels={"zone": zone} if zone else {}, taints=taints, used=used, **whole)
    return replace(
        drawn, free={**drawn.free, **{key: Decimal(EXCLUSIVE_CAPACITY - value) for key, value in excluded.items()}}
    )


@st.composite
def clusters(draw: st.DrawFn, most: int = 6) -> list[Node]:
    return [draw(nodes(f"n{number}")) for number in range(draw(st.integers(0, most)))]


def gangs(most_members: int = 3, most: int = 4) -> st.SearchStrategy[list[PodSet]]:
    return st.lists(members(most), min_size=1, max_size=most_members)


def placed_on(result: Iterable[Mapping[str, int]]) -> set[str]:
    return {name for share in result for name in share}

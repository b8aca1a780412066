"""Usage of gangs on nodes, and the rest after a subtraction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.gang.gangs import gang, member, node, placed
from tf_dist.core.gang.cache import assigned_counts, subtract_pods, usage_of
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_sets import GangRequests, PodClassRegistry, PodsOnNode

_SHAPE = PodClassRegistry().shape(member("w", 1, cpu=1))


def on(**nodes: int) -> list[PodsOnNode]:
    return [PodsOnNode(_SHAPE, node, count) for node, count in nodes.items()]


@pytest.mark.parametrize(
    ("pods", "others", "left"),
    [
        (on(a=2, b=1), on(), on(a=2, b=1)),
        (on(a=2, b=1), on(a=1), on(a=1, b=1)),
        (on(a=2, b=1), on(a=2), on(b=1)),
        (on(a=1), on(a=2), on()),
        ([*on(a=1), *on(a=1)], on(a=1), on(a=1)),
    ],
)
def test_subtract_pods_removes_pods_by_node(
    pods: list[PodsOnNode], others: list[PodsOnNode], left: list[PodsOnNode]
) -> None:
    assert subtract_pods(pods, others) == left


def test_waiting_gang_has_no_assigned_pods() -> None:
    waits = gang("a", member("w", 3, cpu=1))
    assert assigned_counts(waits) == {"w": 0}
    assert assigned_counts(placed(waits, {"w": {"n": 2}})) == {"w": 2}


@pytest.mark.parametrize(
    ("there", "remaining", "terminating"),
    [({}, on(n=2), on()), ({"n": 2}, on(n=2), on()), ({"n": 3}, on(n=2), on(n=1)), ({"m": 1}, on(m=1, n=1), on())],
)
def test_surplus_pods_terminate_and_others_remain(
    there: dict[str, int], remaining: list[PodsOnNode], terminating: list[PodsOnNode]
) -> None:
    one = replace(placed(gang("a", member("w", 3, cpu=1)), {"w": {"n": 2}}), bound={"w": there} if there else {})
    held = usage_of(one, GangRequests(NodeSnapshot([node("m", cpu=9), node("n", cpu=9)]).shape).of(one))
    assert [(pods.node, pods.number) for pods in held.remaining] == [(pods.node, pods.number) for pods in remaining]
    assert [(pods.node, pods.number) for pods in held.terminating] == [(p.node, p.number) for p in terminating]

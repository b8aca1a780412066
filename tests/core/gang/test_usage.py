"""What gangs have on nodes, and what is left of it."""

from __future__ import annotations

import pytest

from tests.core.gang.gangs import gang, member, placed
from tf_dist.core.gang.placement.pod_classes import PodClassRegistry
from tf_dist.core.gang.placement.pod_sets import PodsOnNode
from tf_dist.core.gang.usage import granted_counts, subtract_pods

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
def test_what_is_left_of_pods_without_others(
    pods: list[PodsOnNode], others: list[PodsOnNode], left: list[PodsOnNode]
) -> None:
    assert subtract_pods(pods, others) == left


def test_who_waits_is_granted_nothing() -> None:
    waits = gang("a", member("w", 3, cpu=1))
    assert granted_counts(waits) == {"w": 0}
    assert granted_counts(placed(waits, {"w": {"n": 2}})) == {"w": 2}

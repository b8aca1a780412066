"""Properties of ``place_gang`` for all nodes and gangs.

It is also compared with an exhaustive search on small, nearly full clusters.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.gang.placement.nodes import (
    PATIENT,
    allowed,
    bits,
    clusters,
    free,
    gangs,
    less,
    member,
    node,
    placed_on,
    state,
    wants,
)
from tests.thorough import thorough
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_sets import PodClass
from tf_dist.core.gang.placement.search import place_gang
from tf_dist.core.gang.types import Node, PodSet, TopologyRequest

LOCALITIES = st.sampled_from((None, None, TopologyRequest(label="zone"), TopologyRequest(label="zone", required=True)))
KEEPS = st.sampled_from(({}, {}, {"n0": 1}, {"n1": 2, "n3": 1, "gone": 4}))


def _after(cluster: Sequence[Node], gang: Sequence[PodSet], shares: Sequence[Mapping[str, int]]) -> list[Node]:
    by_name = {node.name: node for node in cluster}
    for pod, share in zip(gang, shares, strict=True):
        for name, count in share.items():
            by_name[name] = less(by_name[name], pod, count)
    return list(by_name.values())


@given(clusters(), gangs(), LOCALITIES, KEEPS)
@thorough(300)
def test_gang_is_placed_completely_on_allowed_nodes_or_not_at_all(
    cluster: list[Node], gang: list[PodSet], locality: TopologyRequest | None, keep: dict[str, int]
) -> None:
    room = NodeSnapshot(cluster)
    wanted = wants(room, *gang)
    before, exactly = state(room), bits(room)
    result = place_gang(room, wanted, locality=locality, keep=keep)
    if isinstance(result, int):
        assert gang[result].count > 0
        assert (state(room), bits(room)) == (before, exactly)
        return
    assert [sum(share.values()) for share in result] == [pod.count for pod in gang]
    by_name = {node.name: node for node in cluster}
    for pod, share in zip(gang, result, strict=True):
        assert all(count > 0 and allowed(pod, by_name[name]) for name, count in share.items())
    after = {node.name: node for node in _after(cluster, gang, result)}
    for pod, share in zip(gang, result, strict=True):
        for name in share:
            assert all(after[name].free[resource] >= 0 for resource, value in pod.requests.items() if value)
            assert all(after[name].free[one.name] >= 0 for one in pod.exclusives)
    if locality is not None and locality.required and any(pod.count for pod in gang):
        assert len({by_name[name].labels["zone"] for name in placed_on(result)}) == 1


@given(clusters(), st.lists(gangs(), min_size=1, max_size=4))
@settings(PATIENT)
def test_free_capacity_decreases_by_placed_pods(cluster: list[Node], several: list[list[PodSet]]) -> None:
    room = NodeSnapshot(cluster)
    left = cluster
    for gang in several:
        result = place_gang(room, wants(room, *gang))
        if not isinstance(result, int):
            left = _after(left, gang, result)
    for after in left:
        found = free(room, after.name)
        for resource, value in after.free.items():
            if resource in found:
                # Half thousandths of a CPU are rounded up, once for each of at most 36 pods.
                assert value - Decimal("0.0185") <= found[resource] <= value


@given(clusters(), gangs(), LOCALITIES, KEEPS, st.randoms(use_true_random=False))
@settings(PATIENT)
def test_order_of_nodes_does_not_matter(
    cluster: list[Node], gang: list[PodSet], locality: TopologyRequest | None, keep: dict[str, int], dice: object
) -> None:
    shuffled = list(cluster)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    found = []
    for nodes in (cluster, shuffled):
        room = NodeSnapshot(nodes)
        found.append(place_gang(room, wants(room, *gang), locality=locality, keep=keep))
    assert found[0] == found[1]


# The same few gangs repeat, so the cached values of a shape must stay correct.
SEQUENCES = gangs(most=6).flatmap(
    lambda pods: st.lists(
        st.tuples(st.lists(st.sampled_from(pods), min_size=1, max_size=3), LOCALITIES, KEEPS, st.integers(0, 9)),
        min_size=1,
        max_size=8,
    )
)


@given(clusters(most=12), SEQUENCES)
@thorough(300)
def test_used_snapshot_places_gangs_like_new_snapshot(
    cluster: list[Node], sequence: list[tuple[list[PodSet], TopologyRequest | None, dict[str, int], int]]
) -> None:
    room = NodeSnapshot(cluster)
    running: list[tuple[list[tuple[PodClass, int]], list[dict[str, int]]]] = []
    for gang, locality, keep, ends in sequence:
        wanted = wants(room, *gang)
        fresh = NodeSnapshot([replace(each, free=free(room, each.name)) for each in cluster], room.catalogue)
        found = place_gang(room, wanted, locality=locality, keep=keep)
        # The order of a gang's nodes affects the placement of its next members, so ``repr`` compares the order.
        assert repr(found) == repr(place_gang(fresh, wanted, locality=locality, keep=keep))
        running += [] if isinstance(found, int) else [(wanted, found)]
        for pods, shares in running[ends : ends + 1]:
            for (shape, _), share in zip(pods, shares, strict=True):
                for name, count in share.items():
                    room.give(shape, name, count)
        del running[ends : ends + 1]


@given(clusters(), gangs(most=2))
@settings(PATIENT)
def test_gang_with_member_that_does_not_fit_alone_is_not_placed(cluster: list[Node], gang: list[PodSet]) -> None:
    room = NodeSnapshot(cluster)
    for pod in gang:
        if room.most(room.shape(pod)) < pod.count:
            assert isinstance(place_gang(room, wants(room, *gang)), int)


Free = tuple[tuple[int, int], ...]


def fits(nodes: Sequence[tuple[int, int]], pods: Sequence[tuple[int, int]]) -> bool:
    """Whether pods of (cpu, gpu) fit, by exhaustive search."""

    @cache
    def search(free: Free, at: int) -> bool:
        if at == len(pods):
            return True
        cpu, gpu = pods[at]
        for row, (has_cpu, has_gpu) in enumerate(free):
            if has_cpu >= cpu and has_gpu >= gpu and free[row] not in free[:row]:
                left = (*free[:row], (has_cpu - cpu, has_gpu - gpu), *free[row + 1 :])
                if search(left, at + 1):
                    return True
        return False

    return search(tuple(nodes), 0)


def drawn(dice: random.Random) -> tuple[list[Node], list[PodSet], bool]:
    """A cluster of at most 4 nodes, a gang of at most 5 pods in at most 3 members, and whether it fits."""
    free = [(dice.randint(0, 8), dice.choice((0, 0, 1, 2, 4))) for _ in range(dice.randint(1, 4))]
    counts = dice.choice(((1, 4), (2, 3), (1, 1, 3), (1, 2, 2), (5,), (2, 2), (1, 3), (1, 1, 1)))
    requests = [(dice.randint(1, 5), dice.choice((0, 0, 1, 2))) for _ in counts]
    pods = [request for request, count in zip(requests, counts, strict=True) for _ in range(count)]
    nodes = [node(f"n{number}", cpu=cpu, gpu=gpu) for number, (cpu, gpu) in enumerate(free)]
    gang = [
        member(f"w{at}", count, cpu=request[0], gpu=request[1])
        for at, (request, count) in enumerate(zip(requests, counts, strict=True))
    ]
    return nodes, gang, fits(free, pods)


def test_search_is_sound_and_misses_few_possible_placements() -> None:
    dice = random.Random(4)
    possible = missed = 0
    for _ in range(6000):
        nodes, gang, fitting = drawn(dice)
        room = NodeSnapshot(nodes)
        placed = not isinstance(place_gang(room, wants(room, *gang)), int)
        assert fitting or not placed
        possible += fitting
        missed += fitting and not placed
    assert possible > 1000
    assert missed / possible < 0.02

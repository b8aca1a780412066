"""Properties of quotas over random forests and sequences, compared with a naive oracle."""

from __future__ import annotations

from decimal import Decimal
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.gang.queue_oracle import NaiveQuotas
from tests.thorough import thorough
from tf_dist.core.gang.queue import FairSharingIterator
from tf_dist.core.gang.quota import Quotas
from tf_dist.core.gang.types import Resources
from tf_dist.core.model.gang_queue import Queue, Quota

# Tests must not fail because the machine is busy.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
RESOURCES = ("cpu", "nvidia.com/gpu")
AMOUNTS = st.sampled_from([Decimal(text) for text in ("0", "0.5", "1", "2", "3", "4", "6")])
NEEDS = st.dictionaries(st.sampled_from(RESOURCES), AMOUNTS, min_size=1)
QUOTAS = st.builds(Quota, nominal=AMOUNTS, borrowing_limit=st.none() | AMOUNTS, lending_limit=st.none() | AMOUNTS)
LIMITS = st.dictionaries(st.sampled_from(RESOURCES), QUOTAS)


@st.composite
def forests(draw: st.DrawFn) -> list[Queue]:
    """Up to seven queues. The parent of each may be any earlier queue."""
    queues: list[Queue] = []
    for number in range(draw(st.integers(1, 7))):
        parent = draw(st.sampled_from(["", *(queue.name for queue in queues)]))
        weight = draw(st.integers(1, 3))
        queues.append(Queue(name=f"q{number}", parent=parent, weight=weight, quotas=draw(LIMITS)))
    return queues


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[Queue], list[tuple[str, Resources]]]:
    forest = draw(forests())
    step = st.tuples(st.sampled_from([queue.name for queue in forest]), NEEDS)
    return forest, draw(st.lists(step, max_size=12))


def state(quotas: Quotas, forest: list[Queue]) -> list[object]:
    """All observable values."""
    return [
        (quotas.used(q.name), quotas.borrowed(q.name), quotas.share(q.name), quotas.fill(q.name), _left(quotas, q.name))
        for q in forest
    ]


def _left(quotas: Quotas, name: str) -> list[str]:
    return [str(quotas.lack(name, {resource: Decimal(1000)})) for resource in RESOURCES]


@thorough(300)
@given(sequences(), st.data())
def test_quotas_match_oracle(case: tuple[list[Queue], list[tuple[str, Resources]]], data: st.DataObject) -> None:
    forest, steps = case
    quotas, naive, empty = Quotas(forest), NaiveQuotas(forest), NaiveQuotas(forest)
    for name, need in steps:
        lack = quotas.lack(name, need)
        assert (lack is None) == naive.fits(name, need) == quotas.fits(name, need)
        assert quotas.could_fit(name, need) == empty.fits(name, need)
        if lack:
            assert lack.missing > 0
            assert not naive.fits(name, {lack.resource: need[lack.resource]})
            free = lack.needed - lack.missing
            assert not free or naive.fits(name, {lack.resource: free})
            assert lack.never == (not empty.fits(name, need))
        if lack is None or data.draw(st.booleans(), label="runs all the same"):
            quotas.take(name, need)
            naive.gangs.append((name, need))
        if naive.gangs and data.draw(st.integers(0, 2), label="one ends if 0") == 0:
            quotas.give(*naive.gangs.pop(data.draw(st.integers(0, len(naive.gangs) - 1), label="which")))
        for queue in forest:
            borrowed = quotas.borrowed(queue.name)
            for resource in RESOURCES:
                over = naive.usage(queue.name, resource) - naive.quota(queue.name, resource)
                assert borrowed.get(resource, 0) == max(0, over)


@CALM
@given(sequences(), st.data())
def test_give_reverts_take(case: tuple[list[Queue], list[tuple[str, Resources]]], data: st.DataObject) -> None:
    forest, steps = case
    quotas = Quotas(forest)
    kept = steps[: len(steps) // 2]
    for step in kept:
        quotas.take(*step)
    before = state(quotas, forest)
    passing = steps[len(kept) :]
    for step in passing:
        quotas.take(*step)
    for step in data.draw(st.permutations(passing)):
        quotas.give(*step)
    assert state(quotas, forest) == before


@CALM
@given(sequences(), st.data())
def test_order_of_gangs_and_queues_does_not_matter(
    case: tuple[list[Queue], list[tuple[str, Resources]]], data: st.DataObject
) -> None:
    forest, steps = case
    one, other = Quotas(forest), Quotas(data.draw(st.permutations(forest)))
    for step in steps:
        one.take(*step)
    for step in data.draw(st.permutations(steps)):
        other.take(*step)
    assert state(one, forest) == state(other, forest)


@CALM
@given(sequences())
def test_tree_stays_within_nominal_quotas_if_only_fitting_gangs_run(
    case: tuple[list[Queue], list[tuple[str, Resources]]],
) -> None:
    forest, steps = case
    quotas, naive = Quotas(forest), NaiveQuotas(forest)
    for name, need in steps:
        if quotas.lack(name, need) is None:
            quotas.take(name, need)
            naive.gangs.append((name, need))
    for root in (queue for queue in forest if not queue.parent):
        tree = [queue.name for queue in forest if naive.path(queue.name)[-1] is root]
        for resource in RESOURCES:
            limited = [name for name in tree if naive.limited(name, resource)]
            held = sum(need.get(resource, 0) for name, need in naive.gangs if name in limited)
            assert held <= quotas.nominal(root.name).get(resource, 0)
        assert quotas.borrowed(root.name) == {}


@CALM
@given(sequences())
def test_unlent_quota_is_always_available_to_its_queue(
    case: tuple[list[Queue], list[tuple[str, Resources]]],
) -> None:
    forest, steps = case
    quotas, naive = Quotas(forest), NaiveQuotas(forest)
    leaf = forest[-1]
    for name, need in steps:
        if name != leaf.name:
            quotas.take(name, need)
    unlent = {resource: naive.guaranteed(leaf.name, resource) for resource in RESOURCES if leaf.parent}
    assert quotas.lack(leaf.name, unlent) is None


@thorough(200)
@given(sequences())
def test_share_matches_oracle(case: tuple[list[Queue], list[tuple[str, Resources]]]) -> None:
    """The share is computed by weight at each level."""
    forest, steps = case
    capacity = dict.fromkeys(RESOURCES, Decimal(20))
    quotas, naive = Quotas(forest, capacity), NaiveQuotas(forest)
    for name, need in steps:
        quotas.take(name, need)
        naive.gangs.append((name, need))
        assert quotas.share(name) == pytest.approx(naive.share(name, capacity))
    for queue in forest:
        assert quotas.share(queue.name) == pytest.approx(naive.share(queue.name, capacity))


@CALM
@given(sequences(), st.data())
def test_next_queue_has_smallest_current_share(
    case: tuple[list[Queue], list[tuple[str, Resources]]], data: st.DataObject
) -> None:
    forest, steps = case
    quotas = Quotas(forest, capacity=dict.fromkeys(RESOURCES, Decimal(20)))
    left = {queue.name: [need for name, need in steps if name == queue.name] for queue in forest}
    waiting = {name: 0 for name, needs in left.items() if needs}
    number = count(1)
    turns = FairSharingIterator(quotas, waiting)
    held: list[tuple[str, Resources]] = []
    while turns:
        if held and data.draw(st.integers(0, 3), label="one ends if 0") == 0:
            quotas.give(*held.pop())
        expected = min(waiting, key=lambda name: (quotas.share(name), waiting[name], name))
        name = turns.next()
        assert name == expected
        need = left[name].pop()
        quotas.take(name, need)
        held.append((name, need))
        del waiting[name]
        if left[name]:
            waiting[name] = next(number)
            turns.back(name, waiting[name])
    assert not any(left.values())

"""No gang waits forever: after a long wait it gets a reservation, and others pass only if they do not delay it.

Further tests compare reservations with their definition: they are made in order, each starts as early as possible, and
each holds back no more than necessary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import inf
from random import Random

import pytest

from tests.core.gang.gangs import (
    GPU,
    World,
    bound,
    gang,
    member,
    message,
    node,
    queue,
    reason,
    running,
    workers,
)
from tests.core.gang.placement.nodes import free
from tf_dist.core.gang.backfill import Reservation, make_reservation, with_reserved
from tf_dist.core.gang.cache import SchedulerCache, Workload
from tf_dist.core.gang.placement.pod_sets import PodsOnNode
from tf_dist.core.gang.types import AdmissionPolicy, Gang
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.gang_queue import QueueingStrategy

POLICY = AdmissionPolicy(patience=100)


def world(*gangs: Gang, nodes: int = 1, policy: AdmissionPolicy = POLICY) -> World:
    made = World([node(f"n{i}", gpu=4) for i in range(nodes)], policy=policy)
    made.put(*gangs)
    return made


def starts(found: World, now: float) -> list[str]:
    return sorted(uid for uid, verdict in found.decide(now).items() if isinstance(verdict, Admit))


def test_others_pass_before_patience_ends() -> None:
    found = world(running("a", {"n0": 2}), gang("large", workers(4), at=0), gang("small", workers(1), at=50))
    assert starts(found, 60) == ["small"]


def test_capacity_is_reserved_after_patience_ends() -> None:
    found = world(running("a", {"n0": 2}), gang("large", workers(4), at=0), gang("small", workers(1), at=150))
    assert starts(found, 160) == []
    waits = found.scheduler.explain("large")
    assert reason(waits) == "WaitingForCapacity"
    assert message(waits).endswith("; position 1; starts when ml/a ends or is stopped")
    small = found.scheduler.explain("small")
    assert reason(small) == "Reserved"
    assert message(small) == (
        "it would fit, but the capacity is reserved for gangs that have waited longer; position 2, behind ml/large"
    )
    found.remove("a")
    assert starts(found, 161) == ["large"]


@pytest.mark.parametrize(("estimate", "passes"), [(30, True), (40, True), (41, False), (None, False)])
def test_gang_that_ends_before_reservation_starts_may_pass(estimate: float | None, passes: bool) -> None:
    found = world(
        running("a", {"n0": 2}, at=0, estimate=200),
        gang("large", workers(4), at=1, estimate=10),
        gang("small", workers(1), at=150, estimate=estimate),
    )
    assert starts(found, 160) == (["small"] if passes else [])
    assert message(found.scheduler.explain("large")).endswith("ends (about 00:03 UTC) or is stopped")


def test_gang_on_unreserved_node_may_pass() -> None:
    """A reservation is for nodes: the reservation of n1 leaves n0 to others."""
    found = world(
        running("a", {"n0": 3}),
        running("b", {"n1": 1}),
        gang("large", workers(1, gpu=4), at=0),
        gang("small", workers(1), at=150),
        gang("next", workers(1), at=151),
        nodes=2,
    )
    assert starts(found, 160) == ["small"]
    assert found.gangs["small"].assigned is not None
    assert found.gangs["small"].assigned.placement == {"worker": {"n0": 1}}


def test_estimate_of_overdue_gang_doubles() -> None:
    found = world(running("a", {"n0": 2}, at=0, estimate=100), gang("large", workers(4), at=0))
    found.decide(150)
    assert "starts when ml/a ends (about 00:03 UTC)" in message(found.scheduler.explain("large"))
    found.decide(250)
    assert "starts when ml/a ends (about 00:06 UTC)" in message(found.scheduler.explain("large"))


def test_reserved_gang_starts_on_time_if_estimates_hold() -> None:
    """New small gangs do not delay the large gang."""
    found = world(
        *(running(f"r{i}", {"n0": 1}, at=0, estimate=400 + 10 * i) for i in range(4)),
        policy=AdmissionPolicy(patience=10),
    )
    found.put(gang("large", workers(4), at=1, estimate=50))
    ends = {f"r{i}": 400.0 + 10 * i for i in range(4)}
    started = None
    for number, now in enumerate(range(50, 600, 5)):
        for uid in [uid for uid, end in ends.items() if end <= now]:
            found.remove(uid)
            del ends[uid]
        found.put(gang(f"s{number}", workers(1), at=now, estimate=(number % 7) * 40 + 20))
        for uid in starts(found, now):
            ends[uid] = now + (found.gangs[uid].estimate or 0)
            if uid == "large":
                started = now
    assert started == 430


def test_quota_is_reserved() -> None:
    found = World([node("n0", gpu=16)], [queue("team", gpu=4)], POLICY)
    found.put(running("a", {"n0": 2}, queue="team"), gang("large", workers(4), at=0, queue="team"))
    found.put(gang("small", workers(1), at=150, queue="team"), gang("other", workers(1), at=150))
    assert starts(found, 160) == ["other"]
    assert reason(found.scheduler.explain("large")) == "QuotaExceeded"


def test_wait_of_large_gang_is_bounded_despite_new_small_gangs() -> None:
    """Without estimates, no gang passes a gang whose patience has ended. It starts when the running gangs end."""
    found = world(policy=POLICY)
    ends: dict[str, int] = {}
    found.put(gang("large", workers(4), at=30))
    started = None
    for now in range(0, 400, 10):
        for uid in [uid for uid, end in ends.items() if end <= now]:
            found.remove(uid)
            del ends[uid]
        found.put(gang(f"s{now}", workers(1), at=now))
        for uid in starts(found, now):
            ends[uid] = now + 40
            if uid == "large":
                started = now
    assert started is not None
    assert started <= 30 + 100 + 40


def test_strict_queue_keeps_capacity_for_its_first_gang() -> None:
    found = World([node("n0", gpu=4)], [queue("default", order=QueueingStrategy.STRICT_FIFO)], POLICY)
    found.put(running("a", {"n0": 2}), gang("large", workers(4), at=0), gang("small", workers(1), at=1))
    assert starts(found, 2) == []


def test_reservation_passes_to_gang_ahead_when_its_patience_ends() -> None:
    found = world(running("a", {"n0": 2}, priority=1), gang("large", workers(4), at=1000))
    found.put(gang("urgent", workers(4), at=1090, priority=1))
    found.decide(1110)
    assert message(found.scheduler.explain("urgent")).endswith("position 1")
    assert "behind ml/urgent; starts when ml/a ends" in message(found.scheduler.explain("large"))
    found.decide(1195)
    assert message(found.scheduler.explain("large")).endswith("position 2, behind ml/urgent")


def test_reservation_places_different_members_together() -> None:
    found = World([node("n0", cpu=8, gpu=4), node("n1", cpu=8)], policy=POLICY)
    found.put(
        gang("large", member("ps", 1, cpu=6), member("worker", 2, cpu=1, gpu=2), at=0),
        gang("small", member("w", 1, cpu=4), at=150),
    )
    found.put(running("a", {"n0": 1}))
    assert starts(found, 160) == ["small"]
    # The whole large gang will run on n0.
    assert found.gangs["small"].assigned is not None
    assert found.gangs["small"].assigned.placement == {"w": {"n1": 1}}


# -- two reservations at the same time, of two queues --


def two_owners() -> World:
    """The first gang of queue a waits for n0 until 200, and the first of queue b for n1 until 300.

    Each node has 2 free GPUs.
    """
    found = World([node("n0", gpu=4), node("n1", gpu=4)], [queue("a"), queue("b")], POLICY)
    found.put(
        running("r0", {"n0": 2}, at=0, estimate=200, queue="a"),
        running("r1", {"n1": 2}, at=0, estimate=300, queue="b"),
        gang("first", workers(1, gpu=4), at=1, estimate=10, queue="a"),
        gang("second", workers(1, gpu=4), at=2, estimate=10, queue="b"),
    )
    return found


@pytest.mark.parametrize("queued", ["a", "b"])
@pytest.mark.parametrize(("estimate", "passes"), [(40, True), (41, False), (140, False), (141, False), (None, False)])
def test_gang_passes_only_if_it_ends_before_first_reservation_starts(
    estimate: float | None, passes: bool, queued: str
) -> None:
    found = two_owners()
    found.put(gang("longer", workers(1), at=3, estimate=200, queue=queued))
    found.put(gang("small", workers(1), at=150, estimate=estimate, queue=queued))
    assert starts(found, 160) == (["small"] if passes else [])


@pytest.mark.parametrize("gone", ["first", "second"])
def test_reserved_capacity_is_free_after_owner_is_removed(gone: str) -> None:
    """The remaining gang waits for n0, which is free earlier."""
    found = two_owners()
    found.put(gang("small", workers(1), at=150, queue="b" if gone == "first" else "a"))
    assert starts(found, 160) == []
    found.remove(gone)
    assert starts(found, 161) == ["small"]
    place = found.gangs["small"].assigned
    assert place is not None
    assert place.placement == {"worker": {"n1": 1}}


@pytest.mark.parametrize(("waited", "reserves"), [(99, False), (100, True)])
def test_gang_gets_reservation_when_its_patience_ends(waited: float, reserves: bool) -> None:
    found = world(running("a", {"n0": 2}), gang("large", workers(4), at=0))
    assert starts(found, 1) == []
    found.put(gang("small", workers(1), at=0.5))
    assert starts(found, waited) == ([] if reserves else ["small"])


@pytest.mark.parametrize(("waited", "reserves"), [(29, False), (30, True)])
def test_gang_may_have_its_own_patience(waited: float, reserves: bool) -> None:
    """This also holds behind a gang of the same size with the default patience, which gets no earlier reservation."""
    found = world(
        running("a", {"n0": 2}), gang("large", workers(4), at=0), gang("urgent", workers(4), at=0, patience=30)
    )
    assert starts(found, 1) == []
    assert found.scheduler.wake_at(1) == 30
    found.put(gang("small", workers(1), at=0.5))
    assert starts(found, waited) == ([] if reserves else ["small"])


def test_wakes_when_patience_of_gang_ends() -> None:
    found = world(running("a", {"n0": 2}), gang("large", workers(4), at=0))
    found.decide(10)
    assert found.scheduler.wake_at(10) == 100


NOW = 1000.0
QUEUES = ("a", "b", "free")
Free = dict[str, int]


@dataclass
class Case:
    """A cluster of GPUs: the free GPUs of each node, the GPUs that running gangs release, and the queues' unused quota.

    ``gives`` has an entry for each running gang, in the order of their ends: the end (``NOW`` if the gang is already
    stopping), its queue, and its GPUs by node.
    """

    cache: SchedulerCache
    free: Free
    gives: list[tuple[float, str, Free]]
    left: dict[str, int]
    waiting: list[Workload]


def drawn(dice: Random) -> Case:
    """Up to 4 nearly full nodes, and up to 4 waiting gangs. All pods of a gang have the same size."""
    cache = SchedulerCache()
    free = {f"n{at}": dice.randint(0, 4) for at in range(dice.randint(1, 4))}
    quotas = {"a": dice.randint(2, 10), "b": dice.randint(2, 10)}
    cache.put_queues([*(queue(name, gpu=gpus) for name, gpus in quotas.items()), queue("free")])
    left = {**quotas, "free": 10**6}
    gives: list[tuple[float, str, Free]] = []
    told, used = [], dict.fromkeys(free, 0)
    runs = []
    for number in range(dice.randint(1, 6)):
        on = {name: dice.randint(1, 2) for name in dice.sample(sorted(free), dice.randint(1, min(2, len(free))))}
        size = dice.choice([1, 1, 2])
        gpus = {name: count * size for name, count in on.items()}
        where = dice.choice(QUEUES)
        one = running(f"r{number}", on, gpu=size, queue=where, estimate=float(NOW + 10 * (number + 1)))
        if dice.random() < 0.5:
            one = bound(one)  # its pods are bound; otherwise they do not exist yet
            for name, count in gpus.items():
                used[name] += count
        kind = dice.choice(["runs", "runs", "runs", "told", "stopped"])
        if kind == "stopped":
            if not one.bound:
                for name, count in gpus.items():
                    used[name] += count
            one = replace(bound(one), assigned=None)
        runs.append((one, kind))
        left[where] -= sum(gpus.values())
        gives.append((float(NOW + 10 * (number + 1)) if kind == "runs" else NOW, where, gpus))
        told += [one.uid] if kind == "told" else []
    for name, there in free.items():
        held = sum(gpus.get(name, 0) for _, _, gpus in gives)
        cache.put_node(node(name, gpu=there + held, used={"gpu": used[name]}))
    for one, _ in runs:
        entry = cache.put(one)
        if one.uid in told:
            cache.release(entry, entry.held.remaining, entry.held.remaining_quota)
    cache.ends.advance(NOW)
    waiting = [
        cache.put(gang(f"w{at}", workers(dice.randint(1, 5), gpu=dice.choice([1, 1, 2])), queue=dice.choice(QUEUES)))
        for at in range(dice.randint(2, 4))
    ]
    cache.assumed_pods.settle()
    return Case(cache, free, sorted(gives, key=lambda one: one[0]), left, waiting)


def wants(entry: Workload) -> tuple[int, int]:
    """The number of pods, and the GPUs of each."""
    [part] = entry.gang.members
    return part.count, int(part.requests[GPU])


def gpus(pods: Sequence[PodsOnNode]) -> Free:
    """The GPUs by node."""
    found: Free = {}
    for one in pods:
        [(_, value)] = one.shape.requests
        found[one.node] = found.get(one.node, 0) + value * one.number
    return found


def less(free: Mapping[str, int], *taken: Mapping[str, int]) -> Free:
    return {name: count - sum(one.get(name, 0) for one in taken) for name, count in free.items()}


def more(free: Mapping[str, int], given: Sequence[Mapping[str, int]]) -> Free:
    return {name: count + sum(one.get(name, 0) for one in given) for name, count in free.items()}


def need(entry: Workload) -> int:
    count, size = wants(entry)
    return count * size


def earliest(case: Case, entry: Workload, earlier: Sequence[Reservation]) -> tuple[float, int] | None:
    """When a gang fits in addition to the earlier reservations, and how many gangs have ended by then. None: never."""
    count, size = wants(entry)
    leaving = sum(at == NOW for at, _, _ in case.gives)
    for gone in range(leaving, len(case.gives) + 1):
        given = case.gives[:gone]
        room = less(more(case.free, [one for _, _, one in given]), *(gpus(one.pods) for one in earlier))
        quota = case.left[entry.queue] + sum(sum(one.values()) for _, queue, one in given if queue == entry.queue)
        quota -= sum(need(one.entry) for one in earlier if one.entry.queue == entry.queue)
        if sum(max(0, there) // size for there in room.values()) >= count and quota >= count * size:
            return (given[-1][0] if gone > leaving else NOW), gone
    return None


def held(case: Case, made: Sequence[Reservation], gone: int) -> Free:
    """What the last reservation holds back on every node: what is not vacated, or what earlier reservations count on.

    It holds back whole pods, and no more than it needs there.
    """
    *before, last = made
    _, size = wants(last.entry)
    vacated = {name: sum(one.get(name, 0) for _, _, one in case.gives[:gone]) for name in case.free}
    counted = [less(gpus(one.pods), gpus(one.hold)) for one in before]
    found = {}
    for name, wanted in gpus(last.pods).items():
        spare = vacated[name] - sum(one.get(name, 0) for one in counted)
        if wanted > (covered := max(0, spare) // size * size):
            found[name] = wanted - covered
    return found


def held_quota(case: Case, made: Sequence[Reservation], gone: int) -> int:
    *before, last = made
    spare = sum(sum(one.values()) for _, queue, one in case.gives[:gone] if queue == last.entry.queue)
    for one in before:
        if one.entry.queue == last.entry.queue:
            spare -= need(one.entry) - int(one.reserved_quota.get(GPU, 0))
    return max(0, need(last.entry) - max(0, spare))


def test_successive_reservations_match_definition() -> None:
    later = several = 0
    for seed in range(200):
        case = drawn(Random(seed))
        made: list[Reservation] = []
        before = state(case)
        for entry in case.waiting:
            expected = earliest(case, entry, made)
            found = make_reservation(case.cache, entry, entry.request.full, NOW, made)
            assert (found is None) == (expected is None), seed
            assert state(case) == before, "a look leaves no trace"
            if found is None or expected is None:
                continue
            made.append(found)
            start, gone = expected
            assert found.start == start
            room = less(more(case.free, [one for _, _, one in case.gives[:gone]]), *(gpus(one.pods) for one in made))
            assert all(room[name] >= 0 for name in gpus(found.pods))
            assert sum(one.number for one in found.pods) == wants(entry)[0]
            assert gpus(found.hold) == held(case, made, gone)
            assert found.reserved_quota.get(GPU, 0) == held_quota(case, made, gone)
            later += start > NOW
        several += len(made) > 1
        check_views(case, made)
    assert later > 100
    assert several > 100


def state(case: Case) -> object:
    assumed_pods, quotas = case.cache.assumed_pods, case.cache.quotas
    return {name: free(assumed_pods.snapshot, name)[GPU] for name in case.free}, [quotas.used(name) for name in QUEUES]


def check_views(case: Case, made: Sequence[Reservation]) -> None:
    """``with_reserved`` subtracts the reserved resources if ``started``, and otherwise what is held back."""
    before = state(case)
    for started, parts in (
        (True, [gpus(one.pods) for one in made]),
        (False, [gpus(one.hold) for one in made]),
    ):
        with with_reserved(case.cache, made, started=started):
            rooms, used = state(case)  # type: ignore[misc]
            free, had = before  # type: ignore[misc]
            assert rooms == {name: free[name] - sum(part.get(name, 0) for part in parts) for name in free}
            for name, now, then in zip(QUEUES, used, had, strict=True):
                mine = [one for one in made if one.entry.queue == name]
                added = sum(need(one.entry) if started else one.reserved_quota.get(GPU, 0) for one in mine)
                assert now.get(GPU, 0) == then.get(GPU, 0) + added
        assert state(case) == before


def test_reservation_without_ends_counts_only_stopping_gangs() -> None:
    possible = 0
    for seed in range(150):
        case = drawn(Random(seed))
        entry = case.waiting[0]
        found = make_reservation(case.cache, entry, entry.request.full, NOW, ended=False)
        expected = earliest(replace(case, gives=[one for one in case.gives if one[0] == NOW]), entry, ())
        assert (found is None) == (expected is None)
        possible += found is not None
    assert 15 < possible < 135


def test_gang_without_estimate_ends_last_at_unknown_time() -> None:
    cache = SchedulerCache()
    cache.put_node(node("n0", gpu=4))
    cache.put(running("known", {"n0": 2}, estimate=NOW + 50))
    cache.put(running("unknown", {"n0": 2}))
    cache.ends.advance(NOW)
    small, large = cache.put(gang("small", workers(2))), cache.put(gang("large", workers(4)))
    first = make_reservation(cache, small, (2,), NOW)
    second = make_reservation(cache, large, (4,), NOW)
    assert first is not None
    assert second is not None
    assert (first.start, second.start) == (NOW + 50, inf)
    assert (first.after and first.after.uid, second.after and second.after.uid) == ("known", "unknown")


@pytest.mark.parametrize(("vacated", "kept_back"), [(0, 5), (1, 4), (2, 3), (3, 2), (4, 1), (5, 0)])
def test_members_of_two_sizes_do_not_count_same_capacity_twice(vacated: int, kept_back: int) -> None:
    """One pod needs 3 GPUs, and two pods need 1. Every GPU that becomes free covers at most one pod."""
    cache = SchedulerCache()
    cache.put_node(node("n0", gpu=5))
    cache.put(running("a", {"n0": vacated}, estimate=NOW + 50) if vacated else gang("none", member("w", 0)))
    cache.ends.advance(NOW)
    both = cache.put(gang("both", member("w", 1, gpu=3), member("x", 2, gpu=1)))
    found = make_reservation(cache, both, (1, 2), NOW)
    assert found is not None
    assert sum(gpus(found.pods).values()) == 5
    held_back = sum(gpus(found.hold).values())
    # A pod is covered completely or not at all: if only two GPUs become free, all 3 GPUs of its pod are held back.
    assert kept_back <= held_back <= kept_back + 2
    assert found.reserved_quota.get(GPU, Decimal(0)) == kept_back

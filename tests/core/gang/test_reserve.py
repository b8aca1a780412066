"""Nobody waits for ever: who waits long gets a reservation, and others pass only where they do not delay it."""

from __future__ import annotations

import pytest

from tests.core.gang.gangs import World, gang, member, message, node, queue, reason, running, workers
from tf_dist.core.gang.model import Admit, Gang, Order, Policy

POLICY = Policy(patience=100)


def world(*gangs: Gang, nodes: int = 1, policy: Policy = POLICY) -> World:
    made = World([node(f"n{i}", gpu=4) for i in range(nodes)], policy=policy)
    made.put(*gangs)
    return made


def starts(found: World, now: float) -> list[str]:
    return sorted(uid for uid, verdict in found.decide(now).items() if isinstance(verdict, Admit))


def test_others_pass_while_the_first_has_not_waited_long() -> None:
    found = world(running("a", {"n0": 2}), gang("large", workers(4), at=0), gang("small", workers(1), at=50))
    assert starts(found, 60) == ["small"]


def test_then_room_is_kept_for_it() -> None:
    found = world(running("a", {"n0": 2}), gang("large", workers(4), at=0), gang("small", workers(1), at=150))
    assert starts(found, 160) == []
    waits = found.admitter.explain("large")
    assert reason(waits) == "WaitingForCapacity"
    assert message(waits).endswith("; position 1; starts when ml/a ends or is stopped")
    small = found.admitter.explain("small")
    assert reason(small) == "Reserved"
    assert message(small) == (
        "there is room for it, but that is reserved for those who have waited longer; position 2, behind ml/large"
    )
    found.remove("a")
    assert starts(found, 161) == ["large"]


@pytest.mark.parametrize(("estimate", "passes"), [(30, True), (40, True), (41, False), (None, False)])
def test_who_ends_before_may_pass(estimate: float | None, passes: bool) -> None:
    found = world(
        running("a", {"n0": 2}, at=0, estimate=200),
        gang("large", workers(4), at=1, estimate=10),
        gang("small", workers(1), at=150, estimate=estimate),
    )
    assert starts(found, 160) == (["small"] if passes else [])
    assert message(found.admitter.explain("large")).endswith("ends (about 00:03 UTC) or is stopped")


def test_who_goes_elsewhere_may_pass_however_long_it_runs() -> None:
    """The reservation is of nodes: that of n1 leaves n0 to others."""
    found = world(
        running("a", {"n0": 3}),
        running("b", {"n1": 1}),
        gang("large", workers(1, gpu=4), at=0),
        gang("small", workers(1), at=150),
        gang("next", workers(1), at=151),
        nodes=2,
    )
    assert starts(found, 160) == ["small"]
    assert found.gangs["small"].place is not None
    assert found.gangs["small"].place.placement == {"worker": {"n0": 1}}


def test_a_gang_over_its_time_is_expected_to_take_as_long_again() -> None:
    found = world(running("a", {"n0": 2}, at=0, estimate=100), gang("large", workers(4), at=0))
    found.decide(150)
    assert "starts when ml/a ends (about 00:03 UTC)" in message(found.admitter.explain("large"))
    found.decide(250)
    assert "starts when ml/a ends (about 00:06 UTC)" in message(found.admitter.explain("large"))


def test_the_promise_is_kept_if_estimates_hold() -> None:
    """However many small gangs keep coming, the large one starts when it was said to."""
    found = world(
        *(running(f"r{i}", {"n0": 1}, at=0, estimate=400 + 10 * i) for i in range(4)), policy=Policy(patience=10)
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


def test_quota_is_reserved_too() -> None:
    found = World([node("n0", gpu=16)], [queue("team", gpu=4)], POLICY)
    found.put(running("a", {"n0": 2}, queue="team"), gang("large", workers(4), at=0, queue="team"))
    found.put(gang("small", workers(1), at=150, queue="team"), gang("other", workers(1), at=150))
    assert starts(found, 160) == ["other"]
    assert reason(found.admitter.explain("large")) == "QuotaExceeded"


def test_the_longest_wait_is_bounded_though_small_ones_keep_coming() -> None:
    """Without estimates nobody can pass a gang that has waited for its patience: it starts when those inside end."""
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


def test_a_strict_queue_keeps_its_room_for_its_first_from_the_start() -> None:
    found = World([node("n0", gpu=4)], [queue("default", order=Order.STRICT_FIFO)], POLICY)
    found.put(running("a", {"n0": 2}), gang("large", workers(4), at=0), gang("small", workers(1), at=1))
    assert starts(found, 2) == []


def test_who_waits_long_has_a_reservation_behind_those_who_do_not() -> None:
    found = world(running("a", {"n0": 2}, priority=1), gang("large", workers(4), at=1000))
    found.put(gang("urgent", workers(4), at=1090, priority=1))
    found.decide(1110)
    assert message(found.admitter.explain("urgent")).endswith("position 1")
    assert "behind ml/urgent; starts when ml/a ends" in message(found.admitter.explain("large"))
    found.decide(1195)
    assert message(found.admitter.explain("large")).endswith("position 2, behind ml/urgent")


def test_members_that_differ_reserve_together() -> None:
    found = World([node("n0", cpu=8, gpu=4), node("n1", cpu=8)], policy=POLICY)
    found.put(
        gang("large", member("ps", 1, cpu=6), member("worker", 2, cpu=1, gpu=2), at=0),
        gang("small", member("w", 1, cpu=4), at=150),
    )
    found.put(running("a", {"n0": 1}))
    assert starts(found, 160) == ["small"]
    # All of the large one will be on n0.
    assert found.gangs["small"].place is not None
    assert found.gangs["small"].place.placement == {"w": {"n1": 1}}


# -- two reservations at a time: those of two queues --


def two_owners() -> World:
    """The first of one queue waits for n0 (until 200), the first of the other for n1 (until 300); 2 GPUs are free on
    either."""
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
def test_who_passes_several_ends_before_the_first_of_them_starts(
    estimate: float | None, passes: bool, queued: str
) -> None:
    found = two_owners()
    found.put(gang("longer", workers(1), at=3, estimate=200, queue=queued))
    found.put(gang("small", workers(1), at=150, estimate=estimate, queue=queued))
    assert starts(found, 160) == (["small"] if passes else [])


@pytest.mark.parametrize("gone", ["first", "second"])
def test_what_was_kept_for_one_of_two_is_free_when_it_wants_it_no_more(gone: str) -> None:
    """Who is left waits for n0, which is free earlier."""
    found = two_owners()
    found.put(gang("small", workers(1), at=150, queue="b" if gone == "first" else "a"))
    assert starts(found, 160) == []
    found.remove(gone)
    assert starts(found, 161) == ["small"]
    place = found.gangs["small"].place
    assert place is not None
    assert place.placement == {"worker": {"n1": 1}}


@pytest.mark.parametrize(("waited", "reserves"), [(99, False), (100, True)])
def test_a_gang_has_a_reservation_once_it_has_waited_for_its_patience(waited: float, reserves: bool) -> None:
    found = world(running("a", {"n0": 2}), gang("large", workers(4), at=0))
    assert starts(found, 1) == []
    found.put(gang("small", workers(1), at=0.5))
    assert starts(found, waited) == ([] if reserves else ["small"])


def test_it_is_decided_anew_when_somebody_s_patience_ends() -> None:
    found = world(running("a", {"n0": 2}), gang("large", workers(4), at=0))
    found.decide(10)
    assert found.admitter.wake_at(10) == 100

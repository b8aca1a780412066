"""Fallbacks of a gang: which one starts, the gang's position in the queue, and the usage of the others."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from tests.core.gang.gangs import (
    World,
    admit,
    gang,
    member,
    message,
    node,
    or_else,
    queue,
    reason,
    running,
    waiting,
    workers,
)
from tests.core.gang.test_admission_properties import POLICY, QUEUES, some_gang, some_node, used
from tf_dist.core.gang.types import Gang
from tf_dist.core.model.assignment import Admit, Wait
from tf_dist.core.model.gang_queue import QueueingStrategy

TWO_QUEUES = (queue("train", gpu=8), queue("spot", gpu=8))


def job(name: str = "job", *, at: float = 0, tried_from: float = 600, **rest: Any) -> Gang:
    """A job that requests 8 GPUs, with fallbacks to 4 GPUs and to 8 GPUs of the spot queue."""
    rest = {"queue": "train", **rest}
    return or_else(
        gang(name, workers(8), at=at, **rest),
        gang(name, workers(4), **rest),
        gang(name, workers(8), **{**rest, "queue": "spot"}),
        tried_from=tried_from,
    )


def started(world: World, now: float) -> dict[str, int]:
    """The gangs that start now, with the number of the chosen fallback."""
    return {
        uid: one.fallback for verdicts in world.settle(now) for uid, one in verdicts.items() if isinstance(one, Admit)
    }


@pytest.mark.parametrize(
    ("train", "spot", "now", "expected"),
    [
        (0, 0, 0, 0),  # all is free
        (0, 0, 600, 0),  # all is free when fallbacks may be tried: the primary request starts
        (2, 0, 599, None),  # fallbacks are not tried yet
        (2, 0, 600, 1),
        (5, 0, 600, 2),  # neither 8 nor 4 are left, but the spot queue has 8
        (5, 1, 600, None),
    ],
)
def test_first_fitting_alternative_starts_after_timeout(
    train: int, spot: int, now: float, expected: int | None
) -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    for name, held in (("train", train), ("spot", spot)):
        if held:
            world.put(running(f"in-{name}", {"n": held}, queue=name))
    world.put(job())
    assert started(world, now).get("job") == expected
    if expected is not None:
        place = world.gangs["job"].assigned
        assert place is not None
        assert place.sizes == {"worker": (8, 4, 8)[expected]}


def test_primary_request_is_preferred_over_fallback_in_emptier_queue() -> None:
    """After a time without a controller, all alternatives may be tried. The spot queue has the smaller share."""
    world = World([node("n", gpu=100)], (queue("train", gpu=16), queue("spot", gpu=16)))
    world.put(running("other", {"n": 8}, queue="train"), job(tried_from=0))
    assert started(world, 1000) == {"job": 0}
    # The capacity of the fallback is immediately free for others.
    world.put(gang("late", workers(16), at=999, queue="spot"))
    assert started(world, 1000) == {"late": 0}


def test_fallback_queues_with_age_of_its_job() -> None:
    """The older gang gets the capacity of the spot queue, even if it entered that queue later."""
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"), running("in-spot", {"n": 8}, queue="spot"))
    world.put(job(at=0, tried_from=600), gang("younger", workers(8), at=300, queue="spot"))
    assert started(world, 700) == {}
    world.remove("in-spot")
    assert started(world, 700) == {"job": 2}
    # A gang that is older than the job still comes first.
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"), gang("older", workers(8), at=-1, queue="spot"), job())
    assert started(world, 700) == {"older": 0}


def test_waiting_fallbacks_use_no_quota_and_gang_keeps_its_position() -> None:
    """Fallbacks use no quota and are not counted as pending. The primary request keeps its position in the queue."""
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"), running("in-spot", {"n": 8}, queue="spot"), job())
    world.settle(700)
    usage = world.scheduler.queue_usages()
    assert [(name, usage[name].pending, usage[name].admitted) for name in ("spot", "train")] == [
        ("spot", 0, 1),
        ("train", 1, 1),
    ]
    world.put(gang("younger", workers(8), at=1, queue="train"))
    world.remove("in-train")
    assert started(world, 701) == {"job": 0}
    assert waiting(world.scheduler) == ["younger"]


def test_strict_queue_tries_fallbacks_of_its_first_gang_before_others() -> None:
    strict = queue("train", gpu=8, order=QueueingStrategy.STRICT_FIFO)
    world = World([node("n", gpu=100)], (strict, queue("spot", gpu=1)))
    world.put(running("in-train", {"n": 2}, queue="train"), job(), gang("small", workers(1), at=1, queue="train"))
    assert started(world, 0) == {}
    assert started(world, 600) == {"job": 1, "small": 0}


def test_fallback_does_not_preempt() -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("big", {"n": 8}, queue="train", priority=9), running("low", {"n": 8}, queue="spot"))
    world.put(job(priority=5))
    assert started(world, 700) == {}
    assert world.gangs["low"].assigned is not None


def test_gang_does_not_fall_back_while_it_preempts() -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("low", {"n": 8}, queue="train"), job(priority=5))
    verdicts = world.scheduler.cycle(700).verdicts
    assert (reason(verdicts["low"]), reason(verdicts["job"])) == ("Preempt", "Preempting")
    world.scheduler.put_gang(gang("low", workers(8), at=0, queue="train"))
    assert world.scheduler.cycle(701).verdicts["job"] == Admit(sizes={"worker": 8}, placement={"worker": {"n": 8}})


def test_reservation_is_for_first_alternative_that_can_fit() -> None:
    """8 GPUs never fit into the queue, so the gang waits for 4. Later small gangs do not take them."""
    world = World([node("n", gpu=100)], (queue("train", gpu=6), queue("spot", gpu=0)), POLICY)
    world.put(running("in-train", {"n": 4}, queue="train", estimate=5000.0), job(tried_from=10))
    now = 10.0 + POLICY.patience
    assert started(world, now) == {}
    world.put(gang("small", workers(3), at=now, queue="train"))
    world.remove("in-train")
    assert started(world, now) == {"job": 1}


@pytest.mark.parametrize(
    ("now", "said"), [(0, "fallback 1 is tried from 00:10 UTC on"), (700, "fallback 1 also waits")]
)
def test_wait_message_names_fallbacks(now: float, said: str) -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("a", {"n": 8}, queue="train"), running("b", {"n": 8}, queue="spot"), job())
    verdict = world.decide(now)["job"]
    assert reason(verdict) == "QuotaExceeded"
    assert said in message(verdict)
    # The reason is not NeverFits as long as one of the alternatives can fit.
    world = World([node("n", gpu=4)], (queue("train", gpu=100),))
    world.put(running("a", {"n": 4}, queue="train"), job())
    assert reason(world.decide(now)["job"]) == "WaitingForCapacity"


def test_gang_waits_again_when_fallback_verdict_is_not_written() -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"))
    world.scheduler.put_gang(job())
    assert world.scheduler.cycle(700).verdicts["job"] == Admit(
        sizes={"worker": 8}, placement={"worker": {"n": 8}}, fallback=2
    )
    world.scheduler.put_gang(job())  # the verdict was not written
    world.scheduler.put_gang(running("in-spot", {"n": 8}, queue="spot"))
    assert isinstance(world.scheduler.cycle(701).verdicts["job"], Wait)
    world.scheduler.remove_gang("job")
    assert waiting(world.scheduler) == []
    assert world.scheduler.queue_usages()["spot"].pending == 0


def with_fallbacks(dice: Random, name: str, now: float) -> Gang:
    """A random gang. Half of the gangs have fallbacks with fewer workers, another queue or other requests."""
    first = some_gang(dice, name, now)
    if dice.random() < 0.5:
        return first
    ways = []
    for _ in range(dice.randint(1, 3)):
        part = first.members[0]
        count = dice.randint(1, part.count + 1)
        other = member("worker", count, cpu=dice.choice([1, 2]), gpu=dice.choice([0, 1, 2]))
        ways.append(replace(first, members=(other, *first.members[1:]), queue=dice.choice(["", "a", "b", first.queue])))
    return or_else(first, *ways, tried_from=now + dice.choice([0, 10, 100]))


@pytest.mark.parametrize("seed", range(6))
def test_fallbacks_respect_capacity_and_match_decisions_on_snapshot(seed: int) -> None:
    """No node or queue is exceeded, each job is admitted once, and a new scheduler decides the same."""
    dice, now, fell_back = Random(seed), 1000.0, 0
    world = World([some_node(dice, f"n{i}") for i in range(3)], QUEUES, POLICY)
    for step in range(40):
        world.put(with_fallbacks(dice, f"g{step}", now))
        running_now = sorted(uid for uid, one in world.gangs.items() if one.assigned)
        if step % 3 == 2:
            world.remove(*running_now[:1])
        anew = admit(world.snapshot(now))
        gangs = list(world.snapshot(now).gangs)
        dice.shuffle(gangs)
        assert admit(replace(world.snapshot(now), gangs=tuple(gangs))) == anew
        known = {uid for uid, one in world.gangs.items() if one.assigned}
        said = {uid: one for uid, one in world.decide(now).items() if not isinstance(one, Wait)}
        assert said == {
            uid: one
            for uid, one in anew.items()
            if not isinstance(one, Wait) and not (isinstance(one, Admit) and uid in known)
        }
        world.settle(now)
        assert sorted(waiting(world.scheduler)) == sorted(
            uid for uid, one in world.gangs.items() if one.assigned is None
        )
        nodes, queues = used(world)
        for name, resources in nodes.items():
            assert all(value <= world.nodes[name].free[resource] for resource, value in resources.items())
        assert queues.get("a", Decimal(0)) + queues.get("b", Decimal(0)) <= 8
        assert queues.get("b", Decimal(0)) <= 6
        fell_back += any(one.fallback for one in world.gangs.values())
        now += dice.choice([1, 5, 30, 120])
    assert fell_back > 3


def test_removed_fallback_is_not_used() -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"), job())
    world.put(replace(job(), fallbacks=()))
    assert started(world, 700) == {}


def test_first_fallback_is_used_regardless_of_queue_order() -> None:
    queues = (queue("train", gpu=8), *(queue(name, gpu=8) for name in ("spot", "late")))
    for order in (("spot", "late"), ("late", "spot")):
        world = World([node("n", gpu=100)], queues)
        world.put(running("in-train", {"n": 8}, queue="train"))
        ways = [gang("job", workers(8), queue=name) for name in ("train", *order)]
        world.put(or_else(*ways))
        assert started(world, 700) == {"job": 1}
        world.put(gang("next", workers(8), at=701, queue=order[1]))
        assert started(world, 701) == {"next": 0}

"""A gang queues once, with alternatives: which one it starts as, at which place in line, and what the others hold."""

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
    """8 GPUs, else 4, else 8 of the spot queue."""
    rest = {"queue": "train", **rest}
    return or_else(
        gang(name, workers(8), at=at, **rest),
        gang(name, workers(4), **rest),
        gang(name, workers(8), **{**rest, "queue": "spot"}),
        tried_from=tried_from,
    )


def started(world: World, now: float) -> dict[str, int]:
    """What starts now, and as which fallback."""
    return {
        uid: one.fallback for verdicts in world.settle(now) for uid, one in verdicts.items() if isinstance(one, Admit)
    }


@pytest.mark.parametrize(
    ("train", "spot", "now", "expected"),
    [
        (0, 0, 0, 0),  # all is free
        (0, 0, 600, 0),  # and still is when fallbacks may be tried: the first comes first
        (2, 0, 599, None),  # not yet
        (2, 0, 600, 1),
        (5, 0, 600, 2),  # neither 8 nor 4 are left: the spot queue has them
        (5, 1, 600, None),
    ],
)
def test_the_first_that_fits_starts_once_the_timeout_has_passed(
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


def test_a_better_way_is_taken_though_the_other_queue_has_its_turn_first() -> None:
    """No driver ran for a while, and everything may be tried at once; the spot queue has the smaller share."""
    world = World([node("n", gpu=100)], (queue("train", gpu=16), queue("spot", gpu=16)))
    world.put(running("other", {"n": 8}, queue="train"), job(tried_from=0))
    assert started(world, 1000) == {"job": 0}
    # What the fallback would have held is free for others in the same moment.
    world.put(gang("late", workers(16), at=999, queue="spot"))
    assert started(world, 1000) == {"late": 0}


def test_a_fallback_stands_in_the_other_queue_with_the_age_of_the_job() -> None:
    """Of two that want the spot queue's last place the older has it, though it came there later."""
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"), running("in-spot", {"n": 8}, queue="spot"))
    world.put(job(at=0, tried_from=600), gang("younger", workers(8), at=300, queue="spot"))
    assert started(world, 700) == {}
    world.remove("in-spot")
    assert started(world, 700) == {"job": 2}
    # One that is older than the job comes first all the same.
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"), gang("older", workers(8), at=-1, queue="spot"), job())
    assert started(world, 700) == {"older": 0}


def test_while_it_waits_it_holds_nothing_and_keeps_its_first_place() -> None:
    """Its fallbacks neither hold quota nor are they counted, and the first way stays in the line where it stood."""
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


def test_a_queue_that_is_served_strictly_tries_the_fallbacks_of_its_first_and_nothing_behind() -> None:
    strict = queue("train", gpu=8, order=QueueingStrategy.STRICT_FIFO)
    world = World([node("n", gpu=100)], (strict, queue("spot", gpu=1)))
    world.put(running("in-train", {"n": 2}, queue="train"), job(), gang("small", workers(1), at=1, queue="train"))
    assert started(world, 0) == {}
    assert started(world, 600) == {"job": 1, "small": 0}


def test_nothing_is_preempted_for_a_fallback() -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("big", {"n": 8}, queue="train", priority=9), running("low", {"n": 8}, queue="spot"))
    world.put(job(priority=5))
    assert started(world, 700) == {}
    assert world.gangs["low"].assigned is not None


def test_while_others_are_preempted_for_it_it_does_not_fall_back() -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("low", {"n": 8}, queue="train"), job(priority=5))
    verdicts = world.scheduler.cycle(700).verdicts
    assert (reason(verdicts["low"]), reason(verdicts["job"])) == ("Preempt", "Preempting")
    world.scheduler.put_gang(gang("low", workers(8), at=0, queue="train"))
    assert world.scheduler.cycle(701).verdicts["job"] == Admit(sizes={"worker": 8}, placement={"worker": {"n": 8}})


def test_room_is_reserved_for_the_first_way_that_there_can_be() -> None:
    """8 never fit into the queue: the 4 are what is waited for, and small ones that come later do not take them."""
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
def test_why_it_waits_names_its_fallbacks(now: float, said: str) -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("a", {"n": 8}, queue="train"), running("b", {"n": 8}, queue="spot"), job())
    verdict = world.decide(now)["job"]
    assert reason(verdict) == "QuotaExceeded"
    assert said in message(verdict)
    # A job is not said never to fit as long as one of its ways can.
    world = World([node("n", gpu=4)], (queue("train", gpu=100),))
    world.put(running("a", {"n": 4}, queue="train"), job())
    assert reason(world.decide(now)["job"]) == "WaitingForCapacity"


def test_after_its_verdict_was_lost_it_waits_as_before() -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"))
    world.scheduler.put_gang(job())
    assert world.scheduler.cycle(700).verdicts["job"] == Admit(
        sizes={"worker": 8}, placement={"worker": {"n": 8}}, fallback=2
    )
    world.scheduler.put_gang(job())  # it was not written
    world.scheduler.put_gang(running("in-spot", {"n": 8}, queue="spot"))
    assert isinstance(world.scheduler.cycle(701).verdicts["job"], Wait)
    world.scheduler.remove_gang("job")
    assert waiting(world.scheduler) == []
    assert world.scheduler.queue_usages()["spot"].pending == 0


def with_fallbacks(dice: Random, name: str, now: float) -> Gang:
    """A gang of which half have other ways: fewer workers, another queue, other needs."""
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
def test_capacity_holds_and_piece_by_piece_is_the_whole(seed: int) -> None:
    """Never more than there is on a node or in a queue, each job once, and what was remembered changes nothing."""
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


def test_a_fallback_that_the_job_no_longer_has_is_not_taken() -> None:
    world = World([node("n", gpu=100)], TWO_QUEUES)
    world.put(running("in-train", {"n": 8}, queue="train"), job())
    world.put(replace(job(), fallbacks=()))
    assert started(world, 700) == {}


def test_of_fallbacks_in_several_queues_the_first_is_taken_whichever_queue_has_its_turn_first() -> None:
    queues = (queue("train", gpu=8), *(queue(name, gpu=8) for name in ("spot", "late")))
    for order in (("spot", "late"), ("late", "spot")):
        world = World([node("n", gpu=100)], queues)
        world.put(running("in-train", {"n": 8}, queue="train"))
        ways = [gang("job", workers(8), queue=name) for name in ("train", *order)]
        world.put(or_else(*ways))
        assert started(world, 700) == {"job": 1}
        world.put(gang("next", workers(8), at=701, queue=order[1]))
        assert started(world, 701) == {"next": 0}

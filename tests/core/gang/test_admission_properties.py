"""Invariants of admission under all events."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pytest

from tests.core.gang.gangs import GPU, Snapshot, World, admit, gang, member, node, queue
from tf_dist.core.gang.types import AdmissionPolicy, Gang, TopologyRequest
from tf_dist.core.model.assignment import Admit, Preempt, Resize, Wait
from tf_dist.core.model.gang_queue import PreemptionPolicy, QueueingStrategy

POLICY = AdmissionPolicy(
    patience=60, starving=600, shrink_after=20, shrink_below_spec_after=100, grow_after=10, steady=30
)
QUEUES = (
    queue("a", gpu=4, parent="root"),
    queue(
        "b",
        gpu=4,
        borrow=2,
        parent="root",
        order=QueueingStrategy.STRICT_FIFO,
        preemption=PreemptionPolicy.LOWER_PRIORITY,
    ),
    queue("free", weight=2),
)


def some_gang(dice: Random, name: str, now: float) -> Gang:
    count = dice.choice([1, 1, 2, 3, 4])
    elastic = dice.random() < 0.4
    workers = member(
        "worker",
        count,
        cpu=dice.choice([1, 2]),
        gpu=dice.choice([1, 1, 2]),
        least=dice.randint(1, count) if elastic else None,
        most=count + dice.randint(0, 3) if elastic else None,
    )
    members = (workers, member("ps", 1, cpu=dice.choice([1, 2]))) if dice.random() < 0.5 else (workers,)
    return gang(
        name,
        *members,
        at=now,
        queue=dice.choice(["", "a", "a", "b", "b", "free", "nowhere"]),
        priority=dice.choice([0, 0, 0, 1, 5]),
        preempts=dice.random() < 0.8,
        estimate=dice.choice([None, 10.0, 40.0, 200.0, 1000.0]),
        not_before=now + 30 if dice.random() < 0.1 else 0.0,
        locality=dice.choice([None, None, TopologyRequest(label="zone", required=dice.random() < 0.5)]),
        live=dice.random() < 0.5,
    )


def some_node(dice: Random, name: str) -> Any:
    labels = {"zone": dice.choice("xy")} if dice.random() < 0.8 else {}
    return node(
        name, labels=labels, used={"cpu": dice.randint(0, 2)}, cpu=dice.randint(4, 10), gpu=dice.choice([0, 2, 4])
    )


def change(world: World, dice: Random, step: int, now: float) -> None:
    """Apply one random change."""
    what = dice.random()
    running = sorted(uid for uid, one in world.gangs.items() if one.assigned)
    if what < 0.55 or not world.gangs:
        world.put(some_gang(dice, f"g{step}", now))
    elif what < 0.8 and running:
        world.remove(dice.choice(running))
    elif what < 0.86:
        world.remove(dice.choice(sorted(world.gangs)))
    elif what < 0.94:
        world.put_node(some_node(dice, f"n{dice.randint(0, 4)}"))
    elif len(world.nodes) > 1:
        world.remove_node(dice.choice(sorted(world.nodes)))


def history(seed: int, steps: int = 30) -> Any:
    """Yield the world and the time after each round of random changes."""
    dice = Random(seed)
    world = World([some_node(dice, f"n{i}") for i in range(3)], QUEUES, POLICY)
    now = 1000.0
    for step in range(steps):
        for _ in range(dice.randint(1, 3)):
            change(world, dice, step * 10 + dice.randint(0, 9), now)
        yield world, now
        now += dice.choice([0, 1, 5, 30, 120])


@pytest.mark.parametrize("seed", [0, 7, 105, 106, 153])
def test_incremental_decisions_equal_decisions_on_snapshot(seed: int) -> None:
    """Incremental decisions equal those of a new scheduler, for any order of gangs, nodes and queues."""
    dice = Random(seed)
    for world, now in history(seed):
        while True:
            snapshot = world.snapshot(now)
            anew = admit(snapshot)
            mixed = list(snapshot.gangs)
            dice.shuffle(mixed)
            other = Snapshot(
                gangs=tuple(mixed), nodes=(snapshot.nodes or ())[::-1], now=now, queues=QUEUES[::-1], policy=POLICY
            )
            assert admit(other) == anew
            known = {uid for uid, one in world.gangs.items() if one.assigned}
            said = world.decide(now)
            new = {
                uid: v
                for uid, v in anew.items()
                if not isinstance(v, Wait) and not (isinstance(v, Admit) and uid in known)
            }
            assert {uid: v for uid, v in said.items() if not isinstance(v, Wait)} == new
            if not new:
                waits = {uid: verdict for uid, verdict in anew.items() if isinstance(verdict, Wait)}
                assert {uid: world.scheduler.explain(uid) for uid in waits} == waits
                break


def used(world: World) -> tuple[dict[str, dict[str, Decimal]], dict[str, Decimal]]:
    """The resources of admitted gangs on each node, and the used GPUs of each queue."""
    nodes: dict[str, dict[str, Decimal]] = {}
    queues: dict[str, Decimal] = {}
    for one in world.gangs.values():
        for part in one.members if one.assigned else ():
            assert one.assigned
            for name, count in one.assigned.placement.get(part.type, {}).items():
                for resource, value in part.requests.items():
                    there = nodes.setdefault(name, {})
                    there[resource] = there.get(resource, Decimal(0)) + value * count
            gpus = part.requests.get(GPU, Decimal(0)) * one.assigned.sizes[part.type]
            queues[one.queue] = queues.get(one.queue, Decimal(0)) + gpus
    return nodes, queues


@pytest.mark.parametrize("seed", [31, 32, 33, 112])
def test_gangs_are_placed_completely_within_capacity_and_quotas(seed: int) -> None:
    dice = Random(seed)
    world = World([some_node(dice, f"n{i}") for i in range(4)], QUEUES, POLICY)
    now = 1000.0
    placed = 0
    for step in range(60):
        world.put(some_gang(dice, f"g{step}", now))
        if step % 3 == 2:
            running = sorted(uid for uid, one in world.gangs.items() if one.assigned)
            world.remove(*running[:1])
        for verdicts in world.settle(now):
            for uid, verdict in verdicts.items():
                check(world.gangs[uid], verdict)
            nodes, queues = used(world)
            for name, resources in nodes.items():
                assert all(value <= world.nodes[name].free[resource] for resource, value in resources.items())
            assert queues.get("a", 0) + queues.get("b", 0) <= 8
            assert queues.get("b", 0) <= 6
            placed += len(nodes) > 1
        now += dice.choice([1, 5, 30, 120])
    assert placed > 20


def check(one: Gang, verdict: Any) -> None:
    """Sizes are within the gang's limits, and all its pods have a node."""
    if isinstance(verdict, Admit | Resize):
        for part in one.members:
            size = verdict.sizes[part.type]
            least = part.count if part.least is None else part.least
            most = part.count if part.most is None else part.most
            assert least <= size <= (part.count if isinstance(verdict, Admit) else most)
            assert sum(verdict.placement.get(part.type, {}).values()) == size
    if isinstance(verdict, Preempt):
        assert verdict.message


def turn(one: Gang, now: float) -> tuple[object, ...]:
    """The sort key of a gang in its queue: priority, starvation, turn, age and name."""
    starves = now - one.created_at >= POLICY.starving
    runs = POLICY.assumed if one.estimate is None else max(1.0, one.estimate)
    power = 1.0
    while power < runs:
        power *= 2
    defers = 0.0 if starves else min(POLICY.starving, POLICY.stretch * power)
    return -one.priority, not starves, one.created_at + defers, one.created_at, one.key


def test_queue_is_served_in_defined_order() -> None:
    """All gangs compete for one GPU. Some have just begun to starve, and some have the same turn or the same age."""
    starving = deferring = 0
    for seed in range(40):
        dice = Random(seed)
        now = 2000.0
        ages = [0, 1, 64, 128, POLICY.starving - 1, POLICY.starving, POLICY.starving + 1]
        made = [
            gang(
                name,
                member("worker", 1, gpu=1),
                at=now - dice.choice(ages),
                priority=dice.choice([0, 0, 1]),
                estimate=dice.choice([None, 0.5, 1, 127, 128, 129, 256, 10**6]),
            )
            for name in dice.sample("abcdefgh", 6)
        ]
        world = World([node("n0", gpu=1)], policy=POLICY)
        world.put(*made)
        served = []
        for _ in made:
            [uid] = [uid for uid, verdict in world.decide(now).items() if isinstance(verdict, Admit)]
            served.append(uid)
            world.remove(uid)
        assert served == [one.uid for one in sorted(made, key=lambda one: turn(one, now))]
        starving += sum(now - one.created_at >= POLICY.starving for one in made)
        by_age = [one.uid for one in sorted(made, key=lambda one: (-one.priority, one.created_at, one.key))]
        deferring += served != by_age
    assert starving > 40
    assert deferring > 20


def test_every_wait_has_reason_and_message() -> None:
    reasons = set()
    for seed in range(25):
        dice = Random(seed)
        world = World([some_node(dice, f"n{i}") for i in range(2)], QUEUES, POLICY)
        world.put(*(some_gang(dice, f"g{i}", dice.randint(0, 100)) for i in range(8)))
        found = admit(world.snapshot(dice.choice([100, 130, 300, 2000])))
        assert found.keys() == world.gangs.keys()
        for uid, verdict in found.items():
            if isinstance(verdict, Wait):
                assert verdict.message
                assert verdict.message[0].islower() or verdict.message.startswith(uid)
                assert "  " not in verdict.message
                reasons.add(verdict.reason)
    assert reasons >= {"WaitingForCapacity", "QuotaExceeded", "NeverFits", "QueueNotFound"}

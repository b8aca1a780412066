"""Admission with long queues, and plans of who gives way: 5,000 nodes, all of them full."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cache

from benchmarks.measure import Figure, benchmark
from tf_dist.core.gang.admit import Admitter
from tf_dist.core.gang.model import Admit, Gang, Member, Node, Place, Preempt, Wait
from tf_dist.core.model import JobKey

GPU = "nvidia.com/gpu"
NODES, SHAPES = 5000, 40
NOW = 1_800_000_000.0


def _member(type_: str, count: int, cpu: int, gpu: int = 0) -> Member:
    asked = {"cpu": Decimal(cpu)} | ({GPU: Decimal(gpu)} if gpu else {})
    return Member(type=type_, count=count, requests=asked)


def _gang(uid: str, *members: Member, at: float = NOW, priority: int = 0) -> Gang:
    return Gang(key=JobKey("ml", uid), uid=uid, created_at=at, members=members, priority=priority)


_EIGHT = (_member("worker", 8, 8, 1),)


def _full() -> Admitter:
    """Every node is held by a gang of its own, of low priority."""
    admitter = Admitter()
    room = {"cpu": Decimal(96), "pods": Decimal(110), GPU: Decimal(8)}
    for number in range(NODES):
        name = f"node-{number:05}"
        admitter.put_node(Node(name=name, allocatable=room, free=room))
        place = Place(at=NOW - 10_000 + number, sizes={"worker": 8}, placement={"worker": {name: 8}})
        admitter.put_gang(replace(_gang(f"r{number}", *_EIGHT, at=NOW - 10_000), place=place))
    return admitter


# -- B4: deep queues --


def _deep(pending: int) -> tuple[Admitter, list[Gang]]:
    """So many gangs of 40 shapes wait, and all that could be found out about them has been."""
    admitter = _full()
    shapes = [(_member("ps", 1, 1 + k % 4), _member("worker", 1 + k, 4, 1)) for k in range(SHAPES)]
    waiting = [_gang(f"p{number}", *shapes[number % SHAPES], at=NOW + number / 1000) for number in range(pending)]
    for gang in waiting:
        admitter.put_gang(gang)
    admitter.decide(NOW + 100)
    return admitter, waiting


@cache
def _measured(pending: int) -> tuple[float, float]:
    """Seconds to find the one that fits, and to decide after one gang has ended."""
    admitter, _ = _deep(pending)
    found, freed = [], []
    for number in range(15):
        admitter.put_gang(_gang(f"small-{number}", _member("worker", 1, 1), at=NOW + 100))
        verdicts, seconds = _timed(admitter, NOW + 101 + number / 100)
        assert isinstance(verdicts[f"small-{number}"], Admit)
        found.append(seconds)
    for number in range(15):
        admitter.remove_gang(f"r{number}")
        verdicts, seconds = _timed(admitter, NOW + 102 + number / 100)
        assert verdicts
        freed.append(seconds)
    return statistics.median(found), statistics.median(freed)


def _timed(admitter: Admitter, now: float) -> tuple[dict[str, object], float]:
    begun = time.perf_counter()
    verdicts = admitter.decide(now)
    return dict(verdicts), time.perf_counter() - begun


def _scan(pending: int) -> float:
    """The naive way, for comparison: every waiting gang is looked at, its worker on every node; a few, for all."""
    dice = random.Random(1)
    free = [[dice.randint(0, 8), 0] for _ in range(NODES)]
    wants = [(4, 1, 1 + number % SHAPES) for number in range(min(pending, 20))]
    begun = time.perf_counter()
    for cpu, gpu, count in wants:
        sum(min(room[0] // cpu, room[1] // gpu) for room in free) >= count  # noqa: B015
    return (time.perf_counter() - begun) / len(wants) * pending


@benchmark("admit.find_one_100k")
def find_one() -> Figure:
    """100,000 gangs of 40 shapes wait in a full cluster; one more comes, and it fits: until it is admitted."""
    seconds, _ = _measured(100_000)
    return Figure(seconds * 1e3, "ms", target=1, peer=f"every gang looked at: {_scan(100_000) * 1e3:,.0f} ms")


@benchmark("admit.release_100k")
def after_a_release() -> Figure:
    """The same, when a gang of 8 ends: until it is decided who gets its room."""
    _, seconds = _measured(100_000)
    few = _measured(1000)[1]
    return Figure(seconds * 1e3, "ms", peer=f"with 1,000 waiting: {few * 1e3:.2f} ms")


# -- B5: who gives way --


def _plan(pods: int, repeat: int) -> tuple[float, int]:
    """Median seconds to tell who gives way to a gang of so many pods, and how many gangs that are."""
    seconds: list[float] = []
    told: Sequence[str] = ()
    admitter = _full()
    admitter.decide(NOW)
    for number in range(repeat):
        high = _gang(f"high-{number}", _member("ps", max(1, pods // 8), 2), _member("worker", pods, 8, 1), priority=9)
        admitter.put_gang(high)
        verdicts, spent = _timed(admitter, NOW + 1 + number)
        seconds.append(spent)
        told = [uid for uid, verdict in verdicts.items() if isinstance(verdict, Preempt)]
        assert isinstance(verdicts[high.uid], Wait)
        admitter.remove_gang(high.uid)
        for uid in told:  # as before
            name = f"node-{int(uid[1:]):05}"
            place = Place(at=NOW - 10_000 + int(uid[1:]), sizes={"worker": 8}, placement={"worker": {name: 8}})
            admitter.put_gang(replace(_gang(uid, *_EIGHT, at=NOW - 10_000), place=place))
    return statistics.median(seconds), len(told)


@benchmark("preempt.plan_512")
def plan_512() -> Figure:
    """Who gives way to 512 workers and 64 parameter servers: 5,000 nodes, each with a gang of lower priority."""
    seconds, victims = _plan(512, 7)
    small = ", ".join(f"{pods} pods {_plan(pods, 7)[0] * 1e3:.2f} ms" for pods in (8, 64))
    return Figure(seconds * 1e3, "ms", target=5, peer=f"{victims} of at least 64 gangs; {small}")

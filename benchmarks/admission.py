"""Admission's core: long queues, plans of preemption on 5,000 full nodes, quotas of 1,000 queues."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

from benchmarks.measure import Measured, Row, Target, benchmark
from tf_dist.core.gang.quota import Quotas
from tf_dist.core.gang.scheduling import Scheduler
from tf_dist.core.gang.types import AssignedPods, Gang, Node, PodSet, Resources
from tf_dist.core.model.assignment import Admit, Preempt, Wait
from tf_dist.core.model.gang_queue import Queue, Quota
from tf_dist.core.model.job import JobKey

GPU = "nvidia.com/gpu"
NODES, SHAPES = 5000, 40
NOW = 1_800_000_000.0
_FEW, _EIGHT_PODS, _NAIVE = "1,000 waiting", "a gang of 8", "all gangs added up at every question"


def _member(type_: str, count: int, cpu: int, gpu: int = 0) -> PodSet:
    asked = {"cpu": Decimal(cpu)} | ({GPU: Decimal(gpu)} if gpu else {})
    return PodSet(type=type_, count=count, requests=asked)


def _gang(uid: str, *members: PodSet, at: float = NOW, priority: int = 0) -> Gang:
    return Gang(key=JobKey("ml", uid), uid=uid, created_at=at, members=members, priority=priority)


_EIGHT = (_member("worker", 8, 8, 1),)


def _full() -> Scheduler:
    """Every node is held by a gang of its own, of low priority."""
    scheduler = Scheduler()
    room = {"cpu": Decimal(96), "pods": Decimal(110), GPU: Decimal(8)}
    for number in range(NODES):
        name = f"node-{number:05}"
        scheduler.cache.put_node(Node(name=name, allocatable=room, free=room))
        place = AssignedPods(at=NOW - 10_000 + number, sizes={"worker": 8}, placement={"worker": {name: 8}})
        scheduler.put_gang(replace(_gang(f"r{number}", *_EIGHT, at=NOW - 10_000), assigned=place))
    return scheduler


# -- Deep queues --


def _deep(pending: int) -> tuple[Scheduler, list[Gang], float]:
    """So many gangs of 40 shapes wait, and all has been decided about them; the seconds that this took."""
    scheduler = _full()
    shapes = [(_member("ps", 1, 1 + k % 4), _member("worker", 1 + k, 4, 1)) for k in range(SHAPES)]
    waiting = [_gang(f"p{number}", *shapes[number % SHAPES], at=NOW + number / 1000) for number in range(pending)]
    for gang in waiting:
        scheduler.put_gang(gang)
    _, seconds = _timed(scheduler, NOW + 100)
    return scheduler, waiting, seconds


def _measured(pending: int) -> tuple[list[float], list[float], float]:
    """Milliseconds to find the one that fits, to decide after one gang has ended, and (once) to decide about all."""
    scheduler, _, anew = _deep(pending)
    found, freed = [], []
    for number in range(15):
        scheduler.put_gang(_gang(f"small-{number}", _member("worker", 1, 1), at=NOW + 100))
        verdicts, seconds = _timed(scheduler, NOW + 101 + number / 100)
        assert isinstance(verdicts[f"small-{number}"], Admit)
        found.append(seconds * 1e3)
    for number in range(15):
        scheduler.remove_gang(f"r{number}")
        verdicts, seconds = _timed(scheduler, NOW + 102 + number / 100)
        assert any(isinstance(verdict, Admit) for verdict in verdicts.values()), "no gang was admitted"
        freed.append(seconds * 1e3)
    return found, freed, anew * 1e3


def _timed(scheduler: Scheduler, now: float) -> tuple[dict[str, object], float]:
    begun = time.thread_time()
    verdicts = scheduler.cycle(now).verdicts
    return dict(verdicts), time.thread_time() - begun


@benchmark(
    Row(
        "admit.find_one_100k",
        "The core alone, warm: 100,000 gangs of 40 shapes wait in a full cluster of 5,000 nodes and have been decided "
        "about; one more comes that fits, until its verdict. What a job waits for is `driver.decide_100k`.",
        "ms",
        target=Target(3.0, of=_FEW),
    ),
    Row(
        "admit.release_100k",
        "The same when a gang of 8 ends, until its room is given to others.",
        "ms",
        target=Target(3.0, of=_FEW),
    ),
)
def deep_queues() -> dict[str, Measured]:
    """The peers: the same with 1,000 waiting, and the first decision about all of them (once)."""
    found, freed, anew = _measured(100_000)
    few_found, few_freed, _ = _measured(1_000)
    return {
        "admit.find_one_100k": Measured(found, {_FEW: few_found, "deciding about all anew": anew}),
        "admit.release_100k": Measured(freed, {_FEW: few_freed}),
    }


# -- Preemption --


def _plan(scheduler: Scheduler, pods: int, number: int) -> tuple[float, int]:
    """Milliseconds to plan who is preempted for a gang of so many pods, and how many gangs; then all is as before."""
    high = _gang(f"high-{number}", _member("ps", max(1, pods // 8), 2), _member("worker", pods, 8, 1), priority=9)
    scheduler.put_gang(high)
    verdicts, spent = _timed(scheduler, NOW + 1 + number)
    preempted = [uid for uid, verdict in verdicts.items() if isinstance(verdict, Preempt)]
    assert isinstance(verdicts[high.uid], Wait)
    assert len(preempted) >= pods // 8, f"{len(preempted)} gangs of 8 do not make room for {pods}"
    scheduler.remove_gang(high.uid)
    for uid in preempted:
        name = f"node-{int(uid[1:]):05}"
        place = AssignedPods(at=NOW - 10_000 + int(uid[1:]), sizes={"worker": 8}, placement={"worker": {name: 8}})
        scheduler.put_gang(replace(_gang(uid, *_EIGHT, at=NOW - 10_000), assigned=place))
    return spent * 1e3, len(preempted)


@benchmark(
    Row(
        "preempt.plan_512",
        "From a gang of 512 workers and 64 parameter servers to the list of gangs that are preempted for it: 5,000 "
        "nodes, each with a gang of 8 of lower priority.",
        "ms",
        target=Target(10.0, of=_EIGHT_PODS),
    )
)
def plan_512() -> Measured:
    """The peer is a gang of 8: 64 times as many pods are to take no more than 10 times as long."""
    scheduler = _full()
    scheduler.cycle(NOW)
    took: dict[int, list[float]] = {512: [], 8: []}
    most = 0
    for number in range(18):
        pods = (512, 8)[number % 2]
        spent, victims = _plan(scheduler, pods, number)
        if number > 1:
            took[pods].append(spent)
        most = max(most, victims)
    return Measured(took[512], {_EIGHT_PODS: took[8]}, f"at most {most} gangs are preempted; 64 is the least.")


# -- Quotas --

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "pods")
COMPANY = "company"
STEPS = 50_000
NAIVE_STEPS = 200
Step = tuple[str, Resources, float]
"""The queue and the need of a gang that comes, and a number in [0, 1) that chooses what ends."""


def forest() -> list[Queue]:
    """A company of 10 divisions of 10 departments of 10 teams; each may borrow and lends all but a quarter."""
    queues = [Queue(name=COMPANY)]
    queues += [Queue(name=f"division-{n}", parent=COMPANY) for n in range(10)]
    queues += [Queue(name=f"department-{n}", parent=f"division-{n % 10}") for n in range(100)]
    quota = Quota(nominal=Decimal(20), borrowing_limit=Decimal(40), lending_limit=Decimal(15))
    quotas = dict.fromkeys(RESOURCES, quota)
    queues += [Queue(name=f"team-{n}", parent=f"department-{n % 100}", quotas=quotas) for n in range(1000)]
    return queues


def operations_of(steps: int) -> list[Step]:
    """Gangs of 40 shapes. A third of the teams wants most, so that they borrow and the others take back."""
    dice = random.Random(6)
    shapes = [dict.fromkeys(RESOURCES, Decimal(dice.choice((1, 2, 4, 8, 12, 20)))) for _ in range(40)]
    teams = [f"team-{n}" for n in range(1000)]
    busy = teams[::3]
    return [
        (dice.choice(busy if dice.random() < 0.8 else teams), dice.choice(shapes), dice.random()) for _ in range(steps)
    ]


def operate(quotas: Quotas | Naive, steps: Iterable[Step]) -> int:
    """Admit what fits, take back what was lent for what does not, end some; the number of operations."""
    running: list[tuple[str, Resources]] = []
    operations = 0
    for queue, need, chance in steps:
        operations += 1
        lacks = quotas.lack(queue, need)
        if lacks and running and chance < 0.2:
            at = int(chance * 5 * len(running))
            operations += 1
            if quotas.reclaims(queue, need, running[at][0]):
                running[at], running[-1] = running[-1], running[at]
                quotas.give(*running.pop())
                lacks = quotas.lack(queue, need)
                operations += 2
        if not lacks:
            quotas.take(queue, need)
            running.append((queue, need))
            operations += 1
        if running and (lacks or chance > 0.8):
            at = int(chance * len(running))
            running[at], running[-1] = running[-1], running[at]
            quotas.give(*running.pop())
            operations += 1
    return operations


class Naive:
    """Keeps the gangs, and adds all of them up through the whole tree at every question."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self._queues = queues
        self._gangs: list[tuple[str, Resources]] = []

    def take(self, queue: str, need: Resources) -> None:
        """One more."""
        self._gangs.append((queue, need))

    def give(self, queue: str, need: Resources) -> None:
        """One less."""
        self._gangs.remove((queue, need))

    def lack(self, queue: str, need: Resources) -> bool:
        """Whether it does not fit: something it presses on would be too full."""
        before, quota = self._totals()
        self.take(queue, need)
        after, _ = self._totals()
        self._gangs.pop()
        return any(
            after[key] != used
            and after[key] > quota[key] + self._borrowing(key)
            and after[key] > self._guaranteed(key, quota)
            for key, used in before.items()
        )

    def reclaims(self, queue: str, need: Resources, victim: str) -> bool:
        """Whether one team may take back from another; all have quotas, so they alone decide."""
        used, quota = self._totals()
        within = all(used[queue, r] + value <= quota[queue, r] for r, value in need.items())
        return queue != victim and within and any(used[victim, r] > quota[victim, r] for r in need)

    def _totals(self) -> tuple[dict[tuple[str, str], Decimal], dict[tuple[str, str], Decimal]]:
        used: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        quota: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        for queue, need in self._gangs:
            for resource, value in need.items():
                used[queue, resource] += value
        for one in reversed(self._queues):
            for resource in RESOURCES:
                key = (one.name, resource)
                quota[key] += one.quotas[resource].nominal if one.quotas else 0
                kept = self._guaranteed(key, quota)
                quota[one.parent, resource] += quota[key] - kept
                used[one.parent, resource] += max(Decimal(0), used[key] - kept)
        return used, quota

    def _guaranteed(self, key: tuple[str, str], quota: dict[tuple[str, str], Decimal]) -> Decimal:
        return max(Decimal(0), quota[key] - 15) if key[0].startswith("team") else Decimal(0)

    def _borrowing(self, key: tuple[str, str]) -> Decimal:
        if key[0] in (COMPANY, ""):
            return Decimal(0)
        return Decimal(40) if key[0].startswith("team") else Decimal("Infinity")


@benchmark(
    Row(
        "gang.queues",
        "Questions, admissions, releases and reclaims of quota over 1,000 queues in a tree of depth 4: a run of 50,000 "
        "arrivals.",
        "ops/s",
        better="higher",
    ),
    Row(
        "gang.queues_200",
        "The first 200 arrivals of that run.",
        "ops/s",
        better="higher",
        target=Target(500.0, of=_NAIVE),
    ),
)
def quota_operations() -> dict[str, Measured]:
    """The peer does the same 200, three times as we do: it would take hours for all."""
    queues, steps = forest(), operations_of(STEPS)
    rates = []
    for _ in range(5):
        quotas = Quotas(queues)
        start = time.thread_time()
        operations = operate(quotas, steps)
        rates.append(operations / (time.thread_time() - start))
        held, nominal = quotas.used(COMPANY), quotas.nominal(COMPANY)
        assert all(held[resource] <= nominal[resource] for resource in RESOURCES), "the company has too much"
        assert any(held.values()), "nothing was admitted"
        assert not quotas.borrowed(COMPANY)
    first = steps[:NAIVE_STEPS]
    short: dict[str, list[float]] = {"": [], _NAIVE: []}
    for _ in range(3):
        done = set()
        for name, job_index in (("", Quotas(queues)), (_NAIVE, Naive(queues))):
            start = time.thread_time()
            done.add(operations := operate(job_index, first))
            short[name].append(operations / (time.thread_time() - start))
        assert len(done) == 1, "they did not decide the same"
    return {"gang.queues": Measured(rates), "gang.queues_200": Measured(short[""], {_NAIVE: short[_NAIVE]})}

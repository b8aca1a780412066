"""B6: quotas of 1,000 queues in a tree of depth 4, beside an implementation that adds everything up anew."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal

from benchmarks.measure import Figure, benchmark
from tf_dist.core.gang.model import Queue, Quota, Resources
from tf_dist.core.gang.queues import Quotas

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "pods")
COMPANY = "company"
STEPS = 50_000
NAIVE_STEPS = 100
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


def story(steps: int) -> list[Step]:
    """Gangs of 40 shapes. A third of the teams wants most, so that they borrow and the others take back."""
    dice = random.Random(6)
    shapes = [dict.fromkeys(RESOURCES, Decimal(dice.choice((1, 2, 4, 8, 12, 20)))) for _ in range(40)]
    teams = [f"team-{n}" for n in range(1000)]
    busy = teams[::3]
    return [
        (dice.choice(busy if dice.random() < 0.8 else teams), dice.choice(shapes), dice.random()) for _ in range(steps)
    ]


def tell(quotas: Quotas | Naive, steps: Iterable[Step]) -> int:
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


@benchmark("gang.queues")
def quota_operations() -> Figure:
    """Questions, admissions, releases and reclaims a second over 1,000 queues of 100 departments, depth 4."""
    queues, steps = forest(), story(STEPS)
    rates = []
    for _ in range(3):
        quotas = Quotas(queues)
        start = time.perf_counter()
        operations = tell(quotas, steps)
        rates.append(operations / (time.perf_counter() - start))
        held, nominal = quotas.used(COMPANY), quotas.nominal(COMPANY)
        assert all(held[resource] <= nominal[resource] for resource in RESOURCES), "the company has too much"
        assert not quotas.borrowed(COMPANY)
    start = time.perf_counter()
    naive = tell(Naive(queues), steps[:NAIVE_STEPS]) / (time.perf_counter() - start)
    assert tell(Quotas(queues), steps[:NAIVE_STEPS]) == tell(Naive(queues), steps[:NAIVE_STEPS])
    rate = max(rates)  # the run that was disturbed least
    peer = f"all added up anew: {naive:.3g}/s ({rate / naive:.0f} times slower)"
    return Figure(rate, "ops/s", target=50_000, at_least=True, peer=peer)

"""Traces of jobs, drawn from a random seed and published distributions: the same seed gives the same trace."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import accumulate
from typing import Final

from tf_dist.core.model.gang_queue import PreemptionPolicy, Queue, Quota
from tf_dist.simulate.scenario import Cluster, Scenario, SimJob, Speed

HELIOS_SIZES: Final = (
    (72.2, 1), (74.7, 2), (80.5, 4), (94.7, 8), (97.7, 16), (98.1, 24), (99.4, 32), (99.5, 48), (100.0, 64),
)  # fmt: skip
"""Cumulative percentage of the GPU jobs of Helios by number of GPUs. More than 64 GPUs count as 64."""

HELIOS_RUN: Final = (206.0, 6652.0)
"""Median and mean run time of the GPU jobs of Helios, in seconds."""

Quantiles = tuple[tuple[float, float], ...]
_WEEK: Final = 604_800.0

PHILLY_RUN: Final[Quantiles] = (
    (0, 10), (5, 48), (10, 61), (25, 131), (50, 1186), (75, 3342), (80, 4699), (90, 12_859), (95, 49_948),
    (99, 287_283), (100, 604_800),
)  # fmt: skip
"""Percentiles of the run time of the jobs of Philly, in seconds; cut at a week."""


def size(dice: random.Random, most: int) -> int:
    """Number of GPUs of a job, distributed as in Helios, at most ``most``."""
    drawn = dice.uniform(0, 100)
    percents = [percent for percent, _ in HELIOS_SIZES]
    return min(most, HELIOS_SIZES[bisect_left(percents, drawn)][1])


def philly_seconds(dice: random.Random) -> float:
    """Run time of a job, distributed as in Philly."""
    return drawn_from(PHILLY_RUN, dice.uniform(0, 100))


def helios_seconds(dice: random.Random) -> float:
    """Run time of a GPU job, distributed as in Helios; cut at a week."""
    median, mean = HELIOS_RUN
    sigma = math.sqrt(2 * math.log(mean / median))
    return min(_WEEK, max(1.0, dice.lognormvariate(math.log(median), sigma)))


def drawn_from(table: Sequence[tuple[float, float]], percent: float) -> float:
    """The value at a percentile, interpolated logarithmically."""
    right = next(number for number, (known, _) in enumerate(table) if known >= percent)
    if right == 0:
        return table[0][1]
    (low, before), (high, after) = table[right - 1], table[right]
    part = (percent - low) / (high - low)
    return math.exp(math.log(before) * (1 - part) + math.log(after) * part)


def estimate(dice: random.Random, seconds: float) -> float | None:
    """A user's estimate of the run time: most are too high, one in ten is too low, one in five is missing."""
    drawn = dice.random()
    if drawn < 0.2:
        return None
    return seconds * (dice.uniform(0.3, 1.0) if drawn < 0.3 else dice.uniform(1.0, 5.0))


def arrivals(dice: random.Random, count: int, span: float) -> list[float]:
    """``count`` arrival times within about ``span`` seconds: more by day than by night, fewer at weekends."""
    steps = 1000
    width = span / steps
    weights = [intensity((step + 0.5) * width) for step in range(steps)]
    scale = count / sum(weights)
    found: list[float] = []
    due = dice.expovariate(1.0)
    passed = 0.0
    for step, weight in enumerate(weights):
        part = weight * scale
        while due <= passed + part:
            found.append((step + (due - passed) / part) * width)
            due += dice.expovariate(1.0)
        passed += part
    while len(found) < count:
        found.append(span + (len(found) - count + 1) * 1e-3)
    return found[:count]


def intensity(seconds: float) -> float:
    """Relative rate of submissions at a time; the average is about 1."""
    day = 1 + 0.5 * math.sin(2 * math.pi * seconds / 86_400)
    return day * (0.7 if seconds % 604_800 >= 432_000 else 1.0)


_RIGID: Final = Speed(remote=1.0, overhead=0.0, restart=15.0)
_SWEEP: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Options of a trace. None selects the default of the trace. ``cpu``: cores of a node."""

    jobs: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    cpu: int | None = None
    load: float | None = None
    seed: int = 0


def philly(wish: TraceOptions) -> Scenario:
    """Microsoft's Philly: run times with a long tail, sweeps of equal jobs; workers of 1 GPU, which fit anywhere."""
    return _rigid("philly", wish, philly_seconds, per_worker=1)


def helios(wish: TraceOptions) -> Scenario:
    """SenseTime's Helios: most jobs end within minutes. A worker uses up to all GPUs of a node."""
    return _rigid("helios", wish, helios_seconds, per_worker=wish.gpus or 8)


def _rigid(name: str, wish: TraceOptions, seconds: Callable[[random.Random], float], *, per_worker: int) -> Scenario:
    cluster = _cluster(wish, nodes=64, gpus=8, per_gpu=12)
    dice = random.Random(f"{name}/{wish.seed}")
    sweeps: list[list[SimJob]] = []
    missing = wish.jobs or 2000
    while missing > 0:
        gpus = size(dice, max(1, cluster.units // 2))
        count = min(missing, _geometric(dice) if dice.random() < 0.1 else 1)
        runs = [seconds(dice) for _ in range(count)]
        sweeps.append([_of_size(gpus, run, per_worker, estimate(dice, run)) for run in runs])
        missing -= count
    drawn = [job for sweep in sweeps for job in sweep]
    times = arrivals(dice, len(sweeps), _span(drawn, cluster, wish.load or 0.95))
    submits = [time for time, sweep in zip(times, sweeps, strict=True) for _ in sweep]
    return Scenario(name=name, cluster=cluster, jobs=_named(name, drawn, submits), speed=_RIGID, seed=wish.seed)


def _of_size(gpus: int, seconds: float, per_worker: int, estimate: float | None) -> SimJob:
    """A job with ``gpus`` GPUs. With more than one worker, it has one parameter server for every four workers."""
    each = min(gpus, per_worker)
    workers = -(-gpus // each)
    return SimJob(
        name="",
        submit=0.0,
        duration=seconds,
        workers=workers,
        least=workers,
        most=workers,
        gpus=each,
        cpu=6 * each,
        ps=0 if workers == 1 else max(1, workers // 4),
        estimate=estimate,
        kind=f"{gpus} GPU",
    )


def _geometric(dice: random.Random) -> int:
    """Number of jobs in a sweep: eight on average."""
    count = 1
    while dice.random() > 1 / _SWEEP:
        count += 1
    return count


def dragon(wish: TraceOptions) -> Scenario:
    """Elastic jobs of 1 parameter server and 1 to 8 workers. Minimum: half of the workers, maximum: twice as many."""
    cluster = _cluster(wish, nodes=8, gpus=4, per_gpu=16)
    dice = random.Random(f"dragon/{wish.seed}")
    drawn = []
    for _ in range(wish.jobs or 300):
        size = min(dice.choice((1, 2, 2, 4, 4, 4, 8)), cluster.units)
        run = dice.lognormvariate(6.2, 0.9)
        least, most = max(1, size // 2), min(2 * size, 12)
        kind = f"{size} workers"
        drawn.append(SimJob(name="", submit=0, duration=run, workers=size, least=least, most=most, ps=1, kind=kind))
    rate = len(drawn) / _span(drawn, cluster, wish.load or 0.9)
    submits = list(accumulate((dice.expovariate(rate) for _ in drawn[1:]), initial=0.0))
    jobs = _named("dragon", drawn, submits)
    return Scenario(name="dragon", cluster=cluster, jobs=jobs, speed=Speed(), seed=wish.seed)


def storm(wish: TraceOptions) -> Scenario:
    """Gangs of a parameter server and 8 workers, all submitted at once, for ten minutes each."""
    cluster = _cluster(wish, nodes=20, gpus=8, per_gpu=12)
    one = SimJob(name="", submit=0.0, duration=600.0, workers=8, least=8, most=8, ps=1, kind="gang of 8")
    jobs = tuple(replace(one, name=f"storm-{number}") for number in range(wish.jobs or 200))
    return Scenario(name="storm", cluster=cluster, jobs=jobs, speed=Speed(), seed=wish.seed)


_CLASSES: Final = (("small", 350, 0.1, 0.2, 1, 50), ("medium", 100, 0.5, 0.5, 5, 100), ("large", 50, 1.2, 1.0, 20, 200))


def kueue(wish: TraceOptions) -> Scenario:
    """The workload of Kueue's own benchmark: 5 cohorts of 6 queues with 20 cores each and 500 jobs each.

    Only the number of jobs can be chosen; a smaller number keeps the first jobs of each queue. Preemption is disabled,
    unlike in Kueue's queues, because jobs that run for a fraction of a second gain nothing from it.
    """
    jobs: list[SimJob] = []
    queues: list[Queue] = []
    per_queue = None if wish.jobs is None else -(-wish.jobs // 30)
    for cohort in range(5):
        queues.append(Queue(name=f"cohort-{cohort}"))
        for number in range(6):
            queue = f"cohort-{cohort}-{number}"
            quota = Quota(nominal=Decimal(20), borrowing_limit=Decimal(100))
            parent = f"cohort-{cohort}"
            queues.append(Queue(name=queue, parent=parent, quotas={"cpu": quota}, preemption=PreemptionPolicy.NEVER))
            jobs += sorted(_of_queue(queue), key=lambda job: job.submit)[:per_queue]
    jobs.sort(key=lambda job: (job.submit, job.name))
    speed = Speed(restart=0.0)
    cluster = Cluster(nodes=1, gpus=0, cpu=600)
    return Scenario(name="kueue", cluster=cluster, jobs=tuple(jobs), queues=tuple(queues), speed=speed, seed=wish.seed)


def _of_queue(queue: str) -> Iterable[SimJob]:
    for kind, count, every, run, cpu, priority in _CLASSES:
        for number in range(count):
            submit = (number + 1) * every
            name = f"{queue}-{kind}-{number}"
            one = SimJob(name=name, submit=submit, duration=run, gpus=0, cpu=cpu, queue=queue, kind=kind)
            yield replace(one, priority=priority)


TRACES: Final[dict[str, Callable[[TraceOptions], Scenario]]] = {
    "philly": philly,
    "helios": helios,
    "dragon": dragon,
    "kueue": kueue,
    "storm": storm,
}


def _cluster(wish: TraceOptions, *, nodes: int, gpus: int, per_gpu: int) -> Cluster:
    per_node = wish.gpus or gpus
    return Cluster(nodes=wish.nodes or nodes, gpus=per_node, cpu=wish.cpu or per_node * per_gpu)


def _named(name: str, jobs: Iterable[SimJob], submits: Iterable[float]) -> tuple[SimJob, ...]:
    both = enumerate(zip(jobs, submits, strict=True))
    return tuple(replace(job, name=f"{name}-{number}", submit=submit) for number, (job, submit) in both)


def _span(jobs: Iterable[SimJob], cluster: Cluster, load: float) -> float:
    """The time span in which these jobs request ``load`` times the capacity of the cluster."""
    return requested_unit_seconds(jobs, cluster) / (cluster.units * load)


def requested_unit_seconds(jobs: Iterable[SimJob], cluster: Cluster) -> float:
    """Unit-seconds of these jobs at their requested size."""
    return sum(job.workers * cluster.units_of(job) * job.duration for job in jobs)

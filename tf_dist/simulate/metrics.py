"""Figures of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Final

from tf_dist.core.model.usage import Spent
from tf_dist.simulate.engine import World

SHORT: Final = 600.0
"""Seconds. Shorter run times count as this value; otherwise a job of one second would dominate the mean slowdown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one simulation. Times are in seconds.

    Of the jobs that ended: ``elapsed_…``: from submission to the end. ``wait_…``: from submission to the first start.
    ``slowdown``: mean bounded slowdown (elapsed ÷ duration, at least 1). ``makespan``: from the first submission to
    the last end.

    Shares of the cluster until the last submission, or until the end if all jobs arrive at once: ``utilisation``:
    occupied by jobs. ``productive``: occupied by jobs that work. ``done``: work that was done and kept, in units of
    single workers on the node of their parameter servers.

    Over the whole simulation: ``efficiency``: work done per occupied unit-second. ``idle_hours``: unit-hours that jobs
    occupied without working. ``lost_hours``: unit-hours of lost work. ``goodput``: the share of the occupied
    unit-hours whose work was kept. ``stuck``: number of jobs that never end. ``restarts``, ``resizes``, ``timeouts``:
    number of these events.
    """

    jobs: float
    stuck: float
    elapsed_mean: float
    elapsed_p50: float
    elapsed_p95: float
    elapsed_max: float
    wait_mean: float
    wait_p50: float
    wait_p95: float
    wait_max: float
    slowdown: float
    makespan: float
    utilisation: float
    productive: float
    done: float
    efficiency: float
    idle_hours: float
    lost_hours: float
    goodput: float
    restarts: float
    resizes: float
    timeouts: float


_SUMS: Final = frozenset({"jobs", "stuck"})


def figures(world: World) -> Figures:
    """The figures of a finished simulation."""
    runs = world.runs
    ended = [run for run in runs if run.ended is not None]
    elapsed = sorted((run.ended or 0.0) - run.job.submit for run in ended)
    waits = sorted((run.started or 0.0) - run.job.submit for run in ended)
    slow = [max(1.0, ((r.ended or 0.0) - r.job.submit) / max(r.job.duration, SHORT)) for r in ended]
    room = world.scenario.cluster.units * min(world.window, world.now)
    spent = Spent(
        held=sum(run.spent.held for run in runs),
        trained=sum(run.spent.trained for run in runs),
        lost=sum(run.spent.lost for run in runs),
    )
    unit_work = sum(run.done * world.floor.of_worker(run.job) for run in runs)
    first = min((run.job.submit for run in runs), default=0.0)
    return Figures(
        jobs=len(runs),
        stuck=len(runs) - len(ended),
        elapsed_mean=_mean(elapsed),
        elapsed_p50=quantile(elapsed, 0.5),
        elapsed_p95=quantile(elapsed, 0.95),
        elapsed_max=quantile(elapsed, 1),
        wait_mean=_mean(waits),
        wait_p50=quantile(waits, 0.5),
        wait_p95=quantile(waits, 0.95),
        wait_max=quantile(waits, 1),
        slowdown=_mean(slow),
        makespan=max((run.ended or 0.0 for run in ended), default=first) - first,
        utilisation=_share(world.held, room),
        productive=_share(world.busy, room),
        done=_share(world.done, room),
        efficiency=_share(unit_work, spent.held),
        idle_hours=(spent.held - spent.trained) / 3600,
        lost_hours=spent.lost / 3600,
        goodput=spent.goodput or 0.0,
        restarts=sum(run.restarts for run in runs),
        resizes=sum(run.resizes for run in runs),
        timeouts=sum(run.timeouts for run in runs),
    )


def averaged(all_of: Sequence[Figures]) -> Figures:
    """The means over several seeds. Jobs and stuck jobs are summed."""
    columns = {field.name: [getattr(one, field.name) for one in all_of] for field in fields(Figures)}
    return Figures(**{name: sum(values) if name in _SUMS else _mean(values) for name, values in columns.items()})


def quantile(ordered: Sequence[float], part: float) -> float:
    """The quantile ``part`` of the ordered values; 0 if there are no values."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0

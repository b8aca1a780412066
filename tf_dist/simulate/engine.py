"""The simulated cluster and its event loop: which jobs run where and how fast, and what was held, used and done.

Policies change the cluster only with ``give`` and ``take``. The current workers of a job share its remaining work. A
job that is stopped loses the work since its last checkpoint, and does it again. A job saves its work before it grows.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final, Protocol

from tf_dist.core.model.usage import Spent
from tf_dist.simulate.placement import FreeCapacity
from tf_dist.simulate.scenario import Layout, Scenario, SimJob

_NOWHERE = Layout()


class JobRun:
    """The run of one job. Times in seconds; ``None``: not yet.

    ``layout``: the nodes of its pods (None: it has no pods). ``works``: whether the pods work, or only occupy capacity.
    ``left``: remaining work. ``spent``: unit-seconds of admitted pods, of working pods, and of lost work.
    ``saved_at``: time of the last save, or of the start. ``saved_left``: remaining work at that time. ``unsaved``:
    unit-seconds of work since that time.
    """

    __slots__ = (
        "done", "ended", "job", "layout", "left", "number", "rate", "resizes", "restarts", "saved_at", "saved_left",
        "since", "spent", "started", "timeouts", "units", "unsaved", "version", "works", "works_from",
    )  # fmt: skip

    def __init__(self, number: int, job: SimJob, work: float) -> None:
        self.number = number
        self.job = job
        self.left = work
        self.layout: Layout | None = None
        self.works = False
        self.since = self.works_from = 0.0
        self.rate = 0.0
        self.units = 0
        self.started: float | None = None
        self.ended: float | None = None
        self.version = self.resizes = self.restarts = self.timeouts = 0
        self.spent = Spent()
        self.saved_at, self.saved_left, self.unsaved = 0.0, work, 0.0
        self.done = 0.0

    @property
    def size(self) -> int:
        """Current number of workers."""
        return self.layout.size if self.layout else 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A period in which a job held units of a node. ``works``: whether the job worked in this period."""

    run: int
    node: int
    units: int
    start: float
    end: float
    works: bool


class World:
    """The state of a simulation.

    ``window``: end of the period that counts for the use of the cluster. This is the last arrival, or the end of the
    simulation if all jobs arrive at once.
    """

    def __init__(self, scenario: Scenario, *, record: bool = False) -> None:
        self.scenario = scenario
        self.speed = scenario.speed
        self.floor = FreeCapacity(scenario.cluster)
        self.now = 0.0
        self.window = scenario.span or float("inf")
        self.runs = [JobRun(n, job, scenario.speed.work(job)) for n, job in enumerate(scenario.jobs)]
        self.waiting = 0
        self.working = 0
        self.held = self.busy = self.done = 0.0
        self.pieces: list[Interval] | None = [] if record else None
        self.queue: list[tuple[float, int]] = []
        self._ends: list[tuple[float, int, int]] = []
        self._server_free = 0.0

    def give(self, run: JobRun, layout: Layout, *, works: bool = True, pause: float = 0.0) -> None:
        """Create all pods of the job at once. ``pause``: seconds until they work again.

        Raises ``NoRoom`` if the free capacity is smaller.
        """
        job = run.job
        self._close(run)
        if run.layout is not None:
            self.floor.give(job, run.layout)
        elif works:
            pause += self._written()
        was = run.works
        self.floor.take(job, layout)
        run.layout, run.works = layout, works
        run.units = layout.size * self.floor.of_worker(job) + sum(layout.ps.values()) * self.floor.of_ps(job)
        run.rate = self.speed.at(layout) if works else 0.0
        run.version += 1
        self.working += works - was
        self.waiting -= works - was
        if works:
            run.started = self.now if run.started is None else run.started
            run.works_from = max(run.works_from if was else self.now, self.now + pause)
            if pause or not was:
                run.saved_at, run.saved_left, run.unsaved = run.works_from, run.left, 0.0
            heapq.heappush(self._ends, (run.works_from + run.left / run.rate, run.number, run.version))

    def take(self, run: JobRun) -> None:
        """Delete the job's pods. The job waits, and loses the work since its last checkpoint."""
        self._close(run)
        if run.works:
            run.spent = run.spent.plus(1, lost=run.unsaved)
            again = run.saved_left - run.left
            run.left += again
            run.done -= again
            if self.now <= self.window:
                self.done -= self.floor.of_worker(run.job) * again
        self._free(run)

    def _free(self, run: JobRun) -> None:
        if run.layout is not None:
            self.floor.give(run.job, run.layout)
        self.working -= run.works
        self.waiting += run.works
        run.layout, run.works, run.rate, run.units = None, False, 0.0, 0
        run.version += 1

    def resume(self, run: JobRun, layout: Layout) -> None:
        """Start the job. A job that ran before has to load its checkpoint."""
        again = run.started is not None
        run.restarts += again
        self.give(run, layout, pause=self.speed.restart if again else 0.0)

    def resize(self, run: JobRun, layout: Layout) -> None:
        """Change the number of workers. Growing costs a restart, shrinking costs nothing."""
        grows = layout.size > run.size
        run.resizes += 1
        self.give(run, layout, pause=self.speed.restart if grows else 0.0)

    def next_end(self) -> float:
        """The time at which the next job ends if nothing changes before."""
        ends = self._ends
        while ends and self.runs[ends[0][1]].version != ends[0][2]:
            heapq.heappop(ends)
        return ends[0][0] if ends else float("inf")

    def end_next(self) -> JobRun:
        """End the job that is due, and return it."""
        _, number, _ = heapq.heappop(self._ends)
        run = self.runs[number]
        self._close(run)
        self._free(run)
        self.waiting -= 1
        run.left, run.ended = 0.0, self.now
        return run

    def noted(self) -> None:
        """Record the number of waiting jobs for the picture."""
        if self.pieces is not None:
            self.queue.append((self.now, self.waiting))

    def _written(self) -> float:
        """Seconds until the API server has stored an admission that is decided now, at the rate of the scenario."""
        if self.scenario.rate is None:
            return 0.0
        self._server_free = max(self._server_free, self.now) + 1 / self.scenario.rate
        return self._server_free - self.now

    def _close(self, run: JobRun) -> None:
        """Account for the capacity and the work of the job since its last change."""
        since, run.since = run.since, self.now
        if not run.units or since >= self.now:
            return
        begin = min(max(run.works_from, since), self.now) if run.works else self.now
        run.spent = run.spent.plus(run.units, held=self.now - since, trained=self.now - begin)
        work = min(run.left, run.rate * (self.now - begin))
        run.done += work
        run.left -= work
        run.unsaved += run.units * (self.now - begin)
        if run.job.checkpoint and self.now >= run.saved_at + run.job.checkpoint:
            ago = (self.now - run.saved_at) % run.job.checkpoint
            run.saved_at, run.saved_left, run.unsaved = self.now - ago, run.left + run.rate * ago, run.units * ago
        seen = min(self.now, self.window)
        self.held += run.units * max(0.0, seen - since)
        self.busy += run.units * max(0.0, seen - begin)
        self.done += self.floor.of_worker(run.job) * run.rate * max(0.0, seen - begin)
        if self.pieces is not None and run.layout is not None:
            self._draw(run, run.layout, since, begin, self.pieces)

    def _draw(self, run: JobRun, layout: Layout, since: float, begin: float, pieces: list[Interval]) -> None:
        per_worker, per_ps = self.floor.of_worker(run.job), self.floor.of_ps(run.job)
        units = {node: count * per_worker for node, count in layout.workers.items()}
        for node, count in layout.ps.items():
            units[node] = units.get(node, 0) + count * per_ps
        for start, end, works in ((since, begin, False), (begin, self.now, True)):
            if end > start:
                pieces += (Interval(run.number, n, u, start, end, works) for n, u in units.items() if u)


STALLED: Final = 2 * 86_400.0
"""If nothing runs and no job arrives for this number of seconds, the waiting jobs are stuck."""


class Policy(Protocol):
    """A scheduling policy: receives events, and acts with ``world.give`` and ``world.take``."""

    def arrived(self, run: JobRun, world: World) -> None:
        """A job has arrived."""

    def ended(self, run: JobRun, world: World) -> None:
        """A job has ended, and its capacity is free."""

    def act(self, world: World) -> float | None:
        """Decide, and return the time of the next call if no event occurs first (None: wait for an event)."""


def simulate(scenario: Scenario, policy: Policy, *, record: bool = False) -> World:
    """Run the trace to its end, or until no job can make progress. ``record``: keep the data for the picture.

    Jobs without ``ended`` in the returned world are stuck.
    """
    world = World(scenario, record=record)
    coming = sorted(world.runs, key=lambda run: (run.job.submit, run.number))
    arrived, lively = 0, 0.0
    wake = float("inf")
    endless = float("inf")
    while True:
        arrival = coming[arrived].job.submit if arrived < len(coming) else endless
        now = min(arrival, world.next_end(), wake)
        if world.working or arrived < len(coming):
            lively = now
        if now == endless or now - lively > STALLED:
            break
        world.now = now
        while world.next_end() <= now:
            policy.ended(world.end_next(), world)
        while arrived < len(coming) and coming[arrived].job.submit <= now:
            world.waiting += 1
            policy.arrived(coming[arrived], world)
            arrived += 1
        asked = policy.act(world)
        if asked is not None and asked <= now:
            raise ValueError(f"asked to be woken at {asked}, and it is {now}")
        wake = endless if asked is None else asked
        world.noted()
    _account_stuck_jobs(world)
    return world


def _account_stuck_jobs(world: World) -> None:
    """Account for the capacity of stuck jobs until the last end or arrival of a job."""
    ends = [run.ended for run in world.runs if run.ended is not None]
    world.now = max(world.now if not ends else 0.0, world.scenario.span, *ends)
    for run in world.runs:
        if run.layout is not None:
            world.take(run)

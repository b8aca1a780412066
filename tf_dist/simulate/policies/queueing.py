"""Queues of rigid gangs: first in, first out, strict or with skipping, and EASY backfilling."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count

from tf_dist.simulate.engine import JobRun, World
from tf_dist.simulate.placement import FreeCapacity, Placing, packed
from tf_dist.simulate.scenario import Layout, SimJob

Shape = tuple[int, int, int, int, int]


def shape_of(job: SimJob) -> Shape:
    """The shape of a job. If a job does not fit, no job of its shape fits."""
    return (job.workers, job.gpus, job.cpu, job.ps, job.ps_cpu)


class WaitingQueue:
    """Waiting jobs in order of arrival, by shape. If a job cannot start, no other job of its shape need be tried."""

    def __init__(self) -> None:
        self.shapes: dict[Shape, deque[JobRun]] = {}
        self._gone: set[int] = set()
        self._all: deque[JobRun] = deque()

    def add(self, run: JobRun) -> None:
        """Add a job that waits."""
        self.shapes.setdefault(shape_of(run.job), deque()).append(run)
        self._all.append(run)

    def remove(self, run: JobRun) -> None:
        """Remove a job that no longer waits."""
        self._gone.add(run.number)

    def head(self) -> JobRun | None:
        """The job that has waited longest."""
        return self._first(self._all)

    def first(self, shape: Shape) -> JobRun | None:
        """The job of the shape that has waited longest."""
        return self._first(self.shapes[shape])

    def of(self, shape: Shape) -> Iterator[JobRun]:
        """All waiting jobs of the shape, in order of arrival."""
        return (run for run in self.shapes[shape] if run.number not in self._gone)

    def _first(self, runs: deque[JobRun]) -> JobRun | None:
        while runs and runs[0].number in self._gone:
            runs.popleft()
        return runs[0] if runs else None


class Fifo:
    """Strict first in, first out: a job that cannot start blocks all others."""

    def __init__(self, placing: Placing = packed) -> None:
        self.line = WaitingQueue()
        self.placing = placing

    def arrived(self, run: JobRun, world: World) -> None:
        """Add the job at the end of the queue."""
        self.line.add(run)

    def ended(self, run: JobRun, world: World) -> None:
        """Nothing to do."""

    def act(self, world: World) -> float | None:
        """Start jobs from the head of the queue until a job does not fit."""
        while (run := self.line.head()) is not None and self.start(run, world):
            pass
        return None

    def start(self, run: JobRun, world: World) -> bool:
        """Start a job if it fits."""
        layout = self.placing(world.floor, run.job, run.job.workers)
        if layout is not None:
            self.line.remove(run)
            world.resume(run, layout)
        return layout is not None


class BestEffortFifo(Fifo):
    """First in, first out, but jobs that cannot start are skipped: nothing protects a large job from small ones."""

    def __init__(self, placing: Placing = packed) -> None:
        super().__init__(placing)
        self._blocked: set[Shape] = set()

    def ended(self, run: JobRun, world: World) -> None:
        """Capacity is free again, so all shapes are tried."""
        self._blocked.clear()

    def act(self, world: World) -> float | None:
        """Start the jobs that fit, in order of arrival."""
        while True:
            free = (s for s in self.line.shapes if s not in self._blocked)
            firsts = [(run.number, shape) for shape in free if (run := self.line.first(shape)) is not None]
            if not firsts:
                return None
            number, shape = min(firsts, key=lambda first: (world.runs[first[0]].job.submit, first[0]))
            if not self.start(world.runs[number], world):
                self._blocked.add(shape)


class EasyBackfill(Fifo):
    """EASY backfilling: the head of the queue has a reservation. Other jobs start first only if they do not delay it.

    The reservation is for exact nodes. Jobs without an estimate are assumed to take the median of the estimates.
    """

    def __init__(self, placing: Placing = packed) -> None:
        super().__init__(placing)
        self._ends: dict[int, float] = {}
        self._estimates: list[float] = []
        self._median = 3600.0
        self._seen = count(1)
        self._blocked: set[Shape] = set()

    def arrived(self, run: JobRun, world: World) -> None:
        """Add the job at the end of the queue, and its estimate to the median."""
        super().arrived(run, world)
        if run.job.estimate is not None:
            self._estimates.append(run.job.estimate)
            if next(self._seen) % 50 == 1:
                self._median = sorted(self._estimates)[len(self._estimates) // 2]

    def ended(self, run: JobRun, world: World) -> None:
        """Capacity is free again, so all shapes are tried."""
        del self._ends[run.number]
        self._blocked.clear()

    def start(self, run: JobRun, world: World) -> bool:
        """Start a job, and remember when it should end."""
        started = super().start(run, world)
        if started:
            self._ends[run.number] = world.now + self.expected(run)
        return started

    def expected(self, run: JobRun) -> float:
        """The estimated run time of a job."""
        return self._median if run.job.estimate is None else run.job.estimate

    def act(self, world: World) -> float | None:
        """Start from the head of the queue as far as possible, then jobs that may be backfilled."""
        super().act(world)
        head = self.line.head()
        if head is not None:
            self._backfill(head, world)
        return None

    def _backfill(self, head: JobRun, world: World) -> None:
        self._blocked.add(shape_of(head.job))
        reservation: tuple[float, FreeCapacity] | None = None
        refused: set[Shape] = set()
        while (shape := self._oldest(world, refused)) is not None:
            run = self.line.first(shape)
            assert run is not None
            if self.placing(world.floor, run.job, run.job.workers) is None:
                self._blocked.add(shape)
                continue
            if reservation is None:
                reservation = self._reserve(head, world)
            before, spare = reservation
            if not (self._pass(shape, spare, world) or self._be_short(shape, before - world.now, world)):
                refused.add(shape)
                continue
            reservation = None

    def _oldest(self, world: World, refused: set[Shape]) -> Shape | None:
        found = None
        for shape in self.line.shapes:
            if shape not in self._blocked and shape not in refused and (run := self.line.first(shape)) is not None:
                key = (run.job.submit, run.number, shape)
                found = key if found is None or key < found else found
        return found[2] if found else None

    def _pass(self, shape: Shape, spare: FreeCapacity, world: World) -> bool:
        """Start the first job of the shape in capacity that the reservation leaves free."""
        run = self.line.first(shape)
        assert run is not None
        layout = self.placing(spare, run.job, run.job.workers)
        if layout is None:
            return False
        self._start_at(run, layout, world)
        return True

    def _be_short(self, shape: Shape, limit: float, world: World) -> bool:
        """Start the first job of the shape that should end before the reservation begins."""
        run = next((run for run in self.line.of(shape) if self.expected(run) <= limit), None)
        return run is not None and self.start(run, world)

    def _start_at(self, run: JobRun, layout: Layout, world: World) -> None:
        self.line.remove(run)
        self._ends[run.number] = world.now + self.expected(run)
        world.resume(run, layout)

    def _reserve(self, head: JobRun, world: World) -> tuple[float, FreeCapacity]:
        """When the head of the queue should start, and the current free capacity that it does not need then."""
        floor = world.floor.copy()
        need = head.job.workers * floor.of_worker(head.job)
        for end, number in sorted((max(end, world.now), number) for number, end in self._ends.items()):
            run = world.runs[number]
            assert run.layout is not None
            floor.give(run.job, run.layout)
            layout = self.placing(floor, head.job, head.job.workers) if floor.free >= need else None
            if layout is not None:
                floor.take(head.job, layout)
                return end, world.floor.limited(floor.units, floor.cpu)
        return float("inf"), world.floor

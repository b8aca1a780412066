"""kube-scheduler with its defaults: it schedules pods, not jobs. A job works when all its pods happen to have nodes."""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import Final

from tf_dist.simulate.engine import JobRun, World
from tf_dist.simulate.placement import emptiest, with_pod
from tf_dist.simulate.scenario import Layout

TIMEOUT: Final = 300.0
_BACKOFF: Final = 60.0
_LONGEST: Final = 3600.0

_Pod = tuple[int, int, bool]
"""Number of the run, its attempt, and whether it is a parameter server."""


class KubeScheduler:
    """Binds new pods in their order. When capacity becomes free, waiting pods are tried in random order.

    In a real cluster, back-off times of single pods have this effect: the pods of several jobs interleave, and jobs may
    block each other forever. ``timeout``: if a job does not work this many seconds after its pods were created, the
    pods are deleted, and created again after a pause that doubles.
    """

    def __init__(self, seed: int = 0, *, timeout: float | None = None) -> None:
        self._random = random.Random(seed)
        self._timeout = timeout
        self._new: deque[_Pod] = deque()
        self._parked: dict[tuple[int, int], list[_Pod]] = {}
        self._attempts: dict[int, int] = {}
        self._missing: dict[int, int] = {}
        self._timers: list[tuple[float, int, int, bool]] = []
        self._released = False

    def arrived(self, run: JobRun, world: World) -> None:
        """Create the pods of the job."""
        self._make(run, world.now)

    def ended(self, run: JobRun, world: World) -> None:
        """Note that capacity is free."""
        self._attempts.pop(run.number, None)
        self._released = True

    def act(self, world: World) -> float | None:
        """Delete pods of jobs that stalled for too long, try waiting pods if capacity is free, then try new pods."""
        self._expire(world)
        if self._released:
            self._released = False
            self._retry(world)
        while self._new:
            pod = self._new.popleft()
            if not self._bind(pod, world):
                self._park(pod, world)
        return self._timers[0][0] if self._timers else None

    def _make(self, run: JobRun, now: float) -> None:
        attempt = self._attempts[run.number] = self._attempts.get(run.number, 0) + 1
        self._missing[run.number] = run.job.ps + run.job.workers
        self._new.extend((run.number, attempt, True) for _ in range(run.job.ps))
        self._new.extend((run.number, attempt, False) for _ in range(run.job.workers))
        if self._timeout is not None:
            heapq.heappush(self._timers, (now + self._timeout, run.number, attempt, False))

    def _expire(self, world: World) -> None:
        """Delete the pods of stalled jobs. Create new pods for jobs whose pause is over."""
        while self._timers and self._timers[0][0] <= world.now:
            _, number, attempt, again = heapq.heappop(self._timers)
            run = world.runs[number]
            if self._attempts.get(number) != attempt or run.works:
                continue
            if again:
                self._make(run, world.now)
                continue
            if run.layout is not None:
                world.take(run)
                self._released = True
            run.timeouts += 1
            self._missing[number] = 0
            pause = min(_LONGEST, _BACKOFF * 2.0 ** min(attempt - 1, 10))
            heapq.heappush(self._timers, (world.now + pause, number, attempt, True))

    def _retry(self, world: World) -> None:
        full: set[tuple[int, int]] = set()
        while shapes := [shape for shape, pods in self._parked.items() if pods and shape not in full]:
            index = self._random.randrange(sum(len(self._parked[shape]) for shape in shapes))
            for shape in shapes:
                pods = self._parked[shape]
                if index < len(pods):
                    break
                index -= len(pods)
            pods[index], pods[-1] = pods[-1], pods[index]
            if self._stale(pods[-1], world) or self._bind(pods[-1], world):
                pods.pop()
            else:
                full.add(shape)

    def _stale(self, pod: _Pod, world: World) -> bool:
        number, attempt, _ = pod
        return self._attempts.get(number) != attempt or not self._missing[number]

    def _size(self, pod: _Pod, world: World) -> tuple[int, int]:
        job = world.runs[pod[0]].job
        return (world.floor.of_ps(job), job.ps_cpu) if pod[2] else (world.floor.of_worker(job), job.cpu)

    def _park(self, pod: _Pod, world: World) -> None:
        self._parked.setdefault(self._size(pod, world), []).append(pod)

    def _bind(self, pod: _Pod, world: World) -> bool:
        """Bind a pod to the node with the most free capacity. The job starts to work with its last pod."""
        if self._stale(pod, world):
            return True
        node = emptiest(world.floor, *self._size(pod, world))
        if node is None:
            return False
        run = world.runs[pod[0]]
        self._missing[run.number] -= 1
        layout = with_pod(run.layout or Layout(), node, server=pod[2])
        world.give(run, layout, works=not self._missing[run.number])
        return True

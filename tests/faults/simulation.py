"""Threads in virtual time: one thread runs at a time, chosen at random, and time advances when all threads wait.

The code of a controller runs unchanged, in greenlets, on the ``ThreadRuntime`` of a simulated process. Nothing here
depends on the clock or the load of the machine, so a schedule with the same random choices runs in the same way.
Deadlocks, and endless loops in which no time passes, are detected.
"""

from __future__ import annotations

import heapq
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from tests.controller.harness import START
from tf_dist.cluster.concurrency import ThreadRuntime

# A wait ends slightly later than it should, so that rounding errors cannot end it earlier.
_TICK = 1e-6
# More switches at one moment mean that there is no progress.
_MOST_SWITCHES = 20_000


class Dead(BaseException):
    """Unwinds a thread of a dead process."""


class Stuck(AssertionError):
    """Threads that can never continue."""


class Process:
    """Threads that run, stop and die together, and their clocks.

    ``skew`` is the error of the wall clock in seconds. ``rate`` is the speed of the monotonic clock.
    """

    def __init__(self, simulation: Simulation, name: str, *, skew: float = 0.0, rate: float = 1.0) -> None:
        self.simulation = simulation
        self.name = name
        self.skew = skew
        self._rate = rate
        self._offset = simulation.dice.uniform(0, 100_000)
        self.dead = self.stopped = self.unwinding = False
        self.continued = float("-inf")  # when it last continued after a stop
        self.tasks: set[Task] = set()
        self._held: list[Task] = []
        simulation.processes.append(self)

    def wall(self) -> float:
        """Seconds since the epoch by the clock of the machine."""
        return START + self.simulation.now + self.skew

    def monotonic(self) -> float:
        """Seconds by the monotonic clock of the machine."""
        return self._offset + self.simulation.now * self._rate

    def until(self, seconds: float) -> float:
        """The true time after this number of seconds of the process."""
        return self.simulation.now + max(0.0, seconds) / self._rate + _TICK

    def spawn(self, run: Callable[[], object], name: str) -> Task:
        """Start a thread. It runs when it is chosen."""
        task = Task(self, run, name)
        self.tasks.add(task)
        self.simulation.ready(task)
        return task

    def kill(self) -> None:
        """Like SIGKILL: no thread continues, and nothing is released."""
        self.dead = True

    def stop(self) -> None:
        """Like SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """Like SIGCONT: everything that became due in the meantime is due now."""
        self.stopped, self.continued = False, self.simulation.now
        held, self._held = self._held, []
        for task in held:
            self.simulation.ready(task)

    def hold(self, task: Task) -> None:
        """Keep the task until the process continues."""
        self._held.append(task)

    def bury(self) -> None:
        """Unwind the threads of a dead process."""
        self.unwinding = True
        for task in sorted(self.tasks, key=lambda task: task.number):
            task.unwind()
        self.tasks.clear()


class Task:
    """A thread."""

    _numbers = count()

    def __init__(self, process: Process, run: Callable[[], object], name: str) -> None:
        self.process = process
        self.name = name
        self.number = next(self._numbers)
        self.parked = self.woken = self.over = False
        self.ticket = 0
        self.waits_for: Lock | None = None
        self.joined: list[Task] = []
        self._run = run
        self.greenlet = greenlet(self._life, parent=process.simulation.hub)

    def __str__(self) -> str:
        return f"{self.process.name}/{self.name}"

    def _life(self) -> None:
        try:
            self._run()
        except Dead:
            pass
        finally:
            self.over = True
            self.process.tasks.discard(self)
            for task in self.joined:
                self.process.simulation.wake(task)

    def unwind(self) -> None:
        if not self.greenlet.dead and self.greenlet:
            simulation = self.process.simulation
            before, simulation.current = simulation.current, self
            self.greenlet.parent = getcurrent()
            try:
                self.greenlet.throw(Dead)
            finally:
                simulation.current = before

    def stack(self) -> str:
        frame = self.greenlet.gr_frame
        lines = traceback.format_stack(frame, limit=12) if frame is not None else []
        return f"{self}:\n{''.join(lines)}"


class Simulation:
    """All processes. ``now`` is the true time in seconds. ``restless`` is the probability that a thread is interrupted.

    ``idle`` is called whenever no thread can continue, before time advances.
    """

    def __init__(self, dice: Random, *, restless: float = 0.1) -> None:
        self.dice = dice
        self.now = 0.0
        self.hub = getcurrent()
        self.current: Task | None = None
        self.processes: list[Process] = []
        self.idle: Callable[[], object] = lambda: None
        self.switches = 0
        self._at_once = 0
        self._restless = restless
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = count()

    # Time

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Call ``act`` at this true time."""
        heapq.heappush(self._timers, (max(when, self.now), next(self._serial), act))

    def every(self, seconds: float, act: Callable[[], object]) -> None:
        """Call ``act`` again and again, after this number of seconds."""

        def again() -> None:
            act()
            self.at(self.now + seconds, again)

        self.at(self.now + seconds, again)

    def run(self, seconds: float) -> None:
        """Run everything that happens within this number of seconds."""
        end = self.now + seconds
        while True:
            self._run_ready()
            self.idle()
            if self._ready:
                continue
            if not self._timers or self._timers[0][0] > end:
                break
            when, _, act = heapq.heappop(self._timers)
            if when > self.now:
                self.now, self._at_once = when, 0
            act()
        self.now, self._at_once = end, 0

    def _run_ready(self) -> None:
        ready = self._ready
        while ready:
            index = int(self.dice.random() * len(ready))
            ready[index], ready[-1] = ready[-1], ready[index]
            task = ready.pop()
            process = task.process
            if process.dead:
                continue
            if process.stopped:
                process.hold(task)
                continue
            self._count(task)
            self.current = task
            try:
                task.greenlet.switch()
            finally:
                self.current = None

    def _count(self, task: Task) -> None:
        self.switches += 1
        self._at_once += 1
        if self._at_once > _MOST_SWITCHES:
            raise Stuck(f"{task} goes round without time passing\n{task.stack()}")

    # Threads

    def ready(self, task: Task) -> None:
        """The task may continue."""
        self._ready.append(task)

    def wake(self, task: Task) -> None:
        """End the wait of a task."""
        if task.parked:
            task.parked, task.woken = False, True
            self._ready.append(task)

    def park(self, until: float | None = None) -> bool:
        """Let the current thread wait until it is woken, or until this true time. Returns whether it was woken."""
        task = self._me()
        task.ticket += 1
        task.parked, task.woken = True, False
        if until is not None:
            self.at(until, lambda ticket=task.ticket: self._time_out(task, ticket))  # type: ignore[misc]
        self._leave()
        return task.woken

    def _time_out(self, task: Task, ticket: int) -> None:
        if task.parked and task.ticket == ticket:
            task.parked = False
            self._ready.append(task)

    def breathe(self) -> None:
        """A point at which the current thread may be interrupted."""
        task = self.current
        if task is not None and not task.process.unwinding and self.dice.random() < self._restless:
            self._ready.append(task)
            self._leave()

    def _me(self) -> Task:
        task = self.current
        if task is None:
            raise RuntimeError("only a thread of a process can wait")
        if task.process.unwinding:
            raise Dead
        return task

    def _leave(self) -> None:
        task = self.current
        self.hub.switch()
        if task is not None and task.process.unwinding:
            raise Dead

    def close(self) -> None:
        """Unwind all threads."""
        for process in self.processes:
            process.dead = True
            process.bury()
        self._ready.clear()
        self._timers.clear()

    def stacks(self) -> str:
        """The stacks of all threads."""
        tasks = [task for process in self.processes if not process.dead for task in process.tasks]
        return "\n".join(task.stack() for task in sorted(tasks, key=lambda task: task.number))


class Lock:
    """A reentrant lock that detects deadlocks immediately."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.owner: Task | None = None
        self._depth = 0
        self._waiting: deque[Task] = deque()

    def __enter__(self) -> bool:
        simulation = self._simulation
        simulation.breathe()
        task = simulation.current
        if task is None or task.process.unwinding:
            return True
        while self.owner not in (None, task):
            self._check(task)
            self._waiting.append(task)
            task.waits_for = self
            simulation.park()
            task.waits_for = None
        self.owner = task
        self._depth += 1
        return True

    def _check(self, task: Task) -> None:
        owner = self.owner
        while owner is not None and owner.waits_for is not None:
            owner = owner.waits_for.owner
            if owner is task:
                raise Stuck(f"threads wait for each other\n{self._simulation.stacks()}")

    def __exit__(self, *exc: object) -> None:
        task = self._simulation.current
        if task is not None and self.owner is task:
            self._depth -= 1
            if self._depth == 0:
                self.pass_on()

    def pass_on(self) -> int:
        """Release the lock completely, and return how often it was held."""
        depth, self._depth, self.owner = self._depth, 0, None
        if self._waiting:
            self._simulation.wake(self._waiting.popleft())
        return depth

    def take(self, depth: int) -> None:
        """Acquire the lock again as often as before."""
        self.__enter__()
        self._depth = depth


class Waiters:
    """Threads that wait for the same thing."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.simulation = process.simulation
        self._tasks: list[Task] = []

    def wait(self, seconds: float | None) -> bool:
        task = self.simulation.current
        if task is None:
            raise RuntimeError("only a thread of a process can wait")
        self._tasks.append(task)
        try:
            return self.simulation.park(None if seconds is None or seconds > 1e8 else self.process.until(seconds))
        finally:
            if task in self._tasks:
                self._tasks.remove(task)

    def wake_one(self) -> None:
        if self._tasks:
            self.simulation.wake(self._tasks.pop(int(self.simulation.dice.random() * len(self._tasks))))

    def wake(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            self.simulation.wake(task)


class Event:
    """Like ``threading.Event``."""

    def __init__(self, process: Process) -> None:
        self._waiters = Waiters(process)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()
        self._waiters.simulation.breathe()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            if timeout is not None and timeout <= 0:
                self._waiters.simulation.breathe()
            else:
                self._waiters.wait(timeout)
        return self._set


class Condition:
    """Like ``threading.Condition``."""

    def __init__(self, process: Process) -> None:
        self._waiters = Waiters(process)
        self._lock = Lock(process.simulation)

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._lock.__exit__(*exc)

    def wait(self, timeout: float | None = None) -> bool:
        depth = self._lock.pass_on()
        try:
            return self._waiters.wait(timeout)
        finally:
            self._lock.take(depth)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        process = self._waiters.process
        end = None if timeout is None else process.monotonic() + timeout
        while not predicate():
            rest = None if end is None else end - process.monotonic()
            if rest is not None and rest <= 1e-9:
                return False
            self.wait(rest)
        return True

    def notify(self) -> None:
        self._waiters.wake_one()

    def notify_all(self) -> None:
        self._waiters.wake()


class Thread:
    """Like ``threading.Thread``."""

    def __init__(self, process: Process, run: Callable[[], object], name: str) -> None:
        self._process = process
        self._run = run
        self.name = name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._process.spawn(self._run, self.name)
        self._process.simulation.breathe()

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.over

    def join(self) -> None:
        simulation = self._process.simulation
        while self._task is not None and not self._task.over:
            self._task.joined.append(simulation._me())
            simulation.park()


class Pool:
    """Like ``ThreadPoolExecutor``. An error of a task ends the schedule."""

    def __init__(self, process: Process, workers: int, name: str) -> None:
        self._process = process
        self._name = name
        self._idle = workers
        self._queue: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._threads: set[Thread] = set()
        self._numbers = count()

    def submit(self, task: Callable[..., object], /, *args: Any) -> None:
        self._queue.append((task, args))
        if self._idle:
            self._idle -= 1
            self._process.spawn(self._work, f"{self._name}-{next(self._numbers)}")

    def _work(self) -> None:
        try:
            while self._queue:
                task, args = self._queue.popleft()
                task(*args)
        finally:
            self._idle += 1

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        if cancel_futures:
            self._queue.clear()
        simulation = self._process.simulation
        for task in [task for task in self._process.tasks if task.name.startswith(self._name)] if wait else ():
            while not task.over:
                task.joined.append(simulation._me())
                simulation.park()


class SimulatedRuntime(ThreadRuntime):
    """The runtime of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def monotonic(self) -> float:
        return self._process.monotonic()

    def uniform(self, low: float, high: float) -> float:
        return self._process.simulation.dice.uniform(low, high)

    def thread(self, run: Callable[[], object], name: str) -> Any:
        return Thread(self._process, run, name)

    def pool(self, workers: int, name: str) -> Any:
        return Pool(self._process, workers, name)

    def event(self) -> Any:
        return Event(self._process)

    def condition(self) -> Any:
        return Condition(self._process)

    def lock(self) -> Any:
        return Lock(self._process.simulation)


@contextmanager
def simulated(dice: Random, *, restless: float = 0.1) -> Iterator[Simulation]:
    """A simulation that leaves no thread behind."""
    simulation = Simulation(dice, restless=restless)
    try:
        yield simulation
    finally:
        simulation.close()

"""Threads on virtual time: one runs at a time, the schedule's dice say which, and time goes on when all of them wait.

The code of a controller runs as it is, in greenlets, on the ``ThreadRuntime`` of a simulated process. Nothing here
depends on the machine's clock or its load, so a schedule with the same dice is the same schedule. What no test would
survive is found: two threads that wait for each other's locks, a loop that goes round without time passing.
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

# A wait ends a little later than it should, as waits do: it must not seem to end earlier by an error of rounding.
_TICK = 1e-6
# So many switches at one moment are not progress any more.
_MOST_SWITCHES = 20_000


class Dead(BaseException):
    """Unwinds a thread of a process that is no more."""


class Stuck(AssertionError):
    """Threads that will never go on."""


class Process:
    """Threads that live, stop and die together, and their clocks.

    ``skew``: how far the wall clock is off, in seconds; ``rate``: how fast the monotonic clock runs.
    """

    def __init__(self, simulation: Simulation, name: str, *, skew: float = 0.0, rate: float = 1.0) -> None:
        self.simulation = simulation
        self.name = name
        self.skew = skew
        self._rate = rate
        self._offset = simulation.dice.uniform(0, 100_000)
        self.dead = self.stopped = self.unwinding = False
        self.tasks: set[Task] = set()
        self._held: list[Task] = []
        simulation.processes.append(self)

    def wall(self) -> float:
        """Epoch seconds, as its machine has them."""
        return START + self.simulation.now + self.skew

    def monotonic(self) -> float:
        """Seconds since some moment, as its machine counts them."""
        return self._offset + self.simulation.now * self._rate

    def until(self, seconds: float) -> float:
        """When so many of its seconds are over, in true time."""
        return self.simulation.now + max(0.0, seconds) / self._rate + _TICK

    def spawn(self, run: Callable[[], object], name: str) -> Task:
        """A thread that begins as soon as it is its turn."""
        task = Task(self, run, name)
        self.tasks.add(task)
        self.simulation.ready(task)
        return task

    def kill(self) -> None:
        """As SIGKILL: no thread takes another step, nothing is given back."""
        self.dead = True

    def stop(self) -> None:
        """As SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """As SIGCONT: what was due meanwhile is due now."""
        self.stopped = False
        held, self._held = self._held, []
        for task in held:
            self.simulation.ready(task)

    def hold(self, task: Task) -> None:
        """It is its turn once the process goes on."""
        self._held.append(task)

    def bury(self) -> None:
        """Let go of the threads of a dead process."""
        self.unwinding = True
        for task in sorted(self.tasks, key=lambda task: task.number):
            task.unwind()
        self.tasks.clear()


class Task:
    """One thread."""

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
    """All processes. ``now`` is true time in seconds; ``restless``: how likely a thread is interrupted where it may be.

    ``idle`` is called whenever no thread can go on, before time does.
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
        """Call ``act`` at that moment of true time."""
        heapq.heappush(self._timers, (max(when, self.now), next(self._serial), act))

    def every(self, seconds: float, act: Callable[[], object]) -> None:
        """Call ``act`` again and again."""

        def again() -> None:
            act()
            self.at(self.now + seconds, again)

        self.at(self.now + seconds, again)

    def run(self, seconds: float) -> None:
        """Let everything happen that does within so many seconds."""
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
        """It may go on."""
        self._ready.append(task)

    def wake(self, task: Task) -> None:
        """End its wait."""
        if task.parked:
            task.parked, task.woken = False, True
            self._ready.append(task)

    def park(self, until: float | None = None) -> bool:
        """Have the current thread wait until it is woken (then True), or until that moment of true time."""
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
        """Here the current thread may be interrupted."""
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
        """Let go of every thread."""
        for process in self.processes:
            process.dead = True
            process.bury()
        self._ready.clear()
        self._timers.clear()

    def stacks(self) -> str:
        """Where every thread is."""
        tasks = [task for process in self.processes if not process.dead for task in process.tasks]
        return "\n".join(task.stack() for task in sorted(tasks, key=lambda task: task.number))


class Lock:
    """A reentrant lock. Threads that wait for each other are found at once."""

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
        """Let go of it, however often it is held; how often."""
        depth, self._depth, self.owner = self._depth, 0, None
        if self._waiting:
            self._simulation.wake(self._waiting.popleft())
        return depth

    def take(self, depth: int) -> None:
        """Have it again as often."""
        self.__enter__()
        self._depth = depth


class Waiters:
    """Threads that wait for one thing."""

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
    """As ``threading.Event``."""

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
    """As ``threading.Condition``."""

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
    """As ``threading.Thread``."""

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
    """As ``ThreadPoolExecutor``; a task that raises ends the schedule."""

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
    """The runtime of one process."""

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

"""Waiting for one job on behalf of a task, in a worker or in a triggerer: what to log meanwhile, and how it came out.

The same course is run by a thread (``attend``) and by an event loop (``attend_async``); it never blocks by itself.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from tf_dist.airflow.hub import Hub
from tf_dist.airflow.outcomes import payload
from tf_dist.airflow.tickets import Ticket
from tf_dist.client.following import LogLine
from tf_dist.client.onlooking import Onlooker
from tf_dist.client.scene import Scene
from tf_dist.client.telling import changes, prefix_width, visible
from tf_dist.cluster.api import LogOptions
from tf_dist.core.conclusion import NO_LIMITS, UNDECIDED, Conclusion, End, Limits, conclude, next_due, running
from tf_dist.core.model import CleanPodPolicy, Job

_DRAIN: Final = 5.0  # seconds without a line after which the log of a container that has ended is given up
_CLEAN_UP: Final = 10.0  # seconds for what a driver does after the end
_CHECK: Final = 0.5  # seconds after which a thread looks whether it is to stop
_TAIL: Final = 200  # lines of each log for the result, where logs are not wanted
_OURS: Final = "tf-dist"
_TURNS: Final = 2  # steps of all courses in one round of an event loop: a thousand jobs may end at once
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

Step = float | Callable[[], None] | None
Course = Generator[Step, None, dict[str, Any]]
"""Yields how long to wait for something new (None: as long as it takes), or work that blocks; returns the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody waits for. ``goal``: see ``core.outcome.WAITS``; ``tail``: so many last lines of each log first
    (None: all); ``get_logs``: without it logs are read for the result only; ``results``: whether one is wanted.
    """

    goal: str = "succeeded"
    limits: Limits = NO_LIMITS
    get_logs: bool = True
    results: bool = True
    tail: int | None = None


class LogView:
    """Writes what happens into a task's log: ``worker-0 | step=1 loss=0.5``."""

    tick: float | None = None

    def __init__(self, job: Job, write: Callable[[str], None], *, lines: bool) -> None:
        self._write = write
        self._width = max(prefix_width(job), len(_OURS))
        self._lines = lines
        self._shown: dict[str, str] = {}

    def show(self, scene: Scene, lines: list[LogLine]) -> None:
        """Write what is new."""
        if self._lines:
            for line in lines:
                self._write(f"{line.source:<{self._width}} | {visible(line.text)}")
        for text in changes(scene, self._shown):
            self.say(text)

    def say(self, text: str, style: str = "") -> None:
        """A word of tf-dist itself."""
        self._write(f"{_OURS:<{self._width}} | {text}")

    def close(self) -> None:
        """Nothing to take away."""


class Attendance:
    """Attends to the job of ``ticket``; ``write`` gets each line for the task's log."""

    def __init__(self, hub: Hub, ticket: Ticket, wish: Wish, write: Callable[[str], None]) -> None:
        job = ticket.job
        assert job is not None  # a ticket begins with its job
        tail = wish.tail if wish.get_logs else _TAIL
        self._hub, self._ticket, self._wish = hub, ticket, wish
        # Logs that nobody wants to see are read at the end only.
        self._reading = hub.read_logs(ticket, LogOptions(follow=True, tail=tail), begun=wish.get_logs)
        self._view = LogView(job.job, write, lines=wish.get_logs)
        self._onlooker = Onlooker(hub.cluster, job, self._view, ticket, self._reading)

    def course(self) -> Course:
        """From now until the wait is over; see ``Course``."""
        while True:
            self._onlooker.step(0)
            now = time.time()
            conclusion = self._conclude(now)
            if conclusion is not None:
                break
            if (refused := self._hub.refused()) is not None:
                raise refused
            due = next_due(self._onlooker.scene.status, self._wish.limits, now)
            yield None if due is None else due - now
        if self._wish.results and conclusion.end is not End.GONE:
            yield from self._read_out(conclusion)
        if conclusion.end is not End.REACHED:
            self._view.say(f"{conclusion.message} ({conclusion.hint})" if conclusion.hint else conclusion.message)
        return payload(self._ticket, self._onlooker.scene, conclusion)

    def _conclude(self, now: float) -> Conclusion | None:
        onlooker, last = self._onlooker, self._ticket.last
        if self._ticket.job is None:
            # What was known of it last may be that it was over.
            onlooker.scene = onlooker.scene.with_objects(last.status, list(self._ticket.pods.values()))
        scene = onlooker.scene
        found = conclude(scene.job, last.status, scene.pods, self._wish.limits, now, goal=self._wish.goal)
        if self._ticket.job is None and (found is None or found.end in UNDECIDED):
            return Conclusion(End.GONE, "it was deleted", "see who deletes jobs there: people, or a time to live")
        return found

    def _read_out(self, conclusion: Conclusion) -> Generator[Step, None, None]:
        """The last lines, and what the job's driver does after the end; both have their limits."""
        onlooker = self._onlooker
        self._reading.begun = True
        if self._hub.knows_pods(self._ticket):
            self._ticket.look_again()  # its pods are noticed once more, and that takes no request
        else:
            yield onlooker.catch_up
        over = conclusion.end not in UNDECIDED
        onlooker.step(0)
        onlooker.decided = over
        quiet, clean = time.monotonic() + _DRAIN, time.monotonic() + _CLEAN_UP
        while over and time.monotonic() < (limit := self._busy_until(quiet, clean)):
            yield limit - time.monotonic()
            if onlooker.step(0):
                quiet = time.monotonic() + _DRAIN
        while onlooker.step(0):
            yield 0.0

    def _busy_until(self, quiet: float, clean: float) -> float:
        """Until when something may still come (monotonic seconds), 0 for nothing."""
        unread = quiet if self._onlooker.unread else 0.0
        return max(unread, clean if self._cleans_up() else 0.0)

    def _cleans_up(self) -> bool:
        """Whether pods still run that the job's policy takes away: its driver may be ours."""
        job = self._onlooker.scene.job
        if not self._ticket.driven or self._ticket.job is None or job.run_policy.clean_pods is CleanPodPolicy.NONE:
            return False
        return running(self._onlooker.scene.with_objects(self._ticket.last.status, self._pods()).pods) > 0

    def _pods(self) -> list[dict[str, Any]]:
        return list(self._ticket.pods.values())


def attend(course: Course, rung: threading.Event, checked: Callable[[], None]) -> dict[str, Any]:
    """Run a course in this thread. ``checked`` is called twice a second, and may raise to end it.

    ``rung`` is waited for in short pieces: a signal handler may come at any moment.
    """
    while True:
        checked()
        try:
            step = next(course)
        except StopIteration as done:
            return dict(done.value)
        if callable(step):
            step()
            continue
        until = math.inf if step is None else time.monotonic() + step
        while (left := until - time.monotonic()) > 0 and not rung.wait(min(_CHECK, left)):
            checked()
        rung.clear()


async def attend_async(course: Course, rung: asyncio.Event) -> dict[str, Any]:
    """Run a course on this event loop; what blocks is done in a thread."""
    turns = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_TURNS))
    while True:
        async with turns:
            try:
                step = next(course)
            except StopIteration as done:
                return dict(done.value)
            await asyncio.sleep(0)  # the turn is over with this round of the loop, and not before
        if callable(step):
            await asyncio.to_thread(step)
            continue
        # A timer is left alone where none is needed: there may be a thousand of these.
        with suppress(TimeoutError):
            await (rung.wait() if step is None else asyncio.wait_for(rung.wait(), max(0.0, step)))
        rung.clear()

"""Waits for jobs: generators of steps, which a thread or an event loop runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from tf_dist.client.monitor import JobEvent, JobInformer, ObjectsListed, WaitSteps, WatchingJobInformer
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import Cluster
from tf_dist.core.diagnostics.outcome import Outcome, job_outcome, outcome_error
from tf_dist.core.model.fieldpath import suggestion
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import STOPPED, Status, display_phase
from tf_dist.core.pipeline.wait_result import WAIT_CONDITIONS, goal_unreachable
from tf_dist.errors import InvalidJob, JobFailed, NotFound, Problem, Unavailable

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Take = Callable[[float | None], list[JobEvent]]
"""Takes events, see ``JobInformer.take``."""

_FIRST_ANSWER: Final = 5.0  # minimum seconds for the first answer of the cluster, even if the wait is shorter
_THREADS_AT_ONCE: Final = 2  # steps of all waits in one iteration of an event loop: a thousand jobs may end at once
# An entry exists while a wait runs on its loop: a semaphore is bound to the loop on which it was first awaited.
_turns: WeakValueDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakValueDictionary()
_GOAL_ALIASES: Final = {
    "delete": "deleted",
    "created": "admitted",
    "complete": "succeeded",
    "completed": "succeeded",
}


def run_in_thread(steps: WaitSteps[T], take: Take) -> T:
    """Run the steps of a wait in this thread."""
    batch: list[JobEvent] | None = None
    while True:
        try:
            step = next(steps) if batch is None else steps.send(batch)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        batch = []
        if callable(step):
            step()
        else:
            batch = take(step)


def event_of_loop() -> tuple[asyncio.Event, Callable[[], None]]:
    """An event of the running loop, and a function that sets it from any thread."""
    import asyncio

    changed, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(changed.set)

    return changed, wake


async def run_on_loop(steps: WaitSteps[T], changed: asyncio.Event, take: Take) -> T:
    """Run the steps of a wait on this event loop. Blocking work runs in a thread. ``changed``: set for each event."""
    import asyncio  # imported late: it takes a twentieth of the startup, and tf-dist run needs no event loop

    turns = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_THREADS_AT_ONCE))
    begun = waited = False
    while True:
        async with turns:
            try:
                step = steps.send(take(0) if waited else []) if begun else next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            await asyncio.sleep(0)  # the turn lasts until the next iteration of the loop
        begun, waited = True, not callable(step)
        if callable(step):
            await asyncio.to_thread(step)
        elif step is None:  # the usual case: without a limit, no timeout is needed
            await changed.wait()
            changed.clear()
        elif step != 0:
            # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the change.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, step)):
                    await changed.wait()
            changed.clear()


class GoalNotReached(Unavailable):
    """The job did not reach the state in time. It still may."""


def wait_for(
    cluster: Cluster,
    jobs: Sequence[StoredJob],
    goal: str,
    timeout: float | None,
    report: Callable[[str], object],
    *,
    check: bool = False,
) -> list[StoredJob | None]:
    """Wait until jobs reach ``goal``, and return them (None: deleted). JobFailed if a job cannot, GoalNotReached.

    ``check``: raise JobFailed (JobEvicted) also for a job that reached the goal and did not succeed. ``report`` gets a
    line when a job reaches the goal, when it is stopped, and when its spec is rejected.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    found = []
    for job in jobs:
        with WatchingJobInformer(cluster, job, pods=False) as watch:
            reached = run_in_thread(goal_steps(watch, job, goal, deadline, report), watch.take)
        report(f"{job.shown} {'deleted' if reached is None else reached.state}")
        if check and reached is not None and (failure := _failure(reached)) is not None:
            raise failure
        found.append(reached)
    return found


async def wait_on_loop(cluster: Cluster, job: StoredJob, goal: str, timeout: float | None) -> StoredJob | None:
    """``wait_for`` one job in a coroutine. Nothing remains after a cancellation."""
    changed, wake = event_of_loop()
    deadline = None if timeout is None else time.monotonic() + timeout
    with WatchingJobInformer(cluster, job, pods=False, on_change=wake) as watch:
        return await run_on_loop(goal_steps(watch, job, goal, deadline, lambda _: None), changed, watch.take)


def goal_steps(
    watch: JobInformer, job: StoredJob, goal: str, deadline: float | None, report: Callable[[str], object]
) -> WaitSteps[StoredJob | None]:
    """The wait for a watched job, until ``deadline`` (monotonic seconds); see ``wait_for``."""
    refusal, stopped, listed = "", False, False
    limit = None if deadline is None else max(deadline, time.monotonic() + _FIRST_ANSWER)
    while True:
        batch = yield None if limit is None else max(0.0, limit - time.monotonic())
        if not listed and any(isinstance(item, ObjectsListed) for item in batch):
            listed, limit = True, deadline
        current = watch.job
        if listed and _goal_reached(current, job, goal):
            return current
        if listed and current is not None:
            status = current.status
            if status.refusal not in ("", refusal):
                refusal = status.refusal
                report(f"{job.shown}: {refusal}")
            if status.phase in STOPPED and not stopped:
                report(f"{job.shown} is {display_phase(status)} ({status.message}): it continues when it is resumed")
            stopped = status.phase in STOPPED
        if limit is not None and time.monotonic() >= limit:
            state = f"it is {current.state if current else 'gone'}" if listed else "the cluster has not answered"
            message = f"{job.shown} is not {goal} yet, {state}"
            raise GoalNotReached(message, hint=f"tf-dist explain {job.shown} explains why")


def _goal_reached(current: StoredJob | None, job: StoredJob, goal: str) -> bool:
    """Whether the job has reached the goal; JobFailed (JobEvicted) or NotFound if it never can."""
    status = current.status if current else None
    if WAIT_CONDITIONS[goal](status):
        return True
    if goal_unreachable(goal, status):
        raise _goal_unreachable(current, job, goal)
    return False


def wait_goal(text: str, argument: str = "until") -> str:
    """The goal of a word, including kubectl's words; InvalidJob."""
    word = text.removeprefix("condition=").removesuffix("=true").removesuffix("=True").lower()
    word = _GOAL_ALIASES.get(word, word)
    if word not in WAIT_CONDITIONS:
        hint = suggestion(word, WAIT_CONDITIONS)
        raise InvalidJob([Problem(argument, f"there is no state {text!r} to wait for", hint)])
    return word


def _goal_unreachable(current: StoredJob | None, job: StoredJob, goal: str) -> Exception:
    if current is None:
        return NotFound(f"{job.shown} has been deleted, so it will never be {goal}")
    message = f"{job.shown} is {display_phase(current.status)} and will never be {goal}"
    return _failure(current) or JobFailed(message, outcome=job_outcome(current.status))


def _failure(job: StoredJob) -> Exception | None:
    outcome = job_outcome(job.status)
    if outcome is None or outcome.kind in (OutcomeKind.SUCCEEDED, OutcomeKind.SUSPENDED):
        return None
    message = f"{job.shown} failed: {job.status.message}"
    return outcome_error(outcome, message, hint=f"tf-dist explain {job.shown} explains it")


def outcome_now(cluster: Cluster, job: StoredJob) -> Outcome | None:
    """How a job ended, or that it was deleted; None while it is live."""
    with suppress(NotFound):
        current = StoredJob(job.resource, cluster.get(job.resource, job.namespace, job.name))
        if current.uid == job.uid:
            return job_outcome(current.status)
    return Outcome.of(Status(), OutcomeKind.DELETED, reason="Deleted", message="the job has been deleted")

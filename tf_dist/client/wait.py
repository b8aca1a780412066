"""Waiting for jobs: a wait is a generator of what to do next, which a thread or an event loop runs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from tf_dist.client.monitor import JobEvent, JobInformer, ObjectsListed, WaitSteps, WatchingJobInformer
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import Cluster
from tf_dist.core.diagnostics.outcome import Outcome, job_outcome, outcome_error
from tf_dist.core.model.fieldpath import suggestion
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import STOPPED, Status, display_phase
from tf_dist.core.pipeline.wait_conditions import WAIT_CONDITIONS, goal_unreachable
from tf_dist.errors import InvalidJob, JobFailed, NotFound, Problem, Unavailable

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Take = Callable[[float | None], list[JobEvent]]
"""What has come, waiting for it up to so many seconds (None: as long as it takes), as ``JobInformer.take``."""

_FIRST_ANSWER: Final = 5.0  # seconds that a cluster has for it, however short the wait
_THREADS_AT_ONCE: Final = 2  # steps of all waits in one round of an event loop: a thousand jobs may end at once
# One entry for as long as a wait runs on the loop: a semaphore refers to the loop that it was waited for on.
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


class LoopEvent(Protocol):
    """The part of an ``asyncio.Event`` that a task needs which waits for it."""

    def wait(self) -> Awaitable[object]:
        """Done once it is set."""

    def clear(self) -> None:
        """From now on it is waited for again."""


async def run_on_loop(steps: WaitSteps[T], changed: LoopEvent, take: Take) -> T:
    """Run the steps of a wait on this event loop; what blocks is done in a thread. ``changed``: something has come."""
    import asyncio  # not before: without an event loop, as in tf-dist run, it is a twentieth of a start

    turns = _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_THREADS_AT_ONCE))
    begun = waited = False
    while True:
        async with turns:
            try:
                step = steps.send(take(0) if waited else []) if begun else next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            await asyncio.sleep(0)  # the turn is over with this round of the loop, and not before
        begun, waited = True, not callable(step)
        if callable(step):
            await asyncio.to_thread(step)
        elif step is None:  # nearly always; with no limit there is nothing to keep for it
            await changed.wait()
            changed.clear()
        elif step != 0:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the change.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, step)):
                    await changed.wait()
            changed.clear()


class GoalNotReached(Unavailable):
    """It has not come to that in the time given; it still may."""


def wait_for(
    cluster: Cluster,
    jobs: Sequence[StoredJob],
    goal: str,
    timeout: float | None,
    report: Callable[[str], object],
    *,
    check: bool = False,
) -> list[StoredJob | None]:
    """The jobs as they were at ``goal`` (None: deleted); JobFailed when one can never be, GoalNotReached if too late.

    ``check``: JobFailed (JobEvicted), too, for the first that has ended at its goal and did not succeed.
    ``report`` gets a line for each job that has reached the goal, that is stopped meanwhile (it can be resumed), or of
    which the spec is rejected (it can be corrected).
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
    """``wait_for`` for one job and for coroutines; when it is cancelled nothing of it goes on."""
    import asyncio

    changed, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(changed.set)

    deadline = None if timeout is None else time.monotonic() + timeout
    with WatchingJobInformer(cluster, job, pods=False, on_change=wake) as watch:
        return await run_on_loop(goal_steps(watch, job, goal, deadline, lambda _: None), changed, watch.take)


def goal_steps(
    watch: JobInformer, job: StoredJob, goal: str, deadline: float | None, report: Callable[[str], object]
) -> WaitSteps[StoredJob | None]:
    """The wait until a watched job is at its goal, or ``deadline`` (monotonic seconds); see ``wait_for``."""
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
                report(f"{job.shown} is {display_phase(status)} ({status.message}): it goes on once it is resumed")
            stopped = status.phase in STOPPED
        if limit is not None and time.monotonic() >= limit:
            state = f"it is {current.state if current else 'gone'}" if listed else "the cluster has not answered"
            message = f"{job.shown} is not {goal} yet, {state}"
            raise GoalNotReached(message, hint=f"tf-dist explain {job.shown} says why")


def _goal_reached(current: StoredJob | None, job: StoredJob, goal: str) -> bool:
    """Whether a job, which was ``job``, is at the goal now; JobFailed (JobEvicted) or NotFound if it can never be."""
    status = current.status if current else None
    if WAIT_CONDITIONS[goal](status):
        return True
    if goal_unreachable(goal, status):
        raise _goal_unreachable(current, job, goal)
    return False


def wait_goal(text: str, argument: str = "until") -> str:
    """The goal that a word means, kubectl's words included; InvalidJob for one that means none."""
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
    return outcome_error(outcome, message, hint=f"tf-dist explain {job.shown} says more")


def outcome_now(cluster: Cluster, job: StoredJob) -> Outcome | None:
    """How a job ended, as of now: deleted, where it is gone; None while it goes on."""
    with suppress(NotFound):
        current = StoredJob(job.resource, cluster.get(job.resource, job.namespace, job.name))
        if current.uid == job.uid:
            return job_outcome(current.status)
    return Outcome.of(Status(), OutcomeKind.DELETED, reason="Deleted", message="the job has been deleted")

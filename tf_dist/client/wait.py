"""Waiting for jobs until a goal is reached or out of reach, over restarts of the server, with backoff."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import Cluster
from tf_dist.cluster.client import informer
from tf_dist.core.api.fieldpath import suggestion
from tf_dist.core.api.status import STOPPED, OutcomeKind, Status, display_phase
from tf_dist.core.diagnostics.outcome import (
    WAIT_CONDITIONS,
    Outcome,
    goal_unreachable,
    job_outcome,
    outcome_error,
)
from tf_dist.errors import (
    ClusterError,
    Gone,
    InvalidJob,
    JobFailed,
    NotFound,
    Problem,
    Throttled,
    Unavailable,
)

TRANSIENT_ERRORS: Final = (Unavailable, Throttled)
"""Errors that pass by themselves."""
_FIRST_PAUSE: Final = 0.2
_MAX_PAUSE: Final = 5.0


def backoff_seconds(failures: int) -> float:
    """Seconds that people wait after so many failures in a row."""
    return informer.jittered_backoff(failures, first=_FIRST_PAUSE, longest=_MAX_PAUSE)


class Backoff:
    """Pauses after failures in a row, doubling to a few seconds; ``limit``: seconds of them that are borne in all."""

    def __init__(self, limit: float = 120.0, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._limit = limit
        self._sleep = sleep
        self._since: float | None = None
        self._failures = 0

    def failed(self, error: ClusterError) -> None:
        """Return after a pause; raise ``error`` when it has gone on for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._limit:
            raise error
        requested = error.after if isinstance(error, Throttled) and error.after else 0.0
        self._pause(min(requested, self._limit))

    def _pause(self, least: float) -> None:
        pause = backoff_seconds(self._failures)
        self._failures = min(self._failures + 1, 16)
        self._sleep(max(pause, least))

    def unfruitful(self) -> None:
        """Return after a pause: it answers, and what was asked for ended at once. No time of that is counted."""
        self._since = None
        self._pause(0.0)

    def answered(self) -> None:
        """It is there, whether or not it will stay: the time counts anew, the next pause is no shorter."""
        self._since = None

    def succeeded(self) -> None:
        """It is there, and does what was asked."""
        self._since, self._failures = None, 0


_MAX_WATCH: Final = 290.0
_SHORT_WATCH: Final = 1.0  # a watch that ends sooner, without a word, is not asked for again at once
_UNAVAILABLE_LIMIT: Final = 120.0  # seconds without an answer


_GOAL_ALIASES: Final = {
    "delete": "deleted",
    "created": "admitted",
    "complete": "succeeded",
    "completed": "succeeded",
}


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
    sleep: Callable[[float], object] = time.sleep,
) -> list[StoredJob | None]:
    """The jobs as they were at ``goal`` (None: deleted); JobFailed when one can never be, GoalNotReached if too late.

    ``check``: JobFailed (JobEvicted), too, for the first that has ended at its goal and did not succeed.
    ``report`` gets a line for each job that has reached the goal, that is stopped meanwhile (it can be resumed), or of
    which the spec is rejected (it can be corrected).
    ``sleep``: pauses between requests.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    found = []
    for job in jobs:
        reached = _wait(cluster, job, goal, deadline, report, sleep)
        report(f"{job.shown} {'deleted' if reached is None else reached.state}")
        if check and reached is not None and (failure := _failure(reached)) is not None:
            raise failure
        found.append(reached)
    return found


def _wait(
    cluster: Cluster,
    job: StoredJob,
    goal: str,
    deadline: float | None,
    report: Callable[[str], object],
    sleep: Callable[[float], object],
) -> StoredJob | None:
    limit = _UNAVAILABLE_LIMIT if deadline is None else min(_UNAVAILABLE_LIMIT, max(0.0, deadline - time.monotonic()))
    backoff, watches, refusal, stopped = Backoff(limit, sleep=sleep), Backoff(math.inf, sleep=sleep), "", False
    while True:
        try:
            current, version = _get_job(cluster, job)
        except TRANSIENT_ERRORS as error:
            backoff.failed(error)
            continue
        backoff.succeeded()
        if goal_reached(current, job, goal):
            return current
        if current and current.status.refusal not in ("", refusal):
            refusal = current.status.refusal
            report(f"{job.shown}: {refusal}")
        status = current.status if current else None
        if status and status.phase in STOPPED and not stopped:
            report(f"{job.shown} is {display_phase(status)} ({status.message}): it goes on once it is resumed")
        stopped = status is not None and status.phase in STOPPED
        left = _MAX_WATCH if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise not_reached(current, job, goal)
        try:
            if _until_change(cluster, job, version, min(left, _MAX_WATCH)):
                watches.succeeded()
            else:
                watches.unfruitful()
        except TRANSIENT_ERRORS as error:
            watches.failed(error)  # the request that follows shows whether the server answers


def goal_reached(current: StoredJob | None, job: StoredJob, goal: str) -> bool:
    """Whether a job, which was ``job``, is at the goal now; JobFailed (JobEvicted) or NotFound if it can never be."""
    status = current.status if current else None
    if WAIT_CONDITIONS[goal](status):
        return True
    if goal_unreachable(goal, status):
        raise _goal_unreachable(current, job, goal)
    return False


def not_reached(current: StoredJob | None, job: StoredJob, goal: str) -> GoalNotReached:
    """The error for a job that has not come there in time."""
    state = current.state if current else "gone"
    return GoalNotReached(f"{job.shown} is not {goal} yet, it is {state}", hint=f"tf-dist explain {job.shown} says why")


def wait_goal(text: str, argument: str = "until") -> str:
    """The goal that a word means, kubectl's words included; InvalidJob for one that means none."""
    word = text.removeprefix("condition=").removesuffix("=true").removesuffix("=True").lower()
    word = _GOAL_ALIASES.get(word, word)
    if word not in WAIT_CONDITIONS:
        hint = suggestion(word, WAIT_CONDITIONS)
        raise InvalidJob([Problem(argument, f"there is no state {text!r} to wait for", hint)])
    return word


def _get_job(cluster: Cluster, job: StoredJob) -> tuple[StoredJob | None, str]:
    listed = cluster.list(job.resource, job.namespace, fields=f"metadata.name={job.name}")
    for stored in listed.items:
        if stored["metadata"]["uid"] == job.uid:
            return StoredJob(job.resource, stored), listed.resource_version
    return None, listed.resource_version


def _until_change(cluster: Cluster, job: StoredJob, version: str, longest: float) -> bool:
    """Return at the next change of the job, or after ``longest`` seconds; False: the watch ended before that."""
    begun = time.monotonic()
    fields = f"metadata.name={job.name}"
    try:
        with cluster.watch(job.resource, job.namespace, fields=fields, since=version, timeout=longest) as changes:
            for event in changes:
                if event.type != "BOOKMARK":
                    return True
    except Gone:
        return False
    return time.monotonic() - begun >= min(longest, _SHORT_WATCH)


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
    current, _ = _get_job(cluster, job)
    if current is None:
        return Outcome.of(Status(), OutcomeKind.DELETED, reason="Deleted", message="the job has been deleted")
    return job_outcome(current.status)

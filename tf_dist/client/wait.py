"""Waiting for jobs: until a goal is reached or out of reach; watches that outlast an unavailable server, with
backoff.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import Cluster, Resource, WatchEvent
from tf_dist.cluster.client import informer
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
    Forbidden,
    Gone,
    JobFailed,
    NotFound,
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


ObjectChange = tuple[Resource, WatchEvent]


def watch_forever(
    cluster: Cluster, resource: Resource, namespace: str | None, labels: str = ""
) -> Iterator[WatchEvent]:
    """Every change of a kind, for ever: begins with what is there, and again when the server lost the thread."""
    since, backoff = "", Backoff()
    while True:
        try:
            with cluster.watch(resource, namespace, labels=labels, since=since) as stream:
                backoff.answered()
                empty = True
                for event in stream:
                    empty = False
                    backoff.succeeded()
                    since = str(event.object["metadata"].get("resourceVersion") or since)
                    if event.type != "BOOKMARK":
                        yield event
            if empty:
                backoff.unfruitful()
        except Gone:
            since = ""
            backoff.unfruitful()
        except TRANSIENT_ERRORS as error:
            backoff.failed(error)


def merged_watch(cluster: Cluster, kinds: Iterable[Resource], namespace: str | None) -> Iterator[ObjectChange]:
    """The changes of several kinds as they come; a kind that is not there, or not ours to see, has none."""
    changes: queue.SimpleQueue[ObjectChange | ClusterError] = queue.SimpleQueue()

    def read(resource: Resource) -> None:
        try:
            for event in watch_forever(cluster, resource, namespace):
                changes.put((resource, event))
        except (NotFound, Forbidden):
            return
        except ClusterError as error:
            changes.put(error)

    for resource in kinds:
        threading.Thread(target=read, args=(resource,), daemon=True).start()
    while True:
        change = changes.get()
        if isinstance(change, ClusterError):
            raise change
        yield change


_MAX_WATCH: Final = 290.0
_SHORT_WATCH: Final = 1.0  # a watch that ends sooner, without a word, is not asked for again at once
_UNAVAILABLE_LIMIT: Final = 120.0  # seconds without an answer


class GoalNotReached(Unavailable):
    """It has not come to that in the time given; it still may."""


def wait_for(
    cluster: Cluster,
    jobs: Sequence[StoredJob],
    goal: str,
    timeout: float | None,
    report: Callable[[str], object],
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Return when every job is at ``goal``; JobFailed (JobEvicted) when one can never be, NotYet after ``timeout``.

    ``report`` gets a line for each job that has reached the goal, that is stopped meanwhile (it can be resumed), or of
    which the spec is rejected (it can be corrected).
    ``sleep``: pauses between requests.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    for job in jobs:
        reached = _wait(cluster, job, goal, deadline, report, sleep)
        report(f"{job.shown} {'deleted' if reached is None else display_phase(reached.status)}")
        if goal == "finished" and reached is not None:
            _check(reached)


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
        status = current.status if current else None
        if WAIT_CONDITIONS[goal](status):
            return current
        if status and status.refusal not in ("", refusal):
            refusal = status.refusal
            report(f"{job.shown}: {refusal}")
        if status and status.phase in STOPPED and not stopped:
            report(f"{job.shown} is {display_phase(status)} ({status.message}): it goes on once it is resumed")
        stopped = status is not None and status.phase in STOPPED
        if goal_unreachable(goal, status):
            raise _goal_unreachable(current, job, goal)
        left = _MAX_WATCH if deadline is None else deadline - time.monotonic()
        if left <= 0:
            state = display_phase(status) if status else "gone"
            raise GoalNotReached(
                f"{job.shown} is not {goal} yet, it is {state}", hint=f"tf-dist explain {job.shown} says why"
            )
        try:
            if _until_change(cluster, job, version, min(left, _MAX_WATCH)):
                watches.succeeded()
            else:
                watches.unfruitful()
        except TRANSIENT_ERRORS as error:
            watches.failed(error)  # the request that follows shows whether the server answers


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


def _check(job: StoredJob) -> None:
    if (failure := _failure(job)) is not None:
        raise failure


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

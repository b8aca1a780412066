"""Waiting until jobs have come to where one wants them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from tf_dist.client.jobs import StoredJob
from tf_dist.client.patience import PASSING, Patience
from tf_dist.cluster.api import Cluster
from tf_dist.core.outcome import WAITS, Outcome, never, outcome
from tf_dist.core.status import state_word
from tf_dist.errors import Gone, InvalidJob, JobEvicted, JobFailed, NotFound, Unavailable

_LONGEST_WATCH: Final = 290.0
_SHORT: Final = 1.0  # a watch that ends sooner, without a word, is not asked for again at once
_BORNE: Final = 120.0  # seconds without an answer


class NotYet(Unavailable):
    """It has not come to that in the time given; it still may."""


def wait_for(
    cluster: Cluster,
    jobs: Sequence[StoredJob],
    goal: str,
    timeout: float | None,
    told: Callable[[str], object],
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Return when every job is at ``goal``; JobFailed (JobEvicted) when one can never be, NotYet after ``timeout``.

    ``told`` is given a line for each job that has come there, and for a spec that is not accepted: that can be mended.
    ``sleep``: pauses between requests.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    for job in jobs:
        reached = _wait(cluster, job, goal, deadline, told, sleep)
        told(f"{job.shown} {'deleted' if reached is None else state_word(reached.status)}")
        if goal == "finished" and reached is not None:
            _check(reached)


def _wait(
    cluster: Cluster,
    job: StoredJob,
    goal: str,
    deadline: float | None,
    told: Callable[[str], object],
    sleep: Callable[[float], object],
) -> StoredJob | None:
    limit = _BORNE if deadline is None else min(_BORNE, max(0.0, deadline - time.monotonic()))
    patience, watches, refusal = Patience(limit, sleep=sleep), Patience(math.inf, sleep=sleep), ""
    while True:
        try:
            current, version = _look(cluster, job)
        except PASSING as error:
            patience.failed(error)
            continue
        patience.succeeded()
        status = current.status if current else None
        if WAITS[goal](status):
            return current
        if status and status.refusal not in ("", refusal):
            refusal = status.refusal
            told(f"{job.shown}: {refusal}")
        if never(goal, status):
            raise _in_vain(current, job, goal)
        left = _LONGEST_WATCH if deadline is None else deadline - time.monotonic()
        if left <= 0:
            state = state_word(status) if status else "gone"
            raise NotYet(f"{job.shown} is not {goal} yet, it is {state}", hint=f"tf-dist explain {job.shown} says why")
        try:
            if _until_change(cluster, job, version, min(left, _LONGEST_WATCH)):
                watches.succeeded()
            else:
                watches.unfruitful()
        except PASSING as error:
            watches.failed(error)  # the look that follows tells whether anybody answers


def _look(cluster: Cluster, job: StoredJob) -> tuple[StoredJob | None, str]:
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
    return time.monotonic() - begun >= min(longest, _SHORT)


def _in_vain(current: StoredJob | None, job: StoredJob, goal: str) -> Exception:
    if current is None:
        return NotFound(f"{job.shown} has been deleted, so it will never be {goal}")
    return _failure(current) or JobFailed(f"{job.shown} is {state_word(current.status)} and will never be {goal}")


def _check(job: StoredJob) -> None:
    if (failure := _failure(job)) is not None:
        raise failure


def _failure(job: StoredJob) -> Exception | None:
    try:
        result = outcome(job.job, job.status)
    except InvalidJob:
        result = Outcome.FAILED
    if result not in (Outcome.FAILED, Outcome.EVICTED):
        return None
    kind = JobEvicted if result is Outcome.EVICTED else JobFailed
    return kind(f"{job.shown} failed: {job.status.message}", hint=f"tf-dist explain {job.shown} says more")

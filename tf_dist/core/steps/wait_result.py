"""Result of waiting for a job: when the wait is over, and why.

Nothing here ends a job: the waiting client decides what to do with one that took too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tf_dist.core.api.job import Job
from tf_dist.core.api.pods import PodPhase, PodView
from tf_dist.core.api.status import Phase, Status, display_phase
from tf_dist.core.diagnostics.diagnose import Category, Diagnosis, diagnose
from tf_dist.core.diagnostics.outcome import WAIT_CONDITIONS, Outcome, goal_unreachable, is_suspended, job_outcome


class WaitEnd(StrEnum):
    """Why a wait is over. The values are a contract: they are passed between processes, and old ones stay readable.

    ``REACHED``: what was waited for; ``STOPPED``: a policy aborted the job; ``GONE``: it was deleted; ``TIMEOUT``,
    ``NOT_ADMITTED``, ``NOT_STARTED``: a limit of the client; ``IMAGE``: an image cannot be had; ``INVALID``: its
    driver cannot read its spec, and never could.
    """

    REACHED = "reached"
    FAILED = "failed"
    EVICTED = "evicted"
    STOPPED = "stopped"
    GONE = "gone"
    TIMEOUT = "timeout"
    NOT_ADMITTED = "not-admitted"
    NOT_STARTED = "not-started"
    IMAGE = "image"
    INVALID = "invalid"


# The job still exists and continues, unless it is deleted.
UNDECIDED: Final = frozenset(
    {WaitEnd.TIMEOUT, WaitEnd.NOT_ADMITTED, WaitEnd.NOT_STARTED, WaitEnd.IMAGE, WaitEnd.INVALID}
)

# The kubelet's reasons for an image that no second try can pull.
_UNRECOVERABLE_IMAGE_REASONS: Final = frozenset({"InvalidImageName", "ErrImageNeverPull", "ErrImageEntrypoint"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """Limits of a wait: ``deadline`` in all (epoch seconds); ``admission``: seconds for the gang's place;
    ``startup``: seconds from then until it runs. None: for ever.
    """

    deadline: float | None = None
    admission: float | None = None
    startup: float | None = None


NO_LIMITS: Final = WaitLimits()


@dataclass(frozen=True, slots=True)
class WaitResult:
    """Why a wait is over: in a word, in a sentence, and what helps."""

    end: WaitEnd
    message: str
    hint: str = ""


_LATE: Final = {
    WaitEnd.TIMEOUT: "it took too long",
    WaitEnd.NOT_ADMITTED: "it got no place in time",
    WaitEnd.NOT_STARTED: "it has a place, but did not come up in time",
}
_ENDS: Final = {Outcome.FAILED: WaitEnd.FAILED, Outcome.EVICTED: WaitEnd.EVICTED, Outcome.STOPPED: WaitEnd.STOPPED}


def evaluate_wait(
    job: Job, status: Status, pods: tuple[PodView, ...], limits: WaitLimits, now: float, *, goal: str = "succeeded"
) -> WaitResult | None:
    """Why to stop waiting for ``goal`` (see ``WAIT_CONDITIONS``), None while it may still come.

    A job that is suspended may be resumed: only the deadline ends the wait for it.
    """
    if WAIT_CONDITIONS[goal](status) or (goal == "admitted" and status.start_time is not None):
        return WaitResult(WaitEnd.REACHED, status.message or f"the job is {display_phase(status)}")
    if _is_over(status) and (goal_unreachable(goal, status) or job_outcome(job, status) is Outcome.STOPPED):
        return _failed(job, status)
    if status.never_accepted:
        found = diagnose(job, status, (), now)[0]
        return WaitResult(WaitEnd.INVALID, found.summary, found.resolution)
    return next(_overdue(job, status, pods, limits, now), None)


def _is_over(status: Status) -> bool:
    """Whether only a command would change the job any more."""
    return status.finished or (status.phase is Phase.ABORTED and not is_suspended(status))


def _failed(job: Job, status: Status) -> WaitResult:
    found = diagnose(job, status, (), 0.0)[0]
    hopeless = status.failure is not None and status.failure.reason in _UNRECOVERABLE_IMAGE_REASONS
    end = WaitEnd.IMAGE if hopeless else _ENDS.get(job_outcome(job, status), WaitEnd.FAILED)
    return WaitResult(end, ": ".join(filter(None, (found.summary, found.detail))) or end, found.resolution)


def _overdue(
    job: Job, status: Status, pods: tuple[PodView, ...], limits: WaitLimits, now: float
) -> Iterator[WaitResult]:
    for end, due in _dues(status, limits):
        if due <= now:
            yield _late(end, job, status, pods, now)
    yield from _without_image(job, status, pods, now)


def _late(end: WaitEnd, job: Job, status: Status, pods: tuple[PodView, ...], now: float) -> WaitResult:
    findings = diagnose(job, status, pods, now)
    image = next((one for one in findings if one.category is Category.IMAGE), None)
    if end is WaitEnd.NOT_STARTED and image is not None:
        return _of_image(image)
    return WaitResult(end, f"{_LATE[end]}: {findings[0].summary}", findings[0].resolution)


def _without_image(job: Job, status: Status, pods: tuple[PodView, ...], now: float) -> Iterator[WaitResult]:
    if any(pod.waiting is not None and pod.waiting[0] in _UNRECOVERABLE_IMAGE_REASONS for pod in pods):
        found = (one for one in diagnose(job, status, pods, now) if one.category is Category.IMAGE)
        yield from map(_of_image, found)


def _of_image(found: Diagnosis) -> WaitResult:
    return WaitResult(WaitEnd.IMAGE, ": ".join(filter(None, (found.summary, found.detail))), found.resolution)


def next_wait_limit(status: Status, limits: WaitLimits, now: float) -> float | None:
    """When a limit may end the wait though nothing changes (epoch seconds), None for never."""
    return min((due for _, due in _dues(status, limits) if due > now), default=None)


def _dues(status: Status, limits: WaitLimits) -> Iterator[tuple[WaitEnd, float]]:
    """Every limit that counts at present, and when it is due."""
    if limits.deadline is not None:
        yield WaitEnd.TIMEOUT, limits.deadline
    if status.phase is not Phase.PENDING or is_suspended(status):
        return
    asked, admission = status.since or status.created, status.admission
    if limits.admission is not None and admission is None and asked is not None:
        yield WaitEnd.NOT_ADMITTED, asked + limits.admission
    if limits.startup is not None and admission is not None:
        yield WaitEnd.NOT_STARTED, admission.at + limits.startup


def running_pods(pods: tuple[PodView, ...]) -> int:
    """How many pods have neither ended nor been asked to."""
    return sum(1 for pod in pods if pod.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED) and not pod.deleting)

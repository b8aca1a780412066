"""The result of waiting for a job: when the wait is over, and why.

This module does not end jobs. The waiting client decides what happens to a job that exceeded a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tf_dist.core.diagnostics.diagnose import Diagnosis, diagnose
from tf_dist.core.diagnostics.outcome import Outcome, is_suspended, job_outcome
from tf_dist.core.model.job import Job
from tf_dist.core.model.pods import PodPhase, PodView
from tf_dist.core.model.reasons import Category, OutcomeKind, Reason, Row, reason_row, stable_reason
from tf_dist.core.model.status import LIVE, Phase, Status, display_phase, outcome_kind


def _is_scheduled(status: Status) -> bool:
    """Whether every pod of the gang has its node, or had its node at some time since the admission."""
    return status.admission_holds and status.admission is not None and status.admission.complete is not None


WAIT_CONDITIONS: Final[Mapping[str, Callable[[Status | None], bool]]] = {
    "succeeded": lambda status: status is not None and status.phase is Phase.COMPLETED,
    "failed": lambda status: status is not None and status.phase in (Phase.FAILED, Phase.TERMINATED),
    "finished": lambda status: status is not None and status.finished,
    "running": lambda status: status is not None and status.phase is Phase.RUNNING,
    # A job that has succeeded was admitted and scheduled.
    "admitted": lambda status: status is not None and (status.admission_holds or status.phase is Phase.COMPLETED),
    "scheduled": lambda status: status is not None and (_is_scheduled(status) or status.phase is Phase.COMPLETED),
    "suspended": lambda status: status is not None and status.phase is Phase.ABORTED,
    "deleted": lambda status: status is None,
}
"""The conditions by name. The argument is the job's status; None after the job is deleted."""


def was_admitted(status: Status) -> bool:
    """Whether a job that is no longer live was admitted before."""
    return status.phase not in LIVE and status.start_time is not None


def goal_unreachable(goal: str, status: Status | None) -> bool:
    """Whether a job in this state can no longer reach ``goal``."""
    if status is None:
        return goal != "deleted"
    return status.finished and goal != "deleted" and not WAIT_CONDITIONS[goal](status)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """The limits of a wait. None: no limit.

    ``deadline``: the end of the whole wait (epoch seconds). ``admission``: seconds until the gang is admitted.
    ``startup``: seconds from then until the job runs; this limit does not apply while an image is being pulled.
    ``begun``: the time since which this client waits (epoch seconds). A retry that adopts a waiting job has the whole
    admission time again, while the job keeps its age.
    """

    deadline: float | None = None
    admission: float | None = None
    startup: float | None = None
    begun: float | None = None


def admission_limit(timeout: float | None, *, fallbacks: bool) -> float | None:
    """Seconds that a client waits for admission: the timeout for the job, and the same time again with fallbacks."""
    return timeout if timeout is None or not fallbacks else 2 * timeout


NO_LIMITS: Final = WaitLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitResult:
    """The reason why a wait is over, with a message and a hint.

    ``kind``: how the job ended, or which limit of the client passed; None if the goal was reached and the job
    continues. ``reached``: whether the goal was reached. ``decided``: whether the job itself ended or reached the goal.
    Otherwise, the job continues unless it is deleted. ``reason``: the reason of a limit, in one word. ``replica``: the
    replica whose image cannot be pulled.
    """

    kind: OutcomeKind | None
    message: str
    hint: str = ""
    reached: bool = False
    decided: bool = True
    reason: str = ""
    replica: str = ""


# By limit of the client: the reason in one word, and the beginning of the message.
_LATE: Final = {
    OutcomeKind.DEADLINE_EXCEEDED: ("Timeout", "it took too long"),
    OutcomeKind.ADMISSION_TIMEOUT: ("AdmissionTimeout", "it was not admitted in time"),
    OutcomeKind.START_TIMEOUT: (Reason.START_TIMEOUT, "it was admitted, but did not start in time"),
}
# A job that has ended has reached these goals if it was admitted.
_PLACES: Final = frozenset({"admitted", "scheduled"})
DELETED: Final = WaitResult(
    kind=OutcomeKind.DELETED,
    message="the job was deleted",
    hint="find out who deletes jobs there: users, or a time to live",
    reason="Deleted",
)


def evaluate_wait(
    job: Job, status: Status, pods: tuple[PodView, ...], limits: WaitLimits, now: float, *, goal: str = "succeeded"
) -> WaitResult | None:
    """The reason to stop waiting for ``goal`` (see ``WAIT_CONDITIONS``); None while the wait continues.

    A suspended job may be resumed, so only the deadline ends the wait for it.
    """
    kind = outcome_kind(status)
    if WAIT_CONDITIONS[goal](status) or (goal in _PLACES and was_admitted(status)):
        message = status.message or f"the job is {display_phase(status)}"
        return WaitResult(kind=kind, message=message, reached=True)
    aborted = kind is not None and status.phase is Phase.ABORTED and not is_suspended(status)
    if aborted or (status.finished and goal_unreachable(goal, status)):
        found = diagnose(job, status, (), 0.0)[0]
        message = ": ".join(filter(None, (found.summary, found.detail))) or str(kind)
        return WaitResult(kind=kind, message=message, hint=found.resolution)
    if status.never_accepted:
        found = diagnose(job, status, (), now)[0]
        return WaitResult(kind=OutcomeKind.INVALID, message=found.summary, hint=found.resolution, decided=False)
    return next(_overdue(job, status, pods, limits, now), None)


def wait_outcome(status: Status, result: WaitResult, now: float) -> Outcome | None:
    """The outcome of a job after a wait; None if the job reached the goal and continues."""
    if result.kind is None:
        return None
    if result.kind is outcome_kind(status):
        return job_outcome(status)
    return Outcome.of(
        status, result.kind, reason=result.reason, message=result.message, replica=result.replica, now=now
    )


def _overdue(
    job: Job, status: Status, pods: tuple[PodView, ...], limits: WaitLimits, now: float
) -> Iterator[WaitResult]:
    pulling = any(pod.pulling for pod in pods)  # a large image takes long; a failed pull has its own reason
    for kind, due in _dues(status, limits):
        if due <= now and not (pulling and kind is OutcomeKind.START_TIMEOUT):
            yield _late(kind, job, status, pods, now)
    if any(_held(pod).permanent and _held(pod).category is Category.IMAGE for pod in pods):
        found = (one for one in diagnose(job, status, pods, now) if one.category is Category.IMAGE)
        yield from (_of_image(one, pods) for one in found)


def _late(kind: OutcomeKind, job: Job, status: Status, pods: tuple[PodView, ...], now: float) -> WaitResult:
    findings = diagnose(job, status, pods, now)
    image = next((one for one in findings if one.category is Category.IMAGE), None)
    if kind is OutcomeKind.START_TIMEOUT and image is not None:
        return _of_image(image, pods)
    reason, why = _LATE[kind]
    first = findings[0]
    return WaitResult(kind=kind, message=f"{why}: {first.summary}", hint=first.resolution, decided=False, reason=reason)


def _held(pod: PodView) -> Row:
    return reason_row(stable_reason(pod.waiting[0]) if pod.waiting else "")


def _of_image(found: Diagnosis, pods: tuple[PodView, ...]) -> WaitResult:
    waiting = sorted(
        (str(pod.replica), stable_reason(pod.waiting[0]))
        for pod in pods
        if pod.waiting and _held(pod).category is Category.IMAGE
    )
    replica, reason = waiting[0] if waiting else ("", "")
    return WaitResult(
        kind=OutcomeKind.IMAGE_PULL_FAILED,
        message=": ".join(filter(None, (found.summary, found.detail))),
        hint=found.resolution,
        decided=False,
        reason=reason,
        replica=replica,
    )


def next_wait_limit(status: Status, limits: WaitLimits, now: float) -> float | None:
    """When a limit may end the wait, even if nothing changes (epoch seconds); None: never."""
    return min((due for _, due in _dues(status, limits) if due > now), default=None)


def _dues(status: Status, limits: WaitLimits) -> Iterator[tuple[OutcomeKind, float]]:
    """The limits that apply at present, and when each is due."""
    if limits.deadline is not None:
        yield OutcomeKind.DEADLINE_EXCEEDED, limits.deadline
    if status.phase is not Phase.PENDING or is_suspended(status):
        return
    asked, placed = status.since or status.created, status.placed_at
    if limits.admission is not None and not status.admission_holds and asked is not None:
        yield OutcomeKind.ADMISSION_TIMEOUT, max(asked, limits.begun or 0.0) + limits.admission
    if limits.startup is not None and placed is not None:
        yield OutcomeKind.START_TIMEOUT, placed + limits.startup


def running_pods(pods: tuple[PodView, ...]) -> int:
    """The number of pods that have not ended and are not being deleted."""
    return sum(1 for pod in pods if pod.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED) and not pod.deleting)

"""Outcome of a job, and the conditions to wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from tf_dist.core.api.job import Job
from tf_dist.core.api.status import LIVE, STOPPED, SUCCESSFUL, Phase, Status
from tf_dist.core.diagnostics.diagnose import Category, diagnose


class Outcome(StrEnum):
    """Outcome of a job. ``EVICTED``: it lost its place through no fault of its own; ``STOPPED``: a policy aborted it,
    or it was suspended, and a resume starts it again.
    """

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EVICTED = "evicted"
    STOPPED = "stopped"


def job_outcome(job: Job, status: Status) -> Outcome:
    """The outcome of a job, ``OPEN`` while it is undecided."""
    if status.phase in LIVE:
        return Outcome.OPEN
    if status.phase in SUCCESSFUL:
        return Outcome.SUCCEEDED
    if status.phase in STOPPED:
        return Outcome.STOPPED
    evicted = diagnose(job, status, (), 0.0)[0].category is Category.EVICTION
    return Outcome.EVICTED if evicted else Outcome.FAILED


_SUCCEEDED: Final = frozenset({Phase.COMPLETED})
_FAILED: Final = frozenset({Phase.FAILED, Phase.TERMINATED})

WAIT_CONDITIONS: Final[Mapping[str, Callable[[Status | None], bool]]] = {
    "succeeded": lambda status: status is not None and status.phase in _SUCCEEDED,
    "failed": lambda status: status is not None and status.phase in _FAILED,
    "finished": lambda status: status is not None and status.finished,
    "running": lambda status: status is not None and status.phase is Phase.RUNNING,
    "admitted": lambda status: status is not None and status.admission is not None,
    "suspended": lambda status: status is not None and status.phase is Phase.ABORTED,
    "deleted": lambda status: status is None,
}
"""Conditions to wait for; the argument is the job's status, None once the job is gone."""


def goal_unreachable(goal: str, status: Status | None) -> bool:
    """Whether a job in this state can never reach ``goal`` any more."""
    if status is None:
        return goal != "deleted"
    return status.finished and goal != "deleted" and not WAIT_CONDITIONS[goal](status)


def is_suspended(status: Status) -> bool:
    """Whether a stopped job was suspended, and can be resumed, rather than aborted by a policy."""
    return status.reason == "Suspended"

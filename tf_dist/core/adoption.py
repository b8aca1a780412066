"""What becomes of a job that is there already when a pipeline starts its step again."""

from __future__ import annotations

from enum import StrEnum

from tf_dist.core.model import Job
from tf_dist.core.outcome import Outcome, outcome, suspended
from tf_dist.core.status import Status


class Adoption(StrEnum):
    """``JOIN``: it is this step's job, go on with it, or take what it came to. ``REPLACE``: make it anew."""

    JOIN = "join"
    REPLACE = "replace"


def adoption(job: Job, status: Status, *, reported: bool) -> Adoption:
    """Whether a step that is tried again goes on with the job of its last try.

    ``reported``: that try has told how the job ended, so the failure is known and is what is tried again. A success
    is one however often it is told.
    """
    match outcome(job, status):
        case Outcome.EVICTED:
            return Adoption.REPLACE
        case Outcome.FAILED:
            return Adoption.REPLACE if reported else Adoption.JOIN
        case Outcome.STOPPED if not suspended(status):
            return Adoption.REPLACE if reported else Adoption.JOIN
    return Adoption.JOIN

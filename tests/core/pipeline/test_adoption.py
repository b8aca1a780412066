"""Adoption of a job by the retry of a step.

Adoption of a job by the retry of a task.
"""

from __future__ import annotations

import pytest

from tf_dist.core.diagnostics.outcome import is_suspended
from tf_dist.core.model.status import Failure, Phase, Status
from tf_dist.core.pipeline.adoption import (
    AdoptionAction,
    AdoptionCandidate,
    AdoptionDecision,
    decide_adoption,
    decide_existing_job,
)

FAILED = Status(phase=Phase.FAILED, reason="PodFailed", failure=Failure(event="PodFailed", replica="worker-0", code=1))
EVICTED = Status(phase=Phase.FAILED, reason="PodEvicted", failure=Failure(event="PodEvicted", replica="worker-0"))
ABORTED = Status(phase=Phase.ABORTED, reason="AbortJob")
SUSPENDED = Status(phase=Phase.ABORTED, reason="Suspended")


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("reported", [False, True])
def test_every_phase_has_adoption_action(phase: Phase, reported: bool) -> None:
    assert decide_existing_job(Status(phase=phase), reported=reported) in (AdoptionAction.ADOPT, AdoptionAction.REPLACE)


@pytest.mark.parametrize(
    ("status", "reported", "expected"),
    [
        (Status(), False, AdoptionAction.ADOPT),
        (Status(phase=Phase.RUNNING), True, AdoptionAction.ADOPT),
        (Status(phase=Phase.COMPLETED), False, AdoptionAction.ADOPT),
        (Status(phase=Phase.COMPLETED), True, AdoptionAction.ADOPT),
        (FAILED, False, AdoptionAction.ADOPT),
        (FAILED, True, AdoptionAction.REPLACE),
        (EVICTED, False, AdoptionAction.REPLACE),
        (EVICTED, True, AdoptionAction.REPLACE),
        (ABORTED, False, AdoptionAction.ADOPT),
        (ABORTED, True, AdoptionAction.REPLACE),
        (SUSPENDED, True, AdoptionAction.ADOPT),
    ],
)
def test_adoption_of_stored_job(status: Status, reported: bool, expected: AdoptionAction) -> None:
    assert decide_existing_job(status, reported=reported) is expected
    succeeded = status.phase is Phase.COMPLETED
    anew = AdoptionAction.ADOPT if succeeded else AdoptionAction.REPLACE
    assert decide_existing_job(status, reported=reported, reattach=False) is anew
    assert is_suspended(SUSPENDED)
    assert not is_suspended(ABORTED)


NONE = AdoptionDecision(AdoptionAction.CREATE)


def test_first_try_creates_job() -> None:
    assert decide_adoption([]) == NONE


def test_adopts_newest_of_several_live_jobs() -> None:
    old, new = AdoptionCandidate(uid="old", created=1.0), AdoptionCandidate(uid="new", created=2.0)
    assert decide_adoption([old]) == AdoptionDecision(AdoptionAction.ADOPT, "old")
    assert decide_adoption([old, new]) == AdoptionDecision(AdoptionAction.ADOPT, "new", surplus=("old",))


def test_job_marked_for_deletion_is_ignored() -> None:
    assert decide_adoption([AdoptionCandidate(uid="a", created=1.0, marked_for_deletion=True)]) == NONE
    ended = AdoptionCandidate(uid="a", created=1.0, marked_for_deletion=True, done=True, succeeded=True)
    assert decide_adoption([ended]) == NONE


def test_result_is_reused_once() -> None:
    job = AdoptionCandidate(uid="a", created=1.0, done=True, succeeded=True)
    assert decide_adoption([job]) == AdoptionDecision(AdoptionAction.REUSE_RESULT, "a")
    used = AdoptionCandidate(uid="a", created=1.0, done=True, succeeded=True, result_used=True)
    assert decide_adoption([used]) == NONE


def test_failed_job_is_created_again() -> None:
    assert decide_adoption([AdoptionCandidate(uid="a", created=1.0, done=True)]) == NONE


def test_live_job_is_preferred_to_result() -> None:
    done = AdoptionCandidate(uid="done", created=2.0, done=True, succeeded=True)
    assert decide_adoption([done, AdoptionCandidate(uid="alive", created=1.0)]).uid == "alive"


def test_step_that_is_not_durable_replaces_the_job() -> None:
    done = AdoptionCandidate(uid="done", created=2.0, done=True, succeeded=True)
    found = decide_adoption([done, AdoptionCandidate(uid="alive", created=1.0)], durable=False)
    assert found == AdoptionDecision(AdoptionAction.CREATE, surplus=("alive",))

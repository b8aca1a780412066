"""Outcomes, and what waiting for a state means."""

from __future__ import annotations

import pytest

from tests.core.builders import START, v1_job
from tf_dist.core.api.status import Admission, Failure, Phase, Status, display_phase
from tf_dist.core.diagnostics.outcome import WAIT_CONDITIONS, Outcome, goal_unreachable, job_outcome


def failed(reason: str, **failure: object) -> Status:
    return Status(phase=Phase.FAILED, reason=reason, failure=Failure(event="PodFailed", **failure))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status(), Outcome.OPEN),
        (Status(phase=Phase.RESTARTING), Outcome.OPEN),
        (Status(phase=Phase.COMPLETING), Outcome.SUCCEEDED),
        (Status(phase=Phase.COMPLETED), Outcome.SUCCEEDED),
        (Status(phase=Phase.ABORTED, reason="Suspended"), Outcome.STOPPED),
        (failed("PodFailed", replica="worker-0", code=1), Outcome.FAILED),
        (failed("PodFailed", replica="worker-0", code=137), Outcome.FAILED),
        (failed("PodEvicted", replica="worker-0"), Outcome.EVICTED),
        (failed("NodeLost", replica="worker-0"), Outcome.EVICTED),
        (failed("DeadlineExceeded"), Outcome.FAILED),
    ],
)
def test_outcome(status: Status, expected: Outcome) -> None:
    assert job_outcome(v1_job(), status) is expected


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (Status(phase=Phase.ABORTED, reason="Suspended"), "Suspended"),
        (Status(phase=Phase.ABORTING, reason="Suspended"), "Suspending"),
        (Status(phase=Phase.ABORTED, reason="PodFailed"), "Aborted"),
        (Status(phase=Phase.COMPLETED), "Succeeded"),
        (Status(reason="NeverFits"), "Waiting"),
        (Status(), "Pending"),
        (Status(reason="Admitted", admission=Admission(START)), "Pending"),
    ],
)
def test_state_word(status: Status, word: str) -> None:
    assert display_phase(status) == word


REACHED = {
    "succeeded": Status(phase=Phase.COMPLETED),
    "failed": Status(phase=Phase.FAILED),
    "finished": Status(phase=Phase.TERMINATED),
    "running": Status(phase=Phase.RUNNING),
    "admitted": Status(admission=Admission(START)),
    "suspended": Status(phase=Phase.ABORTED),
    "deleted": None,
}


@pytest.mark.parametrize("goal", WAIT_CONDITIONS)
def test_each_goal_can_be_reached(goal: str) -> None:
    assert WAIT_CONDITIONS[goal](REACHED[goal])
    assert not goal_unreachable(goal, REACHED[goal])


@pytest.mark.parametrize(
    ("goal", "status"),
    [
        ("succeeded", Status(phase=Phase.FAILED)),
        ("failed", Status(phase=Phase.COMPLETED)),
        ("running", Status(phase=Phase.COMPLETED)),
        ("finished", None),
    ],
)
def test_what_can_never_be(goal: str, status: Status | None) -> None:
    assert goal_unreachable(goal, status)

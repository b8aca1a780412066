"""A step that is tried again, and the job of its last try."""

from __future__ import annotations

import pytest

from tests.core.builders import v1_job
from tf_dist.core.adoption import Adoption, adoption, suspended
from tf_dist.core.status import Failure, Phase, Status

FAILED = Status(phase=Phase.FAILED, reason="PodFailed", failure=Failure(event="PodFailed", replica="worker-0", code=1))
EVICTED = Status(phase=Phase.FAILED, reason="PodEvicted", failure=Failure(event="PodEvicted", replica="worker-0"))
ABORTED = Status(phase=Phase.ABORTED, reason="AbortJob")
SUSPENDED = Status(phase=Phase.ABORTED, reason="Suspended")


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("reported", [False, True])
def test_every_phase_has_an_answer(phase: Phase, reported: bool) -> None:
    assert adoption(v1_job(), Status(phase=phase), reported=reported) in Adoption


@pytest.mark.parametrize(
    ("status", "reported", "expected"),
    [
        (Status(), False, Adoption.JOIN),
        (Status(phase=Phase.RUNNING), True, Adoption.JOIN),
        (Status(phase=Phase.COMPLETED), False, Adoption.JOIN),
        (Status(phase=Phase.COMPLETED), True, Adoption.JOIN),
        (FAILED, False, Adoption.JOIN),
        (FAILED, True, Adoption.REPLACE),
        (EVICTED, False, Adoption.REPLACE),
        (EVICTED, True, Adoption.REPLACE),
        (ABORTED, False, Adoption.JOIN),
        (ABORTED, True, Adoption.REPLACE),
        (SUSPENDED, True, Adoption.JOIN),
    ],
)
def test_what_becomes_of_it(status: Status, reported: bool, expected: Adoption) -> None:
    assert adoption(v1_job(), status, reported=reported) is expected
    assert suspended(SUSPENDED)
    assert not suspended(ABORTED)

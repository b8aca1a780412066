"""Schedules that once found a defect, in shortened form."""

from __future__ import annotations

import pytest

from tests.faults.documents import Shape
from tests.faults.runner import ScheduleRunner
from tests.faults.schedule import Schedule, Step

OVERTAKEN = Schedule(
    seed=22,
    company="alone",
    cpus=(2, 2),
    jobs=(Shape(dialect="v1alpha1", workers=3, policy="OnFailure", priority="high"),),
    queues={},
    steps=(Step("calm", 1.0, {"which": 0}), Step("restore_etcd", 10.0, {"back": 1})),
    restless=0.0,
    slow=8.0,
    failing=0.0,
)
"""When the watches reconnect after a restore, etcd has newer versions than the watches had seen, so none notices."""


@pytest.mark.parametrize("schedule", [pytest.param(OVERTAKEN, id="overtaken")])
def test_formerly_failed_schedule_completes(schedule: Schedule) -> None:
    counts = ScheduleRunner(schedule).run()
    assert counts["Completed"] == counts["jobs"] == 1

"""Schedules for one defect each complete without it. ``mutants`` runs them with it."""

from __future__ import annotations

import pytest

from tests.faults.directed import DIRECTED
from tests.faults.runner import ScheduleRunner


@pytest.mark.parametrize("name", DIRECTED)
def test_directed_schedule_completes(name: str) -> None:
    counts = ScheduleRunner(DIRECTED[name]).run()
    assert counts["Completed"] == counts["jobs"] == 1

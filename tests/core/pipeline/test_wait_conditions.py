"""Conditions to wait for: each can be met, and some can become unreachable."""

from __future__ import annotations

import pytest

from tests.core.builders import START
from tf_dist.core.model.status import Admission, Phase, Status
from tf_dist.core.pipeline.wait_result import WAIT_CONDITIONS, goal_unreachable

REACHED = {
    "succeeded": Status(phase=Phase.COMPLETED),
    "failed": Status(phase=Phase.FAILED),
    "finished": Status(phase=Phase.TERMINATED),
    "running": Status(phase=Phase.RUNNING),
    "admitted": Status(admission=Admission(START)),
    "scheduled": Status(admission=Admission(START, complete=START)),
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
def test_some_goals_become_unreachable(goal: str, status: Status | None) -> None:
    assert goal_unreachable(goal, status)

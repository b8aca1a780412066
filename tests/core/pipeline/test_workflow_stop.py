"""The effect of a signal to a launcher, depending on the workflow."""

from __future__ import annotations

from typing import Any

import pytest

from tf_dist.core.pipeline.workflow_stop import JobFate, decide_stop, decide_suspension

NOW = 1_800_000_000.0
STARTED = {"startedAt": "2027-01-15T07:00:00Z"}  # an hour before


@pytest.mark.parametrize(
    ("workflow", "deadline", "why"),
    [
        (None, None, "no longer exists"),
        ({"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}}, None, "being deleted"),
        ({"spec": {"shutdown": "Stop"}}, None, "shut down (Stop)"),
        ({"spec": {"shutdown": "Terminate"}}, None, "shut down (Terminate)"),
        ({"status": {"phase": "Failed"}}, None, "is Failed"),
        ({"status": {"phase": "Running"}}, NOW - 1, "deadline"),
        ({"status": {"phase": "Running"}}, NOW + 4, "deadline"),
        ({"spec": {"activeDeadlineSeconds": 3600}, "status": STARTED}, None, "deadline"),
    ],
)
def test_stopped_workflow_deletes_job(workflow: Any, deadline: float | None, why: str) -> None:
    found = decide_stop(workflow, now=NOW, deadline=deadline, retried=True)
    assert found.what is JobFate.DELETE
    assert why in found.why


@pytest.mark.parametrize(
    "workflow",
    [
        {},
        {"metadata": None, "spec": None, "status": None},
        {"status": {"phase": "Running"}},
        {"spec": {"activeDeadlineSeconds": 7200}, "status": STARTED},
        {"spec": {"activeDeadlineSeconds": "{{workflow.parameters.x}}"}, "status": STARTED},
    ],
)
def test_running_workflow_keeps_job_only_if_step_is_retried(workflow: Any) -> None:
    assert decide_stop(workflow, now=NOW, deadline=NOW + 600, retried=True).what is JobFate.LEAVE
    assert decide_stop(workflow, now=NOW, deadline=NOW + 600, retried=False).what is JobFate.DELETE


@pytest.mark.parametrize(
    ("spec", "suspended", "by_workflow", "decision"),
    [
        ({}, False, False, None),
        ({"suspend": False}, False, False, None),
        ({"suspend": True}, False, False, True),
        ({"suspend": True}, True, True, None),
        ({"suspend": True}, True, False, None),  # suspended by a user
        ({"suspend": True}, False, True, None),  # resumed by a user
        ({}, True, True, False),
        ({}, True, False, None),
    ],
)
def test_job_follows_suspension_of_workflow_unless_user_decides(
    spec: Any, suspended: bool, by_workflow: bool, decision: bool | None
) -> None:
    assert decide_suspension({"spec": spec}, suspended=suspended, by_workflow=by_workflow) is decision

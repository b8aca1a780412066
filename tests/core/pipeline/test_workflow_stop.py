"""A signal to a launcher: the workflow says what it means."""

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
def test_nobody_would_come_back_for_the_job(workflow: Any, deadline: float | None, why: str) -> None:
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
def test_only_the_pod_has_to_go(workflow: Any) -> None:
    assert decide_stop(workflow, now=NOW, deadline=NOW + 600, retried=True).what is JobFate.LEAVE
    assert decide_stop(workflow, now=NOW, deadline=NOW + 600, retried=False).what is JobFate.DELETE


@pytest.mark.parametrize(
    ("spec", "suspended", "by_workflow", "decision"),
    [
        ({}, False, False, None),
        ({"suspend": False}, False, False, None),
        ({"suspend": True}, False, False, True),
        ({"suspend": True}, True, True, None),
        ({"suspend": True}, True, False, None),  # a user has suspended it
        ({"suspend": True}, False, True, None),  # a user has resumed it
        ({}, True, True, False),
        ({}, True, False, None),
    ],
)
def test_a_job_follows_its_workflow_and_above_all_its_user(
    spec: Any, suspended: bool, by_workflow: bool, decision: bool | None
) -> None:
    assert decide_suspension({"spec": spec}, suspended=suspended, by_workflow=by_workflow) is decision

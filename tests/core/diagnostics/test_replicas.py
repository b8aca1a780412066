"""The state of each replica in one word."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.builders import START, ended, pod, replicas, running, v1_job, views
from tf_dist.core.diagnostics.replicas import leaders_first, replica_states
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.status import Admission, Attempts, Phase, Status

ADMITTED = Admission(START)
JOB = v1_job()


@pytest.mark.parametrize(
    ("pod_status", "state", "detail"),
    [
        ({"phase": "Pending"}, "Starting", ""),
        (running(), "Running", ""),
        (running(ready=False), "Running", "not ready"),
        (ended(0), "Succeeded", ""),
        (ended(137, "OOMKilled"), "Failed", "ran out of memory (OOMKilled, code 137)"),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"name": "tensorflow", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
                ],
            },
            "ImagePullBackOff",
            "no",
        ),
    ],
)
def test_state_of_pod(pod_status: dict[str, Any], state: str, detail: str) -> None:
    status = Status(phase=Phase.RUNNING, admission=ADMITTED)
    row = replica_states(JOB, status, views(pod(JOB, "worker-1", pod_status)))[2]
    assert (row.replica, row.state, row.detail) == (ReplicaId("worker", 1), state, detail)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (Status(), "Waiting"),
        (Status(admission=ADMITTED), "Pending"),
        (Status(phase=Phase.ABORTED), "Stopped"),
        (Status(phase=Phase.FAILED), "Gone"),
        (Status(phase=Phase.COMPLETED, succeeded=frozenset({ReplicaId("ps", 0)})), "Succeeded"),
    ],
)
def test_state_without_pod(status: Status, state: str) -> None:
    assert replica_states(JOB, status, ())[0].state == state


def test_old_pod_is_stopping_and_restarts_are_counted() -> None:
    status = Status(phase=Phase.RESTARTING, admission=ADMITTED, attempts=Attempts(3))
    old = views(
        pod(JOB, "ps-0", running(), attempt="2.0.0"), pod(JOB, "worker-0", running(restarts=2), attempt="3.0.0")
    )
    rows = {str(row.replica): row for row in replica_states(JOB, status, old)}
    assert rows["ps-0"].state == "Stopping"
    assert (rows["worker-0"].state, rows["worker-0"].restarts) == ("Running", 4)


@pytest.mark.parametrize(
    ("end", "state"),
    [(ended(143), "Stopped"), (ended(137), "Stopped"), (ended(137, "OOMKilled"), "Failed"), (ended(1), "Failed")],
)
def test_pod_killed_by_deletion_is_stopped_not_failed(end: dict[str, Any], state: str) -> None:
    deleted = pod(JOB, "ps-0", end, deletionTimestamp="2027-01-15T08:10:00Z")
    status = Status(phase=Phase.COMPLETED, admission=ADMITTED)
    assert replica_states(JOB, status, views(deleted))[0].state == state
    assert replica_states(JOB, status, views(pod(JOB, "ps-0", end)))[0].state == "Failed"


def test_leaders_come_first() -> None:
    job = v1_job(replicas("PS", 1), replicas("Worker", 2), replicas("Evaluator", 1), replicas("Chief", 1))
    assert [str(replica) for replica in leaders_first(job)] == [
        "chief-0",
        "worker-0",
        "worker-1",
        "evaluator-0",
        "ps-0",
    ]

"""State changes of a job as lines, each printed once."""

from __future__ import annotations

import logging
from typing import Any

from tests.core.builders import START, pod, running, v1_job, views
from tf_dist.client.job_display import LineView, show_warnings, state_changes
from tf_dist.client.monitor import JobSnapshot
from tf_dist.core.diagnostics.replicas import replica_states
from tf_dist.core.model.status import Admission, Phase, Status

JOB = v1_job()


def snapshot(message: str, **statuses: Any) -> JobSnapshot:
    """The job with a message, and replicas with statuses."""
    status = Status(phase=Phase.RUNNING, admission=Admission(START), reason="JobRunning", message=message)
    made = [pod(JOB, name.replace("_", "-"), one) for name, one in statuses.items()]
    pods = views(*({**one, "spec": {**one["spec"], "nodeName": "n1"}} for one in made))
    return JobSnapshot(JOB, status, pods, replica_states(JOB, status, pods))


def test_message_is_repeated_only_when_it_changes() -> None:
    shown: dict[str, str] = {}
    assert state_changes(snapshot("1 of 3 replicas is running"), shown) == [
        "job mnist is Running: 1 of 3 replicas is running"
    ]
    assert state_changes(snapshot("1 of 3 replicas is running"), shown) == []
    assert state_changes(snapshot("3 of 3 replicas are running"), shown) == [
        "job mnist is Running: 3 of 3 replicas are running"
    ]


def test_state_without_message_is_not_shown() -> None:
    assert state_changes(snapshot(""), {}) == []


def test_warnings_are_shown_while_view_is_open() -> None:
    said: list[str] = []
    view = LineView(said.append, lambda source, text: f"{source} | {text}")
    with show_warnings(view):
        logging.getLogger("tf_dist.controller").warning("failed to write: job=%s", "a")
        logging.getLogger("tf_dist.controller").info("of no interest")
    logging.getLogger("tf_dist").warning("afterwards")
    assert said == ["tf-dist | failed to write: job=a"]


def test_image_pull_failure_is_shown_once() -> None:
    shown: dict[str, str] = {}
    said = []
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull", "ImagePullBackOff"):
        state = {"waiting": {"reason": reason, "message": f"{reason}: no such image"}}
        held = {"phase": "Pending", "containerStatuses": [{"name": "tensorflow", "state": state}]}
        said += state_changes(snapshot("2 of 3 replicas are running", ps_0=running(), worker_0=held), shown)
    assert [text for text in said if text.startswith("worker-0")] == [
        "worker-0 is ImagePullBackOff (ErrImagePull: no such image)"
    ]


def test_unready_node_is_shown_until_it_recovers() -> None:
    shown: dict[str, str] = {}
    silent = running(ready=False)
    silent["conditions"].append({"type": "ContainersReady", "status": "True"})
    said = []
    for status in (running(), silent, silent, running()):
        said += state_changes(snapshot("3 of 3 replicas are running", worker_0=status), shown)
    assert [text for text in said if text.startswith("worker-0")] == [
        "worker-0 is Running on n1",
        "worker-0 is Running on n1 (node n1 is not ready)",
        "worker-0 is Running on n1",
    ]

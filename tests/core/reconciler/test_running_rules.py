"""The status of a job while its pods start, run, or cannot start."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.builders import ON_FAILURE, START, observed, pod, replicas, running, v1_job
from tf_dist.core.diagnostics.replicas import replica_states
from tf_dist.core.model.job import RunPolicy
from tf_dist.core.model.status import Admission, Failure, Phase, Status
from tf_dist.core.reconciler.job_context import read_context
from tf_dist.core.reconciler.transitions import apply_transitions


def waiting(reason: str, *, phase: str = "Pending", message: str = "") -> dict[str, Any]:
    """The status of a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": phase, "containerStatuses": [{"name": "tensorflow", "state": state, "restartCount": 0}]}


ADMITTED = Status(phase=Phase.PENDING, admission=Admission(START), start_time=START, created=START, reason="Admitted")


@pytest.mark.parametrize(
    ("ps", "worker", "reason", "message"),
    [
        (running(), waiting("ImagePullBackOff"), "ImagePullBackOff", "worker-0, worker-1 wait: ImagePullBackOff"),
        (running(), waiting("ErrImagePull"), "ImagePullBackOff", "worker-0, worker-1 wait: ImagePullBackOff"),
        (
            waiting("CreateContainerConfigError"),
            waiting("ContainerCreating"),
            "CreateContainerConfigError",
            "ps-0 waits",
        ),
        (running(), waiting("ContainerCreating"), "Admitted", ""),
    ],
)
def test_reason_shows_why_pods_cannot_start(
    ps: dict[str, Any], worker: dict[str, Any], reason: str, message: str
) -> None:
    job = v1_job()
    pods = [pod(job, "ps-0", ps), pod(job, "worker-0", worker), pod(job, "worker-1", worker)]
    after = apply_transitions(read_context(job, ADMITTED, observed(job, *pods))).status
    assert (after.phase, after.display_reason) == (Phase.PENDING, reason)
    assert after.message.startswith(message)
    again = apply_transitions(read_context(job, after, observed(job, *pods))).status
    assert again == after
    fine = [pod(job, name, waiting("ContainerCreating")) for name in ("ps-0", "worker-0", "worker-1")]
    over = apply_transitions(read_context(job, after, observed(job, *fine))).status
    assert over.display_reason in ("PodsPending", "Admitted")


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        (
            "CreateContainerConfigError",
            'secret "creds" not found',
            'CreateContainerConfigError (secret "creds" not found)',
        ),
        ("ImagePullBackOff", 'Back-off pulling image "train:9"', 'ImagePullBackOff (image "train:9")'),
        (
            "ErrImagePull",
            'failed to pull and unpack image "docker.io/library/train:9": ...',
            'ImagePullBackOff (image "train:9")',
        ),
        ("ErrImagePull", "no such host", "ImagePullBackOff"),
        ("CrashLoopBackOff", "back-off 20s restarting failed container", "CrashLoopBackOff"),
    ],
)
def test_message_names_cause_of_waiting_pods(reason: str, message: str, said: str) -> None:
    job = v1_job()
    pods = [pod(job, name, waiting(reason, message=message)) for name in ("ps-0", "worker-0", "worker-1")]
    after = apply_transitions(read_context(job, ADMITTED, observed(job, *pods))).status
    assert after.message == f"ps-0, worker-0, worker-1 wait: {said}"


@pytest.mark.parametrize(
    ("silent", "message"),
    [
        ({}, "3 of 3 replicas are running"),
        (
            {"worker-1": "n2"},
            "3 of 3 replicas are running; worker-1 on n2, which is not ready, may no longer run",
        ),
        (
            {"worker-1": "n2", "ps-0": "n1"},
            "3 of 3 replicas are running; ps-0, worker-1 on n1, n2, which are not ready, may no longer run",
        ),
    ],
)
def test_message_names_replicas_on_unready_nodes(silent: dict[str, str], message: str) -> None:
    job, pods = v1_job(), []
    for name in ("ps-0", "worker-0", "worker-1"):
        status = running(ready=name not in silent)
        status["conditions"].append({"type": "ContainersReady", "status": "True"})
        body = pod(job, name, status)
        body["spec"]["nodeName"] = silent.get(name, "n3")
        pods.append(body)
    after = apply_transitions(read_context(job, ADMITTED, observed(job, *pods))).status
    assert (after.phase, after.message) == (Phase.RUNNING, message)


def test_crash_looping_container_does_not_count_as_running() -> None:
    job = v1_job()
    down = waiting("CrashLoopBackOff", phase="Running")
    pods = [pod(job, "ps-0", down), pod(job, "worker-0", running()), pod(job, "worker-1", running())]
    after = apply_transitions(read_context(job, ADMITTED, observed(job, *pods))).status
    assert (after.phase, after.message) == (
        Phase.RUNNING,
        "2 of 3 replicas are running; ps-0 waits: CrashLoopBackOff",
    )


@pytest.mark.parametrize("waits", [True, False])
def test_crash_loop_failure_names_replica_exit_code_and_restarts(waits: bool) -> None:
    """The failure has the replica that spent the budget, its exit code, the end of its log and its restarts."""
    job = v1_job(replicas("PS", 1, rules=ON_FAILURE), replicas("Worker", 2), policy=RunPolicy(max_restarts=1))
    ps, done = running(restarts=2, last=3), running()
    if waits:
        ps["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    ps["containerStatuses"][0]["lastState"]["terminated"]["message"] = "cannot bind\nAPI_TOKEN=abc"
    pods = [pod(job, "ps-0", ps), *(pod(job, f"worker-{n}", done) for n in (0, 1))]
    status = Status(phase=Phase.RUNNING, admission=Admission(START), start_time=START)
    after = apply_transitions(read_context(job, status, observed(job, *pods))).status
    assert (after.phase, after.reason) == (Phase.FAILED, "BackoffLimitExceeded")
    assert after.message == f"ps-0 exited with code 3, {3 if waits else 2} times; no restart is left (spent 2)"
    assert after.failure == Failure(
        event="PodFailed", replica="ps-0", code=3, message="cannot bind\nAPI_TOKEN=***", at=START
    )
    gone = {str(row.replica): row for row in replica_states(job, after, ())}
    assert (gone["ps-0"].state, gone["ps-0"].restarts, gone["ps-0"].detail) == ("Failed", 2, "exited with code 3")
    assert gone["worker-0"].state == "Gone"

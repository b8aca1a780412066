"""Sidecars and init containers: which container decides about a pod, as in the original operators."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.builders import (
    CHIEF,
    EXIT_CODE,
    FAILED,
    NEVER,
    ON_FAILURE,
    REPLACED,
    observed,
    pod,
    replicas,
    v1_job,
    v1alpha1_job,
    views,
    volcano_job,
)
from tests.core.world import World
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.diagnostics.replicas import replica_states
from tf_dist.core.model.context import WriteStatus
from tf_dist.core.model.job import Action, CleanPodPolicy, ExitCodes, Job, Rule, RunPolicy
from tf_dist.core.model.reasons import Category
from tf_dist.core.model.status import Phase, Status
from tf_dist.core.model.status_codec import load_status
from tf_dist.core.reconciler.reconcile import reconcile

RUNS: dict[str, Any] = {"running": {}}
PULLS = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
CREATES = {"waiting": {"reason": "ContainerCreating"}}


def ends(code: int, reason: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


def state(phase: str, tensorflow: dict[str, Any], sidecar: dict[str, Any], *, last: Any = None) -> dict[str, Any]:
    """The status of a pod with a sidecar. The sidecar's status comes first, because the kubelet sorts by name."""
    statuses = [{"name": "istio-proxy", "state": sidecar}, {"name": "tensorflow", "state": tensorflow}]
    statuses[1] |= {"lastState": last, "restartCount": 1} if last else {}
    return {"phase": phase, "containerStatuses": statuses}


def alpha(policy: str) -> Job:
    fields: dict[str, Any] = {"last_exit_counts": True, "pod_restart_policy": policy}
    return v1alpha1_job(replicas("MASTER", 1, rules=CHIEF, **fields), replicas("WORKER", 1, rules=REPLACED, **fields))


def after(job: Job, replica: str, found: dict[str, Any]) -> Status:
    """The job's status when the replica's pod has this status and all other pods run."""
    calm = state("Running", RUNS, RUNS)
    stored: Any = {}
    for now in (calm, found):
        pods = [pod(job, str(one), now if str(one) == replica else calm) for one in job.replicas]
        plan = reconcile(job, observed(job, *pods, status=stored))
        stored = next((action.status for action in plan.actions if isinstance(action, WriteStatus)), stored)
    return plan.status


@pytest.mark.parametrize(
    ("policy", "found", "phase", "restarted"),
    [
        ("Never", state("Running", ends(0), RUNS), Phase.COMPLETED, False),
        ("OnFailure", state("Running", ends(0), RUNS), Phase.COMPLETED, False),
        ("Always", state("Running", RUNS, RUNS, last=ends(0)), Phase.COMPLETED, False),
        ("Never", state("Running", ends(1), RUNS), Phase.FAILED, False),
        ("OnFailure", state("Running", RUNS, RUNS, last=ends(1)), Phase.FAILED, False),
        ("Never", state("Running", ends(137, "OOMKilled"), RUNS), Phase.FAILED, False),
        # Nothing restarts it in place, so the pod is recreated. The original reports Running forever.
        ("Never", state("Running", ends(143), RUNS), Phase.RESTARTING, True),
        ("OnFailure", state("Running", ends(143), RUNS), Phase.RUNNING, False),
        ("OnFailure", state("Running", RUNS, RUNS, last=ends(143)), Phase.RUNNING, False),
        ("Never", state("Running", RUNS, ends(1)), Phase.RUNNING, False),
        ("Never", state("Running", RUNS, ends(0)), Phase.RUNNING, False),
    ],
)
def test_v1alpha1_job_follows_container_of_chief(policy: str, found: Any, phase: Phase, restarted: bool) -> None:
    job = alpha(policy)
    status = after(job, "master-0", found)
    assert status.phase is phase or (phase is Phase.COMPLETED and status.phase is Phase.COMPLETING)
    assert bool(status.attempts.pods) is restarted


@pytest.mark.parametrize(
    ("found", "done", "restarted"),
    [
        (state("Running", ends(0), RUNS), True, False),
        (state("Running", ends(1), RUNS), False, True),
        (state("Running", RUNS, ends(1)), False, False),
    ],
)
def test_v1alpha1_worker_follows_its_training_container(found: Any, done: bool, restarted: bool) -> None:
    status = after(alpha("Never"), "worker-0", found)
    assert ("worker-0" in map(str, status.succeeded)) is done
    assert bool(status.attempts.pods) is restarted


@pytest.mark.parametrize("make", [v1_job, volcano_job])
@pytest.mark.parametrize("code", [0, 1])
def test_v1_and_volcano_follow_pod_phase_and_diagnosis_names_cause(make: Any, code: int) -> None:
    job = make(replicas("Worker", 1))
    found = state("Running", ends(code), RUNS)
    status = after(job, "worker-0", found)
    assert status.phase is Phase.RUNNING
    first = diagnose(job, status, views(pod(job, "worker-0", found)), 0.0)[0]
    assert first.category is Category.RUNNING
    assert first.summary == (
        f"the container of worker-0 that trains exited with code {code}, but others keep its pod running"
    )
    assert "make it an init container" in first.resolution


@pytest.mark.parametrize("sidecar", [None, ends(0)])
@pytest.mark.parametrize("code", [0, 1])
def test_diagnosis_names_no_sidecar_before_kubelet_reports_pod_end(code: int, sidecar: dict[str, Any] | None) -> None:
    """Current kubelets report the end of the last container with the phase Running, and the final phase later."""
    job = v1_job(replicas("Worker", 1))
    found = state("Running", ends(code), sidecar or {})
    found["containerStatuses"] = found["containerStatuses"][0 if sidecar else 1 :]
    said = diagnose(job, after(job, "worker-0", found), views(pod(job, "worker-0", found)), 0.0)
    assert not [one.summary for one in said if "keep its pod running" in one.summary]


@pytest.mark.parametrize(
    ("tensorflow", "sidecar", "restarted", "text"),
    [
        (ends(143), ends(1), True, "worker-0 exited with code 143 (SIGTERM)"),
        (ends(1), ends(143), False, "worker-0 exited with code 1"),
        (
            ends(0),
            ends(143),
            False,
            "worker-0 has failed: its container istio-proxy exited with code 143 (SIGTERM), its container that trains "
            "with code 0",
        ),
    ],
)
def test_exit_code_is_that_of_training_container(tensorflow: Any, sidecar: Any, restarted: bool, text: str) -> None:
    """With ExitCode of TFJob v1, a pod that failed because of a sidecar has code 0, which is not retried."""
    job = v1_job(replicas("Worker", 1, rules=EXIT_CODE))
    found = state("Failed", tensorflow, sidecar)
    status = after(job, "worker-0", found)
    assert (status.phase is Phase.FAILED) is not restarted
    assert bool(status.attempts.pods) is restarted
    assert text in status.message


@pytest.mark.parametrize(
    ("tensorflow", "sidecar", "said", "detail"),
    [
        (CREATES, PULLS, "ImagePullBackOff", "container istio-proxy: no such image"),
        (RUNS, PULLS, "ImagePullBackOff", "container istio-proxy: no such image"),
        (PULLS, CREATES, "ImagePullBackOff", "no such image"),
        (CREATES, CREATES, "Starting", ""),
    ],
)
def test_state_names_container_that_cannot_start(tensorflow: Any, sidecar: Any, said: str, detail: str) -> None:
    job = v1_job(replicas("Worker", 1))
    found = state("Pending", tensorflow, sidecar)
    row = replica_states(job, after(job, "worker-0", found), views(pod(job, "worker-0", found)))[0]
    assert (row.state, row.detail) == (said, detail)


def test_state_names_native_sidecar_that_cannot_start() -> None:
    job = v1_job(replicas("Worker", 1))
    found = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "shipper", "state": PULLS}],
        "containerStatuses": [{"name": "tensorflow", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    row = replica_states(job, load_status({}), views(pod(job, "worker-0", found)))[0]
    assert (row.state, row.detail) == ("ImagePullBackOff", "container shipper: no such image")


INITIALIZING = {"waiting": {"reason": "PodInitializing"}}


def init_fails(code: int, reason: str = "Error") -> dict[str, Any]:
    """The status of a pod with a failed init container. The training container never started."""
    ended = {"terminated": {"exitCode": code, "reason": reason, "message": "no such bucket"}}
    return {
        "phase": "Failed",
        "initContainerStatuses": [
            {"name": "set-up", "state": ends(0, "Completed")},
            {"name": "fetch-data", "state": ended},
        ],
        "containerStatuses": [{"name": "tensorflow", "state": INITIALIZING}],
    }


@pytest.mark.parametrize("rules", [NEVER, EXIT_CODE])
def test_failure_names_init_container_and_its_exit_code(rules: Any) -> None:
    job = v1_job(replicas("Worker", 1, rules=rules))
    found = init_fails(4)
    status = after(job, "worker-0", found)
    said = "worker-0 has failed: its init container fetch-data exited with code 4"
    assert (status.phase, status.message) == (Phase.FAILED, said)
    assert status.failure is not None
    assert (status.failure.code, status.failure.message) == (4, "no such bucket")
    ending = diagnose(job, status, (), 0.0)[0]
    assert (ending.summary, ending.detail) == (said, "no such bucket")
    row = replica_states(job, status, views(pod(job, "worker-0", found)))[0]
    assert (row.state, row.detail) == ("Failed", "its init container fetch-data exited with code 4")


def test_killed_init_container_is_retried_by_its_exit_code() -> None:
    status = after(v1_job(replicas("Worker", 1, rules=EXIT_CODE)), "worker-0", init_fails(137))
    assert status.phase is Phase.RESTARTING
    assert "its init container fetch-data exited with code 137 (SIGKILL)" in status.message


def test_volcano_policy_matches_exit_code_of_init_container() -> None:
    rule = Rule(events=FAILED, action=Action.TERMINATE_JOB, codes=ExitCodes(ranges=((4, 4),)))
    status = after(volcano_job(replicas("worker", 1, rules=(rule,))), "worker-0", init_fails(4))
    assert (status.phase, status.reason) == (Phase.TERMINATED, "PodFailed")


def test_pod_reason_takes_precedence_over_init_container_exit_code() -> None:
    """An eviction kills all running containers."""
    found = {**init_fails(137), "reason": "Evicted", "message": "low on memory"}
    status = after(v1_job(replicas("Worker", 1, rules=NEVER)), "worker-0", found)
    assert status.phase is Phase.RESTARTING
    assert "was evicted" in status.message


@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun"])
@pytest.mark.parametrize(
    "job",
    [v1_job(replicas("Worker", 1, rules=EXIT_CODE)), alpha("Never")],
    ids=["ExitCode", "v1alpha1"],
)
def test_container_that_cannot_start_is_not_retried(job: Job, reason: str) -> None:
    """The exit code is 128. For programs, codes from 128 on are retried."""
    lead = str(job.replicas[0])
    status = after(job, lead, state("Failed", ends(128, reason), RUNS))
    assert (status.phase, status.message) == (Phase.FAILED, f"{lead} exited with code 128 ({reason})")
    ending = diagnose(job, status, (), 0.0)[0]
    assert (ending.category, ending.resolution) == (
        Category.COMMAND,
        "check command, args and workingDir of the container, and that the image has the program",
    )
    retried = after(job, lead, state("Failed", ends(128, "Error"), RUNS))
    assert retried.phase is Phase.RESTARTING


REFUSED = "container tensorflow has no command, and a local node has no images to take one from (mine/train)"
RESTART_TASK = (Rule(events=FAILED, action=Action.RESTART_TASK),)


@pytest.mark.parametrize("reason", ["ErrImageEntrypoint", "CreateContainerError", "CreateContainerConfigError"])
@pytest.mark.parametrize(
    "job",
    [
        v1_job(replicas("Worker", 1, rules=EXIT_CODE)),
        v1_job(replicas("Worker", 1, rules=ON_FAILURE, pod_restart_policy="OnFailure")),
        v1_job(replicas("Chief", 1, rules=ON_FAILURE), replicas("Worker", 1, rules=ON_FAILURE)),
        volcano_job(replicas("worker", 1, rules=RESTART_TASK)),
        alpha("OnFailure"),
    ],
    ids=["ExitCode", "OnFailure", "worker-of-a-chief", "volcano", "v1alpha1"],
)
def test_job_fails_when_container_cannot_be_created(job: Job, reason: str) -> None:
    """Regression: the pod was restarted endlessly, seven times in seven minutes."""
    replica = str(job.replicas[-1])
    status = after(job, replica, {"phase": "Failed", "reason": reason, "message": REFUSED})
    assert (status.phase, status.reason) == (Phase.FAILED, "PodFailed")
    assert status.message == f"{replica} cannot start: {reason}: {REFUSED}"
    ending = diagnose(job, status, (), 0.0)[0]
    assert (ending.summary, ending.detail) == (status.message, "")
    assert ("set command in the container" in ending.resolution) is (reason == "ErrImageEntrypoint")


@pytest.mark.parametrize(
    "message",
    [
        'failed to generate container "4f5e" spec: failed to generate spec: no command specified',
        "Error response from daemon: No command specified",
    ],
    ids=["containerd", "docker"],
)
@pytest.mark.parametrize("name", ["tensorflow", "istio-proxy"])
def test_status_names_image_without_command_while_kubelet_retries(name: str, message: str) -> None:
    """A kubelet never fails such a pod, so the job waits and reports what is missing."""
    waits = {"waiting": {"reason": "CreateContainerError", "message": message}}
    own, other = (waits, CREATES) if name == "tensorflow" else (CREATES, waits)
    job = v1_job(replicas("Worker", 1, rules=ON_FAILURE))
    world = World(job)
    world.settle()
    world.pods["mnist-worker-0"]["status"] = state("Pending", own, other)
    world.settle()
    said = f"worker-0 waits: ErrImageEntrypoint (container {name} has no command, and its image has none to run)"
    assert (world.memory.phase, world.memory.message) == (Phase.PENDING, said)
    first = diagnose(job, world.memory, views(*world.pods.values()), world.now)[0]
    assert (first.category, first.detail) == (
        Category.IMAGE,
        f"on node n1: container {name} has no command, and its image has none to run",
    )
    assert "set command in the container" in first.resolution


@pytest.mark.parametrize(
    "waiting", [{"reason": "RunContainerError"}, {"reason": "CrashLoopBackOff"}], ids=lambda one: str(one["reason"])
)
def test_missing_program_is_diagnosed_as_command_error(waiting: Any) -> None:
    job = v1_job(replicas("Worker", 1, rules=ON_FAILURE, pod_restart_policy="OnFailure"))
    found = state("Running", {"waiting": waiting}, RUNS, last=ends(128, "StartError"))
    first = diagnose(job, after(job, "worker-0", found), views(pod(job, "worker-0", found)), 0.0)[0]
    assert (first.category, first.resolution) == (
        Category.COMMAND,
        "check command, args and workingDir of the container, and that the image has the program",
    )


def test_init_container_that_cannot_start_is_not_retried() -> None:
    status = after(v1_job(replicas("Worker", 1, rules=EXIT_CODE)), "worker-0", init_fails(128, "StartError"))
    assert (status.phase, status.reason) == (Phase.FAILED, "PodFailed")


@pytest.mark.parametrize(
    ("name", "statuses"),
    [("init container fetch-data", "initContainerStatuses"), ("container istio-proxy", "containerStatuses")],
)
@pytest.mark.parametrize("make", [v1_job, v1alpha1_job])
def test_restarted_init_container_or_sidecar_is_named_with_exit_code(make: Any, name: str, statuses: str) -> None:
    """Its restarts spend the budget, although the training container has never ended."""
    fields = {"last_exit_counts": make is v1alpha1_job, "pod_restart_policy": "OnFailure"}
    lead = replicas("MASTER" if make is v1alpha1_job else "Worker", 1, rules=ON_FAILURE, **fields)
    job = make(lead, policy=RunPolicy(max_restarts=1, clean_pods=CleanPodPolicy.NONE))
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    last = {"terminated": {"exitCode": 4, "reason": "Error", "message": "no such bucket"}}

    def crashes(count: int) -> dict[str, Any]:
        one = {"name": name.split()[-1], "state": waits, "lastState": last, "restartCount": count}
        found: dict[str, Any] = {"phase": "Pending", statuses: [one]}
        found.setdefault("containerStatuses", []).append({"name": "tensorflow", "state": INITIALIZING})
        return found

    replica = str(job.replicas[0])
    held = after(job, replica, crashes(1))
    views_ = views(pod(job, replica, crashes(1)))
    [waiting] = [one for one in diagnose(job, held, views_, 0.0) if one.category is Category.FAILURE]
    assert waiting.detail.startswith(f"it has failed: its {name} exited with code 4, 2 times")
    status = after(job, replica, crashes(2))
    assert (status.phase, status.reason) == (Phase.FAILED, "BackoffLimitExceeded")
    assert status.message.startswith(
        f"{replica} has failed: its {name} exited with code 4, 3 times; no restart is left"
    )
    assert status.failure is not None
    assert (status.failure.code, status.failure.message) == (4, "no such bucket")


def test_credential_in_command_that_cannot_run_is_hidden() -> None:
    """The runtime repeats the program that it cannot find. That is the whole command if it is written as one word."""
    job = v1_job(replicas("Worker", 1, rules=EXIT_CODE))
    said = 'exec: "train --password=hunter2 --epochs 3": executable file not found in $PATH'
    status = after(job, str(job.replicas[-1]), {"phase": "Failed", "reason": "ErrImageEntrypoint", "message": said})
    assert status.message.endswith(
        'ErrImageEntrypoint: exec: "train --password=*** --epochs 3": executable file not found in $PATH'
    )

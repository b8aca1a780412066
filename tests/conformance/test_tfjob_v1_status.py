"""Conditions, replica statuses and their words: training-operator 1.9, ``tensorflow/status_test.go``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.tfjob_v1_jobs import NAME, conditions, document, end, events, run_all, true_conditions, world
from tests.core.builders import START
from tests.core.world import World
from tf_dist.core.dialects import parse
from tf_dist.core.model.context import EmitEvent, Observed
from tf_dist.core.model.job import ReplicaId
from tf_dist.core.model.pods import Exit, PodPhase, PodView
from tf_dist.core.model.status import Phase, Status
from tf_dist.core.reconciler.job_context import read_context
from tf_dist.core.reconciler.job_events import job_events

AllWorkers = "AllWorkers"

CHIEF_1, CHIEF_4 = {"chief": 1, "worker": 1}, {"chief": 1, "worker": 4, "ps": 2}
WORKER_1, WORKER_4, WORKERS = {"worker": 1}, {"worker": 4, "ps": 2}, {"worker": 4}
ALL_FAILED = {f"worker_{index}": 1 for index in range(4)}
ALL_DONE = {f"worker_{index}": 0 for index in range(4)}


@pytest.mark.parametrize(
    ("counts", "policy", "codes", "expected"),
    [
        # The cases of status_test.go, "Test Status", in its order.
        (CHIEF_1, "", {"chief_0": 0, "worker_0": 0}, "Succeeded"),
        (CHIEF_1, "", {}, "Running"),
        (CHIEF_1, "", {"chief_0": 1}, "Failed"),
        (WORKER_1, "", {"worker_0": 1}, "Failed"),
        (WORKER_1, "", {"worker_0": 0}, "Succeeded"),
        (WORKER_1, "", {}, "Running"),
        (WORKER_4, "", {"worker_1": 0, "worker_2": 0}, "Running"),
        (WORKER_4, "", {"worker_1": 1, "worker_2": 1}, "Failed"),
        (WORKER_4, "", {"worker_1": 0, "worker_2": 0, "worker_3": 1}, "Failed"),
        (WORKER_4, "", {"worker_0": 0}, "Succeeded"),
        (WORKERS, AllWorkers, {"worker_0": 0}, "Running"),
        (WORKERS, AllWorkers, ALL_DONE, "Succeeded"),
        (WORKERS, AllWorkers, {"worker_0": 0, "worker_1": 1}, "Failed"),
        # The original's case only asks for a condition Running, which exists and is False: the job has failed.
        (CHIEF_4, "", ALL_FAILED, "Failed"),
        (CHIEF_4, "", ALL_DONE, "Running"),
        (CHIEF_4, "", {**ALL_DONE, "ps_0": 1}, "Failed"),
        (CHIEF_4, "", {**ALL_DONE, "chief_0": 1}, "Failed"),
        # The original also has Failed. Here, a completed chief completes the job.
        (CHIEF_4, "", {**ALL_FAILED, "chief_0": 0}, "Succeeded"),
        # From the same function, without a case in the original test.
        ({"master": 1, "worker": 2}, "", {"master_0": 0}, "Succeeded"),
        ({"master": 1, "worker": 2}, "", {"worker_0": 0, "worker_1": 0}, "Running"),
        ({"chief": 1, "evaluator": 1}, "", {"evaluator_0": 1}, "Failed"),
        ({"chief": 1, "evaluator": 1}, "", {"evaluator_0": 0}, "Running"),
        ({"worker": 2, "evaluator": 1}, "", {"worker_1": 0, "evaluator_0": 0}, "Running"),
    ],
)
def test_conditions_follow_the_exit_codes_of_replicas(counts: Any, policy: str, codes: Any, expected: str) -> None:
    content = document(**counts)
    content["spec"]["successPolicy"] = policy
    made = world(content)
    end(made, **codes)
    made.settle()
    assert true_conditions(made) - {"Created"} == {expected}
    assert conditions(made)[expected]["reason"] == f"TFJob{expected}"


def test_chief_that_failed_with_retryable_code_is_restarting() -> None:
    """status_test.go, "Chief is failed and restarting"."""
    made = world(document("ExitCode", **CHIEF_4))
    end(made, chief_0=130, **dict.fromkeys(ALL_FAILED, 130))
    made.settle()
    assert true_conditions(made) == {"Created", "Restarting"}


FAILED_TEXTS: list[tuple[str | None, dict[str, int], dict[str, int], str]] = [
    (None, {"worker": 3}, {"worker_1": 1}, f"TFJob default/{NAME} has failed because 1 Worker replica(s) failed."),
    (None, {"worker": 3}, {"worker_1": 1, "worker_2": 9}, "has failed because 2 Worker replica(s) failed."),
    (None, {"worker": 2, "ps": 2}, {"worker_1": 1, "ps_1": 1}, "has failed because 1 PS replica(s) failed."),
    (None, {"chief": 1, "worker": 1}, {"chief_0": 1, "worker_0": 1}, "has failed because 1 Chief replica(s) failed."),
    (None, {"master": 1, "evaluator": 1}, {"evaluator_0": 3}, "has failed because 1 Evaluator replica(s) failed."),
    ("ExitCode", {"worker": 2}, {"worker_1": 1}, f'job "{NAME}" is failing because "Worker" replica(s) failed.'),
    ("ExitCode", {"chief": 1, "worker": 1}, {"chief_0": 127}, 'is failing because "Chief" replica(s) failed.'),
]


@pytest.mark.parametrize(("restart", "counts", "codes", "expected"), FAILED_TEXTS)
def test_condition_and_event_of_failure(restart: str | None, counts: Any, codes: Any, expected: str) -> None:
    made = world(document(restart, **counts))
    end(made, **codes)
    said = events(made)
    failed = conditions(made)["Failed"]
    assert failed["reason"] == "TFJobFailed"
    assert failed["message"].endswith(expected)
    assert ("Warning", "TFJobFailed", failed["message"]) in said


@pytest.mark.parametrize("policy", ["OnFailure", "Always", "ExitCode"])
def test_condition_and_event_of_restart(policy: str) -> None:
    """common/pod.go, ReconcilePods: a failed pod whose policy restarts it."""
    made = world(document(policy, worker=2, ps=1))
    end(made, ps_0=137)
    expected = f"job {NAME} is restarting because PS replica(s) failed."
    assert EmitEvent("Warning", "TFJobRestarting", expected) in made.look().actions
    made.step()
    restarting = conditions(made)["Restarting"]
    assert (restarting["status"], restarting["reason"], restarting["message"]) == ("True", "TFJobRestarting", expected)
    assert "Running" not in conditions(made)
    run_all(made)
    assert true_conditions(made) == {"Created", "Running"}
    assert "Restarting" not in conditions(made)


def test_condition_and_event_of_backoff_limit() -> None:
    made = world(document("OnFailure", worker=1), backoffLimit=0)
    made.restart_container(made.pod("worker-0"), 1)
    expected = f"Job {NAME} has failed because it has reached the specified backoff limit"
    assert ("Warning", "TFJobFailed", expected) in events(made)
    assert conditions(made)["Failed"]["message"] == expected


def test_condition_and_event_of_active_deadline() -> None:
    made = world(document(worker=1), activeDeadlineSeconds=2)
    made.now += 2
    expected = f"Job {NAME} has failed because it was active longer than specified deadline"
    assert ("Warning", "TFJobFailed", expected) in events(made)
    assert conditions(made)["Failed"]["message"] == expected


def test_condition_and_event_of_success() -> None:
    made = world(document(worker=1))
    end(made, worker_0=0)
    expected = f"TFJob default/{NAME} successfully completed."
    exited = ("Normal", "ExitedWithCode", f"Pod: default.{NAME}-worker-0 exited with code 0")
    assert [exited, ("Normal", "TFJobSucceeded", expected)] == events(made)
    assert conditions(made)["Succeeded"]["message"] == expected
    running = conditions(made)["Running"]
    assert (running["status"], running["reason"]) == ("False", "TFJobRunning")
    assert running["message"] == f"TFJob default/{NAME} is running."


@pytest.mark.parametrize("clean", ["None", "Running", "All"])
def test_active_replicas_count_as_succeeded_after_success(clean: str) -> None:
    """common/job.go, ReconcileJobs: also after the pods are deleted."""
    made = world(document(worker=4, ps=2), cleanPodPolicy=clean)
    end(made, worker_0=0)
    made.settle()
    made.now += 3600
    made.settle()
    numbers = {
        type_: {key: value for key, value in one.items() if key != "selector"}
        for type_, one in made.status["replicaStatuses"].items()
    }
    assert numbers == {"PS": {"succeeded": 2}, "Worker": {"succeeded": 4}}


def test_failed_replica_of_succeeded_job_stays_failed() -> None:
    content = document(chief=1, worker=2)
    content["spec"]["enableDynamicWorker"] = True
    made = world(content)
    end(made, worker_1=1)
    made.settle()
    end(made, chief_0=0)
    made.settle()
    workers = made.status["replicaStatuses"]["Worker"]
    assert (workers["succeeded"], workers["failed"]) == (1, 1)


def test_suspend_and_resume() -> None:
    """common/job.go, ReconcileJobs: TFJobSuspended, TFJobResumed. No replica is active, and no service is left."""
    made = world(document(worker=2, ps=1), cleanPodPolicy="None")
    end(made, worker_1=0)
    made.settle()
    started = made.status["startTime"]
    made.suspend(True)
    suspended, resumed = f"TFJob {NAME} is suspended.", f"TFJob {NAME} is resumed."
    assert events(made) == [("Normal", "TFJobSuspended", suspended)]
    assert true_conditions(made) == {"Created", "Suspended"}
    for type_ in ("Running", "Suspended"):
        one = conditions(made)[type_]
        assert (one["reason"], one["message"]) == ("TFJobSuspended", suspended)
    assert not [key for key in made.objects if key[0] == "Service"]
    assert all("active" not in one for one in made.status["replicaStatuses"].values())
    made.suspend(False)
    made.now += 60
    assert ("Normal", "TFJobResumed", resumed) in events(made)
    one = conditions(made)["Suspended"]
    assert (one["status"], one["reason"], one["message"]) == ("False", "TFJobResumed", resumed)
    run_all(made)
    assert made.status["startTime"] > started
    # All replicas start again, including the completed one: the TF_CONFIG of the others names it.
    assert {str(pod["metadata"]["name"]) for pod in made.pods.values()} == {
        f"{NAME}-ps-0",
        f"{NAME}-worker-0",
        f"{NAME}-worker-1",
    }
    assert {name for _, name in made.objects} == {pod["metadata"]["name"] for pod in made.pods.values()}
    assert true_conditions(made) == {"Created", "Running"}
    assert "succeeded" not in made.status["replicaStatuses"]["Worker"]


def test_job_may_be_created_suspended() -> None:
    content = document(worker=2)
    content["spec"]["runPolicy"] = {"suspend": True}
    made = world(content)
    assert true_conditions(made) == {"Created", "Suspended"}
    assert "Running" not in conditions(made)
    assert not made.pods
    assert not made.objects
    made.suspend(False)
    run_all(made)
    assert true_conditions(made) == {"Created", "Running"}


def test_first_status() -> None:
    """tfjob_controller.go, onOwnerCreateFunc and UpdateJobStatus."""
    made = world(document("OnFailure", worker=1))
    one = conditions(made)["Created"]
    assert (one["status"], one["reason"], one["message"]) == ("True", "TFJobCreated", f"TFJob {NAME} is created.")
    one = conditions(made)["Running"]
    assert (one["reason"], one["message"]) == ("TFJobRunning", f"TFJob default/{NAME} is running.")


def test_warns_that_template_restart_policy_is_overwritten() -> None:
    """common/pod.go, createNewPod."""
    content = document("OnFailure", worker=1)
    content["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["restartPolicy"] = "Never"
    made = World(parse(content).job)
    words = "Restart policy in pod template will be overwritten by restart policy in replica spec"
    assert ("Warning", "SetPodTemplateRestartPolicy", words) in events(made)


RESTARTED = [f"Pod: default.{NAME}-worker-1 exited with code 137"]
EXITS: list[tuple[str, dict[str, int], dict[str, int], list[str]]] = [
    ("Never", {"chief": 1, "worker": 2}, {"worker_1": 0}, [f"Pod: default.{NAME}-worker-1 exited with code 0"]),
    ("Never", {"chief": 1, "worker": 2}, {"chief_0": 3}, [f"Pod: default.{NAME}-chief-0 exited with code 3"]),
    ("ExitCode", {"chief": 1, "worker": 2}, {"worker_1": 137}, RESTARTED),
    ("OnFailure", {"chief": 1, "worker": 2}, {"worker_1": 137}, RESTARTED),
    ("Never", {"chief": 1, "worker": 2}, {}, []),
]


@pytest.mark.parametrize(("policy", "counts", "codes", "expected"), EXITS)
def test_exit_code_of_each_pod_is_an_event(policy: str, counts: Any, codes: Any, expected: list[str]) -> None:
    """common/pod.go, ReconcilePods: here once, in the original in every pass."""
    made = world(document(policy, **counts))
    end(made, **codes)
    said = [text for _, reason, text in events(made) if reason == "ExitedWithCode"]
    assert said == expected
    made.now += 3600
    run_all(made)
    assert not [reason for _, reason, _ in events(made) if reason == "ExitedWithCode"]


def test_exit_of_pod_is_not_an_event_while_job_is_stopped() -> None:
    job, worker = parse(document(worker=2)).job, ReplicaId("worker", 1)
    for phase, told in ((Phase.RUNNING, 1), (Phase.ABORTING, 0), (Phase.ABORTED, 0)):
        status = Status(phase=phase)
        label = status.attempts.label(worker)
        pod = PodView(name="w", uid="u", replica=worker, attempt=label, phase=PodPhase.SUCCEEDED, exit=Exit(0))
        events = job_events(read_context(job, status, Observed(now=START, pods=(pod,))))
        assert sum(event.reason == "ExitedWithCode" for event in events) == told, phase


def test_second_failure_is_also_an_event() -> None:
    content = document(worker=3, ps=1)
    content["spec"]["enableDynamicWorker"] = True
    made = world(content)
    for index, code in ((1, 1), (2, 4)):
        end(made, **{f"worker_{index}": code})
        told = [text for _, reason, text in events(made) if reason == "ExitedWithCode"]
        assert f"Pod: default.{NAME}-worker-{index} exited with code {code}" in told


@pytest.mark.parametrize(
    ("gang", "names", "warned"),
    [
        # pod_test.go, TestIsCustomSchedulerSet: none, all, one of them; and the gang scheduler's own name.
        ("volcano", (None, None), False),
        ("volcano", ("custom-a", "custom-b"), True),
        ("volcano", (None, "custom-b"), True),
        ("volcano", ("volcano", "volcano"), False),
        ("coscheduling", ("scheduler-plugins-scheduler", None), False),
        ("coscheduling", ("volcano", None), True),
        ("", ("custom-a", None), False),
    ],
)
def test_warns_of_another_scheduler(gang: str, names: tuple[str | None, str | None], warned: bool) -> None:
    """common/pod.go, createNewPod, with gang scheduling."""
    content = document(worker=1, ps=1)
    content["metadata"]["annotations"] = {"tf-dist.dev/gang-scheduler": gang} if gang else {}
    for type_, name in zip(("Worker", "PS"), names, strict=True):
        if name:
            content["spec"]["tfReplicaSpecs"][type_]["template"]["spec"]["schedulerName"] = name
    words = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
    said = [action for action in World(parse(content).job).look().actions if isinstance(action, EmitEvent)]
    found = [(one.type, one.message) for one in said if one.reason == "SetPodTemplateSchedulerName"]
    assert found == ([("Warning", words)] if warned else [])


R, S = "Running", "Succeeded"
NORMAL_PATH: list[tuple[dict[str, int], dict[str, list[str]], dict[str, dict[str, int]], str]] = [
    # tfjob_controller_test.go, "Test Normal Path": the replicas, the states of their pods, their counts, the condition.
    ({"worker": 1}, {}, {}, ""),
    ({"worker": 4, "ps": 2}, {}, {}, ""),
    ({"worker": 4, "ps": 2}, {"worker": [R] * 4, "ps": [R] * 2}, {"Worker": {"active": 4}, "PS": {"active": 2}}, R),
    ({"worker": 4, "ps": 2}, {"worker": [R]}, {"Worker": {"active": 1}}, R),
    ({"worker": 4, "ps": 2}, {"worker": ["", S]}, {"Worker": {"succeeded": 1}}, ""),
    (
        {"worker": 4, "ps": 2},
        {"worker": [S] * 4, "ps": [S] * 2},
        {"Worker": {"succeeded": 4}, "PS": {"succeeded": 2}},
        S,
    ),
]


@pytest.mark.parametrize(("counts", "states", "expected", "condition"), NORMAL_PATH)
def test_normal_path(counts: Any, states: Any, expected: Any, condition: str) -> None:
    """Pending pods are not counted."""
    made = World(parse(document(**counts)).job)
    made.settle()
    assert {name for _, name in made.objects} == set(made.pods)
    assert len(made.pods) == sum(counts.values())
    for type_, those in states.items():
        for index, state in enumerate(those):
            pod = made.pod(f"{type_}-{index}")
            if state:
                made.run(pod)
            if state == S:
                made.end(pod, 0)
    made.settle()
    numbers = {
        type_: {key: value for key, value in one.items() if key != "selector"}
        for type_, one in made.status["replicaStatuses"].items()
    }
    assert {type_: one for type_, one in numbers.items() if one} == expected
    assert true_conditions(made) == {"Created", condition} - {""}

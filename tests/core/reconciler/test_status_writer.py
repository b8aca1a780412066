"""The status of a job in its dialect, and how v1's conditions change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import (
    FAILED,
    START,
    observed,
    replicas,
    v1_job,
    v1alpha1_job,
    volcano_job,
    written,
    written_status,
)
from tests.core.world import WAIT, World
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Action, Job, Rule
from tf_dist.core.model.status import Admission, Counts, Phase, Status, display_phase, outcome_kind, outcome_reason
from tf_dist.core.model.status_codec import dump_status
from tf_dist.core.reconciler.job_context import with_default_scheduler
from tf_dist.core.reconciler.reconcile import reconcile
from tf_dist.core.reconciler.status_writer import build_conditions, ready_text
from tools.definitions.crds import tfjobs, volcano_jobs

JOB = v1_job()


def after(*steps: tuple[Phase, str], stored: Any = ()) -> list[dict[str, Any]]:
    """The conditions of a job that went through these phases, one second apart."""
    listed = list(stored)
    for second, (phase, message) in enumerate(steps):
        status = Status(phase=phase, reason="why", message=message, admission=Admission(START))
        listed = build_conditions(JOB, status, listed, START + second)
    return listed


def brief(listed: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c["reason"]) for c in listed if c["type"] != "Admitted"]


CREATED = ("Created", "True", "TFJobCreated")
RUN, RESTART, DONE = (Phase.RUNNING, "m"), (Phase.RESTARTING, "m"), (Phase.COMPLETED, "m")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(Phase.PENDING, "m")], [CREATED]),
        ([RUN], [CREATED, ("Running", "True", "TFJobRunning")]),
        ([RUN, RESTART], [CREATED, ("Restarting", "True", "TFJobRestarting")]),
        ([RUN, RESTART, RUN], [CREATED, ("Running", "True", "TFJobRunning")]),
        ([RUN, DONE], [CREATED, ("Running", "False", "TFJobRunning"), ("Succeeded", "True", "TFJobSucceeded")]),
        (
            [RUN, (Phase.FAILED, "m")],
            [CREATED, ("Running", "False", "TFJobRunning"), ("Failed", "True", "TFJobFailed")],
        ),
        ([RUN, RESTART, (Phase.FAILED, "m")], [CREATED, ("Failed", "True", "TFJobFailed")]),
        (
            [RUN, (Phase.ABORTED, "m")],
            [CREATED, ("Running", "False", "TFJobSuspended"), ("Suspended", "True", "TFJobSuspended")],
        ),
        (
            [(Phase.ABORTED, "m"), (Phase.PENDING, "m"), RUN],
            [CREATED, ("Suspended", "False", "TFJobResumed"), ("Running", "True", "TFJobRunning")],
        ),
    ],
)
def test_each_condition_updates_earlier_conditions(steps: Any, expected: Any) -> None:
    assert brief(after(*steps)) == expected


def test_unchanged_condition_keeps_times_and_position() -> None:
    first, later = after(RUN), after(RUN, RUN, RUN)
    assert first == later


def test_operator_condition_keeps_message_if_status_and_reason_are_equal() -> None:
    """As in the original operator, an equal status and reason change nothing."""
    changed = after((Phase.FAILED, "one"), (Phase.FAILED, "two"))[-1]
    assert changed["message"] == "TFJob default/mnist has failed: one."
    assert changed["lastUpdateTime"] == changed["lastTransitionTime"] == "2027-01-15T08:00:00Z"


def test_new_message_of_admitted_condition_is_not_a_transition() -> None:
    status = Status(phase=Phase.PENDING, reason="WaitingForCapacity", message="one")
    listed = build_conditions(JOB, status, (), START)
    changed = build_conditions(JOB, replace(status, message="two"), listed, START + 1)[0]
    assert (changed["type"], changed["message"]) == ("Admitted", "two")
    assert changed["lastTransitionTime"] == "2027-01-15T08:00:00Z"
    assert changed["lastUpdateTime"] == "2027-01-15T08:00:01Z"


def test_keeps_foreign_conditions() -> None:
    foreign = [{"type": "Running", "status": "True"}, {"type": "Mine", "status": "True"}, {"status": "True"}]
    assert [c.get("type") for c in after(DONE, stored=foreign)] == [
        "Admitted",
        "Running",
        "Mine",
        None,
        "Created",
        "Succeeded",
    ]


@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
@pytest.mark.parametrize("junk", [5, "x", {}, {"type": "x"}, [None, 5, "x", []], [{}, {"type": ["x"], "status": {}}]])
def test_malformed_status_of_another_controller_does_not_stop_job(make: Any, junk: Any) -> None:
    fields = ("conditions", "replicaStatuses", "phase", "state", "startTime", "runningDuration", "taskStatusCount")
    plan = reconcile(make(), observed(make(), status=dict.fromkeys(fields, junk)))
    assert written(plan)["tfDist"]["reason"] == "Admitted"


def test_admitted_condition_is_first_and_has_wait_reason() -> None:
    world = World(JOB)
    world.verdict = WAIT
    world.settle()
    first = world.status["conditions"][0]
    assert (first["type"], first["status"], first["reason"], first["message"]) == (
        "Admitted",
        "False",
        *("WaitingForCapacity", "no room"),
    )
    assert world.status["conditions"][-1]["type"] == "Created"
    world.verdict = Admit()
    world.settle()
    assert world.status["conditions"][0]["status"] == "True"


def run(job: Job, **codes: int) -> World:
    world = World(job)
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.now += 61
    world.settle()
    for replica, code in codes.items():
        world.end(world.pod(replica.replace("_", "-")), code)
    world.now += 3600
    world.settle()
    return world


def test_v1_replica_statuses_count_pods_by_type() -> None:
    status = run(v1_job(replicas("PS", 1), replicas("Worker", 2)), worker_1=0).status
    prefix = "training.kubeflow.org/"
    selector = f"{prefix}job-name=mnist,{prefix}operator-name=tfjob-controller,{prefix}replica-type="
    assert status["replicaStatuses"] == {
        "PS": {"active": 1, "selector": f"{selector}ps"},
        "Worker": {"active": 1, "succeeded": 1, "selector": f"{selector}worker"},
    }
    assert status["startTime"] == "2027-01-15T08:00:00Z"
    assert "completionTime" not in status


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.PENDING, ("Creating", "Running")),
        (Phase.RUNNING, ("Running", "Running")),
        (Phase.RESTARTING, ("Running", "Running")),
        (Phase.COMPLETING, ("CleanUp", "Succeeded")),
        (Phase.COMPLETED, ("Done", "Succeeded")),
        (Phase.FAILED, ("Done", "Failed")),
        (Phase.TERMINATED, ("Done", "Failed")),
    ],
)
def test_v1alpha1_phases_and_states(phase: Phase, expected: tuple[str, str]) -> None:
    told = written_status(v1alpha1_job(), Status(phase=phase))
    assert (told["phase"], told["state"]) == expected


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
def test_every_phase_is_written_in_every_dialect(make: Any, phase: Phase) -> None:
    status = Status(phase=phase, reason="why", message="because", since=START)
    told = written_status(make(), status)
    job = make()
    shown = {
        "state": display_phase(status),
        "ready": ready_text(job, status),
        "why": status.display_reason,
        "selector": f"tf-dist.dev/job-uid={job.uid},tf-dist.dev/replica-type=worker",
    }
    outcome = told["tfDist"].pop("outcome", None)
    assert told["tfDist"] == {**dump_status(status), **shown}
    kind = outcome_kind(status)
    counts = ["restarts", "disruptions", "preemptions", "fallback", "gpuSeconds", "lostGpuSeconds"]
    counts += ["replicaSeconds", "lostReplicaSeconds", "goodput"]
    ended = {"kind": kind and kind.value, "reason": outcome_reason(status), **dict.fromkeys(counts, 0)}
    assert outcome == (None if kind is None else ended)


def test_v1alpha1_lists_states_of_each_replica_type() -> None:
    status = run(v1alpha1_job(), ps_1=1).status
    states = [(r["tf_replica_type"], r["state"], r["ReplicasStates"]) for r in status["replicaStatuses"]]
    assert states == [
        ("MASTER", "Running", {"Running": 1}),
        ("WORKER", "Running", {"Running": 1}),
        ("PS", "Running", {"Running": 2}),
    ]


def test_volcano_status_has_final_state_and_counts() -> None:
    status = run(volcano_job(), worker_0=0, worker_1=1).status
    told = {key: value for key, value in status.items() if key not in ("tfDist", "conditions")}
    message = "no policy answers the failure of worker-1, and all other replicas that could end have ended"
    assert told == {
        "state": {
            "phase": "Failed",
            "reason": "PodFailed",
            "message": message,
            "lastTransitionTime": "2027-01-15T09:01:01Z",
        },
        "minAvailable": 3,
        "taskStatusCount": {"worker": {"phase": {"Succeeded": 1, "Failed": 1}}},
        "succeeded": 1,
        "failed": 1,
        "version": 0,
        "retryCount": 0,
        "runningDuration": "1h1m1s",
        "controlledResources": {"plugin-env": "env", "plugin-svc": "svc"},
    }
    assert [c["status"] for c in status["conditions"]] == ["Pending", "Running", "Failed"]


def test_volcano_counts_retries_and_versions() -> None:
    world = run(volcano_job(rules=(Rule(events=FAILED, action=Action.RESTART_JOB),)), worker_0=1)
    assert (world.status["retryCount"], world.status["version"]) == (1, 1)


def test_ready_counts_replicas_of_every_type() -> None:
    counts = {"worker": Counts(running=1, ready=1, failed=1), "ps": Counts(ready=1), "chief": Counts(succeeded=1)}
    job = v1_job(replicas("Chief", 1), replicas("PS", 1), replicas("Worker", 2))
    assert ready_text(job, Status(counts=counts)) == "3/4"
    assert ready_text(v1_job(replicas("PS", 2)), Status(counts=counts)) == "1/2"


@pytest.mark.parametrize(("phase", "type_"), [(Phase.RUNNING, "Running"), (Phase.COMPLETED, "Succeeded")])
def test_v1alpha1_has_conditions_for_kubectl_wait(phase: Phase, type_: str) -> None:
    told = written_status(v1alpha1_job(), Status(phase=phase))
    assert [one["type"] for one in told["conditions"] if one["status"] == "True"][-1] == type_


@pytest.mark.parametrize(
    ("make", "definition"), [(v1_job, tfjobs), (v1alpha1_job, tfjobs), (volcano_job, volcano_jobs)]
)
def test_crd_describes_every_status_field(make: Any, definition: Any) -> None:
    """``kubectl explain tfjob.status`` shows these descriptions."""
    full = Status(
        phase=Phase.FAILED,
        reason="why",
        message="m",
        since=START,
        created=START,
        start_time=START,
        completion_time=START,
        admission=Admission(START),
        counts={"worker": Counts(running=1, ready=1, failed=1)},
        restarts={"worker": 1},
        disruptions={"worker": 1},
    )
    versions = definition()["spec"]["versions"]
    described = versions[0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    told = written_status(make(), full)
    assert set(told) <= set(described)
    memory = set(told["tfDist"]) - {"version"}
    assert memory <= set(described["tfDist"]["properties"])
    assert all(field["description"] for field in (*described.values(), *described["tfDist"]["properties"].values()))


@pytest.mark.parametrize(
    ("job", "status", "gang"),
    [
        (JOB, Status(), "kueue"),
        (JOB, Status(gang="volcano"), "kueue"),
        (JOB, Status(gang="volcano", admission=Admission(at=START)), "volcano"),
        (JOB, Status(gang="volcano", phase=Phase.COMPLETED), "volcano"),
        (replace(JOB, scheduling=replace(JOB.scheduling, gang=GangScheduler.VOLCANO)), Status(), ""),
    ],
    ids=["new", "waiting", "admitted", "finished", "scheduler of its own"],
)
def test_admitted_job_keeps_its_gang_scheduler(job: Job, status: Status, gang: str) -> None:
    assert with_default_scheduler(job, status, "kueue").gang == gang

"""Decisions of the pod lifecycle, as tables of pods, runtime states and times."""

from __future__ import annotations

from typing import Any

import pytest

from tf_dist.cluster.api import Object
from tf_dist.cluster.kubelet.node.node_settings import RestartBackoff
from tf_dist.cluster.kubelet.pod.pod_lifecycle import decide
from tf_dist.cluster.kubelet.pod.pod_status import (
    ContainerRun,
    ContainerState,
    CreateSandbox,
    DeletePod,
    PodDecision,
    PodStartError,
    RemoveSandbox,
    RuntimePodStatus,
    StartContainer,
    StopContainers,
)
from tf_dist.core.model import names
from tf_dist.core.model.timestamps import format_time

NOW = 1_000_000.0


def pod(policy: str = "Never", *, status: Object | None = None, **changes: Any) -> Object:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", **changes.pop("metadata", {})}
    spec = {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}], **changes}
    return {"metadata": metadata, "spec": spec, "status": status or {}}


def ended(code: int, *, ago: float = 0, ran: float = 1, attempt: int = 0, **changes: Any) -> ContainerRun:
    times = {"started": NOW - ago - ran, "finished": NOW - ago}
    return ContainerRun(
        state=ContainerState.EXITED, code=code, attempt=attempt, **{"name": "c", "streak": attempt, **times, **changes}
    )


RUNNING = ContainerRun(name="c", state=ContainerState.RUNNING, started=NOW - 5)


def ask(found: Object, *runs: ContainerRun, sandbox: str = "ready", now: float = NOW, **facts: Any) -> PodDecision:
    known = RuntimePodStatus(sandbox=sandbox, runs={run.name: run for run in runs}, ip="10.88.1.1", **facts)
    return decide(found, known, now, RestartBackoff())


def state(decision: PodDecision, index: int = 0) -> Object:
    found: Object = decision.status["containerStatuses"][index]["state"]
    return found


def test_new_pod_gets_sandbox_and_container() -> None:
    decision = ask(pod(), sandbox="")
    assert decision.actions == (CreateSandbox(), StartContainer("c"))
    assert decision.status["phase"] == "Pending"
    assert decision.status["startTime"] == format_time(NOW)
    assert state(decision)["waiting"]["reason"] == "ContainerCreating"


def test_running_pod_needs_no_action() -> None:
    decision = ask(pod(), RUNNING)
    assert decision.actions == ()
    assert decision.status["phase"] == "Running"
    assert decision.status["containerStatuses"][0]["ready"]
    assert ask(pod(status=decision.status), RUNNING, now=NOW + 50).status == decision.status  # nothing to write


@pytest.mark.parametrize(
    ("policy", "code", "phase", "restarts"),
    [
        ("Never", 0, "Succeeded", False),
        ("Never", 1, "Failed", False),
        ("OnFailure", 0, "Succeeded", False),
        ("OnFailure", 1, "Running", True),
        ("Always", 0, "Running", True),
        ("Always", 1, "Running", True),
    ],
)
def test_restart_policies(policy: str, code: int, phase: str, restarts: bool) -> None:
    decision = ask(pod(policy), ended(code))
    assert decision.status["phase"] == phase
    assert decision.actions == ((StartContainer("c", 1, 1),) if restarts else ())


def test_pod_stays_running_while_container_restarts() -> None:
    restarting = ContainerRun(name="c", attempt=1, last=ended(1))
    assert ask(pod("OnFailure"), restarting).status["phase"] == "Running"
    assert ask(pod("OnFailure"), ContainerRun(name="c")).status["phase"] == "Pending"


def test_restarting_sidecar_does_not_delay_containers() -> None:
    sidecar = {"name": "side", "image": "i", "restartPolicy": "Always"}
    again = ContainerRun(name="side", attempt=1, last=ended(1, name="side"))
    decision = ask(pod("OnFailure", initContainers=[sidecar]), again, ended(1))
    assert decision.actions == (StartContainer("c", 1, 1),)
    assert decision.status["phase"] == "Running"


@pytest.mark.parametrize(
    ("streak", "ago", "ran", "wait"),
    [
        (0, 0, 1, None),
        (1, 0, 1, 10),
        (1, 9, 1, 1),
        (1, 10, 1, None),
        (2, 0, 1, 20),
        (5, 0, 1, 160),
        (6, 0, 1, 300),
        (60, 0, 1, 300),
        (60, 0, 600, None),  # ran long enough to reset the back-off
    ],
)
def test_restart_back_off_doubles_and_resets(streak: int, ago: float, ran: float, wait: float | None) -> None:
    decision = ask(pod("Always"), ended(1, ago=ago, ran=ran, attempt=streak))
    if wait is None:
        assert decision.actions == (StartContainer("c", streak + 1, 1 if ran >= 600 else streak + 1),)
        return
    assert decision.actions == ()
    assert decision.wake_at == NOW + wait
    assert state(decision)["waiting"]["reason"] == "CrashLoopBackOff"
    assert decision.status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert decision.status["containerStatuses"][0]["restartCount"] == streak


def test_final_phase_is_written_before_sandbox_is_removed() -> None:
    first = ask(pod(), ended(0))
    assert (first.status["phase"], first.actions) == ("Succeeded", ())
    second = ask(pod(status=first.status), ended(0))
    assert (second.status, second.actions) == (first.status, (RemoveSandbox(),))
    third = ask(pod(status=first.status), sandbox="")
    assert (third.status, third.actions) == (first.status, ())


DELETED = {"metadata": {"deletionTimestamp": format_time(NOW), "deletionGracePeriodSeconds": 7}}


def test_deletion_stops_containers_then_removes_sandbox_then_pod() -> None:
    found = pod("Always", **DELETED)
    assert ask(found, RUNNING).actions == (StopContainers(7.0),)
    assert ask(found, RUNNING, stopping=True).actions == ()
    stopped = ask(found, ended(143))
    assert (stopped.status["phase"], stopped.actions) == ("Failed", (RemoveSandbox(),))
    assert ask(found, sandbox="removing").actions == ()
    assert ask(found, sandbox="").actions == (DeletePod(),)


def test_deletes_pod_that_never_started() -> None:
    assert ask(pod(**DELETED), sandbox="").actions == (DeletePod(),)


def test_deletion_of_ended_pod_keeps_its_phase() -> None:
    over = ask(pod(), ended(0)).status
    decision = ask(pod(status=over, **DELETED), sandbox="")
    assert (decision.status["phase"], decision.actions) == ("Succeeded", (DeletePod(),))


def test_pod_fails_at_active_deadline() -> None:
    status = {"phase": "Running", "startTime": format_time(NOW)}
    early = ask(pod(status=status, activeDeadlineSeconds=10), RUNNING)
    assert (early.status["phase"], early.wake_at) == ("Running", NOW + 10)
    late = ask(pod(status=status, activeDeadlineSeconds=10, terminationGracePeriodSeconds=3), RUNNING, now=NOW + 10)
    assert (late.status["phase"], late.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert late.actions == (StopContainers(3.0),)


def test_only_permanent_problems_fail_pod() -> None:
    passing = ask(pod(), sandbox="", problem=PodStartError("CreateContainerConfigError", "no map", container="c"))
    assert (passing.status["phase"], passing.actions) == ("Pending", ())
    assert state(passing)["waiting"] == {"reason": "CreateContainerConfigError", "message": "no map"}
    lasting = ask(pod(), sandbox="", problem=PodStartError("ErrX", "never", hint="do", permanent=True))
    assert (lasting.status["phase"], lasting.status["reason"]) == ("Failed", "ErrX")
    assert lasting.status["message"] == "never (do)"


def test_pod_with_restart_policy_always_waits_on_permanent_problem() -> None:
    """A ReplicaSet replaces a failed pod immediately. A permanent problem would cause hundreds of pods a minute."""
    problem = PodStartError("ErrImageEntrypoint", "no command", permanent=True, container="c")
    waiting = ask(pod("Always"), sandbox="", problem=problem)
    assert (waiting.status["phase"], waiting.actions) == ("Pending", ())
    assert state(waiting)["waiting"]["reason"] == "ErrImageEntrypoint"
    replica = pod("Always", metadata={"labels": {names.JOB_UID: "j"}})
    assert ask(replica, sandbox="", problem=problem).status["phase"] == "Failed"


@pytest.mark.parametrize(("policy", "phase"), [("Never", "Failed"), ("OnFailure", "Running"), ("Always", "Running")])
def test_containers_of_lost_supervisor_end_by_restart_policy(policy: str, phase: str) -> None:
    before = ask(pod(policy), RUNNING).status
    decision = ask(pod(policy, status=before), sandbox="")
    terminated = state(decision)["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (137, "SupervisorLost")
    assert decision.status["phase"] == phase
    if policy == "Never":
        assert decision.status["reason"] == "SupervisorLost"
        assert decision.actions == ()
    else:
        assert decision.actions == (CreateSandbox(), StartContainer("c", 1, 1))
        again = ContainerRun(name="c", attempt=1, streak=1)
        restarted = ask(pod(policy, status=decision.status), again)
        last = restarted.status["containerStatuses"][0]["lastState"]["terminated"]
        assert last["reason"] == "SupervisorLost"
        more = ask(pod(policy, status=restarted.status), again)
        assert more.status == restarted.status


def test_broken_sandbox_fails_new_pod_and_is_removed() -> None:
    fresh = ask(pod(), sandbox="broken", message="no")
    assert (fresh.status["phase"], fresh.status["reason"]) == ("Failed", "FailedCreatePodSandBox")
    assert ask(pod("Always"), ended(137), sandbox="broken").actions == (RemoveSandbox(),)


INITS = {"initContainers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}


def init(name: str, code: int | None) -> ContainerRun:
    if code is None:
        return ContainerRun(name=name, state=ContainerState.RUNNING, started=NOW)
    return ContainerRun(name=name, state=ContainerState.EXITED, code=code, started=NOW, finished=NOW)


@pytest.mark.parametrize(
    ("runs", "actions", "phase"),
    [
        ([], (StartContainer("a"),), "Pending"),
        ([init("a", None)], (), "Pending"),
        ([init("a", 0)], (StartContainer("b"),), "Pending"),
        ([init("a", 1)], (), "Failed"),
        ([init("a", 0), init("b", 0)], (StartContainer("c"),), "Pending"),
        ([init("a", 0), init("b", 0), RUNNING], (), "Running"),
    ],
)
def test_init_containers_run_one_after_another(
    runs: list[ContainerRun], actions: tuple[object, ...], phase: str
) -> None:
    decision = ask(pod(**INITS), *runs)
    assert (decision.actions, decision.status["phase"]) == (actions, phase)


def test_failed_init_container_restarts_with_policy_on_failure() -> None:
    assert ask(pod("OnFailure", **INITS), init("a", 1)).actions == (StartContainer("a", 1, 1),)


def test_sidecar_runs_alongside_containers_and_restarts() -> None:
    found = pod(initContainers=[{"name": "s", "image": "i", "restartPolicy": "Always"}])
    assert ask(found).actions == (StartContainer("s"),)
    assert ask(found, init("s", None)).actions == (StartContainer("c"),)
    assert StartContainer("s", 1, 1) in ask(found, init("s", 0), RUNNING).actions
    assert ask(found, init("s", None), ended(0)).status["phase"] == "Succeeded"


def test_readiness_probe_determines_ready_condition() -> None:
    decision = ask(pod(), RUNNING, ready={"c": False})
    conditions = {item["type"]: item for item in decision.status["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert conditions["Ready"]["message"] == "containers with unready status: [c]"
    assert conditions["Initialized"]["status"] == "True"


def test_transition_time_changes_only_with_status() -> None:
    first = ask(pod(), RUNNING)
    later = ask(pod(status=first.status), RUNNING, now=NOW + 100, ready={"c": False})
    times = {item["type"]: item["lastTransitionTime"] for item in later.status["conditions"]}
    assert times["Ready"] == format_time(NOW + 100)
    assert times["PodScheduled"] == format_time(NOW)

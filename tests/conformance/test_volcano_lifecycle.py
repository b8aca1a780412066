"""The life cycle of a Volcano Job, case by case as in Volcano's job controller (volcano-sh/volcano at ed72c7c8).

Sources: ``pkg/controllers/job/{job_controller,job_controller_util,job_controller_actions,job_controller_handler}.go``,
``state/*.go``, and their tests ``TestApplyPolicies``, ``TestRunningState_Execute``, ``TestRestartingState_Execute``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.builders import template
from tests.core.reconciler import scenarios
from tests.core.reconciler.scenarios import lose
from tests.core.world import World
from tf_dist.core.dialects import read
from tf_dist.core.model.context import EmitEvent

Doc = dict[str, Any]
PHASES = ("Pending", "Running", "Restarting", "Completed", "Failed", "Terminated", "Aborted")


def task(name: str, replicas: int, *policies: Doc, restart: str = "Never", **fields: Any) -> Doc:
    pod = template(restartPolicy=restart)
    return {"name": name, "replicas": replicas, "policies": list(policies), "template": pod, **fields}


def job(*tasks: Doc, policies: tuple[Doc, ...] = (), **spec: Any) -> Doc:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "job1", "namespace": "default", "uid": "uid-1"},
        "spec": {"tasks": list(tasks), "policies": list(policies), **spec},
    }


def started(document: Doc) -> World:
    """A job whose pods all run."""
    return scenarios.started(read(document))


def run(world: World) -> None:
    for pod in world.pods.values():
        world.run(pod)
    world.settle()


def later(world: World, seconds: float) -> None:
    world.now += seconds
    world.settle()


def phase(world: World) -> str:
    return str(world.status["state"]["phase"])


def end(world: World, *replicas: str, code: int = 1) -> None:
    for replica in replicas:
        pod = world.pod(replica)
        world.end(pod, code)
    world.settle()


def crash_in_place(world: World, replica: str, times: int) -> None:
    pod = world.pod(replica)
    for _ in range(times):
        world.restart_container(pod, 1)
    world.settle()


# applyPolicies: which policy handles a request, and after which delay. Each row: the event, the policies of the task or
# the job, the phase before the timeout of 60 s, and the phase after it.
TERMINATE, ABORT, COMPLETE = "TerminateJob", "AbortJob", "CompleteJob"
MINUTE = {"timeout": "1m"}
POLICIES = [
    ("PodFailed, at once", "fail", [{"event": "PodFailed", "action": TERMINATE}], "Terminated", ""),
    ("PodFailed, later", "fail", [{"event": "PodFailed", "action": TERMINATE, **MINUTE}], "Running", "Terminated"),
    ("exit code, at once", "fail", [{"exitCode": 1, "action": ABORT}], "Aborted", ""),
    ("exit code, later", "fail", [{"exitCode": 1, "action": ABORT, **MINUTE}], "Running", "Aborted"),
    ("another exit code", "fail", [{"exitCode": 3, "action": ABORT}], "Running", "Running"),
    ("PodEvicted, at once", "lose", [{"event": "PodEvicted", "action": TERMINATE}], "Terminated", ""),
    ("PodEvicted, later", "lose", [{"event": "PodEvicted", "action": TERMINATE, **MINUTE}], "Running", "Terminated"),
    ("TaskCompleted, at once", "done", [{"event": "TaskCompleted", "action": COMPLETE}], "Completed", ""),
    (
        "TaskCompleted, later",
        "done",
        [{"event": "TaskCompleted", "action": COMPLETE, **MINUTE}],
        "Running",
        "Completed",
    ),
    ("TaskFailed, at once", "crash", [{"event": "TaskFailed", "action": ABORT}], "Aborted", ""),
    ("TaskFailed, later", "crash", [{"event": "TaskFailed", "action": ABORT, **MINUTE}], "Running", "Aborted"),
    ("* for a failure", "fail", [{"event": "*", "action": ABORT}], "Aborted", ""),
    ("* for a failure, later", "fail", [{"event": "*", "action": ABORT, **MINUTE}], "Running", "Aborted"),
    ("* for an eviction, later", "lose", [{"event": "*", "action": ABORT, **MINUTE}], "Running", "Aborted"),
    (
        "* for a task that is done, later",
        "done",
        [{"event": "*", "action": COMPLETE, **MINUTE}],
        "Running",
        "Completed",
    ),
    (
        "a list of events",
        "lose",
        [{"events": ["PodFailed", "PodEvicted"], "action": TERMINATE, **MINUTE}],
        "Running",
        "Terminated",
    ),
    (
        "the first that matches",
        "fail",
        [{"event": "PodFailed", "action": ABORT}, {"exitCode": 1, "action": TERMINATE}],
        "Aborted",
        "",
    ),
]
HAPPENS = {
    "fail": lambda world: end(world, "worker-0"),
    "lose": lambda world: lose(world, "worker-0"),
    "done": lambda world: end(world, "worker-0", "worker-1", code=0),
    "crash": lambda world: crash_in_place(world, "worker-1", 3),
}


@pytest.mark.parametrize("level", ["task", "job"])
@pytest.mark.parametrize(
    ("what", "policies", "now", "then"), [row[1:] for row in POLICIES], ids=[r[0] for r in POLICIES]
)
def test_policy_handles_event_after_its_timeout(
    what: str, policies: list[Doc], now: str, then: str, level: str
) -> None:
    restart = "OnFailure" if what == "crash" else "Never"
    other = task("server", 1)
    if level == "task":
        document = job(task("worker", 2, *policies, restart=restart), other)
    else:
        document = job(task("worker", 2, restart=restart), other, policies=tuple(policies))
    world = started(document)
    HAPPENS[what](world)
    assert phase(world) in (now, "Pending" if now == "Running" else now)
    later(world, 59)
    assert phase(world) in (now, "Pending" if now == "Running" else now)
    later(world, 2)
    assert phase(world) == (then or now)


def test_pod_that_runs_again_in_time_cancels_action_for_eviction() -> None:
    """CleanPodDelayActionsIfNeed: PodRunning of the same pod cancels the action of PodEvicted."""
    world = started(job(task("worker", 2, {"event": "PodEvicted", "action": "RestartJob", "timeout": "5m"})))
    lose(world, "worker-0")
    assert world.has("worker-0"), "it is created anew meanwhile"
    run(world)
    later(world, 3600)
    assert (phase(world), world.status["version"], world.status["retryCount"]) == ("Running", 0, 0)


def test_repeated_evictions_fail_job_at_max_disruptions() -> None:
    """Volcano recreates the pods without limit."""
    document = job(task("worker", 2, {"event": "PodEvicted", "action": "RestartJob", "timeout": "5m"}))
    document["metadata"]["annotations"] = {"tf-dist.dev/max-disruptions": "3"}
    world = started(document)
    for _ in range(3):
        lose(world, "worker-0")
        run(world)
    assert (phase(world), world.memory.total_disruptions, world.status["version"]) == ("Running", 3, 0)
    lose(world, "worker-0")
    assert (phase(world), world.memory.reason) == ("Failed", "MaxDisruptionsExceeded")
    assert "disrupted 3 times before" in world.memory.message


def test_pod_that_does_not_run_again_in_time_triggers_action() -> None:
    world = started(job(task("worker", 2, {"event": "PodEvicted", "action": "RestartJob", "timeout": "5m"})))
    lose(world, "worker-0")
    later(world, 301)
    run(world)
    assert (phase(world), world.status["version"], world.status["retryCount"]) == ("Running", 1, 1)


def test_executed_action_cancels_delayed_action_for_eviction() -> None:
    """cleanupDelayActions: an executed action cancels the delayed actions of its level."""
    policies = (
        {"event": "PodEvicted", "action": "TerminateJob", "timeout": "5m"},
        {"event": "PodFailed", "action": "RestartJob"},
    )
    world = started(job(task("worker", 2), policies=policies))
    lose(world, "worker-0")
    end(world, "worker-1")
    run(world)
    later(world, 3600)
    assert phase(world) == "Running"


def test_policy_timeout_survives_restart_of_controller() -> None:
    """The original keeps its timers in memory and loses them. Here, the time is stored in the status."""
    world = started(
        job(task("worker", 2, {"event": "TaskCompleted", "action": COMPLETE, "timeout": "1m"}), task("ps", 1))
    )
    end(world, "worker-0", "worker-1", code=0)
    assert list(world.status["tfDist"]["policyTimeouts"]) == ["TaskCompleted worker 1.0"]
    world.remembered = None
    later(world, 61)
    assert phase(world) == "Completed"


# Simultaneous failures cost one retry: the first leads to Restarting, and in this phase the others are not charged.
@pytest.mark.parametrize("action", ["RestartJob", "RestartTask", "RestartPod"])
def test_simultaneous_failures_cost_one_retry(action: str) -> None:
    world = started(job(task("a", 2), task("b", 2), policies=({"event": "PodFailed", "action": action},), maxRetry=3))
    end(world, "a-0", "a-1", "b-0", "b-1")
    assert world.status["retryCount"] == 1
    later(world, 1000)
    run(world)
    assert phase(world) == "Running"


def test_failure_while_job_is_restarting_costs_no_retry() -> None:
    world = started(job(task("a", 3), policies=({"event": "PodFailed", "action": "RestartPod"},), maxRetry=2))
    world.end(world.pods["job1-a-0"], 1)
    world.step()
    assert phase(world) == "Restarting"
    world.end(world.pods["job1-a-1"], 1)
    world.step()
    assert (phase(world), world.status["retryCount"]) == ("Restarting", 1)
    later(world, 1000)
    run(world)
    assert phase(world) == "Running"
    end(world, "a-2")
    assert (phase(world), world.status["retryCount"]) == ("Failed", 2)


@pytest.mark.parametrize("retries", [1, 2, 3])
@pytest.mark.parametrize("action", ["RestartJob", "RestartTask", "RestartPod"])
def test_job_fails_when_retry_count_reaches_max_retry(action: str, retries: int) -> None:
    """e2e jobp/job_restart: with maxRetry 2, the job fails with a retryCount of 2."""
    policy = {"event": "PodFailed", "action": action}
    world = started(job(task("a", 1), policies=(policy,), maxRetry=retries))
    for attempt in range(1, retries + 1):
        end(world, "a-0")
        assert world.status["retryCount"] == attempt
        later(world, 1000)
        run(world)
    assert phase(world) == "Failed"


def test_eviction_handled_by_policy_is_counted_and_not_charged() -> None:
    world = started(job(task("a", 1), policies=({"event": "PodEvicted", "action": "RestartJob"},), maxRetry=2))
    for count in (1, 2, 3):
        lose(world, "a-0")
        later(world, 1000)
        run(world)
        assert (phase(world), world.status["retryCount"]) == ("Running", count)


def test_pod_replaced_without_policy_is_not_a_retry() -> None:
    world = started(job(task("a", 2)))
    lose(world, "a-0")
    run(world)
    assert (phase(world), world.status["retryCount"]) == ("Running", 0)


def test_terminating_counts_pods_of_every_attempt() -> None:
    world = started(job(task("a", 3), policies=({"event": "PodFailed", "action": "RestartJob"},)))
    world.end(world.pods["job1-a-0"], 1)
    world.step()
    assert world.status["terminating"] == 3
    world.settle()
    assert "terminating" not in world.status


def test_repeated_phase_is_last_condition() -> None:
    """appendJobCondition: the older entry of the same phase is removed, and the new entry is appended."""
    world = started(job(task("a", 1), policies=({"event": "PodFailed", "action": "RestartJob"},)))
    end(world, "a-0")
    later(world, 1000)
    run(world)
    assert [one["status"] for one in world.status["conditions"]][-1] == "Running"
    assert len({one["status"] for one in world.status["conditions"]}) == len(world.status["conditions"])
    assert "Restarting" in [one["status"] for one in world.status["conditions"]]


def test_controlled_resources_name_plugins_and_claims() -> None:
    volumes = [{"mountPath": "/data", "volumeClaimName": "claim"}]
    plugins: Doc = {"env": [], "svc": [], "tensorflow": []}
    world = started(job(task("worker", 2), plugins=plugins, volumes=volumes))
    assert world.status["controlledResources"] == {
        "plugin-env": "env",
        "plugin-svc": "svc",
        "plugin-tensorflow": "tensorflow",
        "volume-pvc-claim": "claim",
    }


@pytest.mark.parametrize("action", [ABORT, TERMINATE])
def test_policy_that_stops_job_after_failure_emits_warning(action: str) -> None:
    world = started(job(task("worker", 1, {"event": "PodFailed", "action": action})))
    world.end(world.pods["job1-worker-0"], 1)
    told = [(one.type, one.reason) for one in world.look().actions if isinstance(one, EmitEvent)]
    assert ("Warning", "PodFailed") in told

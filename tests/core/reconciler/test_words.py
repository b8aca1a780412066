"""Messages about restarts: successes and evictions are not called failures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.builders import NEVER, ON_FAILURE, replicas, v1_job, volcano_job
from tests.core.reconciler.scenarios import lose, started
from tests.core.world import World
from tf_dist.core.diagnostics.diagnose import Diagnosis, diagnose
from tf_dist.core.model.assignment import Preempt
from tf_dist.core.model.context import EmitEvent
from tf_dist.core.model.job import Action, CleanPodPolicy, DisruptionPolicy, Event, JobKey, Rule, RunPolicy
from tf_dist.core.model.pods import pod_view
from tf_dist.core.model.reasons import Category, Reason
from tf_dist.core.model.status import Phase


def explain(world: World) -> tuple[Diagnosis, ...]:
    views = (pod_view(pod, "tensorflow") for pod in world.pods.values())
    return diagnose(world.job, world.memory, tuple(view for view in views if view is not None), world.now)


def test_success_restarted_by_restart_policy_is_not_called_failure() -> None:
    workers = replicas("Worker", 1, rules=ON_FAILURE, pod_restart_policy="Always")
    world = started(v1_job(workers, policy=RunPolicy(max_restarts=2)))
    for _ in range(3):
        world.restart_container(world.pods["mnist-worker-0"], 0)
        world.settle()
    [end, *_] = explain(world)
    assert end.summary == (
        "worker-0 succeeded (exit code 0), 3 times, and its restartPolicy Always starts it again; no restart is left "
        "(spent 3)"
    )
    assert end.category is Category.BUDGET
    assert world.memory.failure is not None
    assert world.memory.failure.event == Reason.REPLICA_SUCCEEDED
    assert "nothing failed" in end.resolution
    assert "kept failing" not in end.resolution


def test_success_restarted_by_volcano_policy_is_not_called_failure() -> None:
    rules = (Rule(events=frozenset({Event.TASK_COMPLETED}), action=Action.RESTART_JOB),)
    policy = RunPolicy(clean_pods=CleanPodPolicy.NONE, max_restarts=1, failures_count_together=True)
    world = started(volcano_job(replicas("worker", 1, rules=()), rules=rules, run_policy=policy))
    for _ in range(2):
        [pod] = world.pods.values()
        world.run(pod)
        world.end(pod, 0)
        world.settle()
        world.now += 1000
        world.settle()
    [end, *_] = explain(world)
    assert (world.memory.reason, end.category) == ("BackoffLimitExceeded", Category.BUDGET)
    assert end.summary == "the worker replica succeeded; no restart is left (spent 1)"
    assert "nothing failed" in end.resolution
    assert "kept failing" not in end.resolution


def events(world: World) -> list[tuple[str, str]]:
    return [(one.reason, one.message) for one in world.look().actions if isinstance(one, EmitEvent)]


def test_event_of_eviction_does_not_say_that_replicas_failed() -> None:
    world = started(v1_job())
    world.vanish(world.pods["mnist-worker-1"])
    found = dict(events(world))
    assert found["TFJobRestarting"].startswith("TFJob mnist is restarting: worker-1 was deleted from node n1")
    world.step()
    condition = next(one for one in world.status["conditions"] if one["type"] == "Restarting")
    assert condition["message"] == found["TFJobRestarting"]


def test_event_of_job_ended_by_eviction_names_eviction() -> None:
    policy = RunPolicy(on_eviction=DisruptionPolicy.FAIL)
    world = started(v1_job(replicas("Worker", 2, rules=NEVER), policy=policy))
    pod = world.pods["mnist-worker-1"]
    world.evict(pod)
    found = dict(events(world))
    assert found["TFJobFailed"] == "TFJob default/mnist has failed: worker-1 was evicted from node n1 (Evicted)."


@pytest.mark.parametrize(
    ("by", "queue", "who"),
    [
        (JobKey("default", "urgent"), "ml", "default/urgent"),
        (JobKey("rival", "secret-model"), "shared", "a job of queue shared"),
        (JobKey("rival", "secret-model"), "", "a job of another namespace"),
    ],
)
def test_preempted_job_does_not_name_job_of_other_namespace(by: JobKey, queue: str, who: str) -> None:
    world = started(v1_job())
    world.verdict = Preempt(by=by, queue=queue, message="its priority is higher (5 > 0)")
    found = dict(events(world))
    said = f"gave up its admission to {who}: its priority is higher (5 > 0)"
    assert found["Preempted"] == said
    world.settle()
    assert world.memory.phase is Phase.PENDING
    assert "secret-model" not in str(world.status)


def held(world: World, pod: dict[str, Any], finalizers: list[str], *, since: float) -> None:
    """A pod of the previous attempt still exists, and its grace period ended ``since`` seconds ago."""
    pod["metadata"] |= {"deletionTimestamp": "2027-01-15T08:00:00Z", "finalizers": finalizers}
    world.pods[pod["metadata"]["name"]] = pod
    world.now = pod_stops(pod) + since


def pod_stops(pod: dict[str, Any]) -> float:
    view = pod_view(pod, "tensorflow")
    assert view is not None
    assert view.stops_at is not None
    return view.stops_at


@pytest.mark.parametrize("since", [-10.0, 1000.0])
def test_diagnosis_names_finalizer_that_keeps_stopped_pod(since: float) -> None:
    """Neither the grace period nor the node is the cause, so users need not check the node."""
    world = started(v1_job(replicas("Worker", 1, rules=ON_FAILURE)))
    pod = world.pods["mnist-worker-0"]
    world.end(pod, 1)
    world.step()
    held(world, pod, ["example.com/backup"], since=since)
    world.step()
    said = [one for one in explain(world) if one.category in (Category.STOPPING, Category.NODE_LOST)]
    assert [(one.category, one.summary) for one in said] == [
        (
            Category.STOPPING,
            "pod mnist-worker-0 has stopped and is kept by the finalizer example.com/backup; its replica starts again "
            "when it is gone",
        )
    ]
    assert "finalizer" in said[0].resolution


def test_running_pod_with_finalizer_gets_its_grace_period() -> None:
    world = started(v1_job(replicas("Worker", 1, rules=ON_FAILURE)))
    pod = world.pods["mnist-worker-0"]
    lose(world, "worker-0")
    held(world, pod, ["example.com/backup"], since=-10.0)
    [said] = [one for one in explain(world) if one.category is Category.STOPPING]
    assert said.resolution == "they get their grace period"


def test_diagnosis_of_restarted_success_suggests_restart_policy() -> None:
    """This also holds while the container waits for its next start."""
    world = started(v1_job(replicas("Worker", 1, rules=ON_FAILURE, pod_restart_policy="Always")))
    world.restart_container(world.pods["mnist-worker-0"], 0)
    status = world.pods["mnist-worker-0"]["status"]["containerStatuses"][0]
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    world.settle()
    first = explain(world)[0]
    assert first.resolution == "nothing failed; use restartPolicy OnFailure or Never"

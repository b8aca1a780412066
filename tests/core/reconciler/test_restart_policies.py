"""Restarts: which policy applies to which event, what restarts cost, and what they wait for."""

from __future__ import annotations

import pytest

from tests.core.builders import (
    EXIT_CODE,
    FAILED,
    ON_FAILURE,
    replicas,
    v1_job,
    volcano_job,
)
from tests.core.reconciler.scenarios import again, end, ended, lose, started
from tests.core.world import World
from tf_dist.core.model.context import Create
from tf_dist.core.model.job import (
    Action,
    CleanPodPolicy,
    Event,
    Rule,
    RunPolicy,
)
from tf_dist.core.model.status import Phase


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit", "BackoffLimitExceeded"),
        ("evict", "MaxDisruptionsExceeded"),
        ("delete", "MaxDisruptionsExceeded"),
        ("node", "MaxDisruptionsExceeded"),
    ],
)
def test_failures_and_disruptions_have_separate_limits(limit: int, how: str, reason: str) -> None:
    """A limit of n allows n restarts. The two limits do not affect each other."""
    bounds = {"max_restarts": 0, "max_disruptions": 0} | {"max_restarts" if how == "exit" else "max_disruptions": limit}
    policy = RunPolicy(clean_pods=CleanPodPolicy.RUNNING, **bounds)
    world = started(v1_job(replicas("Worker", 2, rules=EXIT_CODE), policy=policy))
    for restart in range(limit + 1):
        pod = world.pods["mnist-worker-1"]
        {
            "exit": lambda pod: world.end(pod, 137),
            "evict": world.evict,
            "delete": world.remove,
            "node": world.lose_node,
        }[how](pod)
        world.settle()
        if restart < limit:
            assert world.memory.total_restarts + world.memory.total_disruptions == restart + 1
            again(world)
            assert world.memory.phase is Phase.RUNNING
    assert ended(world) == (Phase.FAILED, reason)
    spent = (world.memory.total_restarts, world.memory.total_disruptions)
    assert spent == ((limit, 0) if how == "exit" else (0, limit))


def test_kubelet_restarts_are_counted_after_pod_is_deleted() -> None:
    job = v1_job(replicas("Worker", 1, rules=ON_FAILURE), policy=RunPolicy(max_restarts=2))
    world = started(job)
    world.restart_container(world.pods["mnist-worker-0"], 1)
    world.settle()
    world.suspend(True)
    world.settle()
    world.suspend(False)
    again(world)
    assert world.memory.container_restarts == 1
    world.restart_container(world.pods["mnist-worker-0"], 1)
    world.settle()
    assert world.memory.phase is Phase.RUNNING
    world.restart_container(world.pods["mnist-worker-0"], 1)
    world.settle()
    assert world.memory.phase is Phase.FAILED


def test_finished_job_keeps_count_of_kubelet_restarts() -> None:
    world = started(v1_job(replicas("PS", 1, rules=ON_FAILURE), replicas("Worker", 1)))
    world.restart_container(world.pods["mnist-ps-0"], 137)
    world.settle()
    world.end(world.pods["mnist-worker-0"], 0)
    world.settle()
    assert "mnist-ps-0" not in world.pods
    assert world.memory.container_restarts == 1


def test_first_restart_is_immediate_and_later_restarts_back_off() -> None:
    world = started(v1_job(replicas("Worker", 1, rules=ON_FAILURE)))
    waits = []
    for _ in range(7):
        world.pods["mnist-worker-0"]["status"] = {"phase": "Failed"}
        plan = world.settle()
        waits.append(0.0 if plan.wake_at is None else plan.wake_at - world.now)
        world.now = plan.wake_at or world.now
        world.settle()
    assert waits == pytest.approx([0, 10, 20, 40, 80, 160, 300])


def test_backoff_resets_after_healthy_run_even_if_pod_is_gone() -> None:
    world = started(v1_job(replicas("Worker", 1, rules=ON_FAILURE)))
    lose(world, "worker-0")
    again(world)
    world.now += 700
    lose(world, "worker-0")
    assert world.memory.backoffs["worker-0"].count == 1


def test_new_pod_waits_until_old_pod_is_gone() -> None:
    world = started(v1_job(replicas("Worker", 2, rules=ON_FAILURE)))
    world.lose_node(world.pods["mnist-worker-1"])
    world.step()
    world.step()
    assert "deletionTimestamp" in world.pods["mnist-worker-1"]["metadata"]
    assert not world.step()
    world.remove(world.pods["mnist-worker-1"])
    world.settle()
    assert world.pods["mnist-worker-1"]["metadata"]["labels"]["tf-dist.dev/attempt"] == "1.0.1"


def test_restarted_task_waits_until_all_its_old_pods_are_gone() -> None:
    rule = Rule(events=FAILED, action=Action.RESTART_TASK)
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=(rule,))))
    world.end(world.pods["tf-dist-mnist-worker-1"], 1)
    world.step()
    assert not world.has("worker-1")
    created = [action for action in world.look().actions if isinstance(action, Create)]
    assert not created, "worker-0 of the old attempt is still stopping"
    world.settle()
    assert world.has("worker-1")


def test_two_events_of_one_replica_cost_one_restart() -> None:
    rule = Rule(events=frozenset({Event.POD_PENDING, Event.UNKNOWN}), action=Action.RESTART_POD, timeout=5)
    world = World(volcano_job(replicas("worker", 2, rules=(rule,))))
    world.settle()
    world.run(world.pods["tf-dist-mnist-worker-0"])
    world.hold_back(world.pods["tf-dist-mnist-worker-1"])
    world.now += 10
    world.step()
    assert world.memory.total_restarts == 1


def test_restart_job_reruns_succeeded_replicas() -> None:
    evicted = Rule(events=frozenset({Event.POD_EVICTED}), action=Action.RESTART_JOB)
    world = started(volcano_job(rules=(evicted,)))
    end(world, "worker-0")
    lose(world, "ps-0")
    attempts = {pod["metadata"]["labels"]["tf-dist.dev/attempt"] for pod in world.pods.values()}
    assert (len(world.pods), attempts) == (3, {"2.0.0"})
    assert world.memory.succeeded == frozenset()


def test_restart_task_does_not_restart_other_tasks() -> None:
    rule = Rule(events=FAILED, action=Action.RESTART_TASK)
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=(rule,))))
    end(world, "worker-1", 1)
    attempts = {name: pod["metadata"]["labels"]["tf-dist.dev/attempt"] for name, pod in world.pods.items()}
    assert attempts == {
        "tf-dist-mnist-ps-0": "1.0.0",
        "tf-dist-mnist-worker-0": "1.1.0",
        "tf-dist-mnist-worker-1": "1.1.0",
    }


@pytest.mark.parametrize("action", [Action.RESTART_POD, Action.RESTART_TASK, Action.RESTART_JOB])
@pytest.mark.parametrize("event", list(Event))
def test_every_restart_action_stays_within_budget_for_every_event(event: Event, action: Action) -> None:
    rule = Rule(events=frozenset({event}), action=action, timeout=5 if event is Event.POD_PENDING else 0)
    job = volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=(rule,), container_restarts=1))
    world = started(job)
    for _ in range(5):
        for pod in [pod for pod in world.pods.values() if "worker" in pod["metadata"]["name"]]:
            {
                Event.POD_FAILED: lambda pod: world.end(pod, 1),
                Event.POD_EVICTED: world.evict,
                Event.POD_PENDING: lambda pod: None,
                Event.NODE_LOST: world.lose_node,
                Event.TASK_COMPLETED: lambda pod: world.end(pod, 0),
                Event.TASK_FAILED: lambda pod: world.restart_container(pod, 1),
                Event.UNKNOWN: world.hold_back,
            }[event](pod)
        world.settle()
        again(world)
    assert sum(world.memory.restarts.values()) <= 2


def test_task_failed_counts_kubelet_restarts_of_all_replicas() -> None:
    rule = Rule(events=frozenset({Event.TASK_FAILED}), action=Action.TERMINATE_JOB)
    world = started(volcano_job(replicas("worker", 2, rules=(rule,), container_restarts=3)))
    for name in ("tf-dist-mnist-worker-0", "tf-dist-mnist-worker-1"):
        world.restart_container(world.pods[name], 1)
    world.settle()
    assert world.memory.phase is Phase.RUNNING
    world.restart_container(world.pods["tf-dist-mnist-worker-1"], 1)
    world.settle()
    assert ended(world) == (Phase.TERMINATED, "TaskFailed")


def test_evicted_pod_without_policy_returns_without_charge() -> None:
    world = started(volcano_job(rules=(Rule(events=frozenset(), action=Action.ABORT_JOB),)))
    for _ in range(4):
        world.evict(world.pods["tf-dist-mnist-worker-1"])
        world.settle()
        again(world)
    assert world.memory.phase is Phase.RUNNING
    assert world.memory.total_restarts == 0

"""What holds in all phases: no pass without a reason writes, and nothing of others is touched."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.builders import (
    FAILED,
    NEVER,
    START,
    observed,
    replicas,
    v1_job,
    v1alpha1_job,
    volcano_job,
)
from tests.core.reconciler.scenarios import end, ended, started
from tests.core.world import WAIT, World
from tf_dist.core.api.assignment import Admit
from tf_dist.core.api.context import Create, Delete, DeleteJob
from tf_dist.core.api.job import (
    Action,
    CleanPodPolicy,
    Rule,
    RunPolicy,
)
from tf_dist.core.api.pods import DISRUPTIONS_EXCEEDED
from tf_dist.core.api.status import Phase, Status
from tf_dist.core.reconciler.reconcile import reconcile
from tf_dist.core.reconciler.sync import effective_clean_pod_policy


@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
@pytest.mark.parametrize("state", ["waiting", "pending", "running", "suspended", "completed", "failed"])
def test_a_thousand_passes_over_the_same_objects_write_nothing(make: Any, state: str) -> None:
    world = World(make())
    world.verdict = WAIT if state == "waiting" else Admit()
    world.settle()
    if state not in ("waiting", "pending"):
        world = started(make())
    lead = "master-0" if make is v1alpha1_job else "worker-0"
    match state:
        case "suspended":
            world.suspend(True)
        case "completed" | "failed":
            for replica in (lead, "worker-1"):
                if world.pod(replica):
                    world.end(world.pod(replica) or {}, 0 if state == "completed" else 1)
    world.settle()
    for _ in range(1000):
        world.now += 7.77
        assert world.look().actions == ()


def test_a_job_of_another_controller_is_left_alone() -> None:
    job = v1_job(managed_elsewhere=True)
    assert reconcile(job, observed(job)).actions == ()


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    assert reconcile(v1_job(), observed(v1_job(), deleting=True)).actions == ()


def test_what_another_operator_said_about_a_job_it_ended_is_left_as_it_is() -> None:
    stored = {
        "conditions": [{"type": "Failed", "status": "True", "reason": "TFJobFailed", "message": "because"}],
        "completionTime": "2027-01-15T08:00:00Z",
    }
    job = v1_job(policy=RunPolicy(ttl=3600))
    plan = reconcile(job, observed(job, status=stored))
    assert plan.actions == ()
    assert plan.wake_at == START + 3600
    assert reconcile(job, observed(job, status=stored, at=3600)).actions == (DeleteJob(),)


def test_a_worker_that_is_scaled_away_goes_with_its_service_and_may_come_back() -> None:
    world = started(v1_job(replicas("PS", 1), replicas("Worker", 3)))
    world.scale("worker", 2)
    world.settle()
    assert set(world.pods) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    assert ("Service", "mnist-worker-2") not in world.objects
    world.scale("worker", 3)
    world.settle()
    assert world.pod("worker-2") is not None
    assert world.memory.total_restarts == 0


def test_the_host_files_follow_the_number_of_workers() -> None:
    world = started(volcano_job())
    world.scale("worker", 1)
    world.settle()
    data = world.objects["ConfigMap", "tf-dist-mnist-svc"]["data"]
    assert data["worker.host"] == "tf-dist-mnist-worker-0.tf-dist-mnist"


def test_of_two_pods_for_one_replica_one_goes() -> None:
    world = started(v1_job(replicas("Worker", 1)))
    double = {**world.pods["mnist-worker-0"], "metadata": {**world.pods["mnist-worker-0"]["metadata"]}}
    double["metadata"] |= {"name": "copy", "uid": "copy"}
    world.pods["copy"] = double
    plan = world.look()
    assert [action for action in plan.actions if isinstance(action, Delete)] == [Delete("Pod", "copy", "copy")]


def test_pods_of_unknown_attempts_and_types_are_removed_before_new_ones_come() -> None:
    world = World(v1_job(replicas("Worker", 1)))
    stray = {
        "metadata": {
            "name": "stray",
            "uid": "s",
            "labels": {"tf-dist.dev/replica-type": "gone", "tf-dist.dev/replica-index": "0"},
        },
        "status": {"phase": "Running"},
    }
    plan = reconcile(world.job, observed(world.job, stray))
    assert any(action == Delete("Pod", "stray", "s") for action in plan.actions)
    assert not any(isinstance(action, Create) and action.body["kind"] == "Pod" for action in plan.actions)


def test_never_means_never_even_for_a_parameter_server() -> None:
    world = started(v1_job(replicas("PS", 1, rules=NEVER), replicas("Worker", 1)))
    end(world, "ps-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")


def test_a_tolerated_failure_of_the_only_replica_that_could_succeed_ends_the_job() -> None:
    tolerant = (Rule(events=FAILED, action=Action.IGNORE),)
    world = started(v1_job(replicas("Worker", 2, rules=tolerant)))
    end(world, "worker-1", 1)
    assert world.memory.phase is Phase.RUNNING
    end(world, "worker-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "cannot succeed" in world.memory.message


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "BackoffLimitExceeded", DISRUPTIONS_EXCEEDED])
def test_a_limit_stops_what_runs_though_the_policy_would_keep_it(reason: str) -> None:
    kept = v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.NONE))
    assert effective_clean_pod_policy(kept, Status(phase=Phase.FAILED, reason=reason)) is CleanPodPolicy.RUNNING
    assert effective_clean_pod_policy(kept, Status(phase=Phase.FAILED, reason="PodFailed")) is CleanPodPolicy.NONE
    everything = v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.ALL))
    assert effective_clean_pod_policy(everything, Status(phase=Phase.FAILED, reason=reason)) is CleanPodPolicy.ALL

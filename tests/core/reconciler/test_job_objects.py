"""The objects of a job are created and deleted according to its status."""

from __future__ import annotations

import pytest

from tests.core.builders import observed, replicas, v1_job, volcano_job
from tests.core.reconciler.scenarios import started
from tests.core.world import World, pinned_to
from tf_dist.core.model.assignment import Admit, Resize
from tf_dist.core.model.context import Create, Delete
from tf_dist.core.model.job import CleanPodPolicy, RunPolicy, Scheduling, TFConfigStyle
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import Phase, Status
from tf_dist.core.reconciler.job_objects import effective_clean_pod_policy
from tf_dist.core.reconciler.reconcile import reconcile


def test_scaled_down_worker_is_deleted_with_service_and_can_return() -> None:
    world = started(v1_job(replicas("PS", 1), replicas("Worker", 3)))
    world.scale("worker", 2)
    world.settle()
    assert set(world.pods) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    assert ("Service", "mnist-worker-2") not in world.objects
    world.scale("worker", 3)
    world.settle()
    assert world.has("worker-2")
    assert world.memory.total_restarts == 0


def test_host_files_follow_number_of_workers() -> None:
    world = started(volcano_job())
    world.scale("worker", 1)
    world.settle()
    data = world.objects["ConfigMap", "tf-dist-mnist-svc"]["data"]
    assert data["worker.host"] == "tf-dist-mnist-worker-0.tf-dist-mnist"


def test_deletes_duplicate_pod_of_replica() -> None:
    world = started(v1_job(replicas("Worker", 1)))
    double = {**world.pods["mnist-worker-0"], "metadata": {**world.pods["mnist-worker-0"]["metadata"]}}
    double["metadata"] |= {"name": "copy", "uid": "copy"}
    world.pods["copy"] = double
    plan = world.look()
    assert [action for action in plan.actions if isinstance(action, Delete)] == [Delete("Pod", "copy", "copy")]


def test_stray_pods_are_deleted_before_new_pods_are_created() -> None:
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


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "BackoffLimitExceeded", Reason.MAX_DISRUPTIONS_EXCEEDED])
def test_exceeded_limit_overrides_clean_pod_policy_none(reason: str) -> None:
    kept = v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.NONE))
    assert effective_clean_pod_policy(kept, Status(phase=Phase.FAILED, reason=reason)) is CleanPodPolicy.RUNNING
    assert effective_clean_pod_policy(kept, Status(phase=Phase.FAILED, reason="PodFailed")) is CleanPodPolicy.NONE
    everything = v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.ALL))
    assert effective_clean_pod_policy(everything, Status(phase=Phase.FAILED, reason=reason)) is CleanPodPolicy.ALL


@pytest.mark.parametrize("stay", [1, 3])
def test_new_pod_waits_until_scaled_down_pod_leaves_node(stay: int) -> None:
    workers = replicas("Worker", 6, min_replicas=1, max_replicas=6)
    world = World(v1_job(workers, tf_config=TFConfigStyle.SPARSE, scheduling=Scheduling(min_available=1)))
    world.verdict = Admit(sizes={"worker": stay + 1}, placement={"worker": {"n1": stay + 1}})
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    leaving = world.pods[f"mnist-worker-{stay}"]
    for index in range(stay):
        world.vanish(world.pods[f"mnist-worker-{index}"])
    world.verdict = Resize(sizes={"worker": stay}, placement={"worker": {"n1": stay}}, message="others wait")
    for _ in range(5):
        world.step()
    assert sorted(world.pods) == [*(f"mnist-worker-{index}" for index in range(stay - 1)), f"mnist-worker-{stay}"]
    assert "deletionTimestamp" in leaving["metadata"]
    world.remove(leaving)
    world.step()
    assert {name: pinned_to(pod) for name, pod in world.pods.items()} == {
        f"mnist-worker-{index}": "n1" for index in range(stay)
    }

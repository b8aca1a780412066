"""How jobs start, succeed and fail, by the rules of a TFJob."""

from __future__ import annotations

import pytest

from tests.core.builders import (
    observed,
    v1_job,
    v1alpha1_job,
)
from tests.core.reconciler.scenarios import KEEP, again, end, ended, lose, started
from tests.core.world import WAIT, World
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.context import Create, WriteStatus
from tf_dist.core.model.job import (
    CleanPodPolicy,
    RunPolicy,
    SuccessRule,
)
from tf_dist.core.model.status import Phase
from tf_dist.core.reconciler.reconcile import reconcile


def test_creates_no_pods_or_services_before_admission() -> None:
    world = World(v1_job())
    world.verdict = WAIT
    world.settle()
    assert (world.pods, world.objects) == ({}, {})
    assert (world.memory.phase, world.memory.reason, world.memory.message) == (Phase.PENDING, WAIT.reason, WAIT.message)
    world.verdict = Admit()
    world.settle()
    assert len(world.pods) == len(world.objects) == 3


def test_status_is_written_before_objects_are_created() -> None:
    plan = reconcile(v1_job(), observed(v1_job()))
    kinds = [type(action) for action in plan.actions]
    assert kinds[0] is WriteStatus
    assert kinds == [WriteStatus] + [Create] * 6
    bodies = [action.body["kind"] for action in plan.actions if isinstance(action, Create)]
    assert bodies == ["Service"] * 3 + ["Pod"] * 3


def test_failed_worker_fails_v1_job_with_replica_and_exit_code() -> None:
    world = started(v1_job())
    end(world, "worker-1", 1)
    memory = world.memory
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert memory.message == "worker-1 exited with code 1"
    assert memory.failure is not None
    assert (memory.failure.replica, memory.failure.code) == ("worker-1", 1)
    assert memory.counts["worker"].failed == 1


def test_final_counts_do_not_count_stopped_pods_as_failed() -> None:
    world = started(v1_job())
    world.end(world.pods["mnist-worker-0"], 0)
    world.step()
    world.kill(world.pods["mnist-ps-0"])
    world.settle()
    counts = world.memory.counts
    assert (counts["ps"].failed, counts["worker"].failed, counts["worker"].succeeded) == (0, 0, 1)


def test_final_counts_include_failures_of_deleted_pods() -> None:
    world = started(v1_job(policy=RunPolicy(clean_pods=CleanPodPolicy.ALL)))
    end(world, "worker-1", 1)
    assert not world.pods
    assert world.memory.counts["worker"].failed == 1


def test_deleted_succeeded_pod_is_not_recreated() -> None:
    world = started(v1_job(success=(SuccessRule(type="worker"),)))
    end(world, "worker-0")
    lose(world, "worker-0")
    assert not world.has("worker-0")
    assert world.memory.counts["worker"].succeeded == 1
    end(world, "worker-1")
    assert world.memory.phase is Phase.COMPLETED


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (CleanPodPolicy.ALL, set()),
        (CleanPodPolicy.RUNNING, {"mnist-worker-0"}),
        (KEEP, {"mnist-worker-0", "mnist-worker-1", "mnist-ps-0"}),
    ],
)
def test_clean_pod_policy_applies_to_pods_and_services(policy: CleanPodPolicy, left: set[str]) -> None:
    for asked in ({}, {"tf-dist.dev/services": "headless"}):
        world = started(v1_job(policy=RunPolicy(clean_pods=policy), annotations=asked))
        end(world, "worker-0")
        assert set(world.pods) == left
        # The Service of a finished pod is useless, and must not occupy a cluster IP.
        assert {name for _, name in world.objects} == (left if asked else left - {"mnist-worker-0"})


def test_failed_v1alpha1_worker_does_not_fail_job() -> None:
    world = started(v1alpha1_job())
    end(world, "worker-0", 1)
    again(world)
    assert world.memory.phase is Phase.RUNNING
    end(world, "master-0")
    assert world.memory.phase is Phase.COMPLETED

"""Rules for all phases: unchanged objects cause no writes, and jobs of other controllers are not touched."""

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
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.context import DeleteJob
from tf_dist.core.model.job import (
    Action,
    Rule,
    RunPolicy,
)
from tf_dist.core.model.status import Phase
from tf_dist.core.reconciler.reconcile import reconcile


@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
@pytest.mark.parametrize("state", ["waiting", "pending", "running", "suspended", "completed", "failed"])
def test_reconciling_unchanged_objects_writes_nothing(make: Any, state: str) -> None:
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
                if world.has(replica):
                    world.end(world.pod(replica), 0 if state == "completed" else 1)
    world.settle()
    for _ in range(1000):
        world.now += 7.77
        assert world.look().actions == ()


def test_job_managed_by_another_controller_is_ignored() -> None:
    job = v1_job(managed_elsewhere=True)
    assert reconcile(job, observed(job)).actions == ()


def test_job_under_deletion_is_ignored() -> None:
    assert reconcile(v1_job(), observed(v1_job(), deleting=True)).actions == ()


def test_job_ended_by_another_operator_keeps_status_until_ttl() -> None:
    stored = {
        "conditions": [{"type": "Failed", "status": "True", "reason": "TFJobFailed", "message": "because"}],
        "completionTime": "2027-01-15T08:00:00Z",
    }
    job = v1_job(policy=RunPolicy(ttl=3600))
    plan = reconcile(job, observed(job, status=stored))
    assert plan.actions == ()
    assert plan.wake_at == START + 3600
    assert reconcile(job, observed(job, status=stored, at=3600)).actions == (DeleteJob(),)


def test_failed_parameter_server_with_policy_never_fails_job() -> None:
    world = started(v1_job(replicas("PS", 1, rules=NEVER), replicas("Worker", 1)))
    end(world, "ps-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")


def test_tolerated_failures_fail_job_when_success_is_impossible() -> None:
    tolerant = (Rule(events=FAILED, action=Action.IGNORE),)
    world = started(v1_job(replicas("Worker", 2, rules=tolerant)))
    end(world, "worker-1", 1)
    assert world.memory.phase is Phase.RUNNING
    end(world, "worker-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "cannot succeed" in world.memory.message

"""Suspension and resumption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import (
    FAILED,
    v1_job,
    v1alpha1_job,
    volcano_job,
)
from tests.core.reconciler.scenarios import again, end, ended, started
from tests.core.world import WAIT
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.job import (
    Action,
    Rule,
    RunPolicy,
)
from tf_dist.core.model.status import Phase


@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
def test_repeated_suspension_charges_no_restarts(make: Any) -> None:
    world = started(make())
    for _ in range(5):
        world.suspend(True)
        world.settle()
        assert ended(world) == (Phase.ABORTED, "Suspended")
        assert not world.pods
        assert world.memory.admission is None
        world.suspend(False)
        world.settle()
        again(world)
        assert world.memory.phase is Phase.RUNNING
    assert world.memory.total_restarts == 0


def test_resume_restarts_deadline() -> None:
    world = started(v1_job(policy=RunPolicy(active_deadline=100)))
    world.now += 90
    world.suspend(True)
    world.settle()
    world.now += 500
    world.suspend(False)
    plan = world.settle()
    assert plan.wake_at == pytest.approx(world.now + 100, rel=0, abs=1e-3)


def test_resume_waits_for_admission_and_until_old_pods_are_gone() -> None:
    world = started(v1_job())
    world.suspend(True)
    world.step()
    world.suspend(False)
    world.verdict = WAIT
    world.step()
    assert (world.memory.phase, world.memory.reason) == (Phase.PENDING, WAIT.reason)
    world.verdict = Admit()
    world.step()
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods.values())
    world.settle()
    assert {pod["metadata"]["labels"]["tf-dist.dev/attempt"] for pod in world.pods.values()} == {"2.0.0"}


def test_aborted_job_resumes_only_if_its_current_attempt_is_named() -> None:
    rule = Rule(events=FAILED, action=Action.ABORT_JOB)
    world = started(volcano_job(rules=(rule,)))
    end(world, "worker-0", 1)
    assert ended(world) == (Phase.ABORTED, "PodFailed")
    world.job = replace(world.job, annotations={"tf-dist.dev/resume-attempt": "7"})
    assert not world.look().actions
    world.job = replace(world.job, annotations={"tf-dist.dev/resume-attempt": "1"})
    world.settle()
    assert world.memory.attempts.job == 2
    assert len(world.pods) == 3
    end_again = world.pods["tf-dist-mnist-worker-0"]
    world.run(end_again)
    world.end(end_again, 1)
    world.settle()
    assert world.memory.phase is Phase.ABORTED, "the resume was for the attempt before"

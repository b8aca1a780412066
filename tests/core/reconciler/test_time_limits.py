"""Deadlines, times to live, timeouts of policies, and pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import (
    ON_FAILURE,
    replicas,
    v1_job,
    volcano_job,
)
from tests.core.reconciler.stories import end, ended, started
from tests.core.world import WAIT, World
from tf_dist.core.api.assignment import Admit
from tf_dist.core.api.context import DeleteJob, WriteStatus
from tf_dist.core.api.job import (
    Action,
    Backoff,
    CleanPodPolicy,
    Event,
    Rule,
    RunPolicy,
)
from tf_dist.core.api.status import Phase


def test_a_deadline_fires_on_time_and_counts_from_admission() -> None:
    world = World(v1_job(policy=RunPolicy(active_deadline=100)))
    world.verdict = WAIT
    world.settle()
    world.now += 5000
    assert world.settle().wake_at is None
    world.verdict = Admit()
    plan = world.settle()
    assert plan.wake_at == pytest.approx(world.now + 100)
    world.now = plan.wake_at - 0.001
    assert not world.look().actions
    world.now = plan.wake_at
    world.settle()
    assert ended(world) == (Phase.FAILED, "DeadlineExceeded")
    assert not world.pods, "what the limit was set for has to stop, whatever the clean-up policy"


@given(st.floats(1e9, 4e9), st.floats(0, 1e6))
def test_at_the_moment_a_pass_asks_to_be_woken_it_acts(now: float, limit: float) -> None:
    world = World(v1_job(policy=RunPolicy(active_deadline=limit, ttl=limit)))
    world.now = round(now, 6)
    while (plan := world.settle()).wake_at is not None:
        world.now = plan.wake_at
        assert world.look().actions
    assert world.job_gone


def test_a_finished_job_is_deleted_when_its_time_to_live_is_over() -> None:
    world = started(v1_job(policy=RunPolicy(ttl=60)))
    end(world, "worker-0")
    world.now += 59.999999
    assert not world.look().actions
    world.now += 0.000001
    assert world.look().actions == (DeleteJob(),)


def test_a_job_whose_last_pod_outlives_its_time_to_live_is_deleted_at_once() -> None:
    world = started(v1_job(policy=RunPolicy(ttl=60, clean_pods=CleanPodPolicy.ALL)))
    world.end(world.pods["mnist-worker-0"], 0)
    world.step()
    world.now += 100
    for pod in list(world.pods.values()):
        world.remove(pod)
    plan = world.look()
    assert isinstance(plan.actions[0], WriteStatus)
    assert plan.actions[-1] == DeleteJob()


def test_a_pod_that_is_pending_too_long_is_answered_when_its_timeout_is_over() -> None:
    rule = Rule(events=frozenset({Event.POD_PENDING}), action=Action.ABORT_JOB, timeout=60)
    world = World(volcano_job(rules=(rule,)))
    plan = world.settle()
    assert plan.wake_at is not None
    world.now = plan.wake_at
    world.settle()
    assert ended(world) == (Phase.ABORTED, "PodPending")


@given(st.floats(1e9, 4e9), st.floats(0.000001, 1e6))
def test_a_pause_is_stored_as_exactly_as_it_is_kept(now: float, base: float) -> None:
    policy = RunPolicy(backoff=Backoff(base=base, healthy=1e9))
    world = World(v1_job(replicas("Worker", 1, rules=ON_FAILURE), policy=policy))
    world.now = round(now, 6)
    world.settle()
    for count in range(1, 4):
        world.remove(world.pods["mnist-worker-0"])
        plan = world.settle()
        assert world.memory.backoffs == plan.status.backoffs
        assert world.memory.backoffs["worker-0"].count == count
        world.now = plan.wake_at or world.now
        world.settle()

"""Future times in a status delay nothing. They occur if a clock was ahead, or was set back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import ON_FAILURE, replicas, v1_job
from tests.core.world import World
from tf_dist.core.model.job import DEFAULT_SCHEDULE_TIMEOUT, RunPolicy, SuccessRule
from tf_dist.core.model.status import Admission, Failure, Phase, RestartBackoff, Status
from tf_dist.core.reconciler.gang_rules import NODE_EXCLUDED_FOR, requeue_backoff
from tf_dist.core.reconciler.job_context import CLOCK_SKEW_TOLERANCE, without_clock_skew
from tf_dist.core.reconciler.reconcile import SHOWN_WITHIN

AHEAD = st.one_of(st.floats(0, 2 * CLOCK_SKEW_TOLERANCE), st.floats(0, 1e9), st.floats(-1e9, 0))
NOW = 1_800_000_000.0


def world(*, deadline: float | None = None) -> World:
    workers = replicas("Worker", 4, rules=ON_FAILURE)
    policy = RunPolicy(active_deadline=deadline, ttl=60.0)
    made = World(v1_job(workers, policy=policy, success=(SuccessRule(type="worker"),)), gathers=True)
    made.settle()
    for pod in list(made.pods.values()):
        made.run(pod)
    made.settle()
    return made


def set_back(made: World, seconds: float = 3600.0) -> None:
    """Continue with a controller whose clock is behind."""
    made.now -= seconds
    made.remembered = None


def test_finished_worker_is_reported_in_time_after_clock_is_set_back() -> None:
    made = world()
    set_back(made)
    made.end(next(iter(made.pods.values())), 0)
    made.settle()
    plan = made.look()
    assert len(made.memory.succeeded) == 1 or (plan.wake_at or made.now) <= made.now + SHOWN_WITHIN


def test_deadline_is_not_delayed_when_clock_is_set_back() -> None:
    made = world(deadline=100.0)
    set_back(made)
    made.settle()
    made.now += 100
    made.settle()
    assert made.memory.phase is Phase.FAILED


def test_ttl_is_not_delayed_when_clock_is_set_back() -> None:
    made = world()
    for pod in list(made.pods.values()):
        made.end(pod, 0)
    made.settle()
    assert made.memory.finished
    set_back(made)
    made.settle()
    made.now += 60
    made.settle()
    assert made.job_gone


def test_restart_backoff_is_not_extended_when_clock_is_set_back() -> None:
    made = world()
    while made.has("worker-0"):
        pod = made.pod("worker-0")
        made.run(pod)
        made.end(pod, 1)
        made.settle()
    (pause,) = made.memory.backoffs.values()
    set_back(made)
    made.settle()
    made.now += made.job.run_policy.backoff.delay(pause.count)
    made.settle()
    assert made.has("worker-0")


@pytest.mark.parametrize("requeues", [1, 3])
def test_requeue_backoff_is_not_extended_when_clock_is_set_back(requeues: int) -> None:
    made = World(v1_job(), gathers=True)
    made.schedules = False
    made.settle()
    for count in range(requeues):
        made.now = max(made.now, made.memory.not_before) + (1 if count else 0)
        made.settle()
        made.now += DEFAULT_SCHEDULE_TIMEOUT + 1
        made.settle()
    assert made.memory.requeues == requeues
    set_back(made)
    made.settle()
    assert made.memory.not_before <= made.now + requeue_backoff(made.job.uid, requeues) + CLOCK_SKEW_TOLERANCE


@given(AHEAD, AHEAD, AHEAD, st.integers(0, 9), st.integers(1, 9))
def test_future_times_of_status_are_bounded(one: float, two: float, three: float, requeues: int, count: int) -> None:
    job = v1_job()
    status = Status(
        since=NOW + one,
        created=NOW + two,
        start_time=NOW + three,
        completion_time=NOW + one,
        admission=Admission(at=NOW + two, resized=NOW + three, complete=NOW + one),
        failure=Failure(event="PodFailed", at=NOW + two),
        backoffs={"": RestartBackoff(count, NOW + three)},
        policy_timeouts={"PodEvicted worker-0 1.0.0": NOW + one},
        requeues=requeues,
        not_before=NOW + one,
        refused_nodes={"n1": NOW + two},
    )
    bounded = without_clock_skew(job, status, NOW)
    place, failure = bounded.admission, bounded.failure
    assert place is not None
    assert failure is not None
    moments = (bounded.since, bounded.created, bounded.start_time, bounded.completion_time, place.at, place.resized)
    others = place.complete, failure.at, *bounded.policy_timeouts.values()
    assert all(moment is not None and moment <= NOW + CLOCK_SKEW_TOLERANCE for moment in (*moments, *others))
    assert bounded.not_before <= NOW + requeue_backoff(job.uid, max(1, requeues)) + CLOCK_SKEW_TOLERANCE
    assert (
        bounded.refused_nodes["n1"]
        <= NOW + requeue_backoff(job.uid, max(1, requeues)) + NODE_EXCLUDED_FOR + CLOCK_SKEW_TOLERANCE
    )
    assert bounded.backoffs[""].until <= NOW + job.run_policy.backoff.delay(count) + CLOCK_SKEW_TOLERANCE
    assert without_clock_skew(job, bounded, NOW) is bounded
    if max(one, two, three) <= CLOCK_SKEW_TOLERANCE:
        assert bounded is status


FAR = NOW + 1e6


@pytest.mark.parametrize(
    "status",
    [
        Status(since=FAR),
        Status(created=FAR),
        Status(start_time=FAR),
        Status(completion_time=FAR),
        Status(admission=Admission(at=FAR)),
        Status(admission=Admission(at=NOW, resized=FAR)),
        Status(admission=Admission(at=NOW, complete=FAR)),
        Status(admission=Admission(at=NOW, incomplete=FAR)),
        Status(failure=Failure(event="PodFailed", at=FAR)),
        Status(backoffs={"": RestartBackoff(1, FAR)}),
        Status(policy_timeouts={"PodEvicted worker-0 1.0.0": FAR}),
        Status(not_before=FAR),
        Status(refused_nodes={"n1": FAR}),
    ],
)
def test_single_future_time_is_bounded(status: Status) -> None:
    bounded = without_clock_skew(v1_job(), status, NOW)
    assert bounded != status
    assert without_clock_skew(v1_job(), bounded, NOW) is bounded

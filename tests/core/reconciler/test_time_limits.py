"""Deadlines, TTLs, policy timeouts and backoffs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import (
    EXIT_CODE,
    NEVER,
    ON_FAILURE,
    replicas,
    template,
    v1_job,
    v1alpha1_job,
    volcano_job,
)
from tests.core.reconciler.scenarios import end, ended, lose, started
from tests.core.world import WAIT, World
from tf_dist.core.diagnostics.outcome import job_outcome
from tf_dist.core.model.assignment import Admit
from tf_dist.core.model.context import DeleteJob, WriteStatus
from tf_dist.core.model.job import (
    DEFAULT_SCHEDULE_TIMEOUT,
    Action,
    Backoff,
    CleanPodPolicy,
    Event,
    Job,
    Rule,
    RunPolicy,
    SuccessRule,
)
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import Phase, outcome_kind


def test_deadline_starts_at_admission_and_fires_on_time() -> None:
    world = World(v1_job(policy=RunPolicy(active_deadline=100)))
    world.verdict = WAIT
    world.settle()
    world.now += 5000
    assert world.settle().wake_at is None
    world.verdict = Admit()
    plan = world.settle()
    assert plan.wake_at == pytest.approx(world.now + 100, rel=0, abs=1e-3)
    world.now = plan.wake_at - 0.001
    assert not world.look().actions
    world.now = plan.wake_at
    world.settle()
    assert ended(world) == (Phase.FAILED, "DeadlineExceeded")
    assert not world.pods, "what the limit was set for has to stop, whatever the clean-up policy"


BEFORE, AFTER = 99, 101  # seconds; the deadline is 100


@pytest.mark.parametrize(("at", "phase"), [(BEFORE, Phase.COMPLETED), (AFTER, Phase.FAILED)])
@pytest.mark.parametrize("make", [v1_job, v1alpha1_job, volcano_job])
def test_late_reconcile_compares_end_of_replicas_with_deadline(make: Any, at: float, phase: Phase) -> None:
    world = started(make(policy=RunPolicy(active_deadline=100)) if make is not volcano_job else volcano_with(100))
    world.now += at
    for pod in world.pods.values():
        if "-ps-" not in pod["metadata"]["name"]:
            world.end(pod, 0)
    world.now += 3600
    world.settle()
    assert world.memory.phase is phase
    assert world.memory.completion_time == world.memory.since == pytest.approx(world.now)
    assert (world.memory.reason == "DeadlineExceeded") is (at == AFTER)


def volcano_with(deadline: float) -> Job:
    return volcano_job(run_policy=RunPolicy(active_deadline=deadline, max_restarts=2))


@pytest.mark.parametrize(
    ("rules", "code", "at", "reason"),
    [
        (NEVER, 3, BEFORE, "PodFailed"),
        (EXIT_CODE, 3, BEFORE, "PodFailed"),
        # A restart would have no time left.
        (ON_FAILURE, 3, BEFORE, "DeadlineExceeded"),
        (EXIT_CODE, 137, BEFORE, "DeadlineExceeded"),
        (NEVER, 3, AFTER, "DeadlineExceeded"),
    ],
)
def test_late_reconcile_reports_failure_before_deadline_as_reason(
    rules: tuple[Rule, ...], code: int, at: float, reason: str
) -> None:
    world = started(v1_job(replicas("Worker", 2, rules=rules), policy=RunPolicy(active_deadline=100)))
    world.now += at
    world.end(world.pods["mnist-worker-1"], code)
    world.now += 3600
    world.settle()
    assert ended(world) == (Phase.FAILED, reason)


def test_replica_that_ends_after_deadline_fails_job() -> None:
    all_workers = (SuccessRule(type="worker"),)
    world = started(v1_job(replicas("Worker", 2), success=all_workers, policy=RunPolicy(active_deadline=100, ttl=50.0)))
    world.now += BEFORE
    world.end(world.pods["mnist-worker-0"], 0)
    world.now += 2
    world.end(world.pods["mnist-worker-1"], 0)
    world.now += 3600
    world.settle()
    assert ended(world) == (Phase.FAILED, "DeadlineExceeded")
    assert not world.job_gone, "its time to live counts from when it was seen to end"


def deadlines(world: World) -> dict[str, int | None]:
    return {name: pod["spec"].get("activeDeadlineSeconds") for name, pod in world.pods.items()}


@pytest.mark.parametrize(
    ("placement", "own", "seconds"),
    [
        ({"worker": {"n1": 1}}, None, 160),
        # For a gang that is admitted without nodes, the schedule timeout is added.
        ({}, None, 160 + DEFAULT_SCHEDULE_TIMEOUT),
        ({"worker": {"n1": 1}}, 30, 30),
        ({"worker": {"n1": 1}}, 9000, 160),
    ],
)
def test_pods_get_active_deadline_from_job(placement: dict[str, dict[str, int]], own: int | None, seconds: int) -> None:
    spec = {} if own is None else {"activeDeadlineSeconds": own}
    workers = replicas("Worker", 1, template=template(**spec))
    world = World(v1_job(workers, policy=RunPolicy(active_deadline=100)))
    world.verdict = Admit(placement=placement)
    world.settle()
    assert deadlines(world) == {"mnist-worker-0": seconds}


def test_later_pod_gets_remaining_deadline() -> None:
    world = started(v1_job(replicas("Worker", 2, rules=ON_FAILURE), policy=RunPolicy(active_deadline=100)))
    world.now += 40
    lose(world, "worker-1")
    assert deadlines(world)["mnist-worker-1"] == 120
    assert deadlines(started(v1_job())) == dict.fromkeys(started(v1_job()).pods)


def test_pod_that_exceeds_its_outdated_deadline_is_disrupted() -> None:
    """The deadline of the job was raised, but the deadline of an existing pod can only be lowered."""
    world = started(v1_job(replicas("Worker", 2), policy=RunPolicy(active_deadline=100)))
    world.job = replace(world.job, run_policy=RunPolicy(active_deadline=1000))
    world.now += 460
    for pod in world.pods.values():
        pod["status"] |= {"phase": "Failed", "reason": "DeadlineExceeded"}
    world.settle()
    assert world.memory.phase not in (Phase.FAILED, Phase.COMPLETED)
    assert world.memory.disruptions == {"DeadlineExceeded": 2}
    assert world.memory.charged_restarts == 0
    assert deadlines(world) == dict.fromkeys(world.pods, 600)
    world.now += 540
    world.settle()
    assert ended(world) == (Phase.FAILED, "DeadlineExceeded")


def waits(world: World, replica: str, reason: str) -> None:
    pod = world.pod(replica)
    waiting = {"reason": reason, "message": "manifest unknown"}
    pod["status"]["containerStatuses"] = [{"name": "tensorflow", "state": {"waiting": waiting}, "restartCount": 0}]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ImagePullBackOff", OutcomeKind.IMAGE_PULL_FAILED),
        ("CreateContainerConfigError", OutcomeKind.START_TIMEOUT),
        ("ContainerCreating", OutcomeKind.START_TIMEOUT),
    ],
)
def test_admitted_job_that_does_not_run_in_time_fails(reason: str, kind: OutcomeKind) -> None:
    world = World(v1_job(policy=RunPolicy(startup_timeout=600)))
    world.verdict = WAIT
    world.settle()
    world.now += 5000
    world.verdict = Admit()
    world.settle()
    waits(world, "worker-0", reason)
    world.settle()
    due = world.look().wake_at
    assert due == pytest.approx(world.now + 600, rel=0, abs=1e-3)
    world.now = due or 0.0
    world.settle()
    assert ended(world) == (Phase.FAILED, "StartTimeout")
    assert outcome_kind(world.memory) is kind
    assert not world.pods
    assert "did not run within 600 s" in world.memory.message


def test_late_reconcile_does_not_apply_startup_timeout_to_running_job() -> None:
    world = World(v1_job(policy=RunPolicy(startup_timeout=600)))
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.now += 5000
    world.settle()
    assert world.memory.phase is Phase.RUNNING


def test_time_without_nodes_counts_as_waiting() -> None:
    world = World(v1_job(replicas("Worker", 2), policy=RunPolicy(active_deadline=100)))
    world.schedules = False
    world.settle()
    asked = world.now
    world.bind(world.pods["mnist-worker-0"])
    world.hold_back(world.pods["mnist-worker-1"])
    world.settle()
    assert world.memory.reason == "Unschedulable"
    world.now += 90
    world.bind(world.pods["mnist-worker-1"])
    world.settle()
    assert world.memory.start_time == pytest.approx(asked + 90)
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    world.now += 10
    end(world, "worker-0")
    outcome = job_outcome(world.memory)
    assert outcome is not None
    assert (outcome.waited_seconds, outcome.ran_seconds) == (pytest.approx(90), pytest.approx(10))


@given(st.floats(1e9, 4e9), st.floats(0, 1e6))
def test_reconcile_acts_at_its_planned_wake_time(now: float, limit: float) -> None:
    world = World(v1_job(policy=RunPolicy(active_deadline=limit, ttl=limit)))
    world.now = round(now, 6)
    while (plan := world.settle()).wake_at is not None:
        world.now = plan.wake_at
        assert world.look().actions
    assert world.job_gone


def test_finished_job_is_deleted_at_end_of_ttl() -> None:
    world = started(v1_job(policy=RunPolicy(ttl=60)))
    end(world, "worker-0")
    world.now += 59.999999
    assert not world.look().actions
    world.now += 0.000001
    assert world.look().actions == (DeleteJob(),)


def test_job_whose_last_pod_outlives_ttl_is_deleted_immediately() -> None:
    world = started(v1_job(policy=RunPolicy(ttl=60, clean_pods=CleanPodPolicy.ALL)))
    world.end(world.pods["mnist-worker-0"], 0)
    world.step()
    world.now += 100
    for pod in list(world.pods.values()):
        world.remove(pod)
    plan = world.look()
    assert isinstance(plan.actions[0], WriteStatus)
    assert plan.actions[-1] == DeleteJob()


def test_pending_pod_policy_acts_at_its_timeout() -> None:
    rule = Rule(events=frozenset({Event.POD_PENDING}), action=Action.ABORT_JOB, timeout=60)
    world = World(volcano_job(rules=(rule,)))
    plan = world.settle()
    assert plan.wake_at is not None
    world.now = plan.wake_at
    world.settle()
    assert ended(world) == (Phase.ABORTED, "PodPending")


@given(st.floats(1e9, 4e9), st.floats(0.000001, 1e6))
def test_backoff_is_stored_exactly(now: float, base: float) -> None:
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

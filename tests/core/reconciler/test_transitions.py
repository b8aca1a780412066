"""The transition rules: they agree with the phases of a job, and the first rule that applies decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.core.builders import FAILED, ON_FAILURE, START, replicas, v1_job, volcano_job, written_status
from tests.core.world import World
from tf_dist.core.dialects.kubeflow_v1 import TOLERANT
from tf_dist.core.model.assignment import Preempt
from tf_dist.core.model.context import Observed, ReconcileContext
from tf_dist.core.model.job import (
    DEFAULT_SCHEDULE_TIMEOUT,
    Action,
    Event,
    ExitCodes,
    Job,
    JobKey,
    Rule,
    RunPolicy,
    Scheduling,
)
from tf_dist.core.model.status import ALLOWED_TRANSITIONS, LIVE, TERMINAL, Phase, Status
from tf_dist.core.reconciler.job_context import read_context
from tf_dist.core.reconciler.transitions import TRANSITION_RULES, TransitionCycle, TransitionRule, apply_transitions

# -- the list -----------------------------------------------------------------------------------------------------


def test_rules_lead_exactly_to_allowed_transitions() -> None:
    """The rules and the table of phases define the same graph."""
    edges = {(phase, to) for rule in TRANSITION_RULES for phase in rule.phases for to in rule.leads_to}
    allowed = {(phase, to) for phase, following in ALLOWED_TRANSITIONS.items() for to in following}
    stops = next(rule for rule in TRANSITION_RULES if rule.name == "finish_stopping")
    # One rule covers three ways to stop. The table has the end of each phase.
    crossed = {(phase, to) for phase in stops.phases for to in stops.leads_to} - allowed
    assert {(phase, to) for phase, to in edges - crossed if phase is not to} == {(a, b) for a, b in allowed if a != b}
    assert len(crossed) == 6


def test_every_rule_has_allowed_transition_from_each_of_its_phases() -> None:
    for rule in TRANSITION_RULES:
        assert rule.phases, rule.name
        for phase in rule.phases:
            assert not rule.leads_to or rule.leads_to & ({phase} | ALLOWED_TRANSITIONS[phase]), (rule.name, phase)
    names = [rule.name for rule in TRANSITION_RULES]
    assert len(names) == len(set(names))


def test_no_rule_applies_to_finished_job() -> None:
    assert not [rule.name for rule in TRANSITION_RULES if rule.phases & TERMINAL]


def test_cycle_of_rules_raises_with_their_names() -> None:
    def run(s: ReconcileContext) -> Status:
        return s.status.with_phase(Phase.RUNNING, s.now, "Up", "it runs")

    def wait(s: ReconcileContext) -> Status:
        return s.status.with_phase(Phase.PENDING, s.now, "Down", "it waits")

    rules = (
        TransitionRule(run, frozenset({Phase.PENDING}), frozenset({Phase.RUNNING})),
        TransitionRule(wait, frozenset({Phase.RUNNING}), frozenset({Phase.PENDING})),
    )
    with pytest.raises(TransitionCycle, match=r"mnist.*run: Pending to Running, wait: Running to Pending"):
        apply_transitions(read_context(mnist(), Status(), Observed(now=START)), rules)


def test_rule_that_always_changes_status_is_a_cycle() -> None:
    def count(s: ReconcileContext) -> Status:
        return replace(s.status, requeues=s.status.requeues + 1)

    with pytest.raises(TransitionCycle, match="count: Pending to Pending"):
        apply_transitions(read_context(mnist(), Status(), Observed(now=START)), (TransitionRule(count, LIVE),))


def test_many_rules_in_one_reconcile_are_not_a_cycle() -> None:
    def step(number: int) -> TransitionRule:
        def once(s: ReconcileContext) -> Status | None:
            return replace(s.status, requeues=number + 1) if s.status.requeues == number else None

        return TransitionRule(once, LIVE)

    rules = tuple(step(number) for number in range(2 * len(Phase)))
    after = apply_transitions(read_context(mnist(), Status(), Observed(now=START)), rules)
    assert after.status.requeues == 2 * len(Phase)


def test_rule_that_leads_to_undeclared_phase_raises() -> None:
    def fail(s: ReconcileContext) -> Status:
        return s.status.with_phase(Phase.FAILED, s.now, "Broken", "it failed")

    rules = (TransitionRule(fail, LIVE, frozenset({Phase.RUNNING})),)
    with pytest.raises(ValueError, match="fail leads to Failed"):
        apply_transitions(read_context(mnist(), Status(), Observed(now=START)), rules)


# -- which of two rules decides -----------------------------------------------------------------------------------

LIMIT = 100.0
Happens = Callable[[World], None]


def run(world: World) -> None:
    for pod in world.pods.values():
        world.run(pod)
    world.settle()


def started(job: Job) -> World:
    world = World(job)
    world.settle()
    run(world)
    return world


def past_the_deadline(world: World) -> None:
    world.now += LIMIT


def suspended(world: World) -> None:
    world.suspend(True)


def chief_done(world: World) -> None:
    world.end(world.pods["mnist-chief-0"], 0)


def worker_failed(world: World) -> None:
    world.end(world.pods["mnist-worker-0"], 1)


def container_restarted(world: World) -> None:
    world.restart_container(world.pods["mnist-chief-0"], 1)


def preempted(world: World) -> None:
    world.verdict = Preempt(by=JobKey("ml", "other"), message="")


@pytest.mark.parametrize(
    ("first", "then", "phase", "reason"),
    [
        (suspended, past_the_deadline, Phase.ABORTED, "Suspended"),
        (suspended, chief_done, Phase.ABORTED, "Suspended"),
        (suspended, worker_failed, Phase.ABORTED, "Suspended"),
        # Containers report when they ended, so their order matters: see test_time_limits.
        (past_the_deadline, container_restarted, Phase.FAILED, "DeadlineExceeded"),
        (past_the_deadline, preempted, Phase.FAILED, "DeadlineExceeded"),
        (chief_done, worker_failed, Phase.COMPLETED, "JobSucceeded"),
        (chief_done, container_restarted, Phase.COMPLETED, "JobSucceeded"),
        (chief_done, preempted, Phase.COMPLETED, "JobSucceeded"),
        (worker_failed, container_restarted, Phase.FAILED, "PodFailed"),
        (worker_failed, preempted, Phase.FAILED, "PodFailed"),
        (container_restarted, preempted, Phase.FAILED, "BackoffLimitExceeded"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_precedence_of_simultaneous_changes(
    first: Happens, then: Happens, phase: Phase, reason: str, swapped: bool
) -> None:
    """The order of the changes does not matter, because a reconcile reads the current state."""
    policy = RunPolicy(active_deadline=LIMIT, max_restarts=0)
    world = started(v1_job(replicas("Chief", 1, rules=ON_FAILURE), replicas("Worker", 1), policy=policy))
    assert world.memory.phase is Phase.RUNNING
    for happens in (then, first) if swapped else (first, then):
        happens(world)
    world.settle()
    assert (world.memory.phase, world.memory.reason) == (phase, reason)


def mnist() -> Job:
    policy = RunPolicy(active_deadline=LIMIT, max_restarts=0)
    return v1_job(replicas("Chief", 1, rules=ON_FAILURE), replicas("Worker", 1), policy=policy)


def test_complete_gang_resets_requeue_backoff() -> None:
    world = World(mnist())
    world.schedules = False
    world.settle()
    world.status = written_status(world.job, replace(world.memory, requeues=2, not_before=world.now - 60), world.now)
    world.settle()
    assert world.memory.requeues == 2
    for pod in world.pods.values():
        world.bind(pod)
    world.settle()
    assert (world.memory.requeues, world.memory.not_before) == (0, 0.0)


def test_impossible_success_takes_precedence_over_spent_budget() -> None:
    ps, worker = replicas("PS", 1, rules=ON_FAILURE), replicas("Worker", 1, rules=TOLERANT)
    world = started(v1_job(ps, worker, policy=RunPolicy(max_restarts=0)))
    world.restart_container(world.pods["mnist-ps-0"], 1)
    world.end(world.pods["mnist-worker-0"], 1)
    world.settle()
    assert (world.memory.phase, world.memory.reason) == (Phase.FAILED, "PodFailed")


def test_gang_preempted_at_schedule_timeout_has_no_backoff() -> None:
    world = World(v1_job(scheduling=Scheduling(min_available=3)))
    world.schedules = False
    world.settle()
    world.now += DEFAULT_SCHEDULE_TIMEOUT
    preempted(world)
    world.step()
    memory = world.memory
    assert (memory.admission, memory.reason, memory.requeues, memory.not_before) == (None, "Preempted", 0, 0.0)


@pytest.mark.parametrize(
    ("graver", "milder", "phase", "restarts", "attempts"),
    [
        (Action.FAIL_JOB, Action.TERMINATE_JOB, Phase.FAILED, 0, None),
        (Action.TERMINATE_JOB, Action.ABORT_JOB, Phase.TERMINATED, 0, None),
        (Action.ABORT_JOB, Action.COMPLETE_JOB, Phase.ABORTED, 0, None),
        (Action.COMPLETE_JOB, Action.RESTART_JOB, Phase.COMPLETED, 0, None),
        (Action.RESTART_JOB, Action.RESTART_TASK, Phase.PENDING, 1, ["2.0.0", "2.0.0"]),
        (Action.RESTART_TASK, Action.RESTART_POD, Phase.PENDING, 1, ["1.1.0", "1.1.0"]),
    ],
)
@pytest.mark.parametrize("codes", [(3, 4), (4, 3)])
def test_only_most_severe_action_of_two_pods_is_taken(
    graver: Action,
    milder: Action,
    phase: Phase,
    restarts: int,
    attempts: list[str] | None,
    codes: tuple[int, int],
) -> None:
    table = tuple(
        Rule(events=FAILED, action=action, codes=ExitCodes(ranges=((code, code),)))
        for code, action in ((3, graver), (4, milder))
    )
    job = volcano_job(replicas("worker", 2, rules=table), run_policy=RunPolicy(max_restarts=5))
    world = started(job)
    for pod, code in zip(world.pods.values(), codes, strict=True):
        world.end(pod, code)
    world.settle()
    memory = world.memory
    assert (memory.phase, memory.total_restarts) == (phase, restarts)
    if attempts is not None:
        assert [memory.attempts.label(replica) for replica in job.replicas] == attempts


@pytest.mark.parametrize("graver", [Action.TERMINATE_JOB, Action.ABORT_JOB, Action.COMPLETE_JOB, Action.RESTART_JOB])
def test_most_severe_eviction_policy_applies_to_preemption(graver: Action) -> None:
    evicted = frozenset({Event.POD_EVICTED})
    tasks = [
        replicas(name, 1, rules=(Rule(events=evicted, action=action),))
        for name, action in (("one", Action.RESTART_TASK), ("other", graver), ("third", Action.RESTART_POD))
    ]
    world = started(volcano_job(*tasks))
    preempted(world)
    world.step()
    phases = {
        Action.TERMINATE_JOB: Phase.TERMINATING,
        Action.ABORT_JOB: Phase.ABORTING,
        Action.COMPLETE_JOB: Phase.COMPLETING,
        Action.RESTART_JOB: Phase.PENDING,
    }
    assert world.memory.phase is phases[graver]

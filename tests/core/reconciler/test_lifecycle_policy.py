"""The policy table: the action for every event, role, exit class and restart policy."""

from __future__ import annotations

import pytest

from tests.core.builders import (
    CHIEF,
    EXIT_CODE,
    FAILED,
    NEVER,
    ON_FAILURE,
    REPLACED,
    START,
    replicas,
    v1_job,
    v1alpha1_job,
    volcano_job,
)
from tf_dist.core.model.job import ANY_EXIT, Action, Event, ExitCodes, Job, ReplicaId, ReplicaSpec, Rule
from tf_dist.core.model.pods import Exit
from tf_dist.core.reconciler.lifecycle_policy import SEVERITY, PodEvent, PolicyDecision, decide_action

EXITS = {
    "1": Exit(1),
    "127": Exit(127),
    "128": Exit(128),
    "137": Exit(137),
    "255": Exit(255),
    "-9": Exit(-9),
    "oom": Exit(137, "OOMKilled"),
    "oom-1": Exit(1, "OOMKilled"),
    "unknown": Exit(None, "Evicted"),
}


def happened(event: Event, spec: ReplicaSpec, exit_: Exit | None = None, **fields: object) -> PodEvent:
    fields.setdefault("replica", ReplicaId(spec.type, 0))
    return PodEvent(event=event, spec=spec, exit=exit_, **fields)  # type: ignore[arg-type]


def action(job: Job, event: Event, exit_: Exit | None = None, **fields: object) -> Action:
    return decide_action(job, happened(event, job.replica_specs[0], exit_, **fields), START).action


R, F, N = Action.RESTART_POD, Action.FAIL_JOB, Action.IGNORE


@pytest.mark.parametrize("rules", [NEVER, ON_FAILURE, EXIT_CODE], ids=["Never", "OnFailure/Always", "ExitCode"])
@pytest.mark.parametrize("event", [Event.POD_EVICTED, Event.NODE_LOST])
def test_evicted_and_lost_v1_pods_are_restarted(rules: tuple[Rule, ...], event: Event) -> None:
    job = v1_job(replicas("Worker", 1, rules=rules))
    assert decide_action(job, happened(event, job.replica_specs[0]), START) == PolicyDecision(action=R)


@pytest.mark.parametrize("exit_", EXITS)
def test_v1alpha1_replicas_except_chief_are_always_restarted(exit_: str) -> None:
    job = v1alpha1_job(replicas("WORKER", 1, rules=REPLACED))
    assert action(job, Event.POD_FAILED, EXITS[exit_]) is R
    beside = v1alpha1_job(replicas("MASTER", 2, rules=CHIEF))
    assert action(beside, Event.POD_FAILED, EXITS[exit_], replica=ReplicaId("master", 1)) is R


def test_container_restarted_by_kubelet_needs_no_pod_restart() -> None:
    job = v1alpha1_job()
    assert action(job, Event.POD_FAILED, Exit(137), handled=True) is N
    assert action(job, Event.POD_FAILED, Exit(1), handled=True) is F


@pytest.mark.parametrize("event", list(Event))
def test_without_policy_only_evicted_and_lost_pods_are_restarted(event: Event) -> None:
    job = volcano_job(replicas("worker", 1, rules=()), rules=(Rule(events=frozenset(), action=F),))
    decision = decide_action(job, happened(event, job.replica_specs[0], Exit(1)), START)
    taken = event in (Event.POD_EVICTED, Event.NODE_LOST)
    assert decision == PolicyDecision(action=R if taken else N)


@pytest.mark.parametrize("event", list(Event))
@pytest.mark.parametrize("wanted", [a for a in SEVERITY if a is not R])
def test_volcano_policy_matches_only_its_event(event: Event, wanted: Action) -> None:
    rule = Rule(events=frozenset({event}), action=wanted, timeout=5 if event is Event.POD_PENDING else 0)
    job = volcano_job(replicas("worker", 1, rules=(rule,)), rules=(Rule(events=frozenset(), action=F),))
    for other in Event:
        found = action(job, other, Exit(1), since=START - 5)
        related = {Event.POD_EVICTED: {Event.POD_FAILED}, Event.NODE_LOST: {Event.POD_EVICTED}}.get(other, set())
        if other is event or event in related:
            assert found is wanted
        else:
            assert found in (N, R)


def test_matching_task_policy_takes_precedence_over_job_policy() -> None:
    one = Rule(events=FAILED, action=Action.ABORT_JOB, codes=ExitCodes(ranges=((3, 3),)))
    every = Rule(events=FAILED, action=Action.RESTART_JOB)
    job = volcano_job(replicas("worker", 1, rules=(one,)), rules=(every,))
    assert action(job, Event.POD_FAILED, Exit(3)) is Action.ABORT_JOB
    assert action(job, Event.POD_FAILED, Exit(4)) is Action.RESTART_JOB


def test_first_matching_policy_applies() -> None:
    every = Rule(events=FAILED, action=Action.ABORT_JOB)
    one = Rule(events=FAILED, action=Action.RESTART_JOB, codes=ExitCodes(ranges=((137, 137),)))
    job = volcano_job(replicas("worker", 1, rules=(every, one)))
    assert action(job, Event.POD_FAILED, Exit(137)) is Action.ABORT_JOB


def test_kubelet_eviction_prefers_eviction_policy_over_failure_policy() -> None:
    evicted = Rule(events=frozenset({Event.POD_EVICTED}), action=Action.RESTART_JOB)
    failed = Rule(events=FAILED, action=Action.ABORT_JOB)
    both = volcano_job(replicas("worker", 1, rules=(failed, evicted)))
    only = volcano_job(replicas("worker", 1, rules=(failed,)), rules=(failed,))
    assert action(both, Event.POD_EVICTED, Exit(None, "Evicted")) is Action.RESTART_JOB
    assert action(only, Event.POD_EVICTED, Exit(None, "Evicted")) is Action.ABORT_JOB


def test_deleted_pod_does_not_match_failure_policy() -> None:
    failed = Rule(events=FAILED, action=Action.ABORT_JOB)
    job = volcano_job(replicas("worker", 1, rules=(failed,)), rules=(failed,))
    assert action(job, Event.POD_EVICTED) is Action.RESTART_POD


def test_pending_pod_matches_policy_only_after_its_timeout() -> None:
    def decided(timeout: float, waited: float) -> PolicyDecision:
        rule = Rule(events=frozenset({Event.POD_PENDING}), action=Action.ABORT_JOB, timeout=timeout)
        job = volcano_job(replicas("worker", 1, rules=(rule,)))
        return decide_action(job, happened(Event.POD_PENDING, job.replica_specs[0], since=START - waited), START)

    assert decided(0, 1000) == PolicyDecision(action=N)
    assert decided(60, 10) == PolicyDecision(action=N, due=START + 50)
    assert decided(60, 60).action is Action.ABORT_JOB


def test_resume_action_has_no_effect_on_running_job() -> None:
    rule = Rule(events=frozenset({Event.POD_EVICTED, Event.POD_FAILED}), action=Action.RESUME_JOB)
    job = volcano_job(replicas("worker", 1, rules=(rule,)))
    assert decide_action(job, happened(Event.POD_EVICTED, job.replica_specs[0]), START) == PolicyDecision(action=R)
    assert action(job, Event.POD_FAILED, Exit(1)) is N


def test_restart_pod_for_task_event_restarts_task() -> None:
    rule = Rule(events=frozenset({Event.TASK_FAILED}), action=Action.RESTART_POD)
    job = volcano_job(replicas("worker", 1, rules=(rule,)))
    assert action(job, Event.TASK_FAILED, replica=None) is Action.RESTART_TASK


def test_every_action_except_ignore_and_resume_has_severity() -> None:
    assert set(Action) - set(SEVERITY) == {Action.IGNORE, Action.RESUME_JOB}
    assert len(SEVERITY) == len(set(SEVERITY))


@pytest.mark.parametrize("code", [None, -(2**31), -1, 0, 1, 128, 255, 2**31 - 1])
@pytest.mark.parametrize("out_of_memory", [True, False])
def test_any_exit_matches_every_exit_code(code: int | None, out_of_memory: bool) -> None:
    assert (code, out_of_memory) in ANY_EXIT

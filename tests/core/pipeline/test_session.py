"""The session as a table of cases: what a host observes, and which commands it gets."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.controller.harness import tfjob
from tf_dist.core.dialects import parse
from tf_dist.core.model.job import CleanPodPolicy, ReplicaId
from tf_dist.core.model.pods import PodPhase, PodView
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import Admission, Failure, Phase, RefusedSpec, Status
from tf_dist.core.pipeline.adoption import AdoptionAction, AdoptionCandidate, AdoptionDecision, decide_adoption
from tf_dist.core.pipeline.session import (
    CleanUp,
    Command,
    Do,
    EndCause,
    OnFinish,
    Seen,
    SessionEnd,
    SessionPolicy,
    WorkflowRules,
    clean_up,
    decide_end,
    follow,
    lost_end,
    run_policy,
    start,
    step_policy,
    stopped_end,
    task_policy,
)
from tf_dist.core.pipeline.wait_result import NO_LIMITS, WaitLimits
from tf_dist.core.pipeline.workflow_stop import LAUNCHER, WORKFLOW, JobFate, StopDecision
from tf_dist.errors import Conflict, Forbidden, NotFound, Unavailable

NOW = 1_800_000_000.0
JOB = parse(tfjob(workers=2, ps=0)).job
WAITS = Status(phase=Phase.PENDING, since=NOW - 100, created=NOW - 100)
PLACED = replace(WAITS, admission=Admission(NOW - 100), start_time=NOW - 100)
RUNS = replace(PLACED, phase=Phase.RUNNING)
COMPLETING = replace(RUNS, phase=Phase.COMPLETING)
DONE = replace(RUNS, phase=Phase.COMPLETED)
FAILED = replace(RUNS, phase=Phase.FAILED, failure=Failure(event="PodFailed", replica="worker-1", code=3))
SUSPENDED = replace(WAITS, phase=Phase.ABORTED, reason="Suspended")
LATE = WaitLimits(deadline=NOW - 1)
POD = PodView(name="p", uid="u", replica=ReplicaId("worker", 0), attempt="1.0.0", phase=PodPhase.RUNNING)


def seen(status: Status = RUNS, **more: Any) -> Seen:
    return Seen(now=NOW, job=JOB, status=status, **more)


def step(limits: WaitLimits = NO_LIMITS, on_term: JobFate | None = None, **rules: Any) -> SessionPolicy:
    return step_policy(limits=limits, workflow=WorkflowRules(**rules), grace=40.0, settle=30.0, on_term=on_term)


# End


@pytest.mark.parametrize(
    ("policy", "observed", "cause", "kind"),
    [
        (task_policy(), seen(), None, None),
        (task_policy(), seen(DONE), EndCause.SUCCEEDED, OutcomeKind.SUCCEEDED),
        (task_policy(), seen(FAILED), EndCause.FAILED, OutcomeKind.FAILED),
        (task_policy(goal="running"), seen(), EndCause.SUCCEEDED, None),
        # An outcome is reported in all cases.
        (step(LATE), seen(DONE, signal=15, signals=1, exists=False), EndCause.SUCCEEDED, OutcomeKind.SUCCEEDED),
        (run_policy(deadline=NOW - 1), seen(FAILED, signal=2, signals=1), EndCause.FAILED, OutcomeKind.FAILED),
        (step(LATE), seen(signal=15, signals=1, exists=False), EndCause.STOPPED, OutcomeKind.UNKNOWN),
        (step(LATE), seen(exists=False), EndCause.DELETED, OutcomeKind.DELETED),
        (step(LATE), seen(), EndCause.OVERDUE, OutcomeKind.DEADLINE_EXCEEDED),
        (step(WaitLimits(admission=50)), seen(WAITS), EndCause.NOT_ADMITTED, OutcomeKind.ADMISSION_TIMEOUT),
        (step(WaitLimits(startup=50)), seen(PLACED), EndCause.OVERDUE, OutcomeKind.START_TIMEOUT),
        # The timeout of a run also limits its admission.
        (run_policy(deadline=NOW - 1), seen(WAITS), EndCause.NOT_ADMITTED, OutcomeKind.ADMISSION_TIMEOUT),
        (run_policy(deadline=NOW - 1), seen(), EndCause.OVERDUE, OutcomeKind.DEADLINE_EXCEEDED),
        # The limits also apply to a job that no controller has seen.
        (step(WaitLimits(admission=50)), seen(Status(), created=NOW - 60), EndCause.NOT_ADMITTED, None),
        (step(WaitLimits(admission=50)), seen(Status(), created=NOW - 40), None, None),
        # The outcome is decided while the last pods stop. A task waits for them, because its job is deleted then.
        (step(LATE), seen(COMPLETING, signal=15, signals=1), EndCause.SUCCEEDED, OutcomeKind.SUCCEEDED),
        (run_policy(deadline=None), seen(COMPLETING), EndCause.SUCCEEDED, OutcomeKind.SUCCEEDED),
        (task_policy(), seen(COMPLETING), None, None),
        # A user who watches a suspended job gets a result. A step and a task wait until the job is resumed.
        (run_policy(deadline=None), seen(SUSPENDED), EndCause.FAILED, OutcomeKind.SUSPENDED),
        (step(), seen(SUSPENDED), None, None),
        (task_policy(), seen(SUSPENDED), None, None),
    ],
)
def test_end_has_expected_cause_and_outcome(
    policy: SessionPolicy, observed: Seen, cause: EndCause | None, kind: OutcomeKind | None
) -> None:
    end = decide_end(policy, observed)
    assert (end and end.cause) == cause
    if end is not None and kind is not None:
        assert end.result.kind is kind
        assert end.outcome(observed.status, NOW).kind is kind


def test_refused_spec_ends_tasks_and_steps() -> None:
    refused = seen(Status(refused_spec=RefusedSpec(generation=1, digest="x", message="unknown key")), created=NOW - 60)
    for policy in (task_policy(), step()):
        end = decide_end(policy, refused)
        assert end is not None
        assert (end.cause, end.result.kind) == (EndCause.OVERDUE, OutcomeKind.INVALID)
    assert decide_end(run_policy(deadline=None), refused) is None, "its user may correct it"


def test_oversized_job_ends_if_capacity_is_fixed() -> None:
    too_large = seen(replace(WAITS, reason="NeverFits"))
    end = decide_end(run_policy(deadline=None, fixed_capacity=True), too_large)
    assert end is not None
    assert (end.cause, end.result.reason) == (EndCause.OVERDUE, "NeverFits")
    assert decide_end(run_policy(deadline=None), too_large) is None


# What happens to the job

ADMITTED_LATE = decide_end(step(WaitLimits(admission=50)), seen(WAITS))
OVERDUE = decide_end(step(LATE), seen())
ENDS = {
    EndCause.SUCCEEDED: decide_end(step(), seen(DONE)),
    EndCause.FAILED: decide_end(step(), seen(FAILED)),
    EndCause.STOPPED: stopped_end(15),
    EndCause.DELETED: decide_end(step(), seen(exists=False)),
    EndCause.NOT_ADMITTED: ADMITTED_LATE,
    EndCause.OVERDUE: OVERDUE,
    EndCause.UNREACHABLE: lost_end(Unavailable("away"), transient=True),
    EndCause.ERROR: lost_end(Forbidden("no"), transient=False),
}


@pytest.mark.parametrize("cause", ENDS)
def test_result_is_decided_only_if_job_ended(cause: EndCause) -> None:
    end = ENDS[cause]
    assert end is not None
    assert end.result.decided is (cause in (EndCause.SUCCEEDED, EndCause.FAILED, EndCause.DELETED))


DELETE, LEAVE, MARK, SUSPEND = JobFate.DELETE, JobFate.LEAVE, JobFate.MARK, JobFate.SUSPEND


@pytest.mark.parametrize(
    ("policy", "fates"),
    [
        (run_policy(deadline=None), (DELETE, DELETE, DELETE, LEAVE, DELETE, DELETE, LEAVE, LEAVE)),
        (run_policy(deadline=None, keep=True), (LEAVE,) * 8),
        (step(), (MARK, MARK, DELETE, LEAVE, DELETE, DELETE, LEAVE, DELETE)),
        (step(retried=True), (MARK, MARK, LEAVE, LEAVE, LEAVE, DELETE, LEAVE, DELETE)),
        (step(on_term=SUSPEND), (MARK, MARK, SUSPEND, LEAVE, DELETE, DELETE, LEAVE, DELETE)),
        (task_policy(), (MARK, MARK, DELETE, LEAVE, DELETE, DELETE, DELETE, DELETE)),
        (task_policy(retried=True), (MARK, MARK, DELETE, LEAVE, LEAVE, DELETE, LEAVE, LEAVE)),
        (task_policy(on_kill="keep_job"), (MARK, MARK, LEAVE, LEAVE, DELETE, DELETE, DELETE, DELETE)),
        (
            task_policy(on_finish=OnFinish.DELETE_JOB),
            (DELETE, DELETE, DELETE, LEAVE, DELETE, DELETE, DELETE, DELETE),
        ),
        (
            task_policy(on_finish=OnFinish.DELETE_SUCCEEDED_JOB),
            (DELETE, MARK, DELETE, LEAVE, DELETE, DELETE, DELETE, DELETE),
        ),
    ],
)
def test_each_end_decides_fate_of_job(policy: SessionPolicy, fates: tuple[JobFate, ...]) -> None:
    assert list(ENDS) == list(EndCause)
    for end, fate in zip(ENDS.values(), fates, strict=True):
        assert end is not None
        decision, _ = run(clean_up(policy, end, seen(signals=int(end.cause is EndCause.STOPPED))), gone())
        assert decision.what is fate, end.cause


def gone() -> Seen:
    """The last observation: nothing is left to wait for, while the workflow continues."""
    return seen(DONE, exists=False, workflow={"status": {"phase": "Running"}})


def run(part: Generator[Command, Seen, Any], *observed: Seen) -> tuple[Any, list[Command]]:
    """The result of a part, and its commands. The last observation is repeated."""
    commands, left = [next(part)], list(observed)
    while True:
        try:
            commands.append(part.send(left.pop(0) if len(left) > 1 else left[0]))
        except StopIteration as done:
            return done.value, commands
        assert len(commands) < 50, commands


def does(part: CleanUp, *observed: Seen) -> list[str]:
    return [one.do.value for one in run(part, *observed)[1]]


def ended(cause: EndCause) -> SessionEnd:
    end = ENDS[cause]
    assert end is not None
    return end


@pytest.mark.parametrize(
    ("policy", "cause", "expected"),
    [
        # On a cluster, logs are deleted with the job, so they are read first. Running pods write until they are gone.
        (run_policy(deadline=None), EndCause.SUCCEEDED, "tell drain delete drain report"),
        (run_policy(deadline=None), EndCause.OVERDUE, "tell delete drain report"),
        (run_policy(deadline=None), EndCause.STOPPED, "tell delete drain report"),
        (run_policy(deadline=None, keep=True), EndCause.STOPPED, "tell drain report"),
        (step(), EndCause.FAILED, "tell drain report mark"),
        (step(), EndCause.OVERDUE, "tell delete drain report"),
        # Time is short: logs are not read, and the end is reported before any request.
        (step(), EndCause.STOPPED, "tell read-workflow tell delete report"),
        (step(retried=True), EndCause.STOPPED, "tell read-workflow tell report"),
        (step(on_term=SUSPEND), EndCause.STOPPED, "tell suspend report"),
        (step(), EndCause.DELETED, "tell drain report"),
    ],
)
def test_clean_up_commands_are_in_order(policy: SessionPolicy, cause: EndCause, expected: str) -> None:
    found = does(
        clean_up(policy, ended(cause), seen(signals=int(cause is EndCause.STOPPED))), replace(gone(), signals=1)
    )
    assert " ".join(found) == expected


def test_waits_for_pods_of_deleted_job_until_gone_or_second_signal() -> None:
    stopping, once = seen(exists=False, pods=(POD,), signals=1), seen(signals=1)
    policy = step(on_term=DELETE)
    _, commands = run(clean_up(policy, stopped_end(15), once), once, stopping, stopping, replace(stopping, signals=2))
    assert [one.do for one in commands] == [Do.TELL, Do.DELETE, Do.WAIT, Do.WAIT, Do.REPORT]
    assert commands[2].seconds == 30.0, "three quarters of the grace period"
    late = replace(stopping, now=NOW + 31)
    assert does(clean_up(policy, stopped_end(15), once), once, stopping, late) == ["tell", "delete", "wait", "report"]


def test_failed_deletion_in_grace_period_is_reported() -> None:
    failed = seen(signals=1, problem="no answer")
    decision, commands = run(clean_up(step(on_term=DELETE), stopped_end(15), seen(signals=1)), seen(signals=1), failed)
    assert decision == StopDecision(DELETE, "on_term decides", "no answer")
    assert commands[-1].decision == decision


@pytest.mark.parametrize("cause", [EndCause.SUCCEEDED, EndCause.FAILED, EndCause.STOPPED, EndCause.OVERDUE])
def test_command_retries_deletion_and_reports_failure(cause: EndCause) -> None:
    failed = seen(signals=int(cause is EndCause.STOPPED), problem="no answer")
    policy = run_policy(deadline=None)
    decision, commands = run(clean_up(policy, ended(cause), replace(failed, problem="")), failed)
    (deletion,) = (command for command in commands if command.do is Do.DELETE)
    assert (deletion.seconds, decision.problem) == (policy.deletion_retries, "no answer")
    assert [command.do for command in commands][-2:] == [Do.DELETE, Do.REPORT]


def test_unreadable_workflow_counts_as_stopped() -> None:
    policy, once = step(retried=True), seen(signals=1)
    decision, _ = run(
        clean_up(policy, stopped_end(15), once), once, seen(signals=1, problem="forbidden"), replace(gone(), signals=1)
    )
    assert decision == StopDecision(DELETE, "the workflow cannot be read (forbidden)")


@pytest.mark.parametrize(
    ("observed", "waits"),
    [
        (seen(COMPLETING), True),
        (seen(DONE, pods=(POD,)), True),
        (seen(DONE, pods=(replace(POD, deleting=True),)), False),
        (seen(DONE, pods=(POD,), exists=False), False),
        (
            replace(
                seen(DONE, pods=(POD,)),
                job=replace(JOB, run_policy=replace(JOB.run_policy, clean_pods=CleanPodPolicy.NONE)),
            ),
            False,
        ),
        (seen(DONE, pods=(POD,), signals=1), False),
    ],
    ids=["completing", "runs", "stops", "gone", "policy", "signal"],
)
def test_session_waits_for_clean_up_by_controller(observed: Seen, waits: bool) -> None:
    found = does(
        clean_up(step(), ended(EndCause.SUCCEEDED), observed), observed, observed, replace(observed, now=NOW + 31)
    )
    assert ("wait" in found) is waits


# While the job runs


def test_session_waits_at_most_until_next_limit() -> None:
    part = follow(step(WaitLimits(deadline=NOW + 60, admission=120)), seen(WAITS))
    assert next(part) == Command(Do.WAIT, seconds=20.0)
    assert part.send(seen()) == Command(Do.WAIT, seconds=60.0)
    with pytest.raises(StopIteration) as over:
        part.send(seen(DONE))
    assert over.value.value.cause is EndCause.SUCCEEDED


@pytest.mark.parametrize(("name", "suspend"), [("suspended", True), ("resumed", False)])
def test_job_is_suspended_or_resumed_once_with_workflow(name: str, suspend: bool) -> None:
    by = "" if suspend else WORKFLOW
    status = RUNS if suspend else SUSPENDED
    workflow = {"spec": {"suspend": suspend}}
    part = follow(step(suspends=True, look_every=10.0), seen(status))
    assert next(part) == Command(Do.WAIT, seconds=10.0)
    due = replace(seen(status, suspended_by=by), now=NOW + 10)
    assert part.send(due) == Command(Do.READ_WORKFLOW)
    change = part.send(replace(due, workflow=workflow))
    assert change == Command(Do.SUSPEND if suspend else Do.RESUME, by=WORKFLOW, seconds=0.0)
    assert part.send(due) == Command(Do.WAIT, seconds=10.0)
    later = replace(due, now=NOW + 20)
    assert part.send(later) == Command(Do.READ_WORKFLOW)
    assert part.send(replace(later, workflow=workflow)).do is Do.WAIT, "what is observed may be old"


def test_forbidden_workflow_is_not_read_again() -> None:
    part = follow(step(suspends=True), seen())
    next(part)
    assert part.send(replace(seen(), now=NOW + 10)).do is Do.READ_WORKFLOW
    assert part.send(seen(problem="forbidden", refused=True)) == Command(Do.WAIT)


def test_unavailable_workflow_is_read_again() -> None:
    part = follow(step(suspends=True), seen())
    next(part)
    part.send(replace(seen(), now=NOW + 10))
    assert part.send(replace(seen(problem="no answer"), now=NOW + 10)) == Command(Do.WAIT, seconds=10.0)


# Start


def starts(*answers: Any, decide: Any = decide_adoption) -> tuple[Any, list[tuple[Do, str]]]:
    part, left = start(decide), list(answers)
    commands = [next(part)]
    while True:
        try:
            commands.append(part.send(left.pop(0)))
        except StopIteration as done:
            return done.value.answer, [(one.do, one.uid) for one in commands]


def candidate(uid: str, **more: Any) -> AdoptionCandidate:
    return AdoptionCandidate(uid=uid, **{"created": NOW, **more})


def test_first_try_creates_job() -> None:
    assert starts([], None) == (AdoptionAction.CREATE, [(Do.FIND, ""), (Do.CREATE, "")])


def test_retry_adopts_running_job_and_discards_others() -> None:
    found = [candidate("old"), candidate("new", created=NOW + 1)]
    expected = [(Do.FIND, ""), (Do.DISCARD, "old"), (Do.ADOPT, "new")]
    assert starts(found, None, None) == (AdoptionAction.ADOPT, expected)


def test_searches_again_if_job_disappears_during_adoption() -> None:
    action, commands = starts([candidate("a")], NotFound("gone"), [], None)
    assert action is AdoptionAction.CREATE
    assert [do for do, _ in commands] == [Do.FIND, Do.ADOPT, Do.FIND, Do.CREATE]
    with pytest.raises(NotFound):
        starts(*[[candidate("a")], NotFound("gone")] * 5)


def replaced(found: Sequence[str]) -> AdoptionDecision:
    return AdoptionDecision(AdoptionAction.REPLACE if found else AdoptionAction.CREATE, *found)


def test_replaced_job_is_deleted_before_creation() -> None:
    action, commands = starts(["a"], None, [], None, decide=replaced)
    assert action is AdoptionAction.CREATE
    assert commands == [(Do.FIND, ""), (Do.REPLACE, "a"), (Do.FIND, ""), (Do.CREATE, "")]
    with pytest.raises(Conflict, match="is created again each time"):
        starts(*[["a"], None] * 5, decide=replaced)


def test_launcher_is_recorded_as_suspender() -> None:
    _, commands = run(clean_up(step(on_term=SUSPEND), stopped_end(15), seen(signals=1)), replace(gone(), signals=1))
    assert [one.by for one in commands if one.do is Do.SUSPEND] == [LAUNCHER]

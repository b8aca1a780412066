"""Job session: a run of a job for a step, a task or a command, from adoption or creation to clean-up.

A session decides, and a host acts. The three parts are generators. Each yields a ``Command``; the host executes it and
sends back its observation. A part has no state outside its values, so the parts may run in different processes:
Airflow's worker starts the job, its triggerer follows it, and another worker cleans up.

1. ``start`` adopts a job of an earlier try, or creates one.
2. ``follow`` waits until the session ends: the job ended, a limit passed, or the process was asked to stop.
3. ``clean_up`` decides what happens to the job, and waits until that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from tf_dist.core.diagnostics.outcome import Outcome, is_suspended
from tf_dist.core.model.job import CleanPodPolicy, Job
from tf_dist.core.model.pods import PodView
from tf_dist.core.model.reasons import OutcomeKind, reason_row
from tf_dist.core.model.status import Phase, Status, outcome_kind
from tf_dist.core.pipeline.adoption import AdoptionAction, AdoptionDecision
from tf_dist.core.pipeline.wait_result import (
    DELETED,
    NO_LIMITS,
    WaitLimits,
    WaitResult,
    evaluate_wait,
    next_wait_limit,
    running_pods,
    wait_outcome,
)
from tf_dist.core.pipeline.workflow_stop import (
    LAUNCHER,
    WORKFLOW,
    JobFate,
    StopDecision,
    decide_stop,
    decide_suspension,
)
from tf_dist.errors import Conflict, TFDistError


class EndCause(StrEnum):
    """Why a session ends. If several causes apply, the first in this order counts."""

    SUCCEEDED = "succeeded"  # the job reached the goal of the wait
    FAILED = "failed"  # the job ended without reaching the goal
    STOPPED = "stopped"  # this process was asked to stop, or a user ended the task
    DELETED = "deleted"  # another client deleted the job
    NOT_ADMITTED = "not-admitted"  # the job was not admitted in time
    OVERDUE = "overdue"  # another limit of the session passed, or the job can never run
    UNREACHABLE = "unreachable"  # the cluster does not respond, or this process loses the job
    ERROR = "error"  # the session cannot continue: it may not read the job, or it has a defect


ENDED: Final = frozenset({EndCause.SUCCEEDED, EndCause.FAILED})
"""The causes with which the outcome of the job is the outcome of the session."""


class OnFinish(StrEnum):
    """Which jobs are deleted after their end (Airflow's ``on_finish_action``)."""

    DELETE_JOB = "delete_job"
    KEEP_JOB = "keep_job"
    DELETE_SUCCEEDED_JOB = "delete_succeeded_job"
    DELETE_ACTIVE_JOB = "delete_active_job"  # only a job that still runs


_D, _L, _M = JobFate.DELETE, JobFate.LEAVE, JobFate.MARK
# What happens to the job, by the cause of the end. A job that the next try adopts continues. After an error that is not
# transient, a task is retried, but a step is not. None: the workflow decides (``decide_stop``).
#                          SUCCEEDED, FAILED, STOPPED, DELETED, NOT_ADMITTED, OVERDUE, UNREACHABLE, ERROR
_RUN: Final = (_D, _D, _D, _L, _D, _D, _L, _L)
_WATCH: Final = (_L, _L, _L, _L, _L, _L, _L, _L)
_STEP: Final = (_M, _M, None, _L, _D, _D, _L, _D)
_STEP_RETRIED: Final = (_M, _M, None, _L, _L, _D, _L, _D)
_TASK: Final = (_M, _M, _D, _L, _D, _D, _D, _D)
_TASK_RETRIED: Final = (_M, _M, _D, _L, _L, _D, _L, _L)
_ON_FINISH: Final[Mapping[OnFinish, tuple[JobFate, JobFate]]] = {
    OnFinish.DELETE_JOB: (_D, _D),
    OnFinish.KEEP_JOB: (_M, _M),
    OnFinish.DELETE_SUCCEEDED_JOB: (_D, _M),
    OnFinish.DELETE_ACTIVE_JOB: (_M, _M),
}
Fates = Mapping[EndCause, JobFate | None]


def _fates(row: tuple[JobFate | None, ...], **changed: JobFate | None) -> Fates:
    named = {EndCause[name]: fate for name, fate in changed.items()}
    return {**dict(zip(EndCause, row, strict=True)), **named}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRules:
    """The rules of a step's workflow for the job of the step."""

    deadline: float | None = None
    """When Argo stops the pod of the step (epoch seconds)."""
    retried: bool = False
    """Another try of the step follows, and adopts the job."""
    suspends: bool = False
    """The job is suspended while the workflow is suspended."""
    look_every: float = 10.0
    """Seconds between two reads of the workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPolicy:
    """The policy of an interface for its sessions; see ``run_policy``, ``step_policy`` and ``task_policy``."""

    fates: Fates
    """What happens to the job, by the cause of the end."""
    goal: str = "succeeded"
    """The goal of the wait, see ``WAIT_CONDITIONS``."""
    limits: WaitLimits = NO_LIMITS
    """Limits of the wait."""
    only_deadline: bool = False
    """If the job waits or cannot start, only the deadline ends the session, because a user watches and may correct it.

    The deadline is also the limit of the wait for admission.
    """
    fixed_capacity: bool = False
    """The cluster never grows: a job that is too large for it ends the session."""
    awaits_pods: bool = False
    """The session ends when the last pods of the job have stopped, not as soon as its outcome is decided."""
    ends_suspended: bool = False
    """A suspended job ends the session. Otherwise, the session waits until a user resumes the job."""
    grace: float | None = None
    """Seconds that this process has after it was asked to stop. None: no limit."""
    deletion_retries: float | None = None
    """Seconds for which deleting the job is retried. None: the remaining ``grace``, or no limit."""
    settle: float = 0.0
    """Seconds for the controller to clean up after a job that ended, because this process may be the controller."""
    stopping: float | None = None
    """Seconds for the pods of an ended and deleted job to stop. None: no limit."""
    workflow: WorkflowRules | None = None
    """The rules of the workflow; only for a step."""


def run_policy(*, deadline: float | None, keep: bool = False, fixed_capacity: bool = False) -> SessionPolicy:
    """The policy of a command that runs a job, or only watches it (``keep``). ``deadline``: epoch seconds."""
    return SessionPolicy(
        fates=_fates(_WATCH if keep else _RUN),
        limits=WaitLimits(deadline=deadline),
        only_deadline=True,
        fixed_capacity=fixed_capacity,
        ends_suspended=True,
        deletion_retries=5.0,
        stopping=10.0,
    )


def step_policy(
    *, limits: WaitLimits, workflow: WorkflowRules, grace: float, settle: float, on_term: JobFate | None = None
) -> SessionPolicy:
    """The policy of a step of a workflow. ``on_term``: what a signal does to the job (None: the workflow decides)."""
    return SessionPolicy(
        fates=_fates(_STEP_RETRIED if workflow.retried else _STEP, STOPPED=on_term),
        limits=limits,
        grace=grace,
        settle=settle,
        workflow=workflow,
    )


def task_policy(
    *,
    limits: WaitLimits = NO_LIMITS,
    goal: str = "succeeded",
    retried: bool = False,
    on_finish: OnFinish = OnFinish.KEEP_JOB,
    on_kill: str = "delete_job",
) -> SessionPolicy:
    """The policy of a task of a DAG. ``on_kill``: ``delete_job`` deletes the job of a task that a user ends."""
    succeeded, failed = _ON_FINISH[on_finish]
    killed = JobFate.DELETE if on_kill == "delete_job" else JobFate.LEAVE
    row = _TASK_RETRIED if retried else _TASK
    return SessionPolicy(
        fates=_fates(row, SUCCEEDED=succeeded, FAILED=failed, STOPPED=killed),
        goal=goal,
        limits=limits,
        awaits_pods=True,
    )


class Do(StrEnum):
    """The next action of a host. After each action, the host sends a response."""

    # Actions of ``start``. The response to FIND is the candidates; to others, None or the error of a lost race.
    FIND = "find"  # the jobs of earlier tries
    DISCARD = "discard"  # delete a surplus job of an earlier try
    CREATE = "create"
    ADOPT = "adopt"  # make this try the owner of the job, and resume the job if an earlier try suspended it
    REUSE_RESULT = "reuse-result"  # the same for a job that has ended
    REPLACE = "replace"  # delete the job, and wait until the job and its pods are deleted
    # Actions of ``follow`` and ``clean_up``. The response is ``Seen``.
    WAIT = "wait"  # until a change is observed, for at most ``seconds`` (None: no limit)
    READ_WORKFLOW = "read-workflow"
    TELL = "tell"  # report the end, and the decision about the job if it is known
    DRAIN = "drain"  # read the last lines of containers that ended
    DELETE = "delete"  # request the deletion; with ``seconds``, a failure is a response, otherwise it is raised
    SUSPEND = "suspend"  # request the suspension; failures as for DELETE
    RESUME = "resume"
    REPORT = "report"  # report the final end, after its last lines are read
    MARK = "mark"  # note on the job that its end was reported


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """Why the session ended. ``result``: the kind, the message and the hint. ``signal``: its number (0: none)."""

    cause: EndCause
    result: WaitResult
    signal: int = 0

    def outcome(self, status: Status, now: float) -> Outcome:
        """How the job ended, or why the session ended. ``status``: the last known status of the job."""
        return wait_outcome(status, self.result, now) or Outcome.of(status, OutcomeKind.UNKNOWN, now=now)


class Command(NamedTuple):
    """The next command for the host.

    ``uid``: the uid of the job. ``seconds``: the time limit. ``by``: the subject that suspends the job. ``signals``:
    the number of signals after which a further signal ends the action. ``end``, ``decision``: the content of TELL and
    REPORT.
    """

    do: Do
    uid: str = ""
    seconds: float | None = None
    by: str = ""
    signals: int = 0
    end: SessionEnd | None = None
    decision: StopDecision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The observation of a host at one time."""

    now: float
    """Epoch seconds."""
    job: Job
    """The job in force."""
    status: Status
    """The last known status, including that of a deleted job."""
    pods: tuple[PodView, ...] = ()
    """The pods that exist."""
    exists: bool = True
    """Whether the job is stored."""
    created: float | None = None
    """When the job was created (epoch seconds)."""
    suspended_by: str = ""
    """What suspended the job: ``LAUNCHER``, ``WORKFLOW``, or "" for a user."""
    signal: int = 0
    """The first signal that this process received (0: none)."""
    signals: int = 0
    """The number of signals that this process received."""
    workflow: Mapping[str, Any] | None = None
    """After ``READ_WORKFLOW``: the Workflow object; None if it is deleted."""
    problem: str = ""
    """Why the last command failed ("": it did not fail)."""
    refused: bool = False
    """Whether the cluster refuses the last command, and would refuse it again."""

    @property
    def dated(self) -> Status:
        """The status. A job without a status from a controller has waited since its creation."""
        status = self.status
        unread = status.created is None and not status.never_accepted
        return replace(status, created=self.created) if unread else status

    @property
    def gone(self) -> bool:
        """Whether the job and its pods are deleted."""
        return not self.exists and not self.pods

    @property
    def stopped(self) -> bool:
        """Whether the job no longer runs: it is suspended and has no pods, has ended, or is deleted."""
        return not self.exists or self.status.finished or (self.status.phase is Phase.ABORTED and not self.pods)

    @property
    def settled(self) -> bool:
        """Whether the controller has cleaned up after the end of the job, according to its clean-up policy."""
        if not self.exists:
            return True
        if not self.status.finished and self.status.phase is not Phase.ABORTED:
            return False
        return self.job.run_policy.clean_pods is CleanPodPolicy.NONE or not running_pods(self.pods)


C = TypeVar("C")
Decide = Callable[[Sequence[C]], AdoptionDecision]
Start = Generator[Command, Any, AdoptionDecision]
Session = Generator[Command, Seen, SessionEnd]
CleanUp = Generator[Command, Seen, StopDecision]

_ATTEMPTS: Final = 5
_SHARE: Final = 0.75  # share of the grace period for the clean-up; the rest is for the exit of the process


def start(decide: Decide[C]) -> Start:
    """Adopt a job of an earlier try, or create a job. ``decide``: the interface's rules of adoption.

    If the job gets another owner or is deleted in the meantime, the search starts again. After several attempts, the
    last such error is raised.
    """
    lost: Exception | None = None
    for _ in range(_ATTEMPTS):
        decision = decide((yield Command(Do.FIND)))
        for uid in decision.surplus:
            yield Command(Do.DISCARD, uid)
        lost = yield Command(Do(decision.answer), decision.uid)
        if lost is None and decision.answer is not AdoptionAction.REPLACE:
            return decision
    raise lost or Conflict("the job is created again each time it is deleted", hint="find out what creates it")


def follow(policy: SessionPolicy, seen: Seen) -> Session:
    """Wait until the session ends. The job of a step is suspended while its workflow is suspended."""
    rules = policy.workflow
    every = rules.look_every if rules is not None and rules.suspends else None
    look_at = None if every is None else seen.now + every
    last: bool | None = None  # the last change, because the observation of the job may be older
    while (end := decide_end(policy, seen)) is None:
        if every is not None and look_at is not None and seen.now >= look_at:
            read = yield Command(Do.READ_WORKFLOW)
            look_at = None if read.refused else read.now + every
            if not read.problem and read.workflow is not None:
                suspended, ours = is_suspended(read.status), read.suspended_by == WORKFLOW
                change = decide_suspension(read.workflow, suspended=suspended, by_workflow=ours)
                if change is not None and change is not last:
                    done = yield Command(Do.SUSPEND if change else Do.RESUME, by=WORKFLOW, seconds=0.0)
                    last = last if done.problem else change
        due = (next_wait_limit(seen.dated, policy.limits, seen.now), look_at)
        left = min((max(0.0, at - seen.now) for at in due if at is not None), default=None)
        seen = yield Command(Do.WAIT, seconds=left)
    return end


def decide_end(policy: SessionPolicy, seen: Seen) -> SessionEnd | None:
    """Why the session ends now; None while it continues. The outcome of the job has precedence over other causes."""
    status = seen.dated
    found = evaluate_wait(seen.job, status, seen.pods, policy.limits, seen.now, goal=policy.goal)
    if found is not None and found.decided:
        return SessionEnd(cause=EndCause.SUCCEEDED if found.reached else EndCause.FAILED, result=found)
    kind = outcome_kind(status)
    if kind is not None and (policy.ends_suspended if kind is OutcomeKind.SUSPENDED else not policy.awaits_pods):
        reached = kind is OutcomeKind.SUCCEEDED
        result = WaitResult(kind=kind, message=status.message, reached=reached)
        return SessionEnd(cause=EndCause.SUCCEEDED if reached else EndCause.FAILED, result=result)
    if seen.signal:
        return stopped_end(seen.signal)
    if not seen.exists:
        return DELETED_END
    if policy.fixed_capacity and status.admission is None and reason_row(status.reason).unreachable:
        result = WaitResult(kind=OutcomeKind.INVALID, reason=NEVER_FITS, message=status.message, decided=False)
        return SessionEnd(cause=EndCause.OVERDUE, result=result)
    if found is None or (policy.only_deadline and found.kind is not OutcomeKind.DEADLINE_EXCEEDED):
        return None
    if policy.only_deadline and not status.admission_holds:
        found = replace(found, kind=OutcomeKind.ADMISSION_TIMEOUT)
    waited = found.kind is OutcomeKind.ADMISSION_TIMEOUT
    return SessionEnd(cause=EndCause.NOT_ADMITTED if waited else EndCause.OVERDUE, result=found)


DELETED_END: Final = SessionEnd(cause=EndCause.DELETED, result=DELETED)
"""The end of a session whose job another client deleted."""
NEVER_FITS: Final = "NeverFits"
"""The reason of a job that is too large for a cluster that never grows."""
TERMINATED: Final = "Terminated"
"""The reason of a session that was asked to stop."""


def stopped_end(signal: int = 0, why: str = "") -> SessionEnd:
    """The end of a session whose process was asked to stop, or whose task a user ended."""
    result = WaitResult(kind=OutcomeKind.UNKNOWN, reason=TERMINATED, message=why, decided=False)
    return SessionEnd(cause=EndCause.STOPPED, result=result, signal=signal)


def lost_end(error: Exception, *, transient: bool) -> SessionEnd:
    """The end of a session that can no longer observe its job."""
    name, hint = type(error).__name__, getattr(error, "hint", "")
    message = str(error) if isinstance(error, TFDistError) else f"{name}: {error}"
    result = WaitResult(kind=OutcomeKind.UNKNOWN, reason=name, message=message, hint=hint, decided=False)
    return SessionEnd(cause=EndCause.UNREACHABLE if transient else EndCause.ERROR, result=result)


def clean_up(policy: SessionPolicy, end: SessionEnd, seen: Seen) -> CleanUp:
    """Decide what happens to the job, and wait until that is done. Returns the decision.

    After a signal, a further signal ends the wait.
    """
    asked, before = end.cause is EndCause.STOPPED, seen.signals
    drain = Command(Do.DRAIN, signals=before if asked else 0)
    until = seen.now + policy.grace * _SHARE if asked and policy.grace is not None else None
    hurried, fate = until is not None, policy.fates[end.cause]
    # 1. What happens to the job.
    if fate is not None:
        decision = StopDecision(fate, "on_term decides" if hurried else end.result.message)
    else:
        yield Command(Do.TELL, end=end)  # at once, because this process may be killed before the decision
        rules, read = policy.workflow or WorkflowRules(), (yield Command(Do.READ_WORKFLOW))
        if read.problem:
            decision = StopDecision(JobFate.DELETE, f"the workflow cannot be read ({read.problem})")
        else:
            decision = decide_stop(read.workflow, now=read.now, deadline=rules.deadline, retried=rules.retried)
    seen = yield Command(Do.TELL, end=end, decision=decision)
    # 2. Read the last logs, because a cluster deletes them with the job.
    if end.cause in ENDED or (decision.what is JobFate.LEAVE and not hurried):
        seen = yield drain
    # 3. Act.
    match decision.what:
        case JobFate.DELETE:
            if end.cause in ENDED and policy.stopping is not None:
                until = seen.now + policy.stopping
            left = max(0.0, until - seen.now) if until and hurried else None
            seen = yield Command(Do.DELETE, seconds=policy.deletion_retries if left is None else left)
            yield from _wait_until(lambda at: at.gone, seen, before, until)
            if not (hurried or seen.problem):
                yield drain
        case JobFate.SUSPEND:
            seen = yield Command(Do.SUSPEND, by=LAUNCHER, seconds=max(0.0, until - seen.now) if until else None)
            yield from _wait_until(lambda at: at.stopped, seen, before, until)
        case JobFate.MARK:
            # This process may be the controller, so wait for its clean-up. Pods that were asked to stop need no wait.
            yield from _wait_until(lambda at: at.settled, seen, 0, seen.now + policy.settle)
    decision = decision._replace(problem=seen.problem)
    # 4. Report the end, and mark the job, because the next try must not replace a failed job with an unreported end.
    yield Command(Do.REPORT, end=end, decision=decision)
    if decision.what is JobFate.MARK:
        yield Command(Do.MARK)
    return decision


def _wait_until(
    done: Callable[[Seen], bool], seen: Seen, signals: int, until: float | None
) -> Generator[Command, Seen, None]:
    """Wait until ``done``, until the time ``until`` (epoch seconds), a further signal, or a failure of the command."""
    while not (seen.problem or done(seen)) and seen.signals == signals:
        left = None if until is None else until - seen.now
        if left is not None and left <= 0:
            return
        seen = yield Command(Do.WAIT, seconds=left)

"""Job session: one run of a job for a step, a task or a command, from adoption or creation to clean-up.

A session decides, and a host acts. The three parts are generators: each yields a ``Command``, the host carries it out
and sends back what it observes. A part keeps nothing outside its values, so that the parts may run in different
processes: Airflow's worker starts the job, its triggerer follows it, and another worker cleans up.

1. ``start`` adopts a job of an earlier try, or creates one.
2. ``follow`` waits until the session ends: the job ended, a limit passed, or the process was asked to stop.
3. ``clean_up`` decides what happens to the job, and waits for it.
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
    """Why a session ends. The causes are in the order in which they win when several apply."""

    SUCCEEDED = "succeeded"  # the job reached what is waited for
    FAILED = "failed"  # the job ended, and did not reach it
    STOPPED = "stopped"  # this process was asked to stop, or a user ended the task
    DELETED = "deleted"  # another client deleted the job
    NOT_ADMITTED = "not-admitted"  # the job was not admitted in time
    OVERDUE = "overdue"  # another limit of the session passed, or the job can never run
    UNREACHABLE = "unreachable"  # the cluster does not answer, or this process loses the job
    ERROR = "error"  # the session cannot continue: it may not read the job, or it has a defect


ENDED: Final = frozenset({EndCause.SUCCEEDED, EndCause.FAILED})
"""The job itself ended, and its outcome is the session's."""


class OnFinish(StrEnum):
    """Which jobs that ended are deleted (Airflow's ``on_finish_action``)."""

    DELETE_JOB = "delete_job"
    KEEP_JOB = "keep_job"
    DELETE_SUCCEEDED_JOB = "delete_succeeded_job"
    DELETE_ACTIVE_JOB = "delete_active_job"  # only a job that still runs


_D, _L, _M = JobFate.DELETE, JobFate.LEAVE, JobFate.MARK
# What happens to the job, by the cause of the end. A job that a next try takes up is left. A step that is tried again
# is not tried again after an error that is not transient; a task is. None: the workflow is asked (``decide_stop``).
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
    """What the workflow of a step says about its job."""

    deadline: float | None = None
    """When Argo stops the pod of the step (epoch seconds)."""
    retried: bool = False
    """Another try of the step follows, and takes the job up."""
    suspends: bool = False
    """The job is suspended while the workflow is."""
    look_every: float = 10.0
    """Seconds between two reads of the workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPolicy:
    """What a face wants of its sessions; one of ``run_policy``, ``step_policy`` and ``task_policy``."""

    fates: Fates
    """What happens to the job, by the cause of the end."""
    goal: str = "succeeded"
    """What is waited for, see ``WAIT_CONDITIONS``."""
    limits: WaitLimits = NO_LIMITS
    """Limits of the wait."""
    only_deadline: bool = False
    """A job that waits, or cannot start, ends the session at its deadline only: a user watches it, and may mend it.

    The deadline is the limit of its admission, too.
    """
    fixed_capacity: bool = False
    """The cluster never grows: a job that is too large for it ends the session."""
    awaits_pods: bool = False
    """The session ends once the last pods of the job have stopped, and not as soon as its outcome is decided."""
    ends_suspended: bool = False
    """A job that is suspended ends the session. Without, it is waited for until somebody resumes it."""
    grace: float | None = None
    """Seconds that are left to this process once it is asked to stop. None: as long as it takes."""
    deletion_retries: float | None = None
    """Seconds for which deleting the job is retried. None: what ``grace`` leaves, or as long as it takes."""
    settle: float = 0.0
    """Seconds for the controller to clean up after a job that ended: this process may be the controller."""
    stopping: float | None = None
    """Seconds for the pods of a job that ended and is deleted to stop. None: as long as it takes."""
    workflow: WorkflowRules | None = None
    """Of a step of a workflow."""


def run_policy(*, deadline: float | None, keep: bool = False, fixed_capacity: bool = False) -> SessionPolicy:
    """Of a command that runs a job, or watches one (``keep``). ``deadline``: epoch seconds."""
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
    """Of a step of a workflow. ``on_term``: what a signal does to the job, None: what the workflow says."""
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
    """Of a task of a DAG. ``on_kill``: ``delete_job`` deletes the job of a task that a user ends."""
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
    """What a host does next. After each it sends what it observes."""

    # Of ``start``; the answer to FIND are the candidates, to the others None, or the error of a lost race.
    FIND = "find"  # the jobs of earlier tries
    DISCARD = "discard"  # delete a surplus job of an earlier try
    CREATE = "create"
    ADOPT = "adopt"  # make the job this try's, and resume it if an earlier try suspended it
    REUSE_RESULT = "reuse-result"  # the same; the job has ended
    REPLACE = "replace"  # delete the job, and wait until it and its pods are gone
    # Of ``follow`` and ``clean_up``; the answer is ``Seen``.
    WAIT = "wait"  # until something new is observed, for ``seconds`` at most (None: as long as it takes)
    READ_WORKFLOW = "read-workflow"
    TELL = "tell"  # report the end, and the decision on the job once it is known
    DRAIN = "drain"  # read the last lines of containers that ended
    DELETE = "delete"  # request it; with ``seconds`` a failure is an answer, without it is raised
    SUSPEND = "suspend"  # likewise
    RESUME = "resume"
    REPORT = "report"  # the end, for good; its last lines are known
    MARK = "mark"  # note on the job that its end was reported


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """Why the session ended. ``result``: the kind, the message and the hint; ``signal``: the number, 0 for none."""

    cause: EndCause
    result: WaitResult
    signal: int = 0

    def outcome(self, status: Status, now: float) -> Outcome:
        """How the job ended, or why the session did; ``status``: the last known of the job."""
        return wait_outcome(status, self.result, now) or Outcome.of(status, OutcomeKind.UNKNOWN, now=now)


class Command(NamedTuple):
    """The next act of the host.

    ``uid``: of which job; ``seconds``: for how long; ``by``: who suspends the job; ``signals``: a further signal than
    so many ends it; ``end`` and ``decision``: what to tell or report.
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
    """What a host observes at one moment."""

    now: float
    """Epoch seconds."""
    job: Job
    """The job as it is in force."""
    status: Status
    """Its last known status, also of a job that is gone."""
    pods: tuple[PodView, ...] = ()
    """The pods that exist."""
    exists: bool = True
    """The job is stored."""
    created: float | None = None
    """When it was created (epoch seconds)."""
    suspended_by: str = ""
    """Who suspended it: ``LAUNCHER``, ``WORKFLOW``, or "" for a user."""
    signal: int = 0
    """The first signal that this process received, 0 for none."""
    signals: int = 0
    """How many it received."""
    workflow: Mapping[str, Any] | None = None
    """After ``READ_WORKFLOW``: the Workflow object, None if it is gone."""
    problem: str = ""
    """Why the last command failed, "" if it did not."""
    refused: bool = False
    """The cluster refuses the last command, and would refuse it again."""

    @property
    def dated(self) -> Status:
        """The status; a job to which no controller has written one yet waits since it was created."""
        status = self.status
        unread = status.created is None and not status.never_accepted
        return replace(status, created=self.created) if unread else status

    @property
    def gone(self) -> bool:
        """Nothing is left of the job."""
        return not self.exists and not self.pods

    @property
    def stopped(self) -> bool:
        """The job runs no pods any more: it was suspended, ended, or is gone."""
        return not self.exists or self.status.finished or (self.status.phase is Phase.ABORTED and not self.pods)

    @property
    def settled(self) -> bool:
        """The controller has cleaned up after the job that ended, as far as its policy says."""
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
_SHARE: Final = 0.75  # of the grace period, for what is to be done; the rest for the way out


def start(decide: Decide[C]) -> Start:
    """Adopt a job of an earlier try, or create one; ``decide``: the table of adoption of the face.

    A job that changes hands or goes meanwhile is looked for again. Raises the last such error after some attempts.
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
    """Wait until the session ends. Meanwhile a step's job is suspended while its workflow is."""
    rules = policy.workflow
    every = rules.look_every if rules is not None and rules.suspends else None
    look_at = None if every is None else seen.now + every
    last: bool | None = None  # what is observed of the job may be older than that
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
    """Why the session ends now, None while it continues. An outcome that is decided is never overruled."""
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
    """The end of a session that cannot observe its job any more."""
    name, hint = type(error).__name__, getattr(error, "hint", "")
    message = str(error) if isinstance(error, TFDistError) else f"{name}: {error}"
    result = WaitResult(kind=OutcomeKind.UNKNOWN, reason=name, message=message, hint=hint, decided=False)
    return SessionEnd(cause=EndCause.UNREACHABLE if transient else EndCause.ERROR, result=result)


def clean_up(policy: SessionPolicy, end: SessionEnd, seen: Seen) -> CleanUp:
    """Bring the job to what the policy says, and wait for that; a further signal ends the waiting. The decision."""
    asked, before = end.cause is EndCause.STOPPED, seen.signals
    drain = Command(Do.DRAIN, signals=before if asked else 0)
    until = seen.now + policy.grace * _SHARE if asked and policy.grace is not None else None
    hurried, fate = until is not None, policy.fates[end.cause]
    # 1. What happens to the job.
    if fate is not None:
        decision = StopDecision(fate, "on_term decides" if hurried else end.result.message)
    else:
        yield Command(Do.TELL, end=end)  # at once: this process may be killed before it has decided
        rules, read = policy.workflow or WorkflowRules(), (yield Command(Do.READ_WORKFLOW))
        if read.problem:
            decision = StopDecision(JobFate.DELETE, f"the workflow cannot be read ({read.problem})")
        else:
            decision = decide_stop(read.workflow, now=read.now, deadline=rules.deadline, retried=rules.retried)
    seen = yield Command(Do.TELL, end=end, decision=decision)
    # 2. Read the logs of what ended: on a cluster they go with the job.
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
            # Afterwards there may be no controller to clean up. Pods that are asked to stop do so by themselves.
            yield from _wait_until(lambda at: at.settled, seen, 0, seen.now + policy.settle)
    decision = decision._replace(problem=seen.problem)
    # 4. Report, and note that on the job: an end that nobody reported is not what a next try retries.
    yield Command(Do.REPORT, end=end, decision=decision)
    if decision.what is JobFate.MARK:
        yield Command(Do.MARK)
    return decision


def _wait_until(
    done: Callable[[Seen], bool], seen: Seen, signals: int, until: float | None
) -> Generator[Command, Seen, None]:
    """Until it is done, ``until`` (epoch seconds) passes, a further signal comes, or what was asked for failed."""
    while not (seen.problem or done(seen)) and seen.signals == signals:
        left = None if until is None else until - seen.now
        if left is not None and left <= 0:
            return
        seen = yield Command(Do.WAIT, seconds=left)

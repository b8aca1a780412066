"""Session host: runs a job session, in a thread for commands and launchers, or on an event loop for triggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tf_dist.client.connection import TRANSIENT_ERRORS, Backoff, until_taken
from tf_dist.client.monitor import JobMonitor, WaitSteps
from tf_dist.client.stored_jobs import StoredJob, now
from tf_dist.client.wait import run_in_thread
from tf_dist.cluster.api import Cluster
from tf_dist.core.model.pods import pod_views
from tf_dist.core.pipeline.adoption import AdoptionAction, AdoptionDecision
from tf_dist.core.pipeline.session import (
    Command,
    Do,
    Seen,
    SessionEnd,
    SessionPolicy,
    clean_up,
    follow,
    lost_end,
    start,
)
from tf_dist.core.pipeline.workflow_stop import JobFate, StopDecision
from tf_dist.errors import ClusterError, Forbidden, NotFound

T = TypeVar("T")

_PAUSE: Final = 1.0  # maximum seconds between two requests if the time is limited
# The session receives the errors of these commands, and decides what they mean.
_BORNE: Final = frozenset({Do.READ_WORKFLOW, Do.SUSPEND, Do.RESUME})


class EarlierJobs(Protocol):
    """The jobs of earlier tries, and operations on them. NotFound from an operation: the job is gone."""

    def find(self) -> Sequence[StoredJob]:
        """The jobs of earlier tries."""

    def decide(self, found: Sequence[StoredJob]) -> AdoptionDecision:
        """Decide by the adoption table of the interface."""

    def create(self) -> StoredJob:
        """Create the job of this try."""

    def adopt(self, found: StoredJob) -> StoredJob:
        """Make a job the job of this try."""

    def replace(self, found: StoredJob) -> None:
        """Delete a job. If the next job has its name, wait until it is gone."""


class StartedJob(NamedTuple):
    """The job of a try, and how the try started."""

    action: AdoptionAction
    job: StoredJob


def start_job(jobs: EarlierJobs) -> StartedJob:
    """Adopt a job of an earlier try, or create one."""
    part = start(jobs.decide)
    command, found, job = next(part), dict[str, StoredJob](), None
    while True:
        answer: Sequence[StoredJob] | NotFound | None = None
        try:
            match command.do:
                case Do.FIND:
                    answer = jobs.find()
                    found = {one.uid: one for one in answer}
                case Do.CREATE:
                    job = jobs.create()
                case Do.ADOPT | Do.REUSE_RESULT:
                    job = jobs.adopt(found[command.uid])
                case _:
                    jobs.replace(found[command.uid])
        except NotFound as error:
            answer = error
        try:
            command = part.send(answer)
        except StopIteration as done:
            assert job is not None  # the session ends with a job
            return StartedJob(done.value.answer, job)


class SessionHost:
    """Runs the session of one job. Interfaces override what it shows and reports.

    ``cluster``: for requests that change the job. ``tick``: seconds between calls of its view if nothing happens.
    """

    def __init__(
        self, cluster: Cluster, job: StoredJob, monitor: JobMonitor, policy: SessionPolicy, tick: float | None = None
    ) -> None:
        self.cluster, self.job, self.monitor, self.policy, self.tick = cluster, job, monitor, policy, tick
        self.started = time.monotonic()
        self.seconds = 0.0
        self._workflow: Mapping[str, Any] | None = None

    def run(self) -> SessionEnd:
        """Run the session from its first observation to the clean-up. ClusterError if the job cannot be observed."""
        try:
            return run_in_thread(self._steps(), self.monitor.watch.take)
        except ClusterError as error:
            end = lost_end(error, transient=isinstance(error, TRANSIENT_ERRORS))
            if self.policy.fates[end.cause] is JobFate.DELETE:
                with suppress(ClusterError):
                    self._ask(None, self._delete)
            raise

    def _steps(self) -> WaitSteps[SessionEnd]:
        end = yield from self.carry_out(follow(self.policy, self.seen()))
        self.seconds, self.monitor.decided = time.monotonic() - self.started, True
        yield from self.carry_out(clean_up(self.policy, end, self.seen()))
        return end

    # Methods that interfaces override

    def wait(self, seconds: float | None) -> WaitSteps[None]:
        """Wait for a new observation, for at most ``seconds``. None: without limit."""
        waits = [wait for wait in (seconds, self.tick) if wait is not None]
        self.monitor.show((yield min(waits, default=None)))
        if self.monitor.has_checkpoint_to_report:
            yield self.monitor.report_checkpoint

    def observed(self) -> None:
        """Called after new observations if the session continues."""

    def tell(self, end: SessionEnd, decision: StopDecision | None) -> None:
        """The session has ended. ``decision``: what happens to the job; None: not decided yet."""

    def report(self, end: SessionEnd, decision: StopDecision) -> None:
        """The end is final, and the last lines are read."""

    def mark(self) -> None:
        """Note on the job that its end was reported."""

    def read_workflow(self) -> Mapping[str, Any] | None:
        """The workflow of the step; None if it is gone."""
        return None

    def suspend(self, by: str, *, suspend: bool) -> None:
        """Suspend the job on behalf of ``by``, or resume it."""

    def suspended_by(self) -> str:
        """Who suspended the job."""
        return ""

    # Commands and observations

    def seen(self, problem: ClusterError | None = None) -> Seen:
        """The current observations. ``problem``: why the last command failed."""
        monitor, last = self.monitor, self.monitor.watch.last
        snapshot = monitor.snapshot
        # After the session has ended, the snapshot takes only lines, so its pods are out of date.
        pods = pod_views(snapshot.job, monitor.watch.pods.values()) if monitor.decided else snapshot.pods
        return Seen(
            now=now(),
            job=snapshot.job,
            status=last.status,
            pods=tuple(pods),
            exists=monitor.watch.job is not None,
            created=last.created,
            suspended_by=self.suspended_by(),
            signal=monitor.signal,
            signals=monitor.signals,
            workflow=self._workflow,
            problem="" if problem is None else str(problem),
            refused=isinstance(problem, Forbidden | NotFound),
        )

    def carry_out(self, part: Generator[Command, Seen, T]) -> WaitSteps[T]:
        """Carry out the commands of a part of the session, and return its result."""
        try:
            command = next(part)
            while True:
                problem = None
                try:
                    yield from self._do(command)
                except ClusterError as error:
                    if command.do not in _BORNE and (command.do is not Do.DELETE or command.seconds is None):
                        raise
                    problem = error
                command = part.send(self.seen(problem))
                if command.do is Do.WAIT and not self.monitor.decided:
                    self.observed()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _do(self, command: Command) -> WaitSteps[None]:
        monitor = self.monitor
        match command:
            case Command(Do.WAIT, seconds=seconds):
                yield from self.wait(seconds)
            case Command(Do.DRAIN, signals=signals):
                # Job and pods have separate watches: the end of the job may be known before that of its pods.
                monitor.sync_pods()
                yield from monitor.drain(signals)
            case Command(Do.DELETE, seconds=seconds):
                self._ask(seconds, self._delete)
            case Command(Do.SUSPEND | Do.RESUME as do, by=by, seconds=seconds):
                self._ask(seconds, lambda: self.suspend(by, suspend=do is Do.SUSPEND))
            case Command(Do.READ_WORKFLOW):
                self._workflow = self.read_workflow()
            case Command(Do.MARK):
                self.mark()
            case Command(Do.TELL, end=SessionEnd() as end, decision=decision):
                self.tell(end, decision)
            case Command(Do.REPORT, end=SessionEnd() as end, decision=StopDecision() as decision):
                self.report(end, decision)

    def _delete(self) -> None:
        self.cluster.delete(self.job.resource, self.job.namespace, self.job.name, uid=self.job.uid)

    def _ask(self, seconds: float | None, request: Callable[[], object]) -> None:
        """Retry until the cluster accepts the request; ClusterError after too long."""
        until_taken(request, Backoff() if seconds is None else Backoff(seconds, sleep=_short))


def _short(seconds: float) -> None:
    time.sleep(min(seconds, _PAUSE))

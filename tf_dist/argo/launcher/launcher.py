"""Launcher: one try of a step, from its options to the end of its job."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.argo.launcher.log_writer import LogWriter
from tf_dist.argo.launcher.step_job import Interrupted, StepJobs, step_document, stop_patch
from tf_dist.argo.launcher.step_outputs import ProgressFile, StepOutputs, copy_checkpoint, progress_outputs
from tf_dist.client import exit_codes
from tf_dist.client.connection import Connection, connect
from tf_dist.client.controller_host import hosted_controller
from tf_dist.client.job_display import OWN_NAME, prefix_width, show_warnings
from tf_dist.client.job_files import LoadedJob, problem_text
from tf_dist.client.log_follower import log_opener
from tf_dist.client.monitor import JobMonitor, JobView, monitoring
from tf_dist.client.session_host import SessionHost, start_job
from tf_dist.client.stored_jobs import StoredJob, leader_problems, now
from tf_dist.client.submission import TargetNamespaces, create_companion
from tf_dist.client.yaml_files import YamlDocument
from tf_dist.cluster.api import Cluster, LogOptions
from tf_dist.cluster.signals import Signals
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.diagnostics.outcome import outcome_word
from tf_dist.core.model.job import JobKey
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.timestamps import parse_time
from tf_dist.core.model.wording import are
from tf_dist.core.pipeline.session import ENDED, EndCause, SessionEnd, WorkflowRules, step_policy
from tf_dist.core.pipeline.wait_result import WaitLimits, admission_limit
from tf_dist.core.pipeline.workflow_stop import WORKFLOW, JobFate, StopDecision
from tf_dist.errors import ClusterError, Forbidden, InvalidJob, NotFound, TFDistError

_EVERY: Final = 1.0  # seconds between two writes of the reports of the training


# The status that a try reports if the job did not end by itself, and so has no final status.
_STATUS: Final[Mapping[OutcomeKind, str]] = {
    OutcomeKind.DELETED: "Deleted",
    OutcomeKind.UNKNOWN: "Terminated",
    OutcomeKind.ADMISSION_TIMEOUT: "PendingTimeout",
    OutcomeKind.START_TIMEOUT: "StartTimeout",
    OutcomeKind.DEADLINE_EXCEEDED: "Timeout",
    OutcomeKind.IMAGE_PULL_FAILED: "ImageUnavailable",
    OutcomeKind.INVALID: "InvalidSpec",
}
_KIND_OF_FATE: Final = {JobFate.DELETE: OutcomeKind.DELETED, JobFate.SUSPEND: OutcomeKind.SUSPENDED}


class StepHost(SessionHost):
    """The session of one try of a step. Writes outputs and progress, and reads the workflow.

    ``home``: the namespace of the workflow. ``out``: the outputs.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: StoredJob,
        monitor: JobMonitor,
        options: LauncherOptions,
        home: str,
        view: JobView,
        out: StepOutputs,
    ) -> None:
        deadline = parse_time(options.deadline)
        retried = options.reattach and options.retry < options.retries
        policy = step_policy(
            limits=WaitLimits(
                deadline=None if options.run_timeout is None else now() + options.run_timeout,
                admission=admission_limit(options.admission_timeout, fallbacks=bool(job.job.fallbacks)),
                startup=options.startup_timeout,
                begun=now(),
            ),
            workflow=WorkflowRules(
                deadline=deadline if deadline is not None and deadline > 0 else None,
                retried=retried,
                suspends=options.on_suspend and bool(options.workflow and options.workflow_uid),
                look_every=options.look_every,
            ),
            grace=options.grace,
            settle=options.settle,
            on_term=options.on_term,
        )
        super().__init__(cluster, job, monitor, policy)
        self._options, self._home, self._view, self._out = options, home, view, out
        self._progress = ProgressFile(options.progress_file, options.total_steps)
        self._reported_at, self._complained = 0.0, ""

    def observed(self) -> None:
        """Report changes of the state immediately, and the reports of the training once a second."""
        snapshot = self.monitor.snapshot
        status = snapshot.status
        values = {"status": snapshot.state, "reason": status.display_reason, "message": status.display_message}
        if snapshot.result.checkpoint:
            values["checkpoint"] = snapshot.result.checkpoint
        if time.monotonic() - self._reported_at >= _EVERY:
            self._reported_at = time.monotonic()
            values |= progress_outputs(snapshot.result)
            self._progress.show(snapshot.result)
        self._put(values)

    def tell(self, end: SessionEnd, decision: StopDecision | None) -> None:
        """Report the end, and write all outputs, because this process may be killed soon."""
        self._tell(self._values(end, None))
        if decision is None or end.cause in ENDED:
            return
        match end.cause, decision.what:
            case EndCause.STOPPED, what:
                self._view.say(f"asked to stop: {decision.why}; the job: {what}")
            case EndCause.NOT_ADMITTED, JobFate.LEAVE:
                # A waiting job keeps its position in the queue.
                text = f"{decision.why}: {self.job.shown} continues to wait, and the next try adopts it"
                self._view.say(text)
            case _, JobFate.DELETE:
                self._view.say(f"{decision.why}: deletes {self.job.shown}")

    def report(self, end: SessionEnd, decision: StopDecision) -> None:
        """Write the last line, and the final outputs."""
        snapshot, values = self.monitor.snapshot, self._values(end, decision)
        left = len(self.monitor.watch.pods) if decision.what is JobFate.DELETE else 0
        if decision.problem:
            self._view.say(f"cannot {decision.what} {self.job.shown}: {decision.problem}")
        elif left:
            self._view.say(f"{self.job.shown} is deleted; {left} of its pods {are(left)} still stopping")
        if end.cause is EndCause.STOPPED:
            self._tell(values)
            return
        self._progress.show(snapshot.result, done=end.cause is EndCause.SUCCEEDED)
        if end.cause is EndCause.FAILED:
            for one in diagnose(snapshot.job, snapshot.status, snapshot.pods, now(), snapshot.logs):
                self._view.say("\n".join(filter(None, (f"{one.level}: {one.summary}", one.detail, one.resolution))))
        self._tell(values)
        checkpoint, mounts = snapshot.result.checkpoint, self._options.checkpoint_files
        if mounts and checkpoint:
            problem = copy_checkpoint(checkpoint, self._options.out / contract.CHECKPOINT, mounts)
            if problem:
                self._view.say(f"warning: the checkpoint is not stored as an artifact: {problem}")
        parts = [f"{name}={value:g}" for name, value in sorted(snapshot.result.metrics.items())]
        parts += [f"checkpoint={snapshot.result.checkpoint}"] if snapshot.result.checkpoint else []
        message = f" ({values['message']})" if values["message"] else ""
        self._view.say(f"{self.job.shown} {values['status']}{message}{': ' if parts else ''}{' '.join(parts)}")

    def mark(self) -> None:
        """Record that the end was reported. A failure is harmless, because the next try reports the end again."""
        patch = {"metadata": {"annotations": {contract.REPORTED: "true"}, "uid": self.job.uid}}
        with suppress(ClusterError):
            self.cluster.patch(self.job.resource, self.job.namespace, self.job.name, patch)

    # The workflow

    def read_workflow(self) -> Mapping[str, Any] | None:
        """Read the workflow with a single request, because time may be short."""
        if not self._options.workflow:
            return None
        try:
            found = self.cluster.get(contract.WORKFLOWS, self._home, self._options.workflow)
        except NotFound:
            return None
        except Forbidden as error:
            if not self.monitor.decided:
                what = f"so argo suspend does not suspend {self.job.shown}"
                self._view.say(f"the workflow cannot be read, {what}: {error}")
            raise
        return found if found["metadata"].get("uid") == self._options.workflow_uid else None

    def suspend(self, by: str, *, suspend: bool) -> None:
        """See ``SessionHost``."""
        stored = self.monitor.watch.last
        patch = stop_patch(stored, suspend=suspend, by=by)
        patch["metadata"]["uid"] = self.job.uid
        self.cluster.patch(stored.resource, stored.namespace, stored.name, patch)
        if by == WORKFLOW:
            shown = self.job.shown
            self._view.say(f"the workflow is suspended: suspends {shown}" if suspend else f"resumes {shown}")

    def suspended_by(self) -> str:
        """See ``SessionHost``."""
        annotations = self.monitor.watch.last.stored["metadata"].get("annotations") or {}
        return str(annotations.get(contract.STOPPED_BY, ""))

    # Outputs

    def _values(self, end: SessionEnd, decision: StopDecision | None) -> dict[str, str]:
        status, kind, message = self.monitor.snapshot.status, end.result.kind, ""
        outcome = end.outcome(replace(self.seen(), status=status).dated, now())
        word = "" if end.cause in ENDED or kind is None else _STATUS[kind]
        if end.cause is EndCause.STOPPED:
            kind, message = outcome.kind, "the launcher was asked to stop"
            if decision is not None:
                kind = _KIND_OF_FATE.get(decision.what, kind)
                problem = f", and that failed: {decision.problem}" if decision.problem else ""
                message += f": {decision.why}{problem} ({decision.what} job)"
        return {
            "outcome": (kind or outcome.kind).value,
            "status": word or outcome_word(status),
            "reason": outcome.reason or word,
            "message": message or outcome.message,
            "replica": outcome.replica,
            "exit-code": "" if outcome.exit_code is None else str(outcome.exit_code),
            **{name: str(getattr(outcome, name)) for name in ("restarts", "disruptions", "preemptions", "fallback")},
        }

    def _tell(self, values: dict[str, str]) -> None:
        """Write all known outputs."""
        usage = self.monitor.watch.last.status.usage.until(now())
        used = {
            "gpu-seconds": f"{usage.gpus.held:.0f}",
            "lost-gpu-seconds": f"{usage.gpus.lost:.0f}",
            "goodput": f"{usage.goodput or 0:g}",
            "duration": f"{time.monotonic() - self.started:.0f}",
        }
        self._put(progress_outputs(self.monitor.snapshot.result) | used | values)

    def _put(self, values: dict[str, str]) -> None:
        self._out.put(values)
        if self._out.problem and self._out.problem != self._complained:
            self._complained = self._out.problem
            self._view.say(self._out.problem)


_FOLLOW: Final = LogOptions(follow=True)
_QUICK: Final = 5.0  # timeout in seconds of a request when time is short


def run_step(options: LauncherOptions, signals: Signals, log_writer: LogWriter) -> int:
    """Run one try of the step. Returns its exit code. Raises TFDistError if it cannot start or continue."""
    stopped: list[int] = []
    signals.listen(stopped.append)
    outputs = StepOutputs(options.out)
    outputs.start("")
    try:
        connection = connect(options.kubeconfig, options.context)
        signals.listen(lambda _: connection.hurry())
        entry, bundle = step_document(options, connection.namespace)
        outputs.put({"job": entry.job.key.name})
        for found in bundle.problems:
            log_writer.say(f"warning: {problem_text(found)} {found.problem.hint}".rstrip())
        if stopped:
            raise Interrupted(stopped[0])
        return _run_job(options, signals, log_writer, outputs, connection, entry, bundle.companions)
    except Interrupted as interrupted:
        outputs.put({"status": "Terminated", "reason": "Terminated", "message": "stopped before the job was created"})
        return exit_codes.SIGNAL_BASE + interrupted.number
    except TFDistError as error:
        kind = OutcomeKind.INVALID if isinstance(error, InvalidJob) else OutcomeKind.UNKNOWN
        what = {"outcome": kind.value, "status": "Error", "reason": type(error).__name__, "message": str(error)}
        outputs.put(what)
        raise


def _run_job(
    options: LauncherOptions,
    signals: Signals,
    view: LogWriter,
    outputs: StepOutputs,
    connection: Connection,
    entry: LoadedJob,
    companions: Iterable[YamlDocument],
) -> int:
    """Create or adopt the job, and follow it to its end. Returns the exit code."""
    cluster, name, home = connection.cluster, entry.job.key.name, connection.namespace
    namespace = TargetNamespaces(options.namespace, home).of(entry.written)
    view.width = max(prefix_width(entry.job), len(OWN_NAME))
    # The owner is the same for every run of the workflow, because the companion objects are also the same.
    owner = name.rpartition("-")[0] if options.workflow_uid else name
    for written in companions:
        create_companion(cluster, written, namespace, owner=owner)
    key, workdir = JobKey(namespace, name), None if connection.here else ""
    archive = base64.b64decode(options.code_archive)
    with ExitStack() as stack:
        stack.enter_context(show_warnings(view))
        host = stack.enter_context(
            hosted_controller(connection, entry.job.dialect, key, choice=options.driver),
        )
        jobs = StepJobs(cluster, entry, namespace, signals, view.say, options.reattach, workdir, archive)
        job = start_job(jobs).job
        view.say(f"{job.shown} in namespace {job.namespace}")
        for problem in leader_problems(cluster, [job]) if host is None else ():
            view.say(f"{problem.summary} ({problem.resolution})")
        quick: Cluster = cluster
        if connection.place is not None:
            quick = stack.enter_context(connection.place.cluster(connections=2, retries=0, timeout=_QUICK))
        monitor = stack.enter_context(monitoring(cluster, job, view, signals, lambda _: log_opener(cluster, _FOLLOW)))
        end = StepHost(quick, job, monitor, options, home, view, outputs).run()
    return exit_codes.exit_code_of_end(end)

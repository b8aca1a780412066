"""Launcher: one try of a step, from its options to the end of its job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from tf_dist.client import exit_codes
from tf_dist.client.connection import TRANSIENT_ERRORS, Connection, connect
from tf_dist.client.inline_driver import inline_driver
from tf_dist.client.job_display import prefix_width, show_warnings
from tf_dist.client.job_files import JobFiles, LoadedJob, problem_text
from tf_dist.client.launch import contract
from tf_dist.client.launch.launcher_arguments import LauncherOptions
from tf_dist.client.launch.log_writer import LogWriter
from tf_dist.client.launch.step_cleanup import StepShutdown
from tf_dist.client.launch.step_job import Interrupted, StepJobCreator, step_document
from tf_dist.client.launch.step_outputs import GpuUsage, ProgressFile, StepOutputs, copy_checkpoint, progress_outputs
from tf_dist.client.launch.step_suspension import StepSuspension
from tf_dist.client.log_follower import log_opener
from tf_dist.client.monitor import JobMonitor, JobView, monitoring
from tf_dist.client.stored_jobs import StoredJob, now
from tf_dist.client.submission import TargetNamespaces, create_companion
from tf_dist.client.wait import run_in_thread
from tf_dist.cluster.api import Cluster, LogOptions, Object
from tf_dist.controller.observability.signals import Signals
from tf_dist.core.api.job import CleanPodPolicy, JobKey
from tf_dist.core.api.status import SUCCESSFUL, OutcomeKind, Status, outcome_kind
from tf_dist.core.api.timestamps import parse_time
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.diagnostics.metrics_parser import Progress
from tf_dist.core.diagnostics.outcome import Outcome, job_outcome, outcome_word
from tf_dist.core.steps import wait_result
from tf_dist.core.steps.shutdown import OnTerm
from tf_dist.core.steps.wait_result import WaitLimits, admission_limit
from tf_dist.errors import ClusterError, InvalidJob, TFDistError

_EVERY: Final = 1.0  # seconds between two writes of what training reports


class StepEnd(StrEnum):
    """Why a try ended; the value is the status that it reports, where the job itself has none."""

    FINISHED = "Finished"
    DELETED = "Deleted"
    SIGNAL = "Terminated"
    PENDING = "PendingTimeout"
    START = "StartTimeout"
    TIMEOUT = "Timeout"
    IMAGE = "ImageUnavailable"
    INVALID = "InvalidSpec"


_DELETED: Final = "the job was deleted"
_LIMITS: Final = {
    OutcomeKind.DEADLINE_EXCEEDED: StepEnd.TIMEOUT,
    OutcomeKind.ADMISSION_TIMEOUT: StepEnd.PENDING,
    OutcomeKind.START_TIMEOUT: StepEnd.START,
    OutcomeKind.IMAGE_PULL_FAILED: StepEnd.IMAGE,
    OutcomeKind.INVALID: StepEnd.INVALID,
}
_KINDS: Final = {
    **{end: kind for kind, end in _LIMITS.items()},
    StepEnd.DELETED: OutcomeKind.DELETED,
    StepEnd.SIGNAL: OutcomeKind.UNKNOWN,
}
_KIND_OF_FATE: Final = {OnTerm.DELETE: OutcomeKind.DELETED, OnTerm.SUSPEND: OutcomeKind.SUSPENDED}


class StepRun:
    """``view``: what is shown; ``outputs`` and ``progress``: what is reported; ``stopping``: what a signal does;
    ``suspension``: what a suspended workflow does; ``checkpoint_files``: where those of the last one go, copied from
    what is below ``checkpoint_mounts``.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: StoredJob,
        view: JobView,
        outputs: StepOutputs,
        progress: ProgressFile,
        stopping: StepShutdown,
        suspension: StepSuspension,
        limits: WaitLimits,
        settle: float,
        checkpoint_files: Path,
        checkpoint_mounts: Sequence[str],
    ) -> None:
        self._settle = settle
        self._checkpoint_files = checkpoint_files
        self._checkpoint_mounts = checkpoint_mounts
        self._suspension = suspension
        self._cluster = cluster
        self._job = job
        self._view = view
        self._outputs = outputs
        self._progress = progress
        self._stopping = stopping
        self._usage = GpuUsage()
        self._started = time.monotonic()
        self._limits = limits
        self._why = ""
        self._reported_at = 0.0
        self._complained = ""

    def run(self, monitor: JobMonitor) -> int:
        """See the job to its end; the exit code. ClusterError when it cannot be seen any more."""
        end = self._until_end(monitor)
        monitor.decided = True
        match end:
            case StepEnd.SIGNAL:
                return self._stop(monitor)
            case StepEnd.PENDING if self._stopping.retried:
                # The next try goes on with it: a job that waits keeps its age.
                self._view.say(f"{self._why}: {self._job.shown} goes on waiting, and the next try takes it up")
                self._tell(monitor, self._end_values(monitor, end))
            case StepEnd.PENDING | StepEnd.START | StepEnd.TIMEOUT | StepEnd.IMAGE | StepEnd.INVALID:
                self._view.say(f"{self._why}: deletes {self._job.shown}")
                self._tell(monitor, self._end_values(monitor, end))
                self._stopping.delete(monitor, until=None)
            case StepEnd.FINISHED:
                self._tell(monitor, self._end_values(monitor, end))
                self._see_off(monitor)
        return self._report(monitor, end)

    # While it goes on

    def _until_end(self, monitor: JobMonitor) -> StepEnd:
        while True:
            monitor.step(self._wait_seconds(monitor))
            self._usage.note(monitor.watch.pods, now())
            if (end := self._end(monitor)) is not None:
                return end
            self._suspension.look(monitor.watch.job)
            self._tell_now_and_then(monitor)

    def _end(self, monitor: JobMonitor) -> StepEnd | None:
        snapshot, status = monitor.snapshot, monitor.snapshot.status
        if monitor.watch.job is None:
            self._why = _DELETED
            return StepEnd.SIGNAL if monitor.signal else StepEnd.DELETED
        if outcome_kind(status) not in (None, OutcomeKind.SUSPENDED):
            return StepEnd.FINISHED  # a limit or a signal changes nothing: its outcome is reported
        if monitor.signal:
            return StepEnd.SIGNAL
        found = wait_result.evaluate_wait(snapshot.job, self._dated(status), snapshot.pods, self._limits, now())
        if found is None or found.kind not in _LIMITS:
            return None
        self._why = found.message
        return _LIMITS[found.kind]

    def _wait_seconds(self, monitor: JobMonitor) -> float | None:
        """How long to wait for something to happen: for ever, unless a limit or a look at the workflow is near."""
        due = wait_result.next_wait_limit(self._dated(monitor.snapshot.status), self._limits, now())
        found = (None if due is None else max(0.0, due - now()), self._suspension.seconds())
        return min((seconds for seconds in found if seconds is not None), default=None)

    def _dated(self, status: Status) -> Status:
        """Where no driver has written a status yet, the job has waited since it was made."""
        made = parse_time(self._job.stored["metadata"].get("creationTimestamp"))
        return status if status.created is not None else replace(status, created=made)

    def _tell_now_and_then(self, monitor: JobMonitor) -> None:
        """States at once, and what training reports not more often than people look."""
        snapshot = monitor.snapshot
        status = snapshot.status
        values = {"status": snapshot.state, "reason": status.display_reason, "message": status.display_message}
        if snapshot.result.checkpoint:
            values["checkpoint"] = snapshot.result.checkpoint
        if time.monotonic() - self._reported_at >= _EVERY:
            self._reported_at = time.monotonic()
            values |= progress_outputs(snapshot.result)
            self._progress.show(snapshot.result)
        self._put(values)

    # How it ends

    def _end_values(self, monitor: JobMonitor, end: StepEnd) -> dict[str, str]:
        status = monitor.snapshot.status
        outcome = self._outcome(monitor, end)
        return {
            "outcome": outcome.kind.value,
            "status": outcome_word(status) if end is StepEnd.FINISHED else end.value,
            "reason": outcome.reason,
            "message": outcome.message,
            "replica": outcome.replica,
            "exit-code": "" if outcome.exit_code is None else str(outcome.exit_code),
            **_counts(outcome),
        }

    def _outcome(self, monitor: JobMonitor, end: StepEnd) -> Outcome:
        status = monitor.snapshot.status
        found = job_outcome(status) if end is StepEnd.FINISHED else None
        if found is None:
            kind = _KINDS.get(end, OutcomeKind.UNKNOWN)
            found = Outcome.of(self._dated(status), kind, reason=end.value, message=self._why, now=now())
        return found

    def _tell(self, monitor: JobMonitor, values: dict[str, str]) -> None:
        """Everything that is known."""
        self._usage.note(monitor.watch.pods, now())
        used = {
            "gpu-seconds": f"{self._usage.gpu_seconds(now()):.0f}",
            "duration": f"{time.monotonic() - self._started:.0f}",
        }
        self._put(progress_outputs(monitor.snapshot.result) | used | values)

    def _put(self, values: dict[str, str]) -> None:
        self._outputs.put(values)
        if self._outputs.problem and self._outputs.problem != self._complained:
            self._complained = self._outputs.problem
            self._view.say(self._outputs.problem)

    def _stop(self, monitor: JobMonitor) -> int:
        """In the time that is left before SIGKILL."""
        stopped = self._outcome(monitor, StepEnd.SIGNAL)
        before = {"outcome": stopped.kind.value, "status": StepEnd.SIGNAL.value, "reason": StepEnd.SIGNAL.value}
        before |= _counts(stopped)
        self._tell(monitor, {**before, "message": "the launcher was asked to stop"})
        fate = self._stopping.stop(monitor)
        before["outcome"] = _KIND_OF_FATE.get(fate.what, stopped.kind).value
        self._tell(monitor, {**before, "message": f"the launcher was asked to stop: {fate.why} ({fate.what} job)"})
        return exit_codes.SIGNAL_BASE + monitor.signal

    def _see_off(self, monitor: JobMonitor) -> None:
        """Its last lines, and nothing left that its policy takes away: afterwards there may be no driver to do it.

        A signal cuts that short: pods that were asked to end do so by themselves.
        """
        monitor.sync_pods()
        run_in_thread(monitor.drain(0), monitor.watch.take)
        until = time.monotonic() + self._settle
        while self._unsettled(monitor) and not monitor.signal and time.monotonic() < until:
            monitor.step(max(0.0, until - time.monotonic()))

    def _unsettled(self, monitor: JobMonitor) -> bool:
        job = monitor.watch.job
        if job is None:
            return False
        if not job.status.finished:
            return True
        if job.job.run_policy.clean_pods is CleanPodPolicy.NONE:
            return False
        return any(_still_running(pod) for pod in monitor.watch.pods.values())

    def _report(self, monitor: JobMonitor, end: StepEnd) -> int:
        """The last line, outputs of the workflow, and a mark on the job that its end was reported."""
        snapshot, values = monitor.snapshot, self._end_values(monitor, end)
        succeeded = end is StepEnd.FINISHED and snapshot.status.phase in SUCCESSFUL
        self._progress.show(snapshot.result, done=succeeded)
        if end is StepEnd.FINISHED and not succeeded:
            for one in diagnose(snapshot.job, snapshot.status, snapshot.pods, now()):
                self._view.say("\n".join(filter(None, (f"{one.level}: {one.summary}", one.detail, one.resolution))))
        self._tell(monitor, values)
        if self._checkpoint_mounts and snapshot.result.checkpoint:
            problem = copy_checkpoint(snapshot.result.checkpoint, self._checkpoint_files, self._checkpoint_mounts)
            if problem:
                self._view.say(f"warning: no artifact of the checkpoint: {problem}")
        if end is StepEnd.FINISHED:
            self._note_reported()
        self._view.say(_last_line(self._job, values, snapshot.result))
        match end:
            case StepEnd.FINISHED:
                return exit_codes.exit_code_of_outcome(outcome_kind(snapshot.status))
            case StepEnd.PENDING:
                return exit_codes.RETRYABLE
        return exit_codes.FAILED

    def _note_reported(self) -> None:
        """Not being able to costs no more than telling it once more at the next try."""
        patch = {"metadata": {"annotations": {contract.REPORTED: "true"}, "uid": self._job.uid}}
        with suppress(ClusterError):
            self._cluster.patch(self._job.resource, self._job.namespace, self._job.name, patch)


def _counts(outcome: Outcome) -> dict[str, str]:
    return {name: str(getattr(outcome, name)) for name in ("restarts", "disruptions", "preemptions", "fallback")}


def _last_line(job: StoredJob, values: Mapping[str, str], progress: Progress) -> str:
    parts = [f"{name}={value:g}" for name, value in sorted(progress.metrics.items())]
    parts += [f"checkpoint={progress.checkpoint}"] if progress.checkpoint else []
    message = f" ({values['message']})" if values["message"] else ""
    return f"{job.shown} {values['status']}{message}{': ' if parts else ''}{' '.join(parts)}"


def _still_running(pod: Object) -> bool:
    """Whether it was not asked to end."""
    alive = (pod.get("status") or {}).get("phase") in ("Pending", "Running")
    return alive and "deletionTimestamp" not in pod["metadata"]


_FOLLOW: Final = LogOptions(follow=True)
_OWN_NAME: Final = len("tf-dist")
_QUICK: Final = 5.0  # seconds that a request may take when the time is short


def run_step(options: LauncherOptions, signals: Signals, log_writer: LogWriter) -> int:
    """One try of the step; its exit code. TFDistError when it cannot even begin, or not go on."""
    stopped: list[int] = []
    signals.listen(stopped.append)
    outputs = StepOutputs(options.out)
    outputs.start("")
    try:
        connection = connect(options.kubeconfig, options.context)
        signals.listen(lambda _: connection.hurry())
        entry, bundle = step_document(options, connection.namespace)
        step = _StepSetup(options, signals, log_writer, outputs, connection, entry)
        outputs.put({"job": entry.job.key.name})
        for found in bundle.problems:
            log_writer.say(f"warning: {problem_text(found)} {found.problem.hint}".rstrip())
        if stopped:
            raise Interrupted(stopped[0])
        return step.run(bundle)
    except Interrupted as interrupted:
        outputs.put({"status": "Terminated", "reason": "Terminated", "message": "stopped before the job was made"})
        return exit_codes.SIGNAL_BASE + interrupted.number
    except TFDistError as error:
        kind = OutcomeKind.INVALID if isinstance(error, InvalidJob) else OutcomeKind.UNKNOWN
        what = {"outcome": kind.value, "status": "Error", "reason": type(error).__name__, "message": str(error)}
        outputs.put(what)
        raise


class _StepSetup:
    def __init__(
        self,
        options: LauncherOptions,
        signals: Signals,
        log_writer: LogWriter,
        outputs: StepOutputs,
        connection: Connection,
        entry: LoadedJob,
    ) -> None:
        self._options = options
        self._signals = signals
        self._log_writer = log_writer
        self._outputs = outputs
        self._connection = connection
        self._entry = entry
        self._namespace = TargetNamespaces(options.namespace, connection.namespace).of(entry.written)

    def run(self, bundle: JobFiles) -> int:
        """Make or find the job, and see it to its end."""
        cluster = self._connection.cluster
        self._log_writer.width = max(prefix_width(self._entry.job), _OWN_NAME)
        for written in bundle.companions:
            create_companion(cluster, written, self._namespace, owner=self._base_name())
        with show_warnings(self._log_writer), self._driven() as annotations:
            placing = StepJobCreator(
                cluster,
                self._entry,
                self._namespace,
                self._signals,
                self._log_writer.say,
                reattach=self._options.reattach,
            )
            job = placing.place(annotations, None if self._connection.here else "")
            self._log_writer.say(f"{job.shown} in namespace {job.namespace}")
            try:
                return self._see_to_its_end(job)
            except TRANSIENT_ERRORS:
                raise  # the next try finds it
            except ClusterError:
                _delete_abandoned_job(cluster, job)
                raise

    def _base_name(self) -> str:
        """What the document calls the job: of every run of the workflow the same, as what stands beside it."""
        name = self._entry.job.key.name
        return name.rpartition("-")[0] if self._options.workflow_uid else name

    @contextmanager
    def _driven(self) -> Iterator[Mapping[str, str]]:
        key, choice = JobKey(self._namespace, self._entry.job.key.name), self._options.driver
        with inline_driver(
            self._connection, self._entry.job.dialect, key, choice=choice, takes_over=True
        ) as annotations:
            yield annotations

    def _see_to_its_end(self, job: StoredJob) -> int:
        cluster, options, log_writer = self._connection.cluster, self._options, self._log_writer
        deadline = None if options.run_timeout is None else now() + options.run_timeout
        with ExitStack() as stack:
            quick: Cluster = cluster
            if self._connection.place is not None:
                quick = stack.enter_context(self._connection.place.cluster(connections=2, retries=0, timeout=_QUICK))
            monitor = stack.enter_context(
                monitoring(cluster, job, log_writer, self._signals, lambda _: log_opener(cluster, _FOLLOW))
            )
            launch = StepRun(
                cluster,
                job,
                log_writer,
                self._outputs,
                ProgressFile(options.progress_file, options.total_steps),
                StepShutdown(quick, job, options, self._connection.namespace, log_writer.say),
                StepSuspension(quick, options, self._connection.namespace, log_writer.say),
                WaitLimits(
                    deadline=deadline,
                    admission=admission_limit(options.admission_timeout, fallbacks=bool(job.job.fallbacks)),
                    startup=options.startup_timeout,
                    begun=now(),
                ),
                options.settle,
                options.out / contract.CHECKPOINT,
                options.checkpoint_files,
            )
            return launch.run(monitor)


def _delete_abandoned_job(cluster: Cluster, job: StoredJob) -> None:
    """It is not needed any more."""
    try:
        cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    except ClusterError:
        return

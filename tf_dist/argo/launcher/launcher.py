"""Launcher: one try of a step, from its options to the end of its job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.argo.launcher.log_writer import LogWriter
from tf_dist.argo.launcher.step_cleanup import StepShutdown
from tf_dist.argo.launcher.step_job import Interrupted, StepJobCreator, step_document
from tf_dist.argo.launcher.step_outputs import GpuUsage, ProgressFile, StepOutputs, copy_checkpoint, progress_outputs
from tf_dist.argo.launcher.step_suspension import StepSuspension
from tf_dist.client import exit_codes
from tf_dist.client.connection import TRANSIENT_ERRORS, Connection, connect
from tf_dist.client.controller_host import hosted_controller
from tf_dist.client.job_display import OWN_NAME, prefix_width, show_warnings
from tf_dist.client.job_files import JobFiles, LoadedJob, problem_text
from tf_dist.client.log_follower import log_opener
from tf_dist.client.monitor import JobMonitor, JobView, monitoring
from tf_dist.client.stored_jobs import StoredJob, leader_problems, now
from tf_dist.client.submission import TargetNamespaces, create_companion
from tf_dist.client.wait import run_in_thread
from tf_dist.cluster.api import Cluster, LogOptions, Object
from tf_dist.controller.observability.signals import Signals
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.diagnostics.metrics_parser import Progress
from tf_dist.core.diagnostics.outcome import Outcome, job_outcome, outcome_word
from tf_dist.core.model.job import CleanPodPolicy, JobKey
from tf_dist.core.model.reasons import OutcomeKind
from tf_dist.core.model.status import SUCCESSFUL, Status, outcome_kind
from tf_dist.core.model.timestamps import parse_time
from tf_dist.core.pipeline import wait_result
from tf_dist.core.pipeline.wait_result import WaitLimits, admission_limit
from tf_dist.core.pipeline.workflow_stop import OnTerm
from tf_dist.errors import ClusterError, InvalidJob, TFDistError

_EVERY: Final = 1.0  # seconds between two writes of what training reports


# The status that a try reports where the job has none, because it did not end by itself.
_STATUS: Final[Mapping[OutcomeKind, str]] = {
    OutcomeKind.DELETED: "Deleted",
    OutcomeKind.UNKNOWN: "Terminated",
    OutcomeKind.ADMISSION_TIMEOUT: "PendingTimeout",
    OutcomeKind.START_TIMEOUT: "StartTimeout",
    OutcomeKind.DEADLINE_EXCEEDED: "Timeout",
    OutcomeKind.IMAGE_PULL_FAILED: "ImageUnavailable",
    OutcomeKind.INVALID: "InvalidSpec",
}
_LIMITS: Final = _STATUS.keys() - {OutcomeKind.DELETED, OutcomeKind.UNKNOWN}
_KIND_OF_FATE: Final = {OnTerm.DELETE: OutcomeKind.DELETED, OnTerm.SUSPEND: OutcomeKind.SUSPENDED}


class _End(NamedTuple):
    """Why a try ended: the job by itself (``finished``), or it was deleted, stopped (UNKNOWN), or a limit passed."""

    kind: OutcomeKind
    why: str = ""
    finished: bool = False


@dataclass(slots=True, kw_only=True)
class StepRun:
    """One try of a step, from its job to the exit code.

    ``view``: what is shown; ``outputs`` and ``progress``: what is reported; ``stopping``: what a signal does;
    ``suspension``: what a suspended workflow does; ``settle``: seconds for the controller to see to the pods of a job
    that has ended; ``checkpoint_files``: where the last one's go, copied from what is below ``checkpoint_mounts``.
    """

    cluster: Cluster
    job: StoredJob
    view: JobView
    outputs: StepOutputs
    progress: ProgressFile
    stopping: StepShutdown
    suspension: StepSuspension
    limits: WaitLimits
    settle: float
    checkpoint_files: Path
    checkpoint_mounts: Sequence[str]
    _usage: GpuUsage = field(default_factory=GpuUsage, init=False)
    _started: float = field(default_factory=time.monotonic, init=False)
    _reported_at: float = field(default=0.0, init=False)
    _complained: str = field(default="", init=False)

    def run(self, monitor: JobMonitor) -> int:
        """See the job to its end; the exit code. ClusterError when it cannot be seen any more."""
        end = self._until_end(monitor)
        monitor.decided = True
        if end.kind is OutcomeKind.UNKNOWN and not end.finished:
            return self._stop(monitor)
        if end.kind is OutcomeKind.ADMISSION_TIMEOUT and self.stopping.retried and not end.finished:
            # The next try goes on with it: a job that waits keeps its age.
            self.view.say(f"{end.why}: {self.job.shown} goes on waiting, and the next try takes it up")
        elif not end.finished and end.kind is not OutcomeKind.DELETED:
            self.view.say(f"{end.why}: deletes {self.job.shown}")
            self._tell(monitor, self._end_values(monitor, end))
            self.stopping.delete(monitor, until=None)
        self._tell(monitor, self._end_values(monitor, end))
        if end.finished:
            self._see_off(monitor)
        return self._report(monitor, end)

    # While it goes on

    def _until_end(self, monitor: JobMonitor) -> _End:
        while True:
            monitor.step(self._wait_seconds(monitor))
            self._usage.note(monitor.watch.pods, now())
            if (end := self._end(monitor)) is not None:
                return end
            self.suspension.look(monitor.watch.job)
            self._tell_now_and_then(monitor)

    def _end(self, monitor: JobMonitor) -> _End | None:
        snapshot, status = monitor.snapshot, monitor.snapshot.status
        deleted, kind = monitor.watch.job is None, outcome_kind(status)
        if kind is not None and kind is not OutcomeKind.SUSPENDED and not deleted:
            return _End(kind, finished=True)  # a limit or a signal changes nothing: its outcome is reported
        if monitor.signal:
            return _End(OutcomeKind.UNKNOWN)
        if deleted:
            return _End(OutcomeKind.DELETED, "the job was deleted")
        found = wait_result.evaluate_wait(snapshot.job, self._dated(status), snapshot.pods, self.limits, now())
        return _End(found.kind, found.message) if found is not None and found.kind in _LIMITS else None

    def _wait_seconds(self, monitor: JobMonitor) -> float | None:
        """How long to wait for something to happen: for ever, unless a limit or a look at the workflow is near."""
        due = wait_result.next_wait_limit(self._dated(monitor.snapshot.status), self.limits, now())
        found = (None if due is None else max(0.0, due - now()), self.suspension.seconds())
        return min((seconds for seconds in found if seconds is not None), default=None)

    def _dated(self, status: Status) -> Status:
        """Where no controller has written a status yet, the job has waited since it was made."""
        made = parse_time(self.job.stored["metadata"].get("creationTimestamp"))
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
            self.progress.show(snapshot.result)
        self._put(values)

    # How it ends

    def _end_values(self, monitor: JobMonitor, end: _End) -> dict[str, str]:
        outcome = self._outcome(monitor, end)
        return {
            "outcome": outcome.kind.value,
            "status": outcome_word(monitor.snapshot.status) if end.finished else _STATUS[end.kind],
            "reason": outcome.reason,
            "message": outcome.message,
            "replica": outcome.replica,
            "exit-code": "" if outcome.exit_code is None else str(outcome.exit_code),
            **_counts(outcome),
        }

    def _outcome(self, monitor: JobMonitor, end: _End) -> Outcome:
        status = monitor.snapshot.status
        found = job_outcome(status) if end.finished else None
        return found or Outcome.of(
            self._dated(status), end.kind, reason=_STATUS.get(end.kind, ""), message=end.why, now=now()
        )

    def _tell(self, monitor: JobMonitor, values: dict[str, str]) -> None:
        """Everything that is known."""
        self._usage.note(monitor.watch.pods, now())
        used = {
            "gpu-seconds": f"{self._usage.gpu_seconds(now()):.0f}",
            "duration": f"{time.monotonic() - self._started:.0f}",
        }
        self._put(progress_outputs(monitor.snapshot.result) | used | values)

    def _put(self, values: dict[str, str]) -> None:
        self.outputs.put(values)
        if self.outputs.problem and self.outputs.problem != self._complained:
            self._complained = self.outputs.problem
            self.view.say(self.outputs.problem)

    def _stop(self, monitor: JobMonitor) -> int:
        """In the time that is left before SIGKILL."""
        stopped = self._outcome(monitor, _End(OutcomeKind.UNKNOWN))
        values = {"outcome": stopped.kind.value, "status": stopped.reason, "reason": stopped.reason, **_counts(stopped)}
        self._tell(monitor, {**values, "message": "the launcher was asked to stop"})
        fate = self.stopping.stop(monitor)
        values["outcome"] = _KIND_OF_FATE.get(fate.what, stopped.kind).value
        self._tell(monitor, {**values, "message": f"the launcher was asked to stop: {fate.why} ({fate.what} job)"})
        return exit_codes.SIGNAL_BASE + monitor.signal

    def _see_off(self, monitor: JobMonitor) -> None:
        """Its last lines, and nothing left that its policy takes away: afterwards there may be no controller to do it.

        A signal cuts that short: pods that were asked to end do so by themselves.
        """
        monitor.sync_pods()
        run_in_thread(monitor.drain(0), monitor.watch.take)
        until = time.monotonic() + self.settle
        while self._unsettled(monitor) and not monitor.signal and (left := until - time.monotonic()) > 0:
            monitor.step(left)

    def _unsettled(self, monitor: JobMonitor) -> bool:
        job = monitor.watch.job
        if job is None:
            return False
        if not job.status.finished:
            return True
        if job.job.run_policy.clean_pods is CleanPodPolicy.NONE:
            return False
        return any(_still_running(pod) for pod in monitor.watch.pods.values())

    def _report(self, monitor: JobMonitor, end: _End) -> int:
        """The last line, outputs of the workflow, and a mark on the job that its end was reported."""
        snapshot, values = monitor.snapshot, self._end_values(monitor, end)
        succeeded = end.finished and snapshot.status.phase in SUCCESSFUL
        self.progress.show(snapshot.result, done=succeeded)
        if end.finished and not succeeded:
            for one in diagnose(snapshot.job, snapshot.status, snapshot.pods, now()):
                self.view.say("\n".join(filter(None, (f"{one.level}: {one.summary}", one.detail, one.resolution))))
        self._tell(monitor, values)
        if self.checkpoint_mounts and snapshot.result.checkpoint:
            problem = copy_checkpoint(snapshot.result.checkpoint, self.checkpoint_files, self.checkpoint_mounts)
            if problem:
                self.view.say(f"warning: no artifact of the checkpoint: {problem}")
        if end.finished:
            self._note_reported()
        self.view.say(_last_line(self.job, values, snapshot.result))
        return exit_codes.exit_code_of_outcome(end.kind)

    def _note_reported(self) -> None:
        """Not being able to costs no more than telling it once more at the next try."""
        patch = {"metadata": {"annotations": {contract.REPORTED: "true"}, "uid": self.job.uid}}
        with suppress(ClusterError):
            self.cluster.patch(self.job.resource, self.job.namespace, self.job.name, patch)


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


@dataclass(frozen=True, slots=True)
class _StepSetup:
    options: LauncherOptions
    signals: Signals
    log_writer: LogWriter
    outputs: StepOutputs
    connection: Connection
    entry: LoadedJob

    def run(self, bundle: JobFiles) -> int:
        """Make or find the job, and see it to its end."""
        cluster, entry, say = self.connection.cluster, self.entry, self.log_writer.say
        namespace = TargetNamespaces(self.options.namespace, self.connection.namespace).of(entry.written)
        self.log_writer.width = max(prefix_width(entry.job), len(OWN_NAME))
        name = entry.job.key.name
        # Of every run of the workflow the same, as what stands beside the job.
        owner = name.rpartition("-")[0] if self.options.workflow_uid else name
        for written in bundle.companions:
            create_companion(cluster, written, namespace, owner=owner)
        key, choice = JobKey(namespace, name), self.options.driver
        with (
            show_warnings(self.log_writer),
            hosted_controller(self.connection, entry.job.dialect, key, choice=choice) as host,
        ):
            creator = StepJobCreator(cluster, entry, namespace, self.signals, say, reattach=self.options.reattach)
            job = creator.place(None if self.connection.here else "")
            say(f"{job.shown} in namespace {job.namespace}")
            for problem in leader_problems(cluster, [job]) if host is None else ():
                say(f"{problem.summary} ({problem.resolution})")
            try:
                return self._see_to_its_end(job)
            except TRANSIENT_ERRORS:
                raise  # the next try finds it
            except ClusterError:
                _delete_abandoned_job(cluster, job)
                raise

    def _see_to_its_end(self, job: StoredJob) -> int:
        cluster, options, view = self.connection.cluster, self.options, self.log_writer
        home = self.connection.namespace
        with ExitStack() as stack:
            quick: Cluster = cluster
            if self.connection.place is not None:
                quick = stack.enter_context(self.connection.place.cluster(connections=2, retries=0, timeout=_QUICK))
            monitor = stack.enter_context(
                monitoring(cluster, job, view, self.signals, lambda _: log_opener(cluster, _FOLLOW))
            )
            step = StepRun(
                cluster=cluster,
                job=job,
                view=view,
                outputs=self.outputs,
                progress=ProgressFile(options.progress_file, options.total_steps),
                stopping=StepShutdown(quick, job, options, home, view.say),
                suspension=StepSuspension(quick, options, home, view.say),
                limits=WaitLimits(
                    deadline=None if options.run_timeout is None else now() + options.run_timeout,
                    admission=admission_limit(options.admission_timeout, fallbacks=bool(job.job.fallbacks)),
                    startup=options.startup_timeout,
                    begun=now(),
                ),
                settle=options.settle,
                checkpoint_files=options.out / contract.CHECKPOINT,
                checkpoint_mounts=options.checkpoint_files,
            )
            return step.run(monitor)


def _delete_abandoned_job(cluster: Cluster, job: StoredJob) -> None:
    """It is not needed any more."""
    try:
        cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    except ClusterError:
        return

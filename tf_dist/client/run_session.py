"""One run of a job: monitored to its end, and ended when it must not go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tf_dist.client.job_files import LoadedJob
from tf_dist.client.log_follower import LogOpener
from tf_dist.client.monitor import JobMonitor, JobSnapshot, JobView, WatchingJobInformer, monitoring
from tf_dist.client.stored_jobs import StoredJob, now
from tf_dist.client.submission import TargetNamespaces, companion_owner, create_companion
from tf_dist.client.yaml_files import YamlDocument
from tf_dist.cluster.api import Cluster
from tf_dist.controller.observability.signals import Signals
from tf_dist.core.api.assignment import pending_reason
from tf_dist.core.api.status import OutcomeKind, outcome_kind
from tf_dist.core.diagnostics.outcome import Outcome, job_outcome
from tf_dist.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A job, what stands beside it, and how it is run.

    ``timeout``: seconds after which it is given up (None: never). ``data_wanted``: standard output is for data.
    """

    entry: LoadedJob
    companions: tuple[YamlDocument, ...]
    spaces: TargetNamespaces
    timeout: float | None
    data_wanted: bool

    @property
    def namespace(self) -> str:
        """Where the job goes."""
        return self.spaces.of(self.entry.written)

    def create_companions(self, cluster: Cluster) -> None:
        """Create what stands beside the job, or bring it up to date."""
        for written in self.companions:
            create_companion(cluster, written, self.spaces.of(written), owner=companion_owner(written, [self.entry]))


_CLEAN_UP: Final = 10.0  # seconds for what still runs when the job has finished to end in its own time


class RunEnd(StrEnum):
    """Why a session ended."""

    FINISHED = "finished"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    NEVER_FITS = "never-fits"


# Of a session that ended before its job did; one that is "finished" then was deleted by others.
_KIND_OF_END: Final = {
    RunEnd.FINISHED: OutcomeKind.DELETED,
    RunEnd.SIGNAL: OutcomeKind.UNKNOWN,
    RunEnd.NEVER_FITS: OutcomeKind.INVALID,
}
_REASON_OF_END: Final = {
    RunEnd.FINISHED: "Deleted",
    RunEnd.SIGNAL: "Terminated",
    RunEnd.TIMEOUT: "Timeout",
    RunEnd.NEVER_FITS: "NeverFits",
}


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run came out. ``snapshot`` is that of the moment when its end was decided."""

    end: RunEnd
    snapshot: JobSnapshot
    seconds: float
    signal: int = 0

    @property
    def outcome(self) -> Outcome:
        """How the job ended, or why the run did."""
        status = self.snapshot.status
        found = job_outcome(status) if self.end is RunEnd.FINISHED else None
        if found is None:
            late = OutcomeKind.ADMISSION_TIMEOUT if not status.has_place else OutcomeKind.DEADLINE_EXCEEDED
            kind = late if self.end is RunEnd.TIMEOUT else _KIND_OF_END[self.end]
            found = Outcome.of(status, kind, reason=_REASON_OF_END[self.end], now=now())
        return self.snapshot.observed(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a session deals with the place where its job runs.

    ``open_log``: how logs are read there. ``gives_up``: the place will never grow, so that a job too large for it is
    given up. ``keep``: the job stays there when the session ends. ``second``: what a second signal does.
    """

    open_log: Callable[[WatchingJobInformer], LogOpener]
    gives_up: bool = True
    keep: bool = False
    second: str = "once more to kill them at once"


class RunSession:
    """``timeout``: seconds after which the run is given up (None: never)."""

    def __init__(
        self,
        cluster: Cluster,
        job: StoredJob,
        view: JobView,
        signals: Signals,
        run_options: RunOptions,
        *,
        timeout: float | None,
    ) -> None:
        self._cluster = cluster
        self._run_options = run_options
        self._job = job
        self._view = view
        self._signals = signals
        self._started = time.monotonic()
        self._deadline = None if timeout is None else self._started + timeout

    def run(self) -> RunResult:
        """Show the job until it has ended or was brought to an end."""
        with monitoring(self._cluster, self._job, self._view, self._signals, self._run_options.open_log) as monitor:
            end = self._until_end(monitor)
            seconds, monitor.decided = time.monotonic() - self._started, True
            self._announce(end)
            self._stop(monitor, _CLEAN_UP if end is RunEnd.FINISHED else None)
            return RunResult(end, monitor.snapshot, seconds, monitor.signal)

    def _until_end(self, monitor: JobMonitor) -> RunEnd:
        while True:
            monitor.step(self._wait_seconds())
            snapshot = monitor.snapshot
            if monitor.signal:
                return RunEnd.SIGNAL
            if monitor.watch.job is None or outcome_kind(snapshot.status) is not None:
                return RunEnd.FINISHED
            reason = pending_reason(snapshot.status) if snapshot.status.admission is None else None
            if self._run_options.gives_up and reason is not None and reason.unreachable:
                return RunEnd.NEVER_FITS
            if self._deadline is not None and time.monotonic() >= self._deadline:
                return RunEnd.TIMEOUT

    def _wait_seconds(self) -> float | None:
        """How long to wait for something to happen."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        known = [wait for wait in (left, self._view.tick) if wait is not None]
        return min(known) if known else None

    def _announce(self, end: RunEnd) -> None:
        why = {RunEnd.SIGNAL: "stopping", RunEnd.TIMEOUT: "the time is over: stopping"}.get(end)
        if why and self._run_options.keep:
            self._view.say(f"{why} to look on; the job stays where it is", "yellow")
        elif why:
            self._view.say(f"{why}: pods get their grace period to end in; {self._run_options.second}", "yellow")

    def _stop(self, monitor: JobMonitor, longest: float | None) -> None:
        """Delete the job, wait until its pods have ended in their own time, read their last lines.

        Another signal cuts that short.
        """
        before, watch = monitor.signals, monitor.watch
        if longest is not None or self._run_options.keep:
            # On a cluster the logs of a job go with it.
            monitor.sync_pods()
            monitor.drain(before)
        if self._run_options.keep:
            return
        with suppress(NotFound):
            self._cluster.delete(self._job.resource, self._job.namespace, self._job.name, uid=self._job.uid)
        until = None if longest is None else time.monotonic() + longest
        while (watch.job is not None or watch.pods) and monitor.signals == before:
            if until is not None and time.monotonic() >= until:
                break
            monitor.step(self._view.tick if until is None else max(0.0, until - time.monotonic()))
        monitor.drain(before)

"""Clean-up of a step: what becomes of its job between SIGTERM and SIGKILL, and of a workflow's jobs at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.argo.launcher.step_suspension import stop_patch
from tf_dist.client.connection import Backoff, until_taken
from tf_dist.client.monitor import JobMonitor
from tf_dist.client.stored_jobs import StoredJob, list_jobs, now
from tf_dist.client.wait import wait_for
from tf_dist.cluster.api import Cluster
from tf_dist.cluster.api_errors import NotServed
from tf_dist.core.model.status import Phase
from tf_dist.core.model.timestamps import parse_time
from tf_dist.core.model.wording import are
from tf_dist.core.pipeline.workflow_stop import OnTerm, StopDecision, decide_stop
from tf_dist.errors import ClusterError, Conflict, NotFound

_PAUSE: Final = 1.0  # seconds at most between two requests: there may not be many left
_SHARE: Final = 0.75  # of the grace period, for what is to be done; the rest for the way out


@dataclass(frozen=True, slots=True)
class StepShutdown:
    """Brings a job to where a signal leaves it. ``home``: the workflow's namespace; ``say`` gets what is done."""

    cluster: Cluster
    job: StoredJob
    options: LauncherOptions
    home: str
    say: Callable[[str], object]

    def stop(self, monitor: JobMonitor) -> StopDecision:
        """Do it, as far as the grace period allows, and wait until pods are gone; another signal ends the waiting."""
        until = time.monotonic() + self.options.grace * _SHARE
        found = self._fate()
        self.say(f"asked to stop: {found.why}; the job: {found.what}")
        try:
            match found.what:
                case OnTerm.DELETE:
                    self.delete(monitor, until)
                case OnTerm.SUSPEND:
                    self._suspend(monitor, until)
        except ClusterError as error:
            self.say(f"cannot {found.what} {self.job.shown}: {error}")
            return StopDecision(found.what, f"{found.why}, and that failed: {error}")
        return found

    def _fate(self) -> StopDecision:
        options = self.options
        if options.on_term is not None:
            return StopDecision(options.on_term, "as on_term says")
        try:
            workflow = self._workflow()
        except ClusterError as error:
            return StopDecision(OnTerm.DELETE, f"the workflow cannot be read ({error})")
        deadline = parse_time(options.deadline)
        return decide_stop(
            workflow,
            now=now(),
            deadline=deadline if deadline is not None and deadline > 0 else None,
            retried=self.retried,
        )

    @property
    def retried(self) -> bool:
        """Whether there is another try of the step after this one, which goes on with the job."""
        return self.options.reattach and self.options.retry < self.options.retries

    def _workflow(self) -> Mapping[str, Any] | None:
        """The workflow, None if it is gone; asked once, for the time is short."""
        if not self.options.workflow:
            return None
        try:
            found = self.cluster.get(contract.WORKFLOWS, self.home, self.options.workflow)
        except NotFound:
            return None
        return found if found["metadata"].get("uid") == self.options.workflow_uid else None

    def delete(self, monitor: JobMonitor, until: float | None) -> None:
        """Delete the job and see its pods go, up to ``until`` (monotonic seconds; None: as long as it takes)."""
        self._ask(
            until, lambda: self.cluster.delete(self.job.resource, self.job.namespace, self.job.name, uid=self.job.uid)
        )
        self._wait(monitor, until, lambda: monitor.watch.job is None and not monitor.watch.pods)
        left = len(monitor.watch.pods)
        if left:
            self.say(f"{self.job.shown} is deleted; {left} of its pods {are(left)} still stopping")

    def _suspend(self, monitor: JobMonitor, until: float) -> None:
        stored = monitor.watch.job or self.job
        patch = stop_patch(stored, suspend=True, by=contract.LAUNCHER)
        self._ask(until, lambda: self.cluster.patch(stored.resource, stored.namespace, stored.name, patch))
        self._wait(monitor, until, lambda: _stopped(monitor))

    def _ask(self, until: float | None, request: Callable[[], object]) -> None:
        """Until the cluster has taken it; ClusterError when it does not in time."""
        until_taken(request, Backoff() if until is None else Backoff(max(0.0, until - time.monotonic()), sleep=_short))

    def _wait(self, monitor: JobMonitor, until: float | None, done: Callable[[], bool]) -> None:
        before = monitor.signals
        while not done() and monitor.signals == before:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            monitor.step(left)


def _short(seconds: float) -> None:
    time.sleep(min(seconds, _PAUSE))


def _stopped(monitor: JobMonitor) -> bool:
    job = monitor.watch.job
    return job is None or job.status.finished or (job.status.phase is Phase.ABORTED and not monitor.watch.pods)


def delete_workflow_jobs(
    cluster: Cluster,
    namespace: str,
    workflow_uid: str,
    report: Callable[[str], object],
    *,
    all_jobs: bool,
    timeout: float,
) -> int:
    """Delete the jobs of a workflow that still run (``all_jobs``: all), and see them go; how many.

    A kind of job that is not there, or that this account may not list, has none of this workflow's: the role in
    ``rbac.yaml`` knows TFJobs only. Forbidden when it may list no kind; NotYet when jobs have not gone in ``timeout``
    seconds; they are deleted all the same.
    """
    jobs: list[StoredJob] = []
    with suppress(NotServed):
        jobs = list_jobs(cluster, namespace, labels=f"{contract.WORKFLOW_UID}={workflow_uid}")
    marked = [job for job in jobs if all_jobs or not job.status.finished]
    for job in marked:
        with suppress(NotFound, Conflict):  # gone already, and perhaps another in its place
            cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    wait_for(cluster, marked, "deleted", timeout, report)
    return len(marked)

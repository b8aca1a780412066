"""Workers: they take jobs from the work queue and reconcile them. One worker at a time handles a job.

A pass observes the job, gets a plan from the core, and lets the plan executor write it. A failure affects only its job.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from tf_dist.cluster.api import RUNTIME_CLASSES
from tf_dist.cluster.api_errors import AdmissionDenied
from tf_dist.cluster.client.event_recorder import EventRecorder
from tf_dist.cluster.client.workqueue import Lane, WorkQueue
from tf_dist.controller.gang_admission import GangAdmission
from tf_dist.controller.informers.informer_set import InformerSet, JobPods
from tf_dist.controller.job_index import JobEntry, JobIndex
from tf_dist.controller.leader_election import LeadershipLost
from tf_dist.controller.observability.json_logging import job_log_context
from tf_dist.controller.observability.metrics_interface import Metric, WorkQueueStats
from tf_dist.controller.plan_executor import InvalidObject, NameConflict, PlanExecutor
from tf_dist.controller.settings import ControllerContext, JobRef
from tf_dist.core.gang.resources.admission_config import admission_config
from tf_dist.core.gang.resources.pod_requests import pod_spec
from tf_dist.core.integrations.dispatch import integration_of
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit, Verdict, current_job
from tf_dist.core.model.context import Action, EmitEvent, Observed, Plan, WriteStatus
from tf_dist.core.model.credentials import hide_credentials
from tf_dist.core.model.fieldpath import LazyMapping
from tf_dist.core.model.job import Job
from tf_dist.core.model.pods import PodView, pod_view, pod_views
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import Status
from tf_dist.core.model.status_codec import stored_status
from tf_dist.core.podbuilder.tf_config import tf_config_endpoints
from tf_dist.core.reconciler.accepted_spec import plan_for_invalid_spec, unknown_keys
from tf_dist.core.reconciler.job_context import with_default_scheduler
from tf_dist.core.reconciler.reconcile import reconcile
from tf_dist.errors import ClusterError, Conflict, NotFound, Rejected, Throttled, Unavailable

_LOG = logging.getLogger(__name__)
# The failures in a row from which on the job's status reports them. Most failures are transient and need no write.
_STALLED_AFTER_FAILURES: Final = 3
# Seconds between two log lines, for all jobs together, that the server is busy or does not respond.
_SERVER_LOGGED_EVERY: Final = 60.0
# The failures in a row (about three seconds) from which on a gang gives up its admission if its pods are denied or a
# name is in use. Files are applied one by one, so a missing account or priority class may be created a moment later.
_REJECTED_AFTER_FAILURES: Final = 6


class Workers:
    """Take jobs from ``queue`` and reconcile them.

    ``lookup`` returns the current entry of a job, or None if this controller is not its leader. ``on_leadership_lost``
    is called if a write is refused because leadership has ended. ``start`` starts the threads. ``work`` makes one pass
    in the caller's thread.
    """

    def __init__(
        self,
        context: ControllerContext,
        informers: InformerSet,
        job_index: JobIndex,
        admission: GangAdmission,
        executor: PlanExecutor,
        queue: WorkQueue[JobRef],
        events: EventRecorder,
        *,
        lookup: Callable[[JobRef], JobEntry | None],
        on_leadership_lost: Callable[[], None],
    ) -> None:
        self._cluster, self._recorder, self._runtime = context.cluster, context.recorder, context.runtime
        self._clock, self._monotonic = context.clock, context.monotonic
        self._informers = informers
        self._job_index = job_index
        self._admission = admission
        self._executor = executor
        self._queue = queue
        self._events = events
        self._lookup = lookup
        self._on_leadership_lost = on_leadership_lost
        self._workers = max(1, context.settings.workers)
        # The uid and the last logged error of each job that cannot be reconciled: a repeated error is logged once.
        self._logged: dict[JobRef, tuple[str, str]] = {}
        self._server_logged = -math.inf  # the time of the last log line about a failure of the server
        # The uid of each job, and the time of its last status write or else of its first reconcile.
        self._written: dict[JobRef, tuple[str, float]] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the worker threads. They end when the queue is closed."""
        self._threads = [self._runtime.thread(self._run, f"worker-{n}") for n in range(self._workers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the current passes. Call it after the queue has been closed."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._queue.closed:
            self.work(longest=math.inf)

    def work(self, *, longest: float = 0.0) -> int:
        """One pass over the next job, after waiting up to ``longest`` seconds for it. Returns the number of actions."""
        found = self._queue.get(longest)
        if found is None:
            return 0
        ref, since = found
        begun = self._monotonic()
        try:
            return self._work_on(ref)
        except Exception:
            _LOG.exception("reconciling failed because of a defect job=%s", ref)
            self._recorder.record(Metric.RECONCILE_ERRORS, "defect")
            self._queue.retry(ref)
            return 1
        finally:
            self._queue.done(ref)
            self._recorder.record(Metric.WORKQUEUE_QUEUE_DURATION_SECONDS, value=max(0.0, begun - since))
            self._recorder.record(Metric.WORKQUEUE_WORK_DURATION_SECONDS, value=self._monotonic() - begun)

    def forget(self, ref: JobRef) -> None:
        """Forget a deleted job."""
        self._queue.succeeded(ref)
        self._logged.pop(ref, None)
        self._written.pop(ref, None)

    def reading(self) -> WorkQueueStats:
        """The statistics of the work queue and of its workers."""
        now = self._monotonic()
        running = {str(ref): now - begun for ref, begun in self._queue.passes().items()}
        return WorkQueueStats(self._queue.ready(), self._queue.adds, self._queue.retries, running, self._workers)

    def _work_on(self, ref: JobRef) -> int:
        known = self._lookup(ref)
        if known is None:
            self._queue.succeeded(ref)
            return 0
        again = self._queue.failures(ref) > 0
        begun = time.perf_counter()
        with job_log_context(str(ref)):
            plan = self._attempt(ref, known, again)
        self._recorder.record(Metric.RECONCILE_SECONDS, value=time.perf_counter() - begun)
        if plan is None:
            return 1
        self._queue.succeeded(ref)
        if again:
            self._admission.readmit(known.uid)
        if known.newer is None and not (plan.status.last_error or plan.status.not_before):
            self._logged.pop(ref, None)
        if again and plan.status.last_error:
            self._queue.add(ref)  # the job continues, and its status must report that
        if plan.wake_at is not None:
            self._queue.add(ref, plan.wake_at - self._clock())
        return len(plan.actions)

    def _attempt(self, ref: JobRef, known: JobEntry, again: bool) -> Plan | None:
        """The plan of a pass; None if it failed and is retried. ``again``: the previous pass failed."""
        try:
            return self._reconcile(ref, known, again)
        except LeadershipLost as error:
            _LOG.debug("%s", error)
            self._on_leadership_lost()
        except (Conflict, NotFound) as error:
            _LOG.debug("job changed meanwhile, trying again: job=%s error=%s", ref, error)
            self._recorder.record(Metric.RECONCILE_ERRORS, type(error).__name__)
            self._queue.retry(ref)
            try:  # the cached job is out of date: do not wait for the watch to report the new version
                self._informers.refetch(ref, known.uid)
            except ClusterError as failure:
                _LOG.debug("failed to read job anew: job=%s error=%s", ref, failure)
        except Unavailable as error:
            # The server may still execute the write, so the verdict remains assumed until a retry gets a response.
            self._report(ref, known, error)
            return None
        except Exception as error:
            self._report(ref, known, error)
        self._admission.withdraw(known.uid, set_aside=self._queue.failures(ref) >= _STALLED_AFTER_FAILURES)
        return None

    def _reconcile(self, ref: JobRef, known: JobEntry, again: bool) -> Plan:
        """One pass: observe, plan, write. Errors of the cluster are raised."""
        if known.newer is not None:  # neither the job nor its pods are changed
            said = known.uid, str(known.newer)
            if self._logged.get(ref) != said:
                self._logged[ref] = said
                _LOG.warning("skipping job=%s: %s", ref, known.newer)
                event = EmitEvent("Warning", Reason.NEWER_STATUS_FORMAT, f"{known.newer} ({known.newer.hint})")
                self._events.emit(ref.resource, ref.namespace, known.stored, event)
            return Plan(known.status)
        seen = self._informers.pods_with_gone(ref.namespace, known.uid)
        verdict = self._admission.verdict(known)
        # If other jobs wait for their verdicts to be written, write only the admission now, and create the pods later.
        left = isinstance(verdict, Admit) and known.waits and self._queue.waits(Lane.FIRST)
        plan = self._plan(known, verdict, seen=seen, last_error=None if again else "", status_only=left)
        self._apply(ref, known, plan)
        self._informers.deleted_pods.forget(names.owned_by_key(ref.namespace, known.uid), seen.gone)
        self._job_index.remember(ref, known, plan.status)
        self._record(known, plan.status)
        if left:
            self._queue.add(ref)
        return plan

    def _apply(self, ref: JobRef, known: JobEntry, plan: Plan) -> None:
        if self._last_written(known) is None or any(isinstance(action, WriteStatus) for action in plan.actions):
            self._written[ref] = known.uid, self._clock()  # even if the write fails: only shown fields wait for it
        self._executor.apply(ref, known.stored, plan)

    def _last_written(self, known: JobEntry) -> float | None:
        uid, at = self._written.get(known.ref, ("", 0.0))
        return at if uid == known.uid else None

    def _plan(
        self,
        known: JobEntry,
        verdict: Verdict | None = None,
        *,
        seen: JobPods | None = None,
        last_error: str | None = None,
        rejected: Reason | None = None,
        invalid: bool = False,
        status_only: bool = False,
    ) -> Plan:
        """The current plan for the job. Raises an error if the job cannot be read. ``seen``: its pods, if read."""
        now, stored, job, reading = self._clock(), known.stored, known.job, known.reading
        if known.problem is not None:
            raise known.problem
        if job is None:
            if reading.refused is None:
                raise RuntimeError("neither a job nor a reason why not")
            views = (pod_view(pod) for pod in self._informers.pods(known.ref.namespace, known.uid))
            pods = tuple(view for view in views if view is not None)
            return plan_for_invalid_spec(stored, known.status, reading.refused, now, pods)
        seen = seen or self._informers.pods_with_gone(known.ref.namespace, known.uid)
        pods, last = pod_views(job, seen.present), known.remembered or known.status
        is_new_spec = reading.accepted is not None and reading.accepted != last.accepted_spec and not last.finished
        scheduler = integration_of(job, with_default_scheduler(job, last, known.gang))
        # Before the objects are read: this call starts their informers.
        served = None if scheduler is None else self._informers.served(scheduler)
        observed = Observed(
            now=now,
            stored_status=LazyMapping(lambda: stored_status(stored)),  # decoded on first access
            pods=pods,
            departed=seen.gone,
            unready=self._informers.unready(pod.node for pod in pods if pod.node and not pod.finished),
            closed_nodes=self._closed_nodes(job, last, pods),
            recovery_timeout=self._informers.recovery_timeout(current_job(job, known.status).scheduling.queue),
            objects=self._informers.objects(known.ref.namespace, known.uid)
            | self._informers.commands(known.ref, known.uid),
            verdict=verdict,
            addresses={} if status_only else self._addresses(known, verdict, len(pods)),
            deleting="deletionTimestamp" in stored["metadata"],
            last_status=known.remembered,
            last_written=now if (written := self._last_written(known)) is None else written,
            served=served,
            gang=known.gang,
            last_error=last_error,
            rejected=rejected,
            invalid=invalid,
            status_only=status_only,
            accepted=reading.accepted,
            refused=reading.refused,
            unknown_keys=unknown_keys(stored) if is_new_spec else "",
        )
        return reconcile(job, observed, known.status)

    def _closed_nodes(self, job: Job, status: Status, pods: Sequence[PodView]) -> dict[str, frozenset[str]]:
        """The assigned nodes that accept no pods of a type. They are read only if a pod has no node."""
        placement = status.admission.placement if status.admission is not None else {}
        if not placement or sum(bool(pod.node) and not pod.deleting for pod in pods) >= len(job.replicas):
            return {}
        runtimes = admission_config((), (), self._informers.rules(RUNTIME_CLASSES)).runtime_classes
        pod_specs = {spec.type: pod_spec(spec, runtimes) for spec in current_job(job, status).replica_specs}
        return {
            type_: self._informers.closed(nodes, pod_specs[type_])
            for type_, nodes in placement.items()
            if type_ in pod_specs
        }

    def _addresses(self, known: JobEntry, verdict: Verdict | None, pods: int) -> dict[str, str]:
        """The addresses of the job's replicas. They are read only if a pod may have to be created."""
        if known.job is None or known.status.finished or (known.waits and not isinstance(verdict, Admit)):
            return {}
        job = current_job(known.job, known.status, verdict)
        if pods >= len(job.replicas):
            return {}
        return dict(self._cluster.addresses(dict(known.stored), tf_config_endpoints(job)))

    def _record(self, known: JobEntry, after: Status) -> None:
        before = known.remembered or known.status
        if before.admission is None and after.admission is not None:
            waited = max(0.0, after.admission.at - (after.created or after.admission.at))
            self._recorder.record(Metric.ADMISSION_WAIT_SECONDS, value=waited)
        for metric, was, now in (
            (Metric.RESTARTS, before.restarts, after.restarts),
            (Metric.DISRUPTIONS, before.disruptions, after.disruptions),
        ):
            for cause, count in now.items():
                if (more := count - was.get(cause, 0)) > 0:
                    self._recorder.record(metric, cause, value=more)
        if after.usage is not before.usage and known.job is not None:
            self._recorder.used(known.job.scheduling.queue, before.usage, after.usage)

    # Failures

    def _report(self, ref: JobRef, known: JobEntry, error: Exception) -> None:
        pause = self._queue.retry(ref, error.after if isinstance(error, Throttled) else None)
        expected = isinstance(error, ClusterError)
        self._recorder.record(Metric.RECONCILE_ERRORS, type(error).__name__ if expected else "defect")
        what = hide_credentials(str(error) if expected else f"{type(error).__name__}: {error}")
        before, self._logged[ref] = self._logged.get(ref), (known.uid, what)
        server, now = isinstance(error, Throttled | Unavailable), self._monotonic()
        # A failure of the server affects all jobs, so it is logged once a minute.
        is_logged = before == (known.uid, what) or (server and now - self._server_logged < _SERVER_LOGGED_EVERY)
        if server and not is_logged:
            self._server_logged = now
        level = logging.DEBUG if is_logged else logging.WARNING
        _LOG.log(level, "%s: %s; again in %.1f s", ref, what, pause, exc_info=None if expected else error)
        hint = getattr(error, "hint", "")
        message = f"{what} ({hint})" if hint else what
        if self._queue.failures(ref) >= _STALLED_AFTER_FAILURES:
            self._report_stalled(ref, error, message)
        if server:
            return  # an Event would be another request
        event = EmitEvent("Warning", Reason.RECONCILE_FAILED, message)
        self._events.emit(ref.resource, ref.namespace, known.stored, event)

    def _report_stalled(self, ref: JobRef, error: Exception, message: str) -> None:
        """Report the error in the job's status. The only other actions are Events, if the job has finished."""
        known = self._lookup(ref)
        if known is None:
            return
        rejected = _rejection(error, self._queue.failures(ref))
        try:
            invalid = isinstance(error, InvalidObject)
            plan = self._plan(known, last_error=message, rejected=rejected, invalid=invalid)
            kinds: tuple[type[Action], ...] = (WriteStatus, EmitEvent) if plan.status.finished else (WriteStatus,)
            self._apply(ref, known, Plan(plan.status, tuple(one for one in plan.actions if isinstance(one, kinds))))
            self._record(known, plan.status)
        except Exception as failure:
            _LOG.debug("cannot report stalled job=%s: %s", ref, failure)


def _rejection(error: Exception, failures: int) -> Reason | None:
    """The reason for which the gang gives up its admission after this number of failures; None if it retries."""
    if isinstance(error, Rejected):
        return Reason.PODS_REJECTED
    if failures < _REJECTED_AFTER_FAILURES:
        return None
    if isinstance(error, AdmissionDenied):
        return Reason.PODS_REJECTED
    return Reason.NAME_CONFLICT if isinstance(error, NameConflict) and not error.leaving else None

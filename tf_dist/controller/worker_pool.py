"""Worker pool: reconciles single jobs, each by one worker at a time; a failure stays with its job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from tf_dist.cluster.api_errors import AdmissionDenied
from tf_dist.cluster.client.workqueue import InProgress, PriorityQueue, WorkQueue
from tf_dist.controller.driver_settings import DriverContext, JobRef
from tf_dist.controller.gang_admission.verdicts import GangAdmission
from tf_dist.controller.informers.driver_informers import DriverInformers
from tf_dist.controller.job_index import JobEntry
from tf_dist.controller.job_reconciler import JobReconciler
from tf_dist.controller.leases.leadership import LeadershipLost
from tf_dist.controller.observability.events import EventRecorder
from tf_dist.controller.observability.json_logging import job_log_context
from tf_dist.controller.observability.metrics_recorder import WorkQueueStats
from tf_dist.controller.plan_executor import InvalidObject, NameConflict
from tf_dist.core.api.assignment import PendingReason, Verdict
from tf_dist.core.api.context import EmitEvent, Plan
from tf_dist.core.api.status import STALLED
from tf_dist.errors import ClusterError, Conflict, NotFound, Rejected, Throttled, Unavailable

_LOG = logging.getLogger(__name__)
# Failures in a row from which on the job itself reports them: most pass at once, and are worth no write.
_STALLED_AFTER_FAILURES: Final = 3
# And from which on a rule is not expected to let its pods in any more, or a name to become free (about three seconds):
# files are applied one by one, and what a pod lacks (an account, a priority class) may come a moment later.
_REJECTED_AFTER_FAILURES: Final = 6


class WorkerPool:
    """Reconciles single jobs.

    ``lookup`` returns the entry of a job as it is now, and whether this driver drives it; ``delivers``: whether this
    driver writes a verdict into a job even though it does not drive it. ``requeue`` is called with a job to which
    something has happened during a pass that the pass did not do itself. ``on_leadership_lost`` is called when a write
    was refused because leadership had ended. ``start`` starts the workers; before that, and without, a pass is made in
    the caller's thread.
    """

    def __init__(
        self,
        context: DriverContext,
        reconciler: JobReconciler,
        admission: GangAdmission,
        queue: WorkQueue[JobRef],
        informers: DriverInformers,
        events: EventRecorder,
        in_progress: InProgress[JobRef],
        *,
        lookup: Callable[[JobRef], tuple[JobEntry | None, bool]],
        delivers: Callable[[JobEntry, Verdict], bool],
        requeue: Callable[[JobRef], None],
        on_leadership_lost: Callable[[], None],
    ) -> None:
        self._recorder, self._clock, self._monotonic = context.recorder, context.clock, context.monotonic
        self._reconciler = reconciler
        self._admission = admission
        self._queue = queue
        self._informers = informers
        self._events = events
        self._lookup = lookup
        self._delivers = delivers
        self._requeue = requeue
        self._on_leadership_lost = on_leadership_lost
        self._runtime = context.runtime
        self._lock = self._runtime.lock()
        self._waiting: PriorityQueue[JobRef] = PriorityQueue()  # for a worker, since a moment of ``monotonic``
        self._in_progress = in_progress
        self._workers = 0
        # What was logged last of a job whose passes fail, and of which job: once, and not for each attempt.
        self._last_errors: dict[JobRef, tuple[str, str]] = {}
        self._pool: Executor | None = None

    @property
    def started(self) -> bool:
        """Whether there are workers."""
        return self._pool is not None

    def start(self, workers: int) -> None:
        """Act for so many jobs at a time from now on."""
        self._workers = max(1, workers)
        self._pool = self._runtime.pool(self._workers, "driver-worker")

    def stop(self) -> None:
        """Wait for the passes that are under way; those that are not are given up."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def dispatch(self, ref: JobRef, *, urgent: bool = True) -> int:
        """Have a job looked at; one that is being looked at, after that. How many actions it took, if that is known.

        ``urgent``: before those that are not.
        """
        if self._pool is None:
            return self._reconcile_safely(ref)
        with self._lock:
            if self._in_progress.notice(ref):
                return 0
            since = self._queue.ready_at(ref)
            if not self._waiting.add(ref, self._monotonic() if since is None else since, urgent=urgent):
                return 0
        self._pool.submit(self._work)
        return 0

    def _work(self) -> None:
        begun = self._monotonic()
        with self._lock:
            ref, since = self._waiting.take()
            self._in_progress.begin(ref, begun)
        try:
            self._reconcile_safely(ref)
        finally:
            again = self._in_progress.end(ref)
            self._recorder.worked(max(0.0, begun - since), self._monotonic() - begun)
            if again:
                self._requeue(ref)

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._queue.succeeded(ref)
        self._last_errors.pop(ref, None)
        self._reconciler.forget(ref)

    def reading(self) -> WorkQueueStats:
        """How much there is to do, and how far the workers are."""
        now, due = self._monotonic(), self._queue.ready()
        with self._lock:
            running = {str(ref): now - begun for ref, begun in self._in_progress.since().items()}
            depth = due + len(self._waiting)
        return WorkQueueStats(depth, self._queue.adds, self._queue.retries, running, self._workers)

    def _reconcile_safely(self, ref: JobRef) -> int:
        try:
            return self._reconcile(ref)
        except Exception:
            _LOG.exception("reconciling failed by a defect job=%s", ref)
            self._recorder.reconcile_failed("defect")
            self._queue.retry(ref)
            return 1

    def _reconcile(self, ref: JobRef) -> int:
        """One job's pass. Its failure stays with it."""
        known, mine = self._lookup(ref)
        if known is None or not (mine or self.has_pending_verdict(known)):
            self._queue.succeeded(ref)
            return 0
        again = self._queue.failures(ref) > 0
        begun = time.perf_counter()
        with job_log_context(str(ref)):
            plan = self._attempt(ref, known, mine, again)
        self._recorder.reconciled(time.perf_counter() - begun)
        if plan is None:
            return 1
        self._queue.succeeded(ref)
        if again:
            self._admission.readmit(known.uid)
        if not (plan.status.last_error or plan.status.not_before):
            self._last_errors.pop(ref, None)
        if again and plan.status.last_error:
            self._queue.add(ref)  # it goes on, and is to say so
        if plan.wake_at is not None:
            self._queue.add(ref, plan.wake_at - self._clock())
        return len(plan.actions)

    def has_pending_verdict(self, known: JobEntry) -> bool:
        """Whether this driver has a verdict to write into a job, though it may not drive it."""
        verdict = self._admission.verdict(known)
        return verdict is not None and self._delivers(known, verdict)

    def _attempt(self, ref: JobRef, known: JobEntry, mine: bool, again: bool) -> Plan | None:
        """None: it failed, and will be tried again. ``again``: the one before failed, too."""
        try:
            verdict = self._admission.verdict(known)
            if not mine:
                return self._reconciler.deliver_verdict(ref, known, verdict)
            return self._reconciler.reconcile(ref, known, verdict, again=again)
        except LeadershipLost as error:
            _LOG.info("%s", error)
            self._on_leadership_lost()
        except (Conflict, NotFound) as error:
            _LOG.debug("job changed meanwhile, trying again: job=%s error=%s", ref, error)
            self._recorder.reconcile_failed(type(error).__name__)
            self._queue.retry(ref)
            self._refetch(ref, known)
        except Unavailable as error:
            # The server may yet do it: what the job was promised stays promised until one of the writes has come there.
            self._report(ref, known, error)
            return None
        except Exception as error:
            self._report(ref, known, error)
        self._admission.withdraw(known.uid, set_aside=self._queue.failures(ref) >= _STALLED_AFTER_FAILURES)
        return None

    def _refetch(self, ref: JobRef, known: JobEntry) -> None:
        """What was seen of a job is out of date: do not wait for the watch to say so."""
        try:
            self._informers.refetch(ref, known.uid)
        except ClusterError as error:
            _LOG.debug("failed to read job anew: job=%s error=%s", ref, error)

    def _report(self, ref: JobRef, known: JobEntry, error: Exception) -> None:
        pause = self._queue.retry(ref, error.after if isinstance(error, Throttled) else None)
        expected = isinstance(error, ClusterError)
        self._recorder.reconcile_failed(type(error).__name__ if expected else "defect")
        what = str(error) if expected else f"{type(error).__name__}: {error}"
        before, self._last_errors[ref] = self._last_errors.get(ref), (known.uid, what)
        level = logging.DEBUG if before == (known.uid, what) else logging.WARNING
        _LOG.log(level, "%s: %s; again in %.1f s", ref, error, pause, exc_info=None if expected else error)
        hint = getattr(error, "hint", "")
        message = f"{what} ({hint})" if hint else what
        failures = self._queue.failures(ref)
        if failures >= _STALLED_AFTER_FAILURES:
            rejected, invalid = _rejection(error, failures), isinstance(error, InvalidObject)
            self._report_stalled(ref, message, rejected=rejected, invalid=invalid)
        self._events.emit(ref.resource, ref.namespace, known.stored, EmitEvent("Warning", STALLED, message))

    def _report_stalled(self, ref: JobRef, message: str, *, rejected: PendingReason | None, invalid: bool) -> None:
        """Have the job itself say what keeps it from going on."""
        known, mine = self._lookup(ref)
        if known is None or not mine:
            return
        try:
            self._reconciler.report_stalled(ref, known, message, rejected=rejected, invalid=invalid)
        except Exception as error:
            _LOG.debug("cannot report stalled job=%s: %s", ref, error)


def _rejection(error: Exception, failures: int) -> PendingReason | None:
    """As which reason the gang gives its admission back after so many failures; None: another try may do better."""
    if isinstance(error, Rejected):
        return PendingReason.PODS_REJECTED
    if failures < _REJECTED_AFTER_FAILURES:
        return None
    if isinstance(error, AdmissionDenied):
        return PendingReason.PODS_REJECTED
    return PendingReason.NAME_CONFLICT if isinstance(error, NameConflict) and not error.leaving else None

"""Workers: they reconcile single jobs, each by one worker at a time; a failure stays with its job."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from tf_dist.cluster.api_errors import AdmissionDenied
from tf_dist.cluster.client.workqueue import Lane, WorkQueue
from tf_dist.controller.gang_admission import GangAdmission
from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.job_index import JobEntry
from tf_dist.controller.job_reconciler import JobReconciler
from tf_dist.controller.leases.leadership import LeadershipLost
from tf_dist.controller.observability.events import EventRecorder
from tf_dist.controller.observability.json_logging import job_log_context
from tf_dist.controller.observability.metrics_interface import WorkQueueStats
from tf_dist.controller.plan_executor import InvalidObject, NameConflict
from tf_dist.controller.settings import ControllerContext, JobRef
from tf_dist.core.model.context import EmitEvent, Plan
from tf_dist.core.model.credentials import hide_credentials
from tf_dist.core.model.reasons import Reason
from tf_dist.errors import ClusterError, Conflict, NotFound, Rejected, Throttled, Unavailable

_LOG = logging.getLogger(__name__)
# Failures in a row from which on the job itself reports them: most pass at once, and are worth no write.
_STALLED_AFTER_FAILURES: Final = 3
# And from which on a rule is not expected to let its pods in any more, or a name to become free (about three seconds):
# files are applied one by one, and what a pod lacks (an account, a priority class) may come a moment later.
_REJECTED_AFTER_FAILURES: Final = 6


class Workers:
    """Take jobs from ``queue`` and reconcile them.

    ``lookup`` returns the entry of a job as it is now, None where it is not led from here. ``on_leadership_lost`` is
    called when a write was refused because leadership had ended. ``start`` starts the threads; without them ``work``
    makes one pass in the caller's.
    """

    def __init__(
        self,
        context: ControllerContext,
        reconciler: JobReconciler,
        admission: GangAdmission,
        queue: WorkQueue[JobRef],
        informers: InformerSet,
        events: EventRecorder,
        *,
        lookup: Callable[[JobRef], JobEntry | None],
        on_leadership_lost: Callable[[], None],
    ) -> None:
        self._recorder, self._clock, self._monotonic = context.recorder, context.clock, context.monotonic
        self._reconciler = reconciler
        self._admission = admission
        self._queue = queue
        self._informers = informers
        self._events = events
        self._lookup = lookup
        self._on_leadership_lost = on_leadership_lost
        self._runtime = context.runtime
        self._workers = max(1, context.settings.workers)
        # What was logged last of a job whose passes fail, and of which job: once, and not for each attempt.
        self._last_errors: dict[JobRef, tuple[str, str]] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Act for so many jobs at a time from now on, until the queue is closed."""
        self._threads = [self._runtime.thread(self._run, f"worker-{n}") for n in range(self._workers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the passes that are under way; the queue has been closed."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._queue.closed:
            self.work(longest=math.inf)

    def work(self, *, longest: float = 0.0) -> int:
        """One pass over the next job, waiting up to ``longest`` seconds for one; how many actions it took."""
        found = self._queue.get(longest)
        if found is None:
            return 0
        ref, since = found
        begun = self._monotonic()
        try:
            return self._reconcile(ref)
        except Exception:
            _LOG.exception("reconciling failed by a defect job=%s", ref)
            self._recorder.reconcile_failed("defect")
            self._queue.retry(ref)
            return 1
        finally:
            self._queue.done(ref)
            self._recorder.worked(max(0.0, begun - since), self._monotonic() - begun)

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._queue.succeeded(ref)
        self._last_errors.pop(ref, None)
        self._reconciler.forget(ref)

    def reading(self) -> WorkQueueStats:
        """How much there is to do, and how far the workers are."""
        now = self._monotonic()
        running = {str(ref): now - begun for ref, begun in self._queue.passes().items()}
        return WorkQueueStats(self._queue.ready(), self._queue.adds, self._queue.retries, running, self._workers)

    def _reconcile(self, ref: JobRef) -> int:
        """One job's pass. Its failure stays with it."""
        known = self._lookup(ref)
        if known is None:
            self._queue.succeeded(ref)
            return 0
        again = self._queue.failures(ref) > 0
        begun = time.perf_counter()
        with job_log_context(str(ref)):
            plan = self._attempt(ref, known, again)
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

    def _attempt(self, ref: JobRef, known: JobEntry, again: bool) -> Plan | None:
        """None: it failed, and will be tried again. ``again``: the one before failed, too."""
        try:
            # Other gangs that are admitted wait for no pods of this one.
            brief = self._queue.waits(Lane.FIRST)
            plan, left = self._reconciler.reconcile(
                ref, known, self._admission.verdict(known), again=again, brief=brief
            )
        except LeadershipLost as error:
            _LOG.debug("%s", error)
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
        else:
            if left:
                self._queue.add(ref)
            return plan
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
        what = hide_credentials(str(error) if expected else f"{type(error).__name__}: {error}")
        before, self._last_errors[ref] = self._last_errors.get(ref), (known.uid, what)
        level = logging.DEBUG if before == (known.uid, what) else logging.WARNING
        _LOG.log(level, "%s: %s; again in %.1f s", ref, what, pause, exc_info=None if expected else error)
        hint = getattr(error, "hint", "")
        message = f"{what} ({hint})" if hint else what
        failures = self._queue.failures(ref)
        if failures >= _STALLED_AFTER_FAILURES:
            rejected, invalid = _rejection(error, failures), isinstance(error, InvalidObject)
            self._report_stalled(ref, message, rejected=rejected, invalid=invalid)
        self._events.emit(
            ref.resource, ref.namespace, known.stored, EmitEvent("Warning", Reason.RECONCILE_FAILED, message)
        )

    def _report_stalled(self, ref: JobRef, message: str, *, rejected: Reason | None, invalid: bool) -> None:
        """Have the job itself say what keeps it from going on."""
        known = self._lookup(ref)
        if known is None:
            return
        try:
            self._reconciler.report_stalled(ref, known, message, rejected=rejected, invalid=invalid)
        except Exception as error:
            _LOG.debug("cannot report stalled job=%s: %s", ref, error)


def _rejection(error: Exception, failures: int) -> Reason | None:
    """As which reason the gang gives its admission back after so many failures; None: another try may do better."""
    if isinstance(error, Rejected):
        return Reason.PODS_REJECTED
    if failures < _REJECTED_AFTER_FAILURES:
        return None
    if isinstance(error, AdmissionDenied):
        return Reason.PODS_REJECTED
    return Reason.NAME_CONFLICT if isinstance(error, NameConflict) and not error.leaving else None

"""Takeover policy: which jobs this driver reconciles, and which drivers of other jobs are dead."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tf_dist.cluster.client.workqueue import WorkQueue
from tf_dist.controller.driver_settings import DriverContext, JobRef
from tf_dist.controller.job_index import JobEntry, JobIndex
from tf_dist.controller.job_reconciler import JobReconciler
from tf_dist.controller.leases.leadership import Leadership
from tf_dist.controller.observability.metrics_recorder import JobMetricsKey
from tf_dist.core.reconciler.ownership import is_claimed, may_drive

_LOG = logging.getLogger(__name__)


class TakeoverPolicy:
    """Of a driver among several; ``queue`` is where jobs go that need a look later."""

    def __init__(
        self, context: DriverContext, leadership: Leadership, reconciler: JobReconciler, queue: WorkQueue[JobRef]
    ) -> None:
        self._settings, self._clock = context.settings, context.clock
        self._leadership = leadership
        self._reconciler = reconciler
        self._queue = queue
        # Jobs that are over and are not done with, and their drivers.
        self._pending_cleanup: dict[JobRef, str] = {}
        self._stale: frozenset[str] = frozenset()

    def drives(self, known: JobEntry | None) -> bool:
        """Whether this driver is the one for a job."""
        if known is None or self._settings.only not in (None, known.ref):
            return False
        return self._drives(known.ref.namespace, known.driver)

    def _drives(self, namespace: str, driver: str) -> bool:
        if self._settings.namespace not in (None, namespace):
            return False
        # Workers ask while the loop may be blocked: a driver that was dead at the last refresh may have come back.
        stale = self._leadership.stale() if driver in self._stale else ()
        return may_drive(driver, self._leadership.ref, stale, takes_over=self._leadership.takes_over)

    def mine(self, job_index: JobIndex) -> dict[JobMetricsKey, int]:
        """How many of the jobs that this driver drives stand in which way."""
        if self._settings.only is not None:
            known = job_index.get(self._settings.only)
            return {known.metrics_key: 1} if known is not None and self.drives(known) else {}
        return {
            one: count for one, count in job_index.metrics_counts().items() if self._drives(one.namespace, one.driver)
        }

    def counts(self, known: JobEntry) -> bool:
        """Whether a job has a part in admission: one without a driver must not hold up others.

        An annotation is the user's to write. Another driver counts once it has written the job's status, which no role
        for users may, and while its Lease lives.
        """
        if not known.waits or self.drives(known):
            return True
        return is_claimed(known.stored) and "/" in known.driver and known.driver not in self._stale

    def track_cleanup(self, ref: JobRef, known: JobEntry | None) -> None:
        """A job that is over may still have something to be done for it, and its driver may have died before that."""
        self._pending_cleanup.pop(ref, None)
        if known is None or not known.finished_by_other(self._leadership.ref) or not self._leadership.takes_over:
            return
        try:
            plan = self._reconciler.plan(known)
        except Exception:
            _LOG.exception("cannot plan the cleanup of job=%s", ref)
            return
        if plan.actions:
            self._pending_cleanup[ref] = known.driver
        elif plan.wake_at is not None:
            self._queue.add(ref, plan.wake_at - self._clock())

    def any(self, drivers: Collection[str]) -> bool:
        """Whether there are other drivers that matter; ``drivers``: those of unfinished jobs."""
        return bool(self._pending_cleanup) or any(driver != self._leadership.ref for driver in drivers)

    def undone(self, drivers: Collection[str]) -> list[JobRef]:
        """The jobs of these drivers that are over and are not done with."""
        return [ref for ref, driver in self._pending_cleanup.items() if driver in drivers] if drivers else []

    def refresh(self, drivers: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Ask how they are; which have died since the last time, and which have died or live again."""
        self._leadership.watch_drivers({*drivers, *self._pending_cleanup.values()} - {self._leadership.ref})
        before, self._stale = self._stale, frozenset(self._leadership.stale())
        return self._stale - before, self._stale ^ before

"""Which jobs are this driver's, and how the drivers of the others fare."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from tf_dist.core.claims import may_drive
from tf_dist.driver.ledger import Known, Ledger, Standing
from tf_dist.driver.mandate import Mandate
from tf_dist.driver.refs import JobRef
from tf_dist.driver.settings import DriverSettings
from tf_dist.driver.steward import Steward
from tf_dist.driver.workqueue import WorkQueue

_LOG = logging.getLogger(__name__)


class Others:
    """Of a driver among several; ``queue`` is where jobs go that need a look later. ``clock``: epoch seconds."""

    def __init__(
        self,
        mandate: Mandate,
        settings: DriverSettings,
        steward: Steward,
        queue: WorkQueue[JobRef],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._mandate = mandate
        self._settings = settings
        self._steward = steward
        self._queue = queue
        self._clock = clock
        # Jobs that are over and are not done with, and their drivers.
        self._undone: dict[JobRef, str] = {}
        self._stale: frozenset[str] = frozenset()

    def drives(self, known: Known | None) -> bool:
        """Whether this driver is the one for a job."""
        if known is None or self._settings.only not in (None, known.ref):
            return False
        return self._drives(known.ref.namespace, known.driver)

    def _drives(self, namespace: str, driver: str) -> bool:
        if self._settings.namespace not in (None, namespace):
            return False
        return may_drive(driver, self._mandate.ref, self._stale, takes_over=self._mandate.takes_over)

    def mine(self, ledger: Ledger) -> dict[Standing, int]:
        """How many of the jobs that this driver drives stand in which way."""
        if self._settings.only is not None:
            known = ledger.get(self._settings.only)
            return {known.standing: 1} if known is not None and self.drives(known) else {}
        return {one: count for one, count in ledger.standings().items() if self._drives(one.namespace, one.driver)}

    def counts(self, known: Known) -> bool:
        """Whether a job has a part in admission: one that nobody drives must not stand in another's way."""
        if not known.waits or self.drives(known):
            return True
        return bool(known.driver) and known.driver not in self._stale

    def tend(self, ref: JobRef, known: Known | None) -> None:
        """A job that is over may still have something to be done for it, and its driver may have died before that."""
        self._undone.pop(ref, None)
        if known is None or not known.left_to(self._mandate.ref) or not self._mandate.takes_over:
            return
        try:
            plan = self._steward.plan(known)
        except Exception:
            _LOG.exception("%s: what it still needs cannot be told", ref)
            return
        if plan.actions:
            self._undone[ref] = known.driver
        elif plan.wake_at is not None:
            self._queue.add(ref, plan.wake_at - self._clock())

    def any(self, drivers: Collection[str]) -> bool:
        """Whether there are other drivers that matter; ``drivers``: those of unfinished jobs."""
        return bool(self._undone) or any(driver != self._mandate.ref for driver in drivers)

    def undone(self, drivers: Collection[str]) -> list[JobRef]:
        """The jobs of these drivers that are over and are not done with."""
        return [ref for ref, driver in self._undone.items() if driver in drivers] if drivers else []

    def look(self, drivers: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Ask how they are; which have died since the last time, and which have died or live again."""
        self._mandate.watch_refs({*drivers, *self._undone.values()} - {self._mandate.ref})
        before, self._stale = self._stale, frozenset(self._mandate.stale())
        return self._stale - before, self._stale ^ before

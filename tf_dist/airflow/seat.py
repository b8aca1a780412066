"""The driver of a hub: one under one Lease for all jobs of the hub, which it takes as soon as they are free."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from tf_dist.airflow.sight import DriversSight
from tf_dist.airflow.tickets import Ticket
from tf_dist.client.claiming import claim
from tf_dist.client.inline import leased_driver
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Cluster, Object, Resource
from tf_dist.cluster.kube import KubeContext
from tf_dist.core.claims import driver_of, managed_elsewhere, may_claim
from tf_dist.core.status_codec import is_newer, shown_status
from tf_dist.driver.refs import JobRef
from tf_dist.driver.workqueue import WorkQueue
from tf_dist.errors import ClusterError, Conflict, Forbidden, NotFound

_LOG = logging.getLogger(__name__)

RESERVED: Final = "airflow"
"""What a job names as its driver until a hub has taken it: nobody else takes it for abandoned meanwhile."""
_LOOK_EVERY: Final = 2.0  # seconds between two looks at jobs that another driver holds: it may be dead by then
_SOON: Final = 0.1
_BEAT: Final = 5.0  # seconds between two looks at whether it may see what it has to


class Seat:
    """Drives jobs of ``namespace``; ClusterError when there can be no Lease.

    ``rung`` is called with every job around which something has changed, ``tickets`` gives those who wait for a job,
    ``seen`` is called once the driver sees everything, ``troubled`` when it may not. All from any thread.
    """

    def __init__(
        self,
        place: KubeContext,
        cluster: Cluster,
        namespace: str,
        *,
        rung: Callable[[JobRef], None],
        tickets: Callable[[JobRef], tuple[Ticket, ...]],
        seen: Callable[[], None],
        troubled: Callable[[], None],
    ) -> None:
        self.kinds: tuple[Resource, ...] = _kinds(cluster, namespace)
        self._cluster = cluster
        self._tickets, self._seen, self._troubled = tickets, seen, troubled
        self._queue: WorkQueue[JobRef] = WorkQueue()
        self._closed = threading.Event()
        self._stack = ExitStack()
        volcano = VOLCANO_JOBS in self.kinds
        driven = leased_driver(place, cluster, namespace, volcano_jobs=volcano, rung=rung)
        self._driver, self._mandate = self._stack.enter_context(driven)
        self._thread = threading.Thread(target=self._run, name="hub-claims", daemon=True)
        self._thread.start()

    def sight(self) -> DriversSight:
        """What its driver sees."""
        return DriversSight(self._driver.caches, self.kinds)

    def refused(self) -> Forbidden | None:
        """The right that is missing to see anything at all."""
        return self._driver.caches.refused()

    def consider(self, ref: JobRef) -> None:
        """Take a job that somebody waits for, if it is free."""
        self._queue.add(ref)

    def drives(self, stored: Object) -> bool:
        """Whether the job is its own."""
        return driver_of(stored) == self._mandate.ref

    def close(self) -> None:
        """End its threads, and give the Lease back."""
        self._closed.set()
        self._queue.close()
        self._thread.join()
        self._stack.close()

    def _run(self) -> None:
        while not self._closed.is_set() and not self._driver.synced():
            self._look_out()
            self._closed.wait(_SOON)
        if not self._closed.is_set():
            self._seen()
        while not self._closed.is_set():
            for ref in self._queue.wait(_BEAT):
                self._consider(ref)
            self._look_out()

    def _look_out(self) -> None:
        if self.refused() is not None:
            self._troubled()

    def _consider(self, ref: JobRef) -> None:
        for ticket in self._tickets(ref):
            if ticket.driven and not self._closed.is_set() and (pause := self._safe_claim(ticket)) is not None:
                self._queue.add(ref, pause)

    def _safe_claim(self, ticket: Ticket) -> float | None:
        try:
            return self._claim(ticket)
        except (Conflict, NotFound):
            return _SOON  # it has changed: look again
        except ClusterError as error:
            _LOG.info("job %s cannot be taken yet: %s", ticket.ref, error)
        except Exception:
            _LOG.exception("taking job %s met a defect", ticket.ref)
        return _LOOK_EVERY

    def _claim(self, ticket: Ticket) -> float | None:
        """Take one job if it is free; in how many seconds to look again, None if nothing is left to be done."""
        caches, me = self._driver.caches, self._mandate.ref
        stored = caches.job(ticket.ref)
        if stored is None or stored["metadata"]["uid"] != ticket.uid:
            return None
        if managed_elsewhere(stored) or is_newer(stored):
            return None
        present = driver_of(stored)
        if present == me or shown_status(stored).finished:
            return None
        if not may_claim(present, me, self._mandate.stale(), reserved=RESERVED):
            return _LOOK_EVERY if "/" in present else None  # a driver without a Lease is there for good
        if not self._driver.synced():
            return _SOON
        # What its last driver made, and the watch has not brought yet, must not be taken for lost.
        caches.confirm(ticket.ref, ticket.uid)
        caches.wrote(ticket.ref.resource, claim(self._cluster, ticket.ref.resource, stored, me))
        return None


def _kinds(cluster: Cluster, namespace: str) -> tuple[Resource, ...]:
    """The kinds of jobs to drive: Volcano's, too, if the role of this process allows it. They may be defined later."""
    try:
        cluster.list(VOLCANO_JOBS, namespace, limit=1)
    except Forbidden:
        return (TFJOBS,)
    except NotFound:
        pass
    return (TFJOBS, VOLCANO_JOBS)

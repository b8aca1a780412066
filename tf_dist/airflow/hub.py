"""One place a process, cluster and namespace from which all tasks there learn of their jobs, and have them driven.

However many jobs there are, each kind is listed and watched once, and one driver under one Lease drives them all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

from tf_dist.client.claiming import claim
from tf_dist.client.connect import Connection
from tf_dist.client.following import Ended, Following, LogLine, Opener, opener
from tf_dist.client.inline import leased_driver
from tf_dist.client.jobs import StoredJob
from tf_dist.client.slots import Slots
from tf_dist.client.watching import Changed, Item, Listed, Mailbox
from tf_dist.cluster.api import PODS, LogOptions, Object, Resource
from tf_dist.cluster.reflector import Reflector
from tf_dist.core import names
from tf_dist.core.claims import driver_of, may_claim
from tf_dist.core.model import Job
from tf_dist.core.status_codec import load_status, stored_status
from tf_dist.driver import slim
from tf_dist.driver.lease_mandate import LeaseMandate
from tf_dist.driver.loop import Driver
from tf_dist.driver.refs import JobRef, job_uid
from tf_dist.errors import ClusterError, Conflict, Forbidden, NotFound

_LOG = logging.getLogger(__name__)

RESERVED: Final = "airflow"
"""What a job names as its driver until a hub has taken it: nobody else takes it for abandoned meanwhile."""
_LOOK_EVERY: Final = 2.0  # seconds between two looks at jobs that another driver holds: it may be dead by then
_SOON: Final = 0.1
_MOST_LINES: Final = 1_000  # of one job that may wait to be logged; then its logs are not read on
_BATCH: Final = 200


class Ticket(Mailbox):
    """One job that somebody waits for; ``last``: how it was seen last, also when it is gone.

    ``told`` is called, from any thread, when there is something to take.
    """

    def __init__(self, ref: JobRef, stored: Object, told: Callable[[], None], *, driven: bool) -> None:
        super().__init__(StoredJob(ref.resource, stored), most_lines=_MOST_LINES, batch=_BATCH)
        self.ref, self.driven = ref, driven
        self.last = StoredJob(ref.resource, stored)
        self._told = told
        self._rung = False

    def put(self, item: Item) -> None:
        """Add something, and ring once until it is taken."""
        super().put(item)
        if not self._rung:
            self._rung = True
            self._told()

    def learn(self, item: Item) -> None:
        """Bring the state up to date, and keep the job as it was before it went."""
        super().learn(item)
        self.last = self.job or self.last

    def take(self, timeout: float | None = None) -> list[Item]:
        """What has come; the rest, if that was too much for once, rings again."""
        self._rung = False
        found = super().take(timeout)
        if len(found) >= _BATCH and not self._rung:
            self._rung = True
            self._told()
        return found


class Reading(Following):
    """Reads logs from when it has ``begun``; containers that start before are passed over until noticed again."""

    def __init__(
        self,
        job: Job,
        open_log: Opener,
        sink: Callable[[LogLine | Ended], None],
        *,
        start: Callable[[Callable[[], None]], None],
        begun: bool,
    ) -> None:
        super().__init__(job, open_log, sink, start=start)
        self.begun = begun

    def notice(self, pod: Object) -> bool:
        """See ``Following``."""
        return self.begun and super().notice(pod)


class Hub:
    """Follows the jobs of ``namespace`` that somebody joined for. ``streams``: logs that are read at a time.

    ``close`` it when the last has left: then its threads have ended, its Lease is gone and ``connection`` is closed.
    """

    def __init__(self, connection: Connection, namespace: str, *, streams: int = 128) -> None:
        self.cluster = connection.cluster
        self.namespace = namespace
        self._connection = connection
        self._place = connection.place
        self._slots = Slots(streams)
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._tickets: dict[str, tuple[Ticket, ...]] = {}  # by the job's uid
        self._reflectors: dict[Resource, Reflector] = {}
        self._readings: dict[Ticket, Reading] = {}
        self._stack = ExitStack()
        self._driving: tuple[Driver, LeaseMandate] | None = None
        self._stirred = threading.Event()
        self._closed = False
        self._claimer: threading.Thread | None = None

    # Coming and going

    def join(self, ref: JobRef, told: Callable[[], None], *, uid: str = "", drive: bool = False) -> Ticket:
        """Begin to follow a job (that of ``uid``, if given), and to drive it; NotFound, other ClusterErrors.

        Nothing is driven where the cluster sees to its jobs itself.
        """
        jobs, pods = self._reflector(ref.resource), self._reflector(PODS)
        driven = drive and self._place is not None
        if driven:
            self._drive()
        stored = self.cluster.get(ref.resource, ref.namespace, ref.name)
        if uid and stored["metadata"]["uid"] != uid:
            raise NotFound(f"job {ref} is another one by now")
        ticket = Ticket(ref, slim.job(stored), told, driven=driven)
        with self._lock:
            self._tickets[ticket.uid] = (*self._tickets.get(ticket.uid, ()), ticket)
        jobs.put(stored)
        if jobs.synced() and jobs.get(ref.namespace, ref.name) is None:
            self.leave(ticket)
            raise NotFound(f"job {ref} is gone")
        ticket.put(Listed(PODS, pods.cache.group(ticket.uid)))
        self._stirred.set()
        return ticket

    def read_logs(self, ticket: Ticket, options: LogOptions, *, begun: bool) -> Reading:
        """Logs of the job's containers into its ticket, as threads are free for them."""
        log = opener(self.cluster, options)
        reading = Reading(ticket.last.job, log, ticket.put, start=self._slots.start, begun=begun)
        with self._lock:
            self._readings[ticket] = reading
        return reading

    def leave(self, ticket: Ticket) -> None:
        """Follow and drive it no more; the job goes on."""
        with self._lock:
            reading = self._readings.pop(ticket, None)
            rest = tuple(one for one in self._tickets.get(ticket.uid, ()) if one is not ticket)
            if rest:
                self._tickets[ticket.uid] = rest
            else:
                self._tickets.pop(ticket.uid, None)
        ticket.close()
        if reading is not None:
            reading.close()

    def close(self) -> None:
        """End every thread, and give the Lease back."""
        self._closed = True
        self._stirred.set()
        with self._lock:
            readings, reflectors = tuple(self._readings.values()), tuple(self._reflectors.values())
        for reading in readings:
            reading.close()
        if self._claimer is not None:
            self._claimer.join()
        for reflector in reflectors:
            reflector.end()
        for reflector in reflectors:
            reflector.stop()
        self._slots.close()
        self._stack.close()
        self._connection.close()

    # Seeing

    def problem(self) -> ClusterError | None:
        """What keeps it from seeing its jobs for good: rights that are missing."""
        found = (reflector.problem for reflector in tuple(self._reflectors.values()))
        return next((problem for problem in found if isinstance(problem, Forbidden)), None)

    def job(self, ref: JobRef) -> Object | None:
        """A job as it was seen last."""
        reflector = self._reflector(ref.resource)
        return reflector.get(ref.namespace, ref.name)

    @property
    def watches(self) -> int:
        """How many kinds it follows."""
        return len(self._reflectors)

    def _reflector(self, resource: Resource) -> Reflector:
        with self._lock:
            found = self._reflectors.get(resource)
            if found is not None:
                return found
            selector, keep, whose = (names.JOB_UID, slim.pod, job_uid) if resource is PODS else ("", slim.job, _uid)
            found = self._reflectors[resource] = Reflector(
                self.cluster,
                resource,
                changed=partial(self._tell, resource, whose),
                namespace=self.namespace,
                labels=selector,
                keep=keep,
                index=whose,
            )
            found.start()
        return found

    def _tell(self, resource: Resource, whose: Callable[[Object], str], old: Object | None, new: Object | None) -> None:
        """Hand a change to whoever waits for that job; an object that gave its name to another one is gone."""
        if old is not None and (new is None or _uid(old) != _uid(new)):
            for ticket in self._tickets.get(whose(old), ()):
                ticket.put(Changed(resource, "DELETED", old))
        if new is not None:
            for ticket in self._tickets.get(whose(new), ()):
                ticket.put(Changed(resource, "MODIFIED", new))
                if ticket.driven and resource is not PODS:
                    self._stirred.set()

    # Driving

    def _drive(self) -> None:
        """Begin to drive; ClusterError when there can be no Lease."""
        with self._starting:
            if self._driving is not None or self._place is None:
                return
            self._driving = self._stack.enter_context(leased_driver(self._place, self.cluster, self.namespace))
            self._claimer = threading.Thread(target=self._claim_all, name="hub-claims", daemon=True)
            self._claimer.start()

    def _claim_all(self) -> None:
        """Take the jobs that are to be driven as soon as they are free."""
        while not self._closed:
            self._stirred.clear()
            pauses = [pause for ticket in self._driven() if (pause := self._safe_claim(ticket)) is not None]
            if not self._closed:
                self._stirred.wait(min(pauses, default=None))

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

    def _driven(self) -> list[Ticket]:
        with self._lock:
            return [ticket for tickets in self._tickets.values() for ticket in tickets if ticket.driven]

    def _claim(self, ticket: Ticket) -> float | None:
        """Take one job if it is free; in how many seconds to look again, None if nothing is left to be done."""
        assert self._driving is not None  # there are no driven tickets before
        (driver, mandate), stored = self._driving, self.job(ticket.ref)
        if stored is None or _uid(stored) != ticket.uid or load_status(stored_status(stored)).finished:
            return None
        present = driver_of(stored)
        if present == mandate.ref:
            return None
        if not may_claim(present, mandate.ref, mandate.stale(), reserved=RESERVED):
            return _LOOK_EVERY if "/" in present else None  # a driver without a Lease is there for good
        if not driver.synced():
            return _SOON
        # What its last driver made, and the watch has not brought yet, must not be taken for lost.
        driver.caches.confirm(ticket.ref, ticket.uid)
        claimed = claim(self.cluster, ticket.ref.resource, stored, mandate.ref)
        driver.caches.wrote(ticket.ref.resource, claimed)
        self._reflector(ticket.ref.resource).put(claimed)
        return None


def _uid(stored: Object) -> str:
    return str(stored["metadata"]["uid"])

"""Shared job informer: one for a process, cluster and namespace, from which all tasks learn of their jobs.

However many jobs there are, each kind is listed and watched once, and one driver under one Lease drives them all: once
there is one, what it sees is what everybody here sees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from tf_dist.airflow.shared.job_store import InformerJobStore, JobStore, LeasedController
from tf_dist.airflow.shared.subscription import (
    BoundedThreads,
    LogOpenLimiter,
    SeenJob,
    Subscription,
    SubscriptionLogFollower,
)
from tf_dist.client.connection import Connection
from tf_dist.client.log_follower import log_opener
from tf_dist.cluster.api import LogOptions
from tf_dist.controller.driver_settings import JobRef
from tf_dist.controller.informers import transforms
from tf_dist.errors import ClusterError, NotFound


class SharedJobInformer:
    """Follows the jobs of ``namespace`` that somebody joined for. ``streams``: logs that are read at a time.

    ``close`` it when the last has left: then its threads have ended, its Lease is gone and ``connection`` is closed.
    """

    def __init__(self, connection: Connection, namespace: str, *, streams: int = 128) -> None:
        self.cluster = connection.cluster
        self.namespace = namespace
        self._connection = connection
        self._slots, self._gate = BoundedThreads(streams), LogOpenLimiter()
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._tickets: dict[JobRef, tuple[Subscription, ...]] = {}
        self._readings: dict[Subscription, SubscriptionLogFollower] = {}
        self._sight: JobStore | None = None  # None: nobody has come, or the driver does not see everything yet
        self._seat: LeasedController | None = None

    # Coming and going

    def join(self, ref: JobRef, told: Callable[[], None], *, uid: str = "", drive: bool = False) -> Subscription:
        """Begin to follow a job (that of ``uid``, if given), and to drive it; NotFound, other ClusterErrors.

        Nothing is driven where the cluster sees to its jobs itself.
        """
        driven = drive and self._connection.place is not None
        self._open(ref, driven=driven)
        stored = transforms.job(self.cluster.get(ref.resource, ref.namespace, ref.name))
        if uid and stored["metadata"]["uid"] != uid:
            raise NotFound(f"job {ref} is another one by now")
        ticket = Subscription(ref, stored, told, partial(self._look, ref, driven), driven=driven)
        with self._lock:
            self._tickets[ref] = (*self._tickets.get(ref, ()), ticket)
            sight = self._sight
        try:
            if sight is not None:
                sight.put(ref, stored)
        except BaseException:
            self.leave(ticket)
            raise
        self.ring(ref)
        if driven and self._seat is not None:
            self._seat.consider(ref)
        return ticket

    def read_logs(self, ticket: Subscription, options: LogOptions, *, begun: bool) -> SubscriptionLogFollower:
        """Logs of the job's containers into its ticket, as threads are free for them."""
        log = self._gate.through(log_opener(self.cluster, options))
        reading = SubscriptionLogFollower(ticket.last.job, log, ticket.put, start=self._slots.start, begun=begun)
        with self._lock:
            self._readings[ticket] = reading
        return reading

    def leave(self, ticket: Subscription) -> None:
        """Follow and drive it no more; the job goes on."""
        with self._lock:
            reading = self._readings.pop(ticket, None)
            rest = tuple(one for one in self._tickets.get(ticket.ref, ()) if one is not ticket)
            if rest:
                self._tickets[ticket.ref] = rest
            else:
                self._tickets.pop(ticket.ref, None)
        ticket.close()
        if reading is not None:
            reading.close()

    def close(self) -> None:
        """End every thread, and give the Lease back."""
        with self._lock:
            readings = tuple(self._readings.values())
        for reading in readings:
            reading.close()
        if self._sight is not None:
            self._sight.close()
        self._slots.close()
        if self._seat is not None:
            self._seat.close()
        self._connection.close()

    # Seeing

    def refused(self) -> ClusterError | None:
        """What keeps it from seeing its jobs for good: a right that is missing."""
        seer = self._seat or self._sight
        return None if seer is None else seer.refused()

    def knows_pods(self, ticket: Subscription) -> bool:
        """Whether pods are seen here as they were when the job's end was decided: its own driver has decided that."""
        return self._seat is not None and self._seat.drives(ticket.last.stored)

    def ring(self, ref: JobRef) -> None:
        """Something has changed around a job: tell whoever waits for it."""
        tickets = self._tickets.get(ref)
        if tickets is None:
            return
        for ticket in tickets:
            ticket.ring()

    def _ring_all(self) -> None:
        with self._lock:
            refs = tuple(self._tickets)
        for ref in refs:
            self.ring(ref)

    def _look(self, ref: JobRef, driven: bool) -> SeenJob | None:
        sight = self._sight
        if sight is None:
            return None
        job = sight.job(ref)
        if job is None:
            return None, []
        if driven and self._seat is not None and not self._seat.drives(job):
            self._seat.consider(ref)
        return job, sight.pods(ref.namespace, job["metadata"]["uid"])

    def _open(self, ref: JobRef, *, driven: bool) -> None:
        """See to it that jobs of that kind are seen, and driven if they are to be; ClusterError."""
        with self._starting:
            if driven and self._seat is None and self._connection.place is not None:
                self._seat = LeasedController(
                    self._connection.place,
                    self.cluster,
                    self.namespace,
                    rung=self.ring,
                    tickets=lambda ref: self._tickets.get(ref, ()),
                    seen=self._see_with_driver,
                    troubled=self._ring_all,
                )
            if self._seat is not None:
                self._seat.sight().follow(ref.resource)
            elif self._sight is None:
                self._sight = InformerJobStore(self.cluster, self.namespace, rung=self.ring, troubled=self._ring_all)
            if self._sight is not None:
                self._sight.follow(ref.resource)

    def _see_with_driver(self) -> None:
        """The driver sees everything: from now on everybody sees that."""
        with self._starting:
            assert self._seat is not None  # it calls this
            new, old = self._seat.sight(), self._sight
            with self._lock:
                for ticket in (ticket for tickets in self._tickets.values() for ticket in tickets):
                    new.know(ticket.ref, ticket.last.stored)  # else a job that it was not told of yet would seem gone
                self._sight = new
        if old is not None:
            old.close()
        self._ring_all()

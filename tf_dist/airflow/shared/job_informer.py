"""Shared job informer: one for a process, cluster and namespace, from which all tasks learn of their jobs.

However many jobs there are, each kind is listed and watched once, and one driver under one Lease drives them all: once
there is one, what it sees is what all of them see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tf_dist.airflow.shared.job_store import InformerJobStore, JobStore, LeasedController
from tf_dist.airflow.shared.subscription import (
    BoundedThreads,
    LogRequestLimiter,
    SeenJob,
    Subscription,
    SubscriptionLogFollower,
)
from tf_dist.client.connection import Connection
from tf_dist.client.log_follower import ContainerInstance, InstanceState, LogOpener, instance_state, log_opener
from tf_dist.cluster.api import LogOptions, Object
from tf_dist.controller.driver_settings import JobRef
from tf_dist.controller.informers import transforms
from tf_dist.core.api import names
from tf_dist.errors import ClusterError, NotFound

_READERS: Final = 16  # logs of containers that have ended which are read at a time


class SharedJobInformer:
    """Follows the jobs of ``namespace`` that have a subscription. ``streams``: logs that are followed at a time.

    ``close`` it when the last has left: then its threads have ended, its Lease is gone and ``connection`` is closed.
    """

    def __init__(self, connection: Connection, namespace: str, *, streams: int = 128) -> None:
        self.cluster = connection.cluster
        self.namespace = namespace
        self._connection = connection
        # Apart, for what is followed may run for hours.
        self._followers, self._readers = BoundedThreads(streams), BoundedThreads(_READERS)
        self._log_requests = LogRequestLimiter(self.cluster)
        self._lock, self._starting = threading.Lock(), threading.Lock()
        # One for all subscriptions: of objects that each of a thousand has, a garbage collection sees a thousand.
        self._roomy = threading.Condition()
        self._lookup_now, self._start_reading = self._lookup, self._read_in_turn
        self._subscriptions: dict[JobRef, tuple[Subscription, ...]] = {}
        self._log_followers: dict[Subscription, SubscriptionLogFollower] = {}
        self._log_openers: dict[LogOptions, LogOpener] = {}
        self._store: JobStore | None = None  # None: no subscription yet, or the driver has not synced
        self._controller: LeasedController | None = None

    # Coming and going

    def join(self, ref: JobRef, on_change: Callable[[], None], *, uid: str = "", drive: bool = False) -> Subscription:
        """Begin to follow a job (that of ``uid``, if given), and to drive it; NotFound, other ClusterErrors.

        Nothing is driven where the cluster sees to its jobs itself.
        """
        driven = drive and self._connection.place is not None
        self._open(ref, driven=driven)
        stored = transforms.job(self.cluster.get(ref.resource, ref.namespace, ref.name))
        if uid and stored["metadata"]["uid"] != uid:
            raise NotFound(f"job {ref} is another one by now")
        subscription = Subscription(ref, stored, on_change, self._lookup_now, driven=driven, roomy=self._roomy)
        with self._lock:
            self._subscriptions[ref] = (*self._subscriptions.get(ref, ()), subscription)
            store = self._store
        try:
            if store is not None:
                store.put(ref, stored)
        except BaseException:
            self.leave(subscription)
            raise
        self.notify(ref)
        if driven and self._controller is not None:
            self._controller.enqueue(ref)
        return subscription

    def read_logs(self, subscription: Subscription, options: LogOptions, *, begun: bool) -> SubscriptionLogFollower:
        """Read logs of the job's containers into its subscription, as threads are free for them."""
        with self._lock:  # nearly all ask for the same
            log = self._log_openers.get(options) or log_opener(self._log_requests, options, self._instance_state)
            self._log_openers[options] = log
        follower = SubscriptionLogFollower(
            subscription.last.job,
            log,
            subscription,
            start=self._start_reading,
            begun=begun,
            stamped=options.timestamps,
        )
        with self._lock:
            self._log_followers[subscription] = follower
        return follower

    def _read_in_turn(self, read: Callable[[], None], urgent: bool) -> None:
        if urgent:
            self._followers.cancel(read)
        (self._readers if urgent else self._followers).start(read)

    def leave(self, subscription: Subscription) -> None:
        """Follow and drive it no more; the job goes on."""
        with self._lock:
            follower = self._log_followers.pop(subscription, None)
            rest = tuple(one for one in self._subscriptions.get(subscription.ref, ()) if one is not subscription)
            if rest:
                self._subscriptions[subscription.ref] = rest
            else:
                self._subscriptions.pop(subscription.ref, None)
        subscription.close()
        if follower is not None:
            follower.close()

    def close(self) -> None:
        """End every thread, and give the Lease back."""
        with self._lock:
            followers = tuple(self._log_followers.values())
        for follower in followers:
            follower.close()
        self._log_requests.close()
        if self._store is not None:
            self._store.close()
        self._followers.close()
        self._readers.close()
        if self._controller is not None:
            self._controller.close()
        self._connection.close()

    # Seeing

    def refused(self) -> ClusterError | None:
        """What keeps it from seeing its jobs for good: a right that is missing."""
        source = self._controller or self._store
        return None if source is None else source.refused()

    def decides_for(self, subscription: Subscription) -> bool:
        """Whether pods are seen here as they were when the job's end was decided: its own driver has decided that."""
        return self._controller is not None and self._controller.drives(subscription.last.stored)

    def notify(self, ref: JobRef) -> None:
        """A job or one of its objects has changed: notify its subscriptions."""
        subscriptions = self._subscriptions.get(ref)
        if subscriptions is None:
            return
        for subscription in subscriptions:
            subscription.notify()

    def _notify_all(self) -> None:
        with self._lock:
            refs = tuple(self._subscriptions)
        for ref in refs:
            self.notify(ref)

    def _lookup(self, subscription: Subscription) -> SeenJob | None:
        store, ref = self._store, subscription.ref
        if store is None:
            return None
        job = store.job(ref)
        if job is None:
            return None, []
        if subscription.driven and self._controller is not None and not self._controller.drives(job.stored):
            self._controller.enqueue(ref)
        return job, store.pods(ref.namespace, job.uid)

    def _instance_state(self, pod: Object, instance: ContainerInstance) -> InstanceState | None:
        """The state of an instance by its pod as it was seen last; None: the pod is not known (any more)."""
        metadata, store = pod["metadata"], self._store
        uid = (metadata.get("labels") or {}).get(names.JOB_UID)
        if store is None or not uid:
            return None
        found = (one for one in store.pods(metadata["namespace"], uid) if one["metadata"]["uid"] == instance.pod_uid)
        return next((instance_state(one, instance) for one in found), None)

    def _open(self, ref: JobRef, *, driven: bool) -> None:
        """See to it that jobs of that kind are seen, and driven if they are to be; ClusterError."""
        with self._starting:
            if driven and self._controller is None and self._connection.place is not None:
                self._controller = LeasedController(
                    self._connection.place,
                    self.cluster,
                    self.namespace,
                    on_change=self.notify,
                    subscriptions=lambda ref: self._subscriptions.get(ref, ()),
                    on_synced=self._use_driver_store,
                    on_error=self._notify_all,
                )
            if self._controller is not None:
                self._controller.store().follow(ref.resource)
            elif self._store is None:
                self._store = InformerJobStore(
                    self.cluster, self.namespace, on_change=self.notify, on_error=self._notify_all
                )
            if self._store is not None:
                self._store.follow(ref.resource)

    def _use_driver_store(self) -> None:
        """The driver has synced: from now on its informers serve all subscriptions."""
        with self._starting:
            assert self._controller is not None  # it calls this
            new, old = self._controller.store(), self._store
            with self._lock:
                for subscription in (
                    subscription for subscriptions in self._subscriptions.values() for subscription in subscriptions
                ):
                    new.merge(
                        subscription.ref, subscription.last.stored
                    )  # else a job that its watch has not brought yet would seem gone
                self._store = new
        if old is not None:
            old.close()
        self._notify_all()

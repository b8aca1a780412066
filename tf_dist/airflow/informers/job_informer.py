"""Shared job informer: one for each process, cluster and namespace. All tasks follow their jobs through it.

Each kind of job is listed and watched once. If tasks need no controller of the cluster, the process is a candidate for
the Lease of the namespace. While it leads, the informers of its controller serve all tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tf_dist.airflow.informers.job_store import JobStore
from tf_dist.airflow.informers.log_limits import BoundedThreads, LogRequestLimiter
from tf_dist.airflow.informers.subscription import SeenJob, Subscription, SubscriptionLogFollower
from tf_dist.client.connection import Connection
from tf_dist.client.controller_host import ControllerHost, job_kinds
from tf_dist.client.log_follower import ContainerInstance, InstanceState, LogOpener, instance_state, log_opener
from tf_dist.cluster.api import PODS, LogOptions, Object, Resource
from tf_dist.controller.controller import Controller
from tf_dist.controller.informers import transforms
from tf_dist.controller.settings import JobRef
from tf_dist.core.model import names
from tf_dist.errors import ClusterError, NotFound

_READERS: Final = 16  # logs of ended containers that are read at the same time
_SOON: Final = 0.1  # seconds between two checks whether the next store has synced
_SELDOM: Final = 5.0  # seconds between two checks for missing permissions


class SharedJobInformer:
    """Follows the jobs of ``namespace`` that have a subscription. ``streams``: the maximum number of followed logs.

    Call ``close`` after the last subscription. It ends the threads, releases the Lease and closes ``connection``.
    """

    def __init__(self, connection: Connection, namespace: str, *, streams: int = 128) -> None:
        self.cluster = connection.cluster
        self.namespace = namespace
        self._connection = connection
        # Separate threads, because a followed log may run for hours.
        self._followers, self._readers = BoundedThreads(streams), BoundedThreads(_READERS)
        self._log_requests = LogRequestLimiter(self.cluster)
        self._lock = threading.Lock()  # guards the subscriptions and their logs
        self._opening = threading.Lock()  # held while the host starts, which sends requests
        self._switching = threading.Lock()  # guards the stores
        # Shared by all subscriptions, because a garbage collection visits each object of thousands of subscriptions.
        self._roomy = threading.Condition()
        self._lookup_now, self._start_reading = self._lookup, self._read_in_turn
        self._subscriptions: dict[JobRef, tuple[Subscription, ...]] = {}
        self._log_followers: dict[Subscription, SubscriptionLogFollower] = {}
        self._log_openers: dict[LogOptions, LogOpener] = {}
        self._store: JobStore | None = None  # None: no subscription yet, or the controller has not synced
        self._coming: JobStore | None = None  # the next store, which serves as soon as it has synced
        self._followed: set[Resource] = set()
        self._host: ControllerHost | None = None
        self._seen_through: Controller | None = None  # the controller whose informers serve; None: own informers
        self._led, self._closed = threading.Event(), False
        self._thread: threading.Thread | None = None

    # Subscriptions

    def join(self, ref: JobRef, on_change: Callable[[], None], *, uid: str = "", drive: bool = False) -> Subscription:
        """Follow a job, with this ``uid`` if given. Raises NotFound and other ClusterErrors.

        ``drive``: become a candidate to lead the namespace, unless the cluster has a controller.
        """
        self._open(ref, drive=drive)
        stored = transforms.job(self.cluster.get(ref.resource, ref.namespace, ref.name))
        if uid and stored["metadata"]["uid"] != uid:
            raise NotFound(f"job {ref} was replaced by another one")
        subscription = Subscription(ref, stored, on_change, self._lookup_now, roomy=self._roomy)
        with self._lock:
            self._subscriptions[ref] = (*self._subscriptions.get(ref, ()), subscription)
            store = self._store
        try:
            if store is not None:
                store.put(ref.resource, stored)
                if store.job(ref) is None:
                    raise NotFound(f"job {ref} is gone")
        except BaseException:
            self.leave(subscription)
            raise
        self.notify(ref)
        return subscription

    def read_logs(self, subscription: Subscription, options: LogOptions, *, begun: bool) -> SubscriptionLogFollower:
        """Read logs of the job's containers into its subscription, as threads become free."""
        with self._lock:  # nearly all subscriptions use the same options
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
        """Stop following a job. The job continues."""
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
        """End all threads, and release the Lease."""
        with self._lock:
            followers = tuple(self._log_followers.values())
        for follower in followers:
            follower.close()
        self._log_requests.close()
        self._closed = True
        self._led.set()
        if self._thread is not None:
            self._thread.join()
        for store in (self._store, self._coming):
            if store is not None:
                store.close()
        self._followers.close()
        self._readers.close()
        if self._host is not None:
            self._host.stop()
        self._connection.close()

    # Observation

    def refused(self) -> ClusterError | None:
        """The missing permission without which no job is observed; None if no permission is missing."""
        store = self._coming or self._store
        if self._host is not None and (found := self._host.refused()) is not None:
            return found
        return store.refused() if store is not None else None

    def decides_for(self, subscription: Subscription) -> bool:
        """Whether the controller of this process decides the end of the job, and observes its pods up to that end."""
        return self._seen_through is not None and self.leads(subscription.ref.resource)

    def leads(self, kind: Resource) -> bool:
        """Whether this process leads jobs of this kind."""
        return self._host is not None and self._host.leads(kind)

    def notify(self, ref: JobRef) -> None:
        """Notify the subscriptions of a job that the job or one of its objects changed."""
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
        return job, store.pods(ref.namespace, job.uid)

    def _instance_state(self, pod: Object, instance: ContainerInstance) -> InstanceState | None:
        """The state of a container instance by its last observed pod; None if the pod is unknown."""
        metadata, store = pod["metadata"], self._store
        uid = (metadata.get("labels") or {}).get(names.JOB_UID)
        if store is None or not uid:
            return None
        found = (one for one in store.pods(metadata["namespace"], uid) if one["metadata"]["uid"] == instance.pod_uid)
        return next((instance_state(one, instance) for one in found), None)

    def _open(self, ref: JobRef, *, drive: bool) -> None:
        """Observe jobs of this kind. ``drive``: become a candidate to lead them. Raises ClusterError."""
        with self._opening:
            if drive and self._host is None and (place := self._connection.place) is not None:
                kinds = job_kinds(self.cluster, self.namespace)
                host = ControllerHost(
                    place, self.cluster, self.namespace, kinds, on_change=self.notify, on_led=self._led.set
                )
                self._host = host.start()
                self._thread = threading.Thread(target=self._follow_leadership, name="shared-informer", daemon=True)
                self._thread.start()
            with self._switching:
                self._followed.add(ref.resource)
                if self._store is None and (self._host is None or not self._host.leadership.kinds()):
                    self._store = self._new_store()
                for store in (self._store, self._coming):
                    if store is not None:
                        store.follow(ref.resource)

    def _new_store(self, controller: Controller | None = None) -> JobStore:
        led = self._host.kinds if self._host is not None and controller is not None else frozenset[Resource]()
        store = JobStore(
            self.cluster,
            self.namespace,
            on_change=self.notify,
            on_error=self._notify_all,
            controller=controller,
            led=led,
        )
        for kind in self._followed:
            store.follow(kind)
        return store

    # Switch between stores

    def _follow_leadership(self) -> None:
        """Observe jobs through the controller of this process while it leads, otherwise through own informers."""
        while True:
            self._led.clear()
            if self._closed:
                break
            settled = self._switch()
            if self.refused() is not None:
                self._notify_all()
            self._led.wait(_SELDOM if settled else _SOON)

    def _switch(self) -> bool:
        """Prepare the store for the current leadership, and use it when it has synced. Returns whether it is in use."""
        assert self._host is not None
        dropped: JobStore | None = None
        with self._switching:
            controller, coming = self._host.controller, self._coming
            if controller is None and self._host.leadership.kinds():
                return False  # the controller is about to start
            if self._store is not None and self._seen_through is controller:
                dropped, self._coming = coming, None  # the leadership has changed back
            elif coming is None or coming.controller is not controller:
                dropped, self._coming = coming, self._new_store(controller)
        if dropped is not None:
            dropped.close()
        if self._coming is None:
            return True
        if self._coming.synced():
            self._use(self._coming, controller)
            return True
        return False

    def _use(self, new: JobStore, controller: Controller | None) -> None:
        """Serve all subscriptions from this store. No subscription observes an older state, or loses its job."""
        with self._switching:
            old = self._store
            with self._lock:
                for ref, subscriptions in self._subscriptions.items():
                    for one in subscriptions:
                        new.put(ref.resource, one.last.stored)
                        for pod in old.pods(ref.namespace, one.last.uid) if old is not None else ():
                            new.put(PODS, pod)
                self._store = new
            self._coming, self._seen_through = None, controller
        if old is not None:
            old.close()
        self._notify_all()

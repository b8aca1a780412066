"""Job stores of a shared informer: its own informers, or those of the leased controller that drives its jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Final, Protocol

from tf_dist.airflow.jobs.task_identity import AIRFLOW_DRIVER
from tf_dist.airflow.shared.subscription import Subscription
from tf_dist.client.inline_driver import claim_job, leased_driver
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, TFJOBS, VOLCANO_JOBS, Cluster, Object, Resource
from tf_dist.cluster.client.client_config import KubeContext
from tf_dist.cluster.client.informer import Informer, jittered_backoff
from tf_dist.cluster.client.workqueue import WorkQueue
from tf_dist.controller.driver import Driver
from tf_dist.controller.driver_settings import JobRef
from tf_dist.controller.informers import transforms
from tf_dist.core.api import names
from tf_dist.core.api.status_codec import displayed_status, is_newer
from tf_dist.core.reconciler.ownership import driver_of, managed_elsewhere, may_claim
from tf_dist.errors import ClusterError, Conflict, Forbidden, NotFound, Unavailable


class JobStore(Protocol):
    """Jobs and pods as they were seen last."""

    def follow(self, resource: Resource) -> None:
        """See jobs of this kind from now on; ClusterError when that cannot be."""

    def put(self, ref: JobRef, stored: Object) -> None:
        """Take over the server's answer to a request; NotFound if the job is known to be gone by now."""

    def job(self, ref: JobRef) -> StoredJob | None:
        """A job, None if it is not there."""

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """The pods of a job."""

    def refused(self) -> Forbidden | None:
        """The right that is missing to see anything at all."""

    def close(self) -> None:
        """End its threads."""


class InformerJobStore:
    """Follows what it is asked to by itself. ``on_change`` is called with a job around which something has changed,
    ``on_error`` when following fails; from any thread.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        *,
        on_change: Callable[[JobRef], None],
        on_error: Callable[[], None],
    ) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._on_change, self._on_error = on_change, on_error
        self._lock = threading.Lock()
        self._reflectors: dict[Resource, Informer] = {}

    def follow(self, resource: Resource) -> None:
        """See ``JobStore``."""
        with self._lock:
            new = [kind for kind in (resource, PODS) if kind not in self._reflectors]
            self._reflectors |= {kind: self._reflector(kind) for kind in new}
            for kind in new:
                self._reflectors[kind].start()

    def _reflector(self, resource: Resource) -> Informer:
        def job_changed(old: Object | None, new: Object | None) -> None:
            self._on_change(JobRef.of(resource, new or old or {}))

        def pod_changed(old: Object | None, new: Object | None) -> None:
            if (ref := JobRef.of_owner(new or old or {})) is not None:
                self._on_change(ref)

        pods = resource is PODS
        return Informer(
            self._cluster,
            resource,
            changed=pod_changed if pods else job_changed,
            namespace=self._namespace,
            labels=names.JOB_UID if pods else "",
            keep=transforms.pod if pods else transforms.job,
            index=names.owner_key if pods else lambda _: "",
            pause=self._pause,
        )

    def _pause(self, failures: int) -> float:
        self._on_error()
        return jittered_backoff(failures)

    def put(self, ref: JobRef, stored: Object) -> None:
        """See ``JobStore``."""
        self._reflectors[ref.resource].put(stored)
        if self.job(ref) is None:
            raise NotFound(f"job {ref} is gone")

    def job(self, ref: JobRef) -> StoredJob | None:
        """See ``JobStore``."""
        stored = self._reflectors[ref.resource].get(ref.namespace, ref.name)
        return StoredJob(ref.resource, stored) if stored is not None else None

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """See ``JobStore``."""
        return self._reflectors[PODS].cache.group(names.owned_by_key(namespace, uid))

    def refused(self) -> Forbidden | None:
        """See ``JobStore``."""
        found = (reflector.problem for reflector in tuple(self._reflectors.values()))
        return next((problem for problem in found if isinstance(problem, Forbidden)), None)

    def close(self) -> None:
        """See ``JobStore``."""
        with self._lock:
            reflectors = tuple(self._reflectors.values())
        for reflector in reflectors:
            reflector.end()
        for reflector in reflectors:
            reflector.stop()


class DriverJobStore:
    """The informers of the driver, with jobs of these ``kinds``: nothing is watched a second time."""

    def __init__(self, driver: Driver, kinds: Collection[Resource]) -> None:
        self._driver, self._informers, self._kinds = driver, driver.informers, kinds

    def follow(self, resource: Resource) -> None:
        """See ``JobStore``."""
        if resource not in self._kinds:
            raise Unavailable(
                f"{resource.plural} could not be seen when this process began to drive jobs",
                hint="once its role allows them and their kind is installed, let this process begin anew",
            )

    def merge(self, ref: JobRef, stored: Object) -> None:
        """Take over what was seen of a job elsewhere, unless more is known of it."""
        self._informers.wrote(ref.resource, stored)

    def put(self, ref: JobRef, stored: Object) -> None:
        """See ``JobStore``."""
        self.merge(ref, stored)
        if self.job(ref) is None:
            raise NotFound(f"job {ref} is gone")

    def job(self, ref: JobRef) -> StoredJob | None:
        """See ``JobStore``; its spec is the one that the driver has read."""
        stored = self._informers.job(ref)
        if stored is None:
            return None
        return StoredJob.known(ref.resource, stored, self._driver.job(ref, stored["metadata"]["uid"]))

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """See ``JobStore``."""
        return self._informers.pods(namespace, uid)

    def refused(self) -> Forbidden | None:
        """See ``JobStore``."""
        return self._informers.refused()

    def close(self) -> None:
        """The driver's own affair."""


_LOG = logging.getLogger(__name__)
_LOOK_EVERY: Final = 2.0  # seconds between two looks at jobs that another driver holds: it may be dead by then
_RETRY_SOON: Final = 0.1
_MAX_WAIT: Final = 5.0  # seconds between two looks at whether it may see what it has to


class LeasedController:
    """Drives jobs of ``namespace``; ClusterError when there can be no Lease.

    ``on_change`` is called with every job that has changed, or whose objects have; ``subscriptions`` returns the
    subscriptions to a job; ``on_synced`` is called once the driver's informers have synced, ``on_error`` when a right
    is missing. All from any thread.
    """

    def __init__(
        self,
        place: KubeContext,
        cluster: Cluster,
        namespace: str,
        *,
        on_change: Callable[[JobRef], None],
        subscriptions: Callable[[JobRef], tuple[Subscription, ...]],
        on_synced: Callable[[], None],
        on_error: Callable[[], None],
    ) -> None:
        self.kinds: tuple[Resource, ...] = _kinds(cluster, namespace)
        self._cluster = cluster
        self._subscriptions, self._on_synced, self._on_error = subscriptions, on_synced, on_error
        self._queue: WorkQueue[JobRef] = WorkQueue()
        self._closed = threading.Event()
        self._stack = ExitStack()
        volcano = VOLCANO_JOBS in self.kinds
        driven = leased_driver(place, cluster, namespace, volcano_jobs=volcano, on_change=on_change)
        self._driver, self._leadership = self._stack.enter_context(driven)
        self._thread = threading.Thread(target=self._run, name="shared-informer-claims", daemon=True)
        self._thread.start()

    def store(self) -> DriverJobStore:
        """What its driver sees."""
        return DriverJobStore(self._driver, self.kinds)

    def refused(self) -> Forbidden | None:
        """The right that is missing to see anything at all."""
        return self._driver.informers.refused()

    def enqueue(self, ref: JobRef) -> None:
        """Claim a job that has a subscription, if it is free."""
        self._queue.add(ref)

    def drives(self, stored: Object) -> bool:
        """Whether the job is its own."""
        return driver_of(stored) == self._leadership.ref

    def close(self) -> None:
        """End its threads, and give the Lease back."""
        self._closed.set()
        self._queue.close()
        self._thread.join()
        self._stack.close()

    def _run(self) -> None:
        while not self._closed.is_set() and not self._driver.synced():
            self._watch_free_jobs()
            self._closed.wait(_RETRY_SOON)
        if not self._closed.is_set():
            self._on_synced()
        while not self._closed.is_set():
            for ref in self._queue.wait(_MAX_WAIT):
                self._claim_waiting(ref)
            self._watch_free_jobs()

    def _watch_free_jobs(self) -> None:
        if self.refused() is not None:
            self._on_error()

    def _claim_waiting(self, ref: JobRef) -> None:
        for subscription in self._subscriptions(ref):
            if (
                subscription.driven
                and not self._closed.is_set()
                and (pause := self._safe_claim(subscription)) is not None
            ):
                self._queue.add(ref, pause)

    def _safe_claim(self, subscription: Subscription) -> float | None:
        try:
            return self._claim(subscription)
        except (Conflict, NotFound):
            return _RETRY_SOON  # it has changed: look again
        except ClusterError as error:
            _LOG.info("failed to claim job, trying again: job=%s error=%s", subscription.ref, error)
        except Exception:
            _LOG.exception("failed to claim job: job=%s", subscription.ref)
        return _LOOK_EVERY

    def _claim(self, subscription: Subscription) -> float | None:
        """Take one job if it is free; in how many seconds to look again, None if nothing is left to be done."""
        informers, me = self._driver.informers, self._leadership.ref
        stored = informers.job(subscription.ref)
        if stored is None or stored["metadata"]["uid"] != subscription.uid:
            return None
        if managed_elsewhere(stored) or is_newer(stored):
            return None
        present = driver_of(stored)
        if present == me or displayed_status(stored).finished:
            return None
        if not may_claim(present, me, self._leadership.stale(), reserved=AIRFLOW_DRIVER):
            return _LOOK_EVERY if "/" in present else None  # a driver without a Lease is there for good
        if not self._driver.synced():
            return _RETRY_SOON
        # What its last driver made, and the watch has not brought yet, must not be taken for lost.
        informers.confirm(subscription.ref, subscription.uid)
        informers.wrote(subscription.ref.resource, claim_job(self._cluster, subscription.ref.resource, stored, me))
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

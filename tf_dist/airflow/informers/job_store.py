"""Job stores of a shared informer: its own informers, or those of the controller that this process runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Protocol

from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, Cluster, Object, Resource
from tf_dist.cluster.client.informer import Informer, jittered_backoff
from tf_dist.controller.controller import Controller
from tf_dist.controller.informers import transforms
from tf_dist.controller.settings import JobRef
from tf_dist.core.model import names
from tf_dist.errors import Forbidden


class JobStore(Protocol):
    """Jobs and pods as they were seen last."""

    def follow(self, resource: Resource) -> None:
        """See jobs of this kind from now on."""

    def put(self, resource: Resource, stored: Object) -> None:
        """Take over a job or pod as it was seen elsewhere, unless as much is known of it."""

    def synced(self) -> bool:
        """Whether it holds all that there is."""

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
        self._informers: dict[Resource, Informer] = {}

    def follow(self, resource: Resource) -> None:
        """See ``JobStore``."""
        with self._lock:
            new = [kind for kind in (resource, PODS) if kind not in self._informers]
            self._informers |= {kind: self._informer(kind) for kind in new}
            for kind in new:
                self._informers[kind].start()

    def _informer(self, resource: Resource) -> Informer:
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

    def put(self, resource: Resource, stored: Object) -> None:
        """See ``JobStore``."""
        self._informers[resource].put(stored)

    def synced(self) -> bool:
        """See ``JobStore``."""
        return all(informer.synced() for informer in tuple(self._informers.values()))

    def job(self, ref: JobRef) -> StoredJob | None:
        """See ``JobStore``."""
        stored = self._informers[ref.resource].get(ref.namespace, ref.name)
        return StoredJob(ref.resource, stored) if stored is not None else None

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """See ``JobStore``."""
        return self._informers[PODS].cache.group(names.owned_by_key(namespace, uid))

    def refused(self) -> Forbidden | None:
        """See ``JobStore``."""
        found = (informer.problem for informer in tuple(self._informers.values()))
        return next((problem for problem in found if isinstance(problem, Forbidden)), None)

    def close(self) -> None:
        """See ``JobStore``."""
        with self._lock:
            informers = tuple(self._informers.values())
        for informer in informers:
            informer.end()
        for informer in informers:
            informer.stop()


class ControllerJobStore:
    """The informers of the controller of this process: nothing is watched a second time.

    ``kinds``: those of the controller; jobs of other kinds are seen by ``other``, where this process asks for some.
    """

    def __init__(self, controller: Controller, kinds: Collection[Resource], other: InformerJobStore) -> None:
        self.controller, self._informers = controller, controller.informers
        self._kinds, self._other = kinds, other

    def follow(self, resource: Resource) -> None:
        """See ``JobStore``."""
        if resource not in self._kinds:
            self._other.follow(resource)

    def put(self, resource: Resource, stored: Object) -> None:
        """See ``JobStore``."""
        if resource is PODS or resource in self._kinds:
            self._informers.wrote(resource, stored)
        else:
            self._other.put(resource, stored)

    def synced(self) -> bool:
        """See ``JobStore``."""
        return self.controller.synced() and self._other.synced()

    def job(self, ref: JobRef) -> StoredJob | None:
        """See ``JobStore``; its spec is the one that the controller has read."""
        if ref.resource not in self._kinds:
            return self._other.job(ref)
        stored = self._informers.job(ref)
        if stored is None:
            return None
        return StoredJob.known(ref.resource, stored, self.controller.job(ref, stored["metadata"]["uid"]))

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """See ``JobStore``."""
        return self._informers.pods(namespace, uid)

    def refused(self) -> Forbidden | None:
        """See ``JobStore``."""
        return self._informers.refused() or self._other.refused()

    def close(self) -> None:
        """See ``JobStore``; the controller ends with its host."""
        self._other.close()

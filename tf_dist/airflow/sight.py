"""Where a hub sees its jobs and their pods: with the driver that it has, else for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Protocol

from tf_dist.cluster.api import PODS, Cluster, Object, Resource
from tf_dist.cluster.reflector import Reflector, backoff
from tf_dist.core import names
from tf_dist.driver import slim
from tf_dist.driver.caches import Caches
from tf_dist.driver.refs import JobRef
from tf_dist.errors import Forbidden, NotFound, Unavailable


class Sight(Protocol):
    """Jobs and pods as they were seen last."""

    def follow(self, resource: Resource) -> None:
        """See jobs of this kind from now on; ClusterError when that cannot be."""

    def put(self, ref: JobRef, stored: Object) -> None:
        """Take over the server's answer to a request; NotFound if the job is known to be gone by now."""

    def job(self, ref: JobRef) -> Object | None:
        """A job, None if it is not there."""

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """The pods of a job."""

    def refused(self) -> Forbidden | None:
        """The right that is missing to see anything at all."""

    def close(self) -> None:
        """End its threads."""


class OwnSight:
    """Follows what it is asked to by itself. ``rung`` is called with a job around which something has changed,
    ``troubled`` when following fails; from any thread.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        *,
        rung: Callable[[JobRef], None],
        troubled: Callable[[], None],
    ) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._rung, self._troubled = rung, troubled
        self._lock = threading.Lock()
        self._reflectors: dict[Resource, Reflector] = {}

    def follow(self, resource: Resource) -> None:
        """See ``Sight``."""
        with self._lock:
            new = [kind for kind in (resource, PODS) if kind not in self._reflectors]
            self._reflectors |= {kind: self._reflector(kind) for kind in new}
            for kind in new:
                self._reflectors[kind].start()

    def _reflector(self, resource: Resource) -> Reflector:
        def job_changed(old: Object | None, new: Object | None) -> None:
            self._rung(JobRef.of(resource, new or old or {}))

        def pod_changed(old: Object | None, new: Object | None) -> None:
            if (ref := JobRef.of_owner(new or old or {})) is not None:
                self._rung(ref)

        pods = resource is PODS
        return Reflector(
            self._cluster,
            resource,
            changed=pod_changed if pods else job_changed,
            namespace=self._namespace,
            labels=names.JOB_UID if pods else "",
            keep=slim.pod if pods else slim.job,
            index=names.owner_key if pods else lambda _: "",
            pause=self._pause,
        )

    def _pause(self, failures: int) -> float:
        self._troubled()
        return backoff(failures)

    def put(self, ref: JobRef, stored: Object) -> None:
        """See ``Sight``."""
        self._reflectors[ref.resource].put(stored)
        if self.job(ref) is None:
            raise NotFound(f"job {ref} is gone")

    def job(self, ref: JobRef) -> Object | None:
        """See ``Sight``."""
        return self._reflectors[ref.resource].get(ref.namespace, ref.name)

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """See ``Sight``."""
        return self._reflectors[PODS].cache.group(names.owned_key(namespace, uid))

    def refused(self) -> Forbidden | None:
        """See ``Sight``."""
        found = (reflector.problem for reflector in tuple(self._reflectors.values()))
        return next((problem for problem in found if isinstance(problem, Forbidden)), None)

    def close(self) -> None:
        """See ``Sight``."""
        with self._lock:
            reflectors = tuple(self._reflectors.values())
        for reflector in reflectors:
            reflector.end()
        for reflector in reflectors:
            reflector.stop()


class DriversSight:
    """What the driver of the hub sees anyway, jobs of these ``kinds``: nothing is followed a second time."""

    def __init__(self, caches: Caches, kinds: Collection[Resource]) -> None:
        self._caches, self._kinds = caches, kinds

    def follow(self, resource: Resource) -> None:
        """See ``Sight``."""
        if resource not in self._kinds:
            raise Unavailable(
                f"{resource.plural} could not be seen when this process began to drive jobs",
                hint="once its role allows them and their kind is installed, let this process begin anew",
            )

    def know(self, ref: JobRef, stored: Object) -> None:
        """Take over what was seen of a job elsewhere, unless more is known of it."""
        self._caches.wrote(ref.resource, stored)

    def put(self, ref: JobRef, stored: Object) -> None:
        """See ``Sight``."""
        self.know(ref, stored)
        if self.job(ref) is None:
            raise NotFound(f"job {ref} is gone")

    def job(self, ref: JobRef) -> Object | None:
        """See ``Sight``."""
        return self._caches.job(ref)

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """See ``Sight``."""
        return self._caches.pods(namespace, uid)

    def refused(self) -> Forbidden | None:
        """See ``Sight``."""
        return self._caches.refused()

    def close(self) -> None:
        """The driver's own affair."""

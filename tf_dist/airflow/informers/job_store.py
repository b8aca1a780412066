"""Job store of a shared informer, which uses own informers, or those of the controller that this process runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Set

from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, Cluster, Object, Resource
from tf_dist.cluster.client.informer import Informer, jittered_backoff
from tf_dist.controller.controller import Controller
from tf_dist.controller.informers import transforms
from tf_dist.controller.settings import JobRef
from tf_dist.core.model import names
from tf_dist.errors import Forbidden


class JobStore:
    """Jobs and pods as last observed.

    ``on_change`` is called, from any thread, with a job after the job or one of its pods changed. ``on_error`` is
    called when an informer fails. ``controller``: its informers serve pods and jobs of the kinds ``led``, so that
    nothing is watched twice. Jobs of other kinds have their own informers.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        *,
        on_change: Callable[[JobRef], None],
        on_error: Callable[[], None],
        controller: Controller | None = None,
        led: Set[Resource] = frozenset(),
    ) -> None:
        self.controller = controller
        self._cluster, self._namespace, self._led = cluster, namespace, led
        self._on_change, self._on_error = on_change, on_error
        self._lock = threading.Lock()
        self._informers: dict[Resource, Informer] = {}

    def follow(self, resource: Resource) -> None:
        """Observe jobs of this kind from now on."""
        if resource in self._led:
            return
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

        def pause(failures: int) -> float:
            self._on_error()
            return jittered_backoff(failures)

        pods = resource is PODS
        return Informer(
            self._cluster,
            resource,
            changed=pod_changed if pods else job_changed,
            namespace=self._namespace,
            labels=names.JOB_UID if pods else "",
            keep=transforms.pod if pods else transforms.job,
            index=names.owner_key if pods else lambda _: "",
            pause=pause,
        )

    def put(self, resource: Resource, stored: Object) -> None:
        """Add a job or a pod that was observed elsewhere, unless the store has the same or a newer version."""
        if self.controller is not None and (resource is PODS or resource in self._led):
            self.controller.informers.wrote(resource, stored)
        else:
            self._informers[resource].put(stored)

    def synced(self) -> bool:
        """Whether all informers have synced."""
        own = all(informer.synced() for informer in tuple(self._informers.values()))
        return own and (self.controller is None or self.controller.synced())

    def job(self, ref: JobRef) -> StoredJob | None:
        """A job; None if it does not exist. For a led job, the spec is the one that the controller has parsed."""
        if self.controller is None or ref.resource not in self._led:
            stored = self._informers[ref.resource].get(ref.namespace, ref.name)
            return StoredJob(ref.resource, stored) if stored is not None else None
        stored = self.controller.informers.job(ref)
        if stored is None:
            return None
        return StoredJob.known(ref.resource, stored, self.controller.job(ref, stored["metadata"]["uid"]))

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """The pods of a job."""
        if self.controller is not None:
            return self.controller.informers.pods(namespace, uid)
        return self._informers[PODS].cache.group(names.owned_by_key(namespace, uid))

    def refused(self) -> Forbidden | None:
        """The missing permission without which nothing is observed; None if no permission is missing."""
        if self.controller is not None and (found := self.controller.informers.refused()) is not None:
            return found
        problems = (informer.problem for informer in tuple(self._informers.values()))
        return next((problem for problem in problems if isinstance(problem, Forbidden)), None)

    def close(self) -> None:
        """Stop the own informers. The host stops the controller."""
        with self._lock:
            informers = tuple(self._informers.values())
        for informer in informers:
            informer.end()
        for informer in informers:
            informer.stop()

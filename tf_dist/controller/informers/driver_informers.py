"""All informers of a driver, kept right when rights and served kinds change; pods that were deleted lately.

A pod may get its condition and be deleted between two passes (the garbage collector of pods does that). What it showed
last is remembered until a pass has taken it into account: why it went, its node, and the restarts of its containers,
which count towards the back-off limit. A driver that starts in between knows of none of it, and counts a deleted pod.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tf_dist.cluster.api import (
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    VOLCANO_COMMANDS,
    VOLCANO_JOBS,
    Object,
    Resource,
)
from tf_dist.cluster.client.indexer import resource_version_of
from tf_dist.cluster.client.informer import Informer
from tf_dist.controller.driver_settings import DriverContext, JobRef
from tf_dist.controller.informers.integration_informers import IntegrationInformers
from tf_dist.controller.informers.scoped_informers import ScopedInformers, WatchScope
from tf_dist.controller.observability.metrics_recorder import InformerStats
from tf_dist.core.api import names
from tf_dist.core.api.context import Integration, ServedApis
from tf_dist.core.api.fieldpath import mapping
from tf_dist.core.api.job import Document
from tf_dist.core.api.pods import PodView, UnreadyNode, pod_view, unready_node
from tf_dist.core.api.timestamps import format_time
from tf_dist.core.gang.resources.admission_config import admission_config
from tf_dist.core.gang.resources.pod_index import takes_pod
from tf_dist.core.gang.snapshot import AdmissionRequest, SnapshotChanges
from tf_dist.core.gang.types import DEFAULT_QUEUE
from tf_dist.core.reconciler.commands import COMMAND, is_command_to
from tf_dist.errors import ClusterError, Forbidden, NotFound

_MAX_PODS: Final = 5_000


class DeletedPods:
    """The last version of pods that are gone, by job and name; ``most`` of them, the latest jobs'. Thread-safe."""

    def __init__(self, *, most: int = _MAX_PODS) -> None:
        self._most = most
        self._pods: dict[str, dict[str, PodView]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def add(self, pod: Object) -> None:
        """A pod is about to leave the cache."""
        job, view = names.owner_key(pod), pod_view(pod)
        if not job or view is None:
            return
        with self._lock:
            pods = self._pods[job] = self._pods.pop(job, {})  # at the end: the job seen last
            self._count += view.name not in pods
            pods[view.name] = view
            if self._count > self._most:
                oldest = next(iter(self._pods))
                self._drop(oldest, next(iter(self._pods[oldest])))

    def of(self, job: str, present: Iterable[Object]) -> tuple[PodView, ...]:
        """Those of a job, by its ``names.owned_by_key``, that are not among ``present``, its pods as just read.

        A pod that has left after that is still present to this pass; the next one finds it here.
        """
        with self._lock:
            gone = [pod for _, pod in sorted(self._pods.get(job, {}).items())]
        there = {pod["metadata"].get("uid") for pod in present} if gone else ()
        return tuple(pod for pod in gone if pod.uid not in there)

    def forget(self, job: str, pods: tuple[PodView, ...]) -> None:
        """A pass has taken these into account."""
        with self._lock:
            for pod in pods:
                if self._pods.get(job, {}).get(pod.name) is pod:
                    self._drop(job, pod.name)

    def _drop(self, job: str, name: str) -> None:
        del self._pods[job][name]
        self._count -= 1
        if not self._pods[job]:
            del self._pods[job]


class JobPods(NamedTuple):
    """The pods of a job at one moment: those that are there, and the last version of those that are gone."""

    present: list[Object]
    gone: tuple[PodView, ...]


_LOG = logging.getLogger(__name__)
# Seconds until rights are probed again where more would show more, and until it is looked whether one was withdrawn.
_PROBE_EVERY: Final = 30.0
_PROBE_RIGHTS_IN_USE_EVERY: Final = 5.0


class DriverInformers:
    """Informers of every kind a driver needs.

    ``on_change`` is called with a job that has changed, or whose objects have, and with the version of what has
    (0: it is gone, or something else is new for the job); ``on_capacity_freed`` when capacity may have become free.
    With ``start`` they watch the cluster; without, each ``refresh`` lists everything. Which kinds are served, and how
    far the rights reach, is checked again and again: ``generation`` counts how often everything was listed anew because
    rights had changed.
    """

    def __init__(
        self,
        context: DriverContext,
        *,
        on_change: Callable[[JobRef, int], None],
        on_capacity_freed: Callable[[], None],
    ) -> None:
        self._context = context
        self._cluster, self._settings, self._monotonic = context.cluster, context.settings, context.monotonic
        self._on_change = on_change
        self._on_capacity_freed = on_capacity_freed
        self._view: ScopedInformers | None = None
        self._coming: ScopedInformers | None = None
        self._retired: list[ScopedInformers] = []
        self._probe_at = 0.0
        self.generation = 0
        self.deleted_pods = DeletedPods()
        self.schedulers = IntegrationInformers(context, on_change=lambda ref: on_change(ref, 0))
        self.followed = False

    # Their life

    def prepare(self) -> None:
        """Find out how far the rights reach, and again when that may have changed. For one thread at a time.

        ClusterError when it cannot be found out the first time.
        """
        if self._view is None:
            self._view = self._seen_under(WatchScope.probe(self._cluster, self._settings))
            self._probe_at = self._monotonic() + _PROBE_EVERY
        elif self._coming is not None:
            self._change_over(self._view, self._coming)
        elif self._monotonic() >= self._probe_at:
            self._probe(self._view)

    def _seen_under(self, scope: WatchScope) -> ScopedInformers:
        return ScopedInformers(
            self._context,
            scope,
            on_change=self._on_change,
            on_capacity_freed=self._on_capacity_freed,
            on_pod_deleted=self.deleted_pods.add,
        )

    def _probe(self, view: ScopedInformers) -> None:
        refused = view.refused() is not None
        if view.scope.is_full(self._settings) and not refused:
            self._probe_at = self._monotonic() + _PROBE_RIGHTS_IN_USE_EVERY  # a right that is used may be withdrawn
            return
        self._probe_at = self._monotonic() + _PROBE_EVERY
        try:
            scope = WatchScope.probe(self._cluster, self._settings)
        except ClusterError as error:
            _LOG.debug("failed to probe rights: error=%s", error)
            return
        if scope != view.scope:
            self._coming = self._seen_under(scope)
            if self.followed:
                self._coming.start()
            self._change_over(view, self._coming)

    def _change_over(self, view: ScopedInformers, coming: ScopedInformers) -> None:
        """Go over to another view once it holds all there is; what this driver writes meanwhile goes into both."""
        if self._is_refused(coming):
            self._coming = None
            self._retire(coming)
        elif coming.synced():
            _LOG.warning("changed watch scope scope=%s before=%s", coming.scope, view.scope)
            self._view, self._coming = coming, None
            self.generation += 1
            self._retire(view)

    def _is_refused(self, coming: ScopedInformers) -> bool:
        try:
            if not self.followed:
                coming.refresh()
        except Forbidden as error:
            _LOG.debug("rights have not changed after all: error=%s", error)
            return True
        return coming.refused() is not None

    def _retire(self, view: ScopedInformers) -> None:
        """End a view without waiting for its threads; it is let go of once they have ended."""
        view.end()
        self._retired = [one for one in (*self._retired, view) if not one.ended()]

    def start(self) -> None:
        """Follow the cluster in threads, one a kind."""
        self.prepare()
        self.followed = True
        self.schedulers.follow()
        self._now().start()

    def stop(self) -> None:
        """End the threads."""
        self.schedulers.end()
        views = [view for view in (self._view, self._coming, *self._retired) if view is not None]
        for view in views:
            view.end()
        for reflector in self.schedulers.reflectors():
            reflector.end()
        for view in views:
            view.stop()
        for reflector in self.schedulers.reflectors():
            reflector.stop()

    def refresh(self) -> None:
        """List everything now, unless it is followed anyway; ClusterError."""
        self.prepare()
        if not self.followed:
            for reflector in self._all():
                reflector.refresh()

    def relist(self, *, doubted: bool = False) -> None:
        """Believe nothing that is not newer than this moment; ``synced`` says when that is so.

        ``doubted``: see ``Informer.relist``.
        """
        for reflector in self._all():
            reflector.relist(doubted=doubted)

    def synced(self) -> bool:
        """Whether everything there is has been listed."""
        return self._view is not None and self._view.synced()

    def wait_synced(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for that."""
        return self._now().wait_synced(timeout)

    # How they are

    @property
    def sees_nodes(self) -> bool:
        """Whether all nodes and all pods can be seen: else free capacity is unknown."""
        return self._view is not None and self._view.scope.nodes

    @property
    def sees_all(self) -> bool:
        """Whether all jobs and all admission rules can be seen, too: else it cannot decide for all drivers."""
        return self._view is not None and self._view.sees_all

    def problems(self) -> list[str]:
        """What keeps the caches from following the cluster."""
        return [f"{r.resource.label}: {r.problem}" for r in self._all() if r.problem is not None]

    def readings(self) -> Iterator[InformerStats]:
        """How each informer stands, while they follow the cluster."""
        now = self._context.runtime.monotonic()
        for one in self._all() if self.followed else ():
            age, idle = now - one.last_response_at, now - one.last_loop_at
            yield InformerStats(one.resource.label, age, idle, one.died(), one.lists)

    def missing(self) -> list[Resource]:
        """The kinds of jobs that the cluster does not serve now."""
        return [] if self._view is None else self._view.missing()

    def refused(self) -> Forbidden | None:
        """The right without which they will never hold all that is decided on."""
        return None if self._view is None else self._view.refused()

    def _now(self) -> ScopedInformers:
        if self._view is None:
            raise RuntimeError("the caches have not been prepared")
        return self._view

    @property
    def _reflectors(self) -> Mapping[Resource, Informer]:
        return {} if self._view is None else self._view.reflectors

    def _all(self) -> list[Informer]:
        return [*self._reflectors.values(), *self.schedulers.reflectors()]

    # What they hold

    def jobs(self) -> Iterator[tuple[JobRef, Object]]:
        """Every job."""
        view = self._now()
        for kind in view.job_kinds:
            for stored in view.reflectors[kind].items():
                yield JobRef.of(kind, stored), stored

    def job(self, ref: JobRef) -> Object | None:
        """One job."""
        reflector = self._reflectors.get(ref.resource)
        return reflector.get(ref.namespace, ref.name) if reflector else None

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """The pods of a job."""
        return self._reflectors[PODS].cache.group(names.owned_by_key(namespace, uid))

    def pods_with_gone(self, namespace: str, uid: str) -> JobPods:
        """The pods of a job, and those that are gone as far as they are remembered; none is missed on its way out."""
        present = self.pods(namespace, uid)
        return JobPods(present, self.deleted_pods.of(names.owned_by_key(namespace, uid), present))

    def changes(self, claims: Mapping[str, AdmissionRequest | None], *, whole: bool) -> SnapshotChanges:
        """What is new for admission: of these jobs, the nodes, all pods, and the rules.

        See ``Snapshots.update``.
        """
        return self._now().changes(claims, whole=whole)

    def rules(self, kind: Resource) -> list[Object]:
        """The queues, or the priority classes."""
        return self._reflectors[kind].items() if kind in self._reflectors else []

    def unready(self, nodes: Iterable[str]) -> dict[str, UnreadyNode]:
        """Of these nodes those that are not ready or not there; none where nodes may not be seen."""
        if not self.sees_nodes:
            return {}
        views = {name: unready_node(self._reflectors[NODES].get(None, name)) for name in set(nodes)}
        return {name: view for name, view in views.items() if view is not None}

    def closed(self, nodes: Iterable[str], pod_spec: Document) -> frozenset[str]:
        """Of these nodes those that take no such pods now; none where nodes may not be seen."""
        if not self.sees_nodes:
            return frozenset()
        raw = {name: self._reflectors[NODES].get(None, name) for name in set(nodes)}
        return frozenset(name for name, node in raw.items() if node is None or not takes_pod(node, pod_spec))

    def recovery_timeout(self, queue: str) -> float | None:
        """What a queue says about jobs that have lost nodes."""
        # Only those that may be it are read: this is asked in every pass of every job.
        eligible = [
            one
            for one in self.rules(QUEUES)
            if one["metadata"]["name"] in (queue, DEFAULT_QUEUE) or mapping(one.get("spec")).get("default")
        ]
        rules = admission_config(eligible, ())
        name = rules.queue_of(queue) or DEFAULT_QUEUE
        return next((one.recovery_timeout for one in rules.queues or () if one.name == name), None)

    def objects(self, namespace: str, uid: str) -> dict[tuple[str, str], Object]:
        """What else a job owns, by kind (that of a gang scheduler with its group) and name."""
        view = self._now()
        owned: dict[tuple[str, str], Object] = {
            (kind.kind, stored["metadata"]["name"]): stored
            for kind in view.owned_kinds
            for stored in view.reflectors[kind].cache.group(names.owned_by_key(namespace, uid))
        }
        return owned | self.schedulers.objects(namespace, uid)

    def commands(self, ref: JobRef, uid: str) -> dict[tuple[str, str], Object]:
        """Volcano's Commands to a job, by kind and name."""
        reflector = self._reflectors.get(VOLCANO_COMMANDS)
        if reflector is None or ref.resource != VOLCANO_JOBS:
            return {}
        found = reflector.cache.group(f"{ref.namespace}/{ref.name}")
        return {(COMMAND, one["metadata"]["name"]): one for one in found if is_command_to(one, uid)}

    def served(self, scheduler: Integration) -> ServedApis | None:
        """What there is of another gang scheduler, that a job asks for; None while that is unknown."""
        priorities = admission_config((), self.rules(PRIORITY_CLASSES)).priorities
        return self.schedulers.served(scheduler, {name: one.value for name, one in priorities.items()})

    def confirm(self, ref: JobRef, uid: str) -> None:
        """List the pods of one job now: a driver that takes a job over must not miss pods of the driver before."""
        if self.followed:
            labels = f"{names.JOB_UID}={uid}"
            group = names.owned_by_key(ref.namespace, uid)
            self._reflectors[PODS].refresh_group(group, namespace=ref.namespace, labels=labels)

    def refetch(self, ref: JobRef, uid: str) -> None:
        """Get a job anew; ClusterError when that fails.

        An answer that is older than what is known says that the server was set back (a backup was restored) and has
        overtaken our watches since, so that none of them noticed: then nothing that is known can be believed.
        """
        known = self.job(ref)
        try:
            stored = self._cluster.get(ref.resource, ref.namespace, ref.name)
        except NotFound:
            self.gone(ref.resource, ref.namespace, ref.name, uid)
            return
        if known is not None and 0 < resource_version_of(stored) < resource_version_of(known):
            _LOG.warning("the server was set back, relisting everything job=%s", ref)
            self.relist(doubted=True)
            return
        self.wrote(ref.resource, stored)

    # What the driver did itself

    def wrote(self, kind: Resource, stored: Object) -> None:
        """The server's answer to a write."""
        for reflector in self._of(kind):
            reflector.put(stored)

    def deleted(self, kind: Resource, namespace: str, name: str, uid: str, now: float) -> None:
        """The server has accepted a deletion."""
        for reflector in self._of(kind):
            reflector.mark_deleting(namespace, name, uid, format_time(now))

    def gone(self, kind: Resource, namespace: str, name: str, uid: str) -> None:
        """The server has said that this object is not there."""
        for reflector in self._of(kind):
            reflector.discard(namespace, name, uid)

    def _of(self, kind: Resource) -> list[Informer]:
        coming, view = self._coming, self._view
        found = [one.reflectors[kind] for one in (view, coming) if one is not None and kind in one.reflectors]
        return found or [self.schedulers.reflector(kind)]

"""Informers under one scope of rights: one of every kind, and the snapshots of admission."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from tf_dist.cluster.api import (
    CONFIG_MAPS,
    JOB_KINDS,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    TFJOBS,
    VOLCANO_COMMANDS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    Cluster,
    Object,
    Resource,
    has_ended,
)
from tf_dist.cluster.client.indexer import resource_version_of
from tf_dist.cluster.client.informer import Informer
from tf_dist.controller.driver_settings import DriverContext, DriverSettings, JobRef
from tf_dist.controller.informers import transforms
from tf_dist.core.api import names
from tf_dist.core.api.pods import unready_node
from tf_dist.core.gang.resources.admission_config import admission_config, resource_quotas
from tf_dist.core.gang.snapshot import AdmissionRequest, SnapshotBuilder, SnapshotChanges
from tf_dist.errors import Forbidden, NotFound

T = TypeVar("T")
# What makes rules for admission. Any of them may be missing: then there is no such rule.
ADMISSION_CONFIG_KINDS: Final = (QUEUES, PRIORITY_CLASSES)


@dataclass(frozen=True, slots=True)
class WatchScope:
    """How far a driver sees. ``nodes``: all nodes and all pods, so that it knows what is free; ``jobs``: the
    jobs of all namespaces besides.
    """

    nodes: bool
    jobs: bool

    @classmethod
    def probe(cls, cluster: Cluster, settings: DriverSettings) -> WatchScope:
        """As the rights are now; ClusterError when that cannot be found out.

        Forbidden is an answer for the driver of one namespace. One of all must see nodes: it would overfill them.
        """
        may = partial(_may_list, cluster, refusable=settings.namespace is not None)
        nodes = may(NODES) and may(PODS)
        return cls(nodes, nodes and settings.can_lead_admission and _may_list(cluster, TFJOBS, refusable=True))

    def is_full(self, settings: DriverSettings) -> bool:
        """Whether more rights would show no more."""
        return self.nodes and (self.jobs or not settings.can_lead_admission)


def _may_list(cluster: Cluster, kind: Resource, *, refusable: bool) -> bool:
    try:
        cluster.list(kind, None, limit=1)
    except Forbidden:
        if not refusable:
            raise
        return False
    except NotFound:  # there are none yet
        return True
    return True


class ScopedInformers:
    """Informers of everything that can be seen under one ``scope``.

    ``on_change``, ``on_capacity_freed``: see ``DriverInformers``; ``on_pod_deleted`` is called with each deleted pod
    before it leaves the cache.
    """

    def __init__(
        self,
        context: DriverContext,
        scope: WatchScope,
        *,
        on_change: Callable[[JobRef, int], None],
        on_capacity_freed: Callable[[], None],
        on_pod_deleted: Callable[[Object], None],
    ) -> None:
        self._context = context
        self._settings = settings = context.settings
        self.scope = scope
        self._on_change = on_change
        self._on_capacity_freed = on_capacity_freed
        self._on_pod_deleted = on_pod_deleted
        self._snapshots = SnapshotBuilder()
        self._seeing = threading.Lock()
        self._rules = _MemoizedByIdentity(admission_config)
        self._bounds = _MemoizedByIdentity(resource_quotas)
        self.job_kinds = JOB_KINDS if settings.volcano_jobs else (TFJOBS,)
        self.owned_kinds = settings.owned_kinds
        self.reflectors: Mapping[Resource, Informer] = self._made()

    def _made(self) -> dict[Resource, Informer]:
        namespace, volcano = self._settings.namespace, self._settings.volcano_jobs
        jobs_of = None if self.scope.jobs else namespace
        pods_of, pods_with = (None, "") if self.scope.nodes else (namespace, names.JOB_UID)
        rule, by_owner = self._unless(transforms.same_config), names.owner_key
        kinds = {
            kind: self._reflector(kind, partial(self._job_changed, kind), transforms.job, jobs_of)
            for kind in self.job_kinds
        }
        for kind in self.owned_kinds:
            keep = transforms.owned if kind in (CONFIG_MAPS, POD_DISRUPTION_BUDGETS) else transforms.existing
            kinds[kind] = self._reflector(
                kind, self._owned_changed, keep, namespace, labels=names.JOB_UID, index=by_owner
            )
        kinds[PODS] = self._reflector(
            PODS,
            self._pod_changed,
            transforms.pod,
            pods_of,
            labels=pods_with,
            index=by_owner,
            leaves=self._on_pod_deleted,
        )
        # Without the right to see them, or where they are not served, there are none of what is optional.
        optional = partial(self._reflector, optional=True)
        if volcano:
            target = transforms.command_target
            kinds[VOLCANO_COMMANDS] = optional(
                VOLCANO_COMMANDS, self._command_changed, transforms.whole, namespace, index=target
            )
        if self.scope.nodes:
            kinds[NODES] = self._reflector(NODES, self._node_changed, transforms.node, None)
        for kind in ADMISSION_CONFIG_KINDS:
            # A driver of one namespace may not have the right to see them; one of all must not overlook them.
            kinds[kind] = self._reflector(kind, rule, transforms.whole, None, optional=namespace is not None)
        kinds[RUNTIME_CLASSES] = optional(RUNTIME_CLASSES, rule, transforms.whole, None)
        # Of a queue of Volcano's the state counts, of a quota what is used.
        usage = self._unless(transforms.same_spec_and_status)
        if volcano:
            # Optional even for a driver of all: most clusters do not serve them, and a role may be older than this.
            kinds[VOLCANO_QUEUES] = optional(VOLCANO_QUEUES, usage, transforms.volcano_queue, None)
        kinds[RESOURCE_QUOTAS] = optional(RESOURCE_QUOTAS, usage, transforms.whole, jobs_of)
        kinds[LIMIT_RANGES] = optional(LIMIT_RANGES, rule, transforms.whole, jobs_of)
        # Without them, queues that select by more than the name of a namespace are open to none.
        kinds[NAMESPACES] = optional(NAMESPACES, self._unless(transforms.same_labels), transforms.namespace, None)
        return kinds

    def _unless(self, same: Callable[[Object, Object], bool]) -> Callable[[Object | None, Object | None], None]:
        """A handler that reports free capacity with every change but those after which an object says the same."""

        def changed(old: Object | None, new: Object | None) -> None:
            if old is None or new is None or not same(old, new):
                self._on_capacity_freed()

        return changed

    def _reflector(
        self,
        kind: Resource,
        changed: Callable[[Object | None, Object | None], None],
        keep: Callable[[Object], Object],
        namespace: str | None,
        *,
        labels: str = "",
        index: Callable[[Object], str] = lambda _: "",
        leaves: Callable[[Object], None] = lambda _: None,
        optional: bool = False,
    ) -> Informer:
        return Informer(
            self._context.cluster,
            kind,
            changed=changed,
            namespace=namespace,
            labels=labels,
            keep=keep,
            index=index,
            leaves=leaves,
            restarted=self._context.recorder.watch_restarted,
            set_back=partial(self._set_back, kind),
            optional=optional,
            runtime=self._context.runtime,
        )

    def _set_back(self, noticed: Resource) -> None:
        """The server was set back, as one kind has noticed: nothing that is known of the others can be believed."""
        for kind, reflector in self.reflectors.items():
            if kind != noticed:
                reflector.relist(doubted=True)

    # Its life

    def start(self) -> None:
        """Follow the cluster in threads, one a kind."""
        for reflector in self.reflectors.values():
            reflector.start()

    def refresh(self) -> None:
        """List everything now, in this thread; ClusterError."""
        for reflector in self.reflectors.values():
            reflector.refresh()

    def end(self) -> None:
        """Begin to end the threads."""
        for reflector in self.reflectors.values():
            reflector.end()

    def ended(self) -> bool:
        """Whether all threads have ended, or never began."""
        return not any(reflector.alive() for reflector in self.reflectors.values())

    def stop(self) -> None:
        """End the threads."""
        self.end()
        for reflector in self.reflectors.values():
            reflector.stop()

    def synced(self) -> bool:
        """Whether everything there is has been listed."""
        return all(reflector.synced() for reflector in self.reflectors.values())

    def wait_synced(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for that."""
        clock = self._context.runtime.monotonic
        end = clock() + timeout
        return all(r.wait_synced(max(0.0, end - clock())) for r in self.reflectors.values())

    def refused(self) -> Forbidden | None:
        """The right without which it will never hold all that is decided on."""
        found = (reflector.problem for reflector in self.reflectors.values())
        return next((problem for problem in found if isinstance(problem, Forbidden)), None)

    @property
    def sees_all(self) -> bool:
        """Whether it shows every job, and every rule for them: else this driver must not decide for all."""
        return self.scope.jobs and all(self.reflectors[kind].hidden is None for kind in ADMISSION_CONFIG_KINDS)

    def missing(self) -> list[Resource]:
        """The kinds of jobs that the cluster does not serve."""
        return [kind for kind in self.job_kinds if self.reflectors[kind].absent]

    # What admission decides on

    def changes(self, claims: Mapping[str, AdmissionRequest | None], *, whole: bool) -> SnapshotChanges:
        """What is new for admission; see ``SnapshotBuilder.update``."""
        kinds = (*ADMISSION_CONFIG_KINDS, RUNTIME_CLASSES, LIMIT_RANGES, VOLCANO_QUEUES)
        rules = self._rules(*(self.reflectors[kind].items() for kind in kinds if kind in self.reflectors))
        bounds = self._bounds(self.reflectors[RESOURCE_QUOTAS].items())
        with self._seeing:
            return self._snapshots.update(claims, rules=rules, bounds=bounds, namespaces=self._labels_of, whole=whole)

    def _labels_of(self, namespace: str) -> Mapping[str, str] | None:
        stored = self.reflectors[NAMESPACES].get(None, namespace)
        return None if stored is None else stored["metadata"].get("labels") or {}

    # What changed

    def _job_changed(self, kind: Resource, old: Object | None, new: Object | None) -> None:
        there = new or old
        if there is not None:
            self._on_change(JobRef.of(kind, there), _version(new))

    def _owned_changed(self, old: Object | None, new: Object | None) -> None:
        if transforms.same_but_version(old, new):
            return
        self._owner_changed(new or old, _version(new))

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if transforms.same_but_version(old, new):
            return
        with self._seeing:
            self._snapshots.change(old, new)
        self._owner_changed(new or old, _version(new))
        if not _occupies_node(new) and (old is None or _occupies_node(old)):
            self._on_capacity_freed()

    def _command_changed(self, old: Object | None, new: Object | None) -> None:
        namespace, _, name = transforms.command_target(new or old or {"metadata": {}}).partition("/")
        if name:
            self._on_change(JobRef(VOLCANO_JOBS, namespace, name), 0)

    def _owner_changed(self, owned: Object | None, version: int = 0) -> None:
        ref = JobRef.of_owner(owned) if owned is not None else None
        if ref is not None:
            self._on_change(ref, version)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        there = new or old
        if there is not None:
            with self._seeing:
                self._snapshots.put_node(there["metadata"]["name"], new)
        if not transforms.same_but_version(old, new):
            self._on_capacity_freed()
        if old is not None and unready_node(old) != unready_node(new):
            name = old["metadata"]["name"]
            for pod in self.reflectors[PODS].items():
                if pod["spec"].get("nodeName") == name:
                    self._owner_changed(pod)


class _MemoizedByIdentity(Generic[T]):
    """What ``read`` makes of lists of stored objects, which are never changed: the same for the very same objects."""

    def __init__(self, read: Callable[..., T]) -> None:
        self._read = read
        self._of: tuple[list[Object], ...] | None = None
        self._found: T

    def __call__(self, *listed: list[Object]) -> T:
        if self._of is None or not all(map(_are_the_same, self._of, listed)):
            self._of, self._found = listed, self._read(*listed)
        return self._found


def _version(new: Object | None) -> int:
    """The version of what was added or has changed; 0 of what is gone."""
    return 0 if new is None else resource_version_of(new)


def _are_the_same(before: list[Object], now: list[Object]) -> bool:
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _occupies_node(pod: Object | None) -> bool:
    return pod is not None and not has_ended(pod)

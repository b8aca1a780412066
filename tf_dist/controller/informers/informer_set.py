"""Informers of all objects that a controller's decisions depend on, and recently deleted pods.

A pod may get a condition and be deleted between two passes, for example by the pod garbage collector. Its last version
is kept until a pass has processed it. This version contains the reason of the deletion, the node, and the restarts of
the containers, which count towards the back-off limit. A controller that starts later has no such version, and counts
the pod as deleted.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from tf_dist.cluster.api import (
    CONFIG_MAPS,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    VOLCANO_COMMANDS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    Object,
    Resource,
    has_ended,
)
from tf_dist.cluster.client.indexer import resource_version_of
from tf_dist.cluster.client.informer import Informer
from tf_dist.controller.informers import transforms
from tf_dist.controller.informers.integration_informers import IntegrationInformers
from tf_dist.controller.observability.metrics_interface import InformerStats, Metric
from tf_dist.controller.settings import ControllerContext, JobRef
from tf_dist.core.gang.admission import AdmissionChanges
from tf_dist.core.gang.resources.admission_config import admission_config, resource_quotas
from tf_dist.core.gang.resources.pod_index import takes_pod
from tf_dist.core.gang.types import AdmissionRequest
from tf_dist.core.model import names
from tf_dist.core.model.context import Integration, ServedApis
from tf_dist.core.model.fieldpath import mapping
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE
from tf_dist.core.model.job import Document
from tf_dist.core.model.pods import PodView, UnreadyNode, pod_view, unready_node
from tf_dist.core.model.timestamps import format_time
from tf_dist.core.reconciler.commands import COMMAND, is_command_to
from tf_dist.errors import ClusterError, Forbidden, NotFound

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_MAX_PODS: Final = 5_000
# The kinds that configure admission. Objects of these kinds are optional.
ADMISSION_CONFIG_KINDS: Final = (QUEUES, PRIORITY_CLASSES)


class DeletedPods:
    """The last version of deleted pods, by job and name, for at most ``most`` pods of the latest jobs. Thread-safe."""

    def __init__(self, *, most: int = _MAX_PODS) -> None:
        self._most = most
        self._pods: dict[str, dict[str, PodView]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def add(self, pod: Object) -> None:
        """Record a pod that is about to leave the cache."""
        job, view = names.owner_key(pod), pod_view(pod)
        if not job or view is None:
            return
        with self._lock:
            pods = self._pods[job] = self._pods.pop(job, {})  # move the job to the end
            self._count += view.name not in pods
            pods[view.name] = view
            if self._count > self._most:
                oldest = next(iter(self._pods))
                self._drop(oldest, next(iter(self._pods[oldest])))

    def of(self, job: str, present: Iterable[Object]) -> tuple[PodView, ...]:
        """The deleted pods of a job (``names.owned_by_key``), except those in ``present``, its pods as just read.

        A pod that is deleted after this read still counts as present in this pass. The next pass finds it here.
        """
        with self._lock:
            gone = [pod for _, pod in sorted(self._pods.get(job, {}).items())]
        there = {pod["metadata"].get("uid") for pod in present} if gone else ()
        return tuple(pod for pod in gone if pod.uid not in there)

    def forget(self, job: str, pods: tuple[PodView, ...]) -> None:
        """Drop pods that a pass has processed."""
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
    """The pods of a job at one moment: existing pods, and the last versions of deleted pods."""

    present: list[Object]
    gone: tuple[PodView, ...]


class InformerSet:
    """Informers of every kind that a controller needs, within its scope and its permissions.

    ``on_job`` is called with a changed job, and ``on_owned`` with a job that owns a changed object. Both get the
    version of the changed object (0 after a deletion or a change that has no version). ``on_capacity_freed`` is called
    when capacity may have become free. After ``start``, the informers watch the cluster. Otherwise, each ``refresh``
    lists everything. Permissions are read once: see ``rights_changed``.
    """

    def __init__(
        self,
        context: ControllerContext,
        *,
        on_job: Callable[[JobRef, int], None],
        on_owned: Callable[[JobRef, int], None],
        on_capacity_freed: Callable[[], None],
    ) -> None:
        self._context = context
        self._cluster, self._settings = context.cluster, context.settings
        self._on_job, self._on_owned, self._on_capacity_freed = on_job, on_owned, on_capacity_freed
        self.deleted_pods = DeletedPods()
        self.schedulers = IntegrationInformers(context, on_change=lambda ref: on_owned(ref, 0))
        self.followed = False
        self.sees_nodes = False  # whether all nodes and pods can be listed: otherwise, free capacity is unknown
        self._unprepared: ClusterError | None = None  # why the permissions could not be read
        self._informers: Mapping[Resource, Informer] = {}  # empty until the permissions have been read
        # Pods by uid and nodes by name that have changed since the last call of ``changes`` (None: deleted).
        # The tuple is None before the first call.
        self._noted: tuple[dict[str, Object | None], dict[str, Object | None]] | None = None
        self._noting = threading.Lock()
        self._rules = _MemoizedByIdentity(admission_config)
        self._bounds = _MemoizedByIdentity(resource_quotas)

    # Lifecycle

    def prepare(self) -> None:
        """Read the permissions once. Raises ClusterError if this fails."""
        if self._informers:
            return
        try:
            self.sees_nodes = self._may_see_nodes()
        except ClusterError as error:
            self._unprepared = error
            raise
        self._unprepared = None
        self._informers = self._made()

    def _may_see_nodes(self) -> bool:
        """Whether all nodes and pods can be listed. Raises Forbidden only in a controller of the cluster.

        Without this permission, such a controller would assign more than the free capacity of nodes.
        """
        for kind in (NODES, PODS):
            try:
                self._cluster.list(kind, None, limit=1)
            except Forbidden:
                if self._settings.namespace is None:
                    raise
                return False
            except NotFound:  # the cluster does not serve this kind yet
                continue
        return True

    def rights_changed(self) -> bool:
        """Whether the permissions have changed since the start. The host then restarts its controller."""
        if self._settings.namespace is None or not self._informers:
            return False
        try:
            return self._may_see_nodes() != self.sees_nodes
        except ClusterError:
            return False

    def start(self) -> None:
        """Watch the cluster in threads, one for each kind."""
        if not self.followed:
            self.prepare()
            self.followed = True
            self.schedulers.follow()
            for informer in self._informers.values():
                informer.start()

    def stop(self) -> None:
        """End the threads."""
        self.schedulers.end()
        for informer in self._all():
            informer.end()
        for informer in self._all():
            informer.stop()

    def refresh(self) -> None:
        """List everything now, unless the informers watch the cluster. Raises ClusterError."""
        self.prepare()
        if not self.followed:
            for informer in self._all():
                informer.refresh()

    def relist(self, *, doubted: bool = False) -> None:
        """List everything again. Until then, ``synced`` is False. ``doubted``: see ``Informer.relist``."""
        for informer in self._all():
            informer.relist(doubted=doubted)

    def synced(self) -> bool:
        """Whether everything has been listed."""
        return bool(self._informers) and all(informer.synced() for informer in self._informers.values())

    def wait_synced(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until everything is listed."""
        clock = self._context.runtime.monotonic
        end = clock() + timeout
        return all(informer.wait_synced(max(0.0, end - clock())) for informer in self._informers.values())

    def _all(self) -> list[Informer]:
        return [*self._informers.values(), *self.schedulers.informers()]

    def _made(self) -> dict[Resource, Informer]:
        namespace, volcano = self._settings.namespace, self._settings.volcano_jobs
        pods_of, pods_with = (None, "") if self.sees_nodes else (namespace, names.JOB_UID)
        rule, by_owner = self._unless(transforms.same_config), names.owner_key
        kinds = {
            kind: self._informer(kind, partial(self._job_changed, kind), transforms.job, namespace)
            for kind in self._settings.job_kinds
        }
        for kind in self._settings.owned_kinds:
            keep = {CONFIG_MAPS: transforms.config_map, POD_DISRUPTION_BUDGETS: transforms.budget}.get(
                kind, transforms.existing
            )
            kinds[kind] = self._informer(
                kind, self._owned_changed, keep, namespace, labels=names.JOB_UID, index=by_owner
            )
        kinds[PODS] = self._informer(
            PODS,
            self._pod_changed,
            transforms.pod,
            pods_of,
            labels=pods_with,
            index=by_owner,
            leaves=self.deleted_pods.add,
        )
        # An optional kind counts as empty if it is not served or may not be listed.
        optional = partial(self._informer, optional=True)
        if volcano:
            target = transforms.command_target
            kinds[VOLCANO_COMMANDS] = optional(
                VOLCANO_COMMANDS, self._command_changed, transforms.whole, namespace, index=target
            )
        if self.sees_nodes:
            kinds[NODES] = self._informer(NODES, self._node_changed, transforms.node, None)
        for kind in ADMISSION_CONFIG_KINDS:
            # A controller of a namespace may lack the permission. A controller of the cluster must read these kinds.
            kinds[kind] = self._informer(kind, rule, transforms.whole, None, optional=namespace is not None)
        kinds[RUNTIME_CLASSES] = optional(RUNTIME_CLASSES, rule, transforms.whole, None)
        # The status is relevant, too: the state of a Volcano queue, and the usage of a ResourceQuota.
        usage = self._unless(transforms.same_spec_and_status)
        if volcano:
            # Optional even for the cluster: most clusters do not serve this kind, and an old role may not permit it.
            kinds[VOLCANO_QUEUES] = optional(VOLCANO_QUEUES, usage, transforms.volcano_queue, None)
        kinds[RESOURCE_QUOTAS] = optional(RESOURCE_QUOTAS, usage, transforms.whole, namespace)
        kinds[LIMIT_RANGES] = optional(LIMIT_RANGES, rule, transforms.whole, namespace)
        # If namespaces cannot be listed, a queue that selects by other labels than the namespace's name selects none.
        kinds[NAMESPACES] = optional(NAMESPACES, self._unless(transforms.same_labels), transforms.namespace, None)
        return kinds

    def _unless(self, same: Callable[[Object, Object], bool]) -> Callable[[Object | None, Object | None], None]:
        """A handler that reports possibly free capacity, except if ``same`` returns True for both versions."""

        def changed(old: Object | None, new: Object | None) -> None:
            if old is None or new is None or not same(old, new):
                self._on_capacity_freed()

        return changed

    def _informer(
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
            restarted=partial(self._context.recorder.record, Metric.WATCH_RESTARTS),
            set_back=partial(self._set_back, kind),
            recovered=self._list_pods_since if kind in self._settings.job_kinds else lambda _: None,
            optional=optional,
            runtime=self._context.runtime,
        )

    def _set_back(self, noticed: Resource) -> None:
        """List all kinds again, because one informer has detected that the server was set back."""
        for kind, informer in self._informers.items():
            if kind != noticed:
                informer.relist(doubted=True)

    def _list_pods_since(self, outage: float) -> None:
        """List the pods before decisions about jobs that were listed after an outage.

        A restored server may bring back a job and its pods. Without this list, these pods would count as evicted.
        """
        pods = self._informers[PODS]
        if pods.listed_at < outage:
            pods.relist()

    # State

    def problems(self) -> list[str]:
        """The errors because of which the caches are not current."""
        found = [f"{one.resource.label}: {one.problem}" for one in self._all() if one.problem is not None]
        return [str(self._unprepared), *found] if self._unprepared is not None else found

    def readings(self) -> Iterator[InformerStats]:
        """The state of each informer, if they watch the cluster."""
        now = self._context.runtime.monotonic()
        for one in self._all() if self.followed else ():
            age, idle = now - one.last_response_at, now - one.last_loop_at
            yield InformerStats(one.resource.label, age, idle, one.died(), one.lists)

    def missing(self) -> list[Resource]:
        """The kinds of jobs that the cluster does not serve now."""
        return [kind for kind in self._settings.job_kinds if kind in self._informers and self._informers[kind].absent]

    def refused(self) -> Forbidden | None:
        """The missing permission without which the caches never become complete."""
        found = (self._unprepared, *(informer.problem for informer in self._informers.values()))
        return next((problem for problem in found if isinstance(problem, Forbidden)), None)

    # Caches

    def jobs(self) -> Iterator[tuple[JobRef, Object]]:
        """All cached jobs."""
        for kind in self._settings.job_kinds:
            for stored in self._informers[kind].items():
                yield JobRef.of(kind, stored), stored

    def job(self, ref: JobRef) -> Object | None:
        """A cached job; None if it does not exist."""
        informer = self._informers.get(ref.resource)
        return informer.get(ref.namespace, ref.name) if informer else None

    def pods(self, namespace: str, uid: str) -> list[Object]:
        """The pods of a job."""
        return self._informers[PODS].cache.group(names.owned_by_key(namespace, uid))

    def pods_with_gone(self, namespace: str, uid: str) -> JobPods:
        """The pods of a job, and its remembered deleted pods. No pod is missed while the cache removes it."""
        present = self.pods(namespace, uid)
        return JobPods(present, self.deleted_pods.of(names.owned_by_key(namespace, uid), present))

    def rules(self, kind: Resource) -> list[Object]:
        """The stored objects of a kind that admission reads: queues, priority classes, runtime classes."""
        return self._informers[kind].items() if kind in self._informers else []

    def unready(self, nodes: Iterable[str]) -> dict[str, UnreadyNode]:
        """Those of ``nodes`` that are not ready or do not exist. Empty if nodes cannot be listed."""
        if not self.sees_nodes:
            return {}
        views = {name: unready_node(self._informers[NODES].get(None, name)) for name in set(nodes)}
        return {name: view for name, view in views.items() if view is not None}

    def closed(self, nodes: Iterable[str], pod_spec: Document) -> frozenset[str]:
        """Those of ``nodes`` that do not accept such a pod now. Empty if nodes cannot be listed."""
        if not self.sees_nodes:
            return frozenset()
        raw = {name: self._informers[NODES].get(None, name) for name in set(nodes)}
        return frozenset(name for name, node in raw.items() if node is None or not takes_pod(node, pod_spec))

    def recovery_timeout(self, queue: str) -> float | None:
        """The recovery timeout of a queue, for jobs that have lost nodes."""
        # Parse only queues that may be the job's, because every pass of every job calls this method.
        eligible = [
            one
            for one in self.rules(QUEUES)
            if one["metadata"]["name"] in (queue, DEFAULT_QUEUE) or mapping(one.get("spec")).get("default")
        ]
        rules = admission_config(eligible, ())
        name = rules.queue_of(queue) or DEFAULT_QUEUE
        return next((one.recovery_timeout for one in rules.queues or () if one.name == name), None)

    def objects(self, namespace: str, uid: str) -> dict[tuple[str, str], Object]:
        """The other objects of a job, by kind (with the group for gang schedulers) and name."""
        owned: dict[tuple[str, str], Object] = {
            (kind.kind, stored["metadata"]["name"]): stored
            for kind in self._settings.owned_kinds
            for stored in self._informers[kind].cache.group(names.owned_by_key(namespace, uid))
        }
        return owned | self.schedulers.objects(namespace, uid)

    def commands(self, ref: JobRef, uid: str) -> dict[tuple[str, str], Object]:
        """Volcano's Commands for a job, by kind and name."""
        informer = self._informers.get(VOLCANO_COMMANDS)
        if informer is None or ref.resource != VOLCANO_JOBS:
            return {}
        found = informer.cache.group(f"{ref.namespace}/{ref.name}")
        return {(COMMAND, one["metadata"]["name"]): one for one in found if is_command_to(one, uid)}

    def served(self, scheduler: Integration) -> ServedApis | None:
        """The APIs of another gang scheduler that a job names; None until they are known."""
        priorities = admission_config((), self.rules(PRIORITY_CLASSES)).priorities
        return self.schedulers.served(scheduler, {name: one.value for name, one in priorities.items()})

    def refetch(self, ref: JobRef, uid: str) -> None:
        """Read a job from the server. Raises ClusterError if this fails.

        If the response is older than the cache, the server was restored from a backup. Its versions have since
        overtaken those of the watches, so no watch has detected it. Then everything is listed again.
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

    # Responses to the controller's writes

    def wrote(self, kind: Resource, stored: Object) -> None:
        """Apply the server's response to a write."""
        self._of(kind).put(stored)

    def deleted(self, kind: Resource, namespace: str, name: str, uid: str, now: float) -> None:
        """Record a deletion that the server has accepted."""
        self._of(kind).mark_deleting(namespace, name, uid, format_time(now))

    def gone(self, kind: Resource, namespace: str, name: str, uid: str) -> None:
        """Remove an object that the server has reported as missing."""
        self._of(kind).discard(namespace, name, uid)

    def _of(self, kind: Resource) -> Informer:
        return self._informers[kind] if kind in self._informers else self.schedulers.informer(kind)

    # Input of admission

    def changes(self, jobs: Mapping[str, AdmissionRequest | None], *, whole: bool) -> AdmissionChanges:
        """``jobs``, the nodes and pods that changed since the last call (``whole``: all), and the configuration."""
        kinds = (*ADMISSION_CONFIG_KINDS, RUNTIME_CLASSES, LIMIT_RANGES, VOLCANO_QUEUES)
        with self._noting:
            noted, self._noted = self._noted, ({}, {})
        pods, nodes = noted or ({}, {})
        if whole or noted is None:
            whole = True
            pods = {pod["metadata"]["uid"]: pod for pod in self._informers[PODS].items()}
            stored = self._informers[NODES].items() if NODES in self._informers else []
            nodes = {node["metadata"]["name"]: node for node in stored}
        return AdmissionChanges(
            jobs=jobs,
            pods=pods,
            nodes=nodes,
            config=self._rules(*(self._informers[kind].items() for kind in kinds if kind in self._informers)),
            resource_quotas=self._bounds(self._informers[RESOURCE_QUOTAS].items()),
            whole=whole,
        )

    def labels_of(self, namespace: str) -> Mapping[str, str] | None:
        """The labels of a namespace; None if they are unknown."""
        stored = self._informers[NAMESPACES].get(None, namespace)
        return None if stored is None else stored["metadata"].get("labels") or {}

    # Handlers of changes

    def _job_changed(self, kind: Resource, old: Object | None, new: Object | None) -> None:
        there = new or old
        if there is not None:
            self._on_job(JobRef.of(kind, there), _version(new))

    def _owned_changed(self, old: Object | None, new: Object | None) -> None:
        if transforms.same_but_version(old, new):
            return
        self._owner_changed(new or old, _version(new), old)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        if transforms.same_but_version(old, new):
            return
        with self._noting:
            if self._noted is not None:
                if old is not None:
                    self._noted[0][old["metadata"]["uid"]] = None
                if new is not None:
                    self._noted[0][new["metadata"]["uid"]] = new
        self._owner_changed(new or old, _version(new), old)
        occupied, occupies = (one is not None and not has_ended(one) for one in (old, new))
        if not occupies and (old is None or occupied):
            self._on_capacity_freed()

    def _command_changed(self, old: Object | None, new: Object | None) -> None:
        namespace, _, name = transforms.command_target(new or old or {"metadata": {}}).partition("/")
        if name:
            self._on_owned(JobRef(VOLCANO_JOBS, namespace, name), 0)

    def _owner_changed(self, owned: Object | None, version: int = 0, old: Object | None = None) -> None:
        ref = JobRef.of_owner(owned) if owned is not None else None
        if ref is not None:
            self._on_owned(ref, version)
        # A job that has lost an object to another owner must react, too.
        former = JobRef.of_owner(old) if old is not None else None
        if former is not None and former != ref:
            self._on_owned(former, 0)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        there = new or old
        if there is not None:
            with self._noting:
                if self._noted is not None:
                    self._noted[1][there["metadata"]["name"]] = new
        if not transforms.same_but_version(old, new):
            self._on_capacity_freed()
        if old is not None and unready_node(old) != unready_node(new):
            name = old["metadata"]["name"]
            for pod in self._informers[PODS].items():
                if pod["spec"].get("nodeName") == name:
                    self._owner_changed(pod)


class _MemoizedByIdentity(Generic[T]):
    """The cached result of ``read`` for lists of stored objects, by identity of the objects."""

    def __init__(self, read: Callable[..., T]) -> None:
        self._read = read
        self._of: tuple[list[Object], ...] | None = None
        self._found: T

    def __call__(self, *listed: list[Object]) -> T:
        if self._of is None or any(
            len(old) != len(new) or any(map(operator.is_not, old, new))
            for old, new in zip(self._of, listed, strict=True)
        ):
            self._of, self._found = listed, self._read(*listed)
        return self._found


def _version(new: Object | None) -> int:
    """The version of an added or changed object; 0 for a deleted object."""
    return 0 if new is None else resource_version_of(new)

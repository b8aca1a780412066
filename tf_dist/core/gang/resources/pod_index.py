"""Pod index: nodes' free resources and jobs' bound pods, updated with each change of a pod.

``PodIndex`` gets every change of a pod, and returns nodes and bound pods as values. Unchanged values are identical
objects, so comparisons are fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

from tf_dist.core.gang.placement.anti_affinity import Key, PodKind, exclusive_cost, kind_of, pods_exclude_each_other
from tf_dist.core.gang.placement.predicates import InvalidConstraints, untolerated_taint
from tf_dist.core.gang.resources.pod_requests import parse_resources, pod_requests, subtract_resources
from tf_dist.core.gang.types import EXCLUSIVE_CAPACITY, Node, Resources, UnavailableNode
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import mapping, mappings, text, texts
from tf_dist.core.model.job import Document, ReplicaId
from tf_dist.core.model.pods import required_node
from tf_dist.core.model.status import Attempts

_PLENTY: Final = Decimal(EXCLUSIVE_CAPACITY**2)
_MAX_KNOWN: Final = 10_000
T = TypeVar("T")
# The attempts of a job, a task and a replica, from a pod's label.
Made = tuple[int, int, int]
# The attempts, type, index and node of a pod.
BoundKey = tuple[Made, str, int, str]
# A pod that is being deleted. Like a pod of an earlier attempt, it ends before its replica starts again.
_DELETING: Final = (-1, 0, 0)


class LeavingPods(NamedTuple):
    """Pods of a job on one node that are being deleted."""

    job: str
    """The name of the job."""
    queue: str
    """The queue that their label names; "": none."""
    node: str
    """Their node."""


@dataclass(slots=True)
class BoundPods:
    """The bound pods of one job, and its ended pods."""

    pods: dict[BoundKey, int] = field(default_factory=dict)
    """The number of pods of each attempt (of the job, the task and the replica), type and index on each node.

    Without these labels, attempts are 0 and the index is -1. The table is flat, because nested tables would need
    several mappings for each of thousands of jobs.
    """
    ended: dict[BoundKey, int] = field(default_factory=dict)
    """The same for pods that have ended and still exist."""

    def placement(self) -> dict[str, dict[str, int]]:
        """The number of pods by type and node."""
        return self._count((type_, node, count) for (_, type_, _, node), count in self.pods.items())

    def earlier(self, attempts: Attempts) -> dict[str, dict[str, int]]:
        """The number of pods that are of earlier attempts or are being deleted, by type and node."""
        return self._count(
            (type_, node, count)
            for (made, type_, index, node), count in self.pods.items()
            if _is_earlier(made, attempts, type_, index)
        )

    def nodes(self, type_: str, attempts: Attempts) -> dict[int, str]:
        """The node of each replica's pod, except pods of earlier attempts. Of two nodes, the first by name is used."""
        return self._nodes(self.pods, type_, attempts)

    def ended_on(self, type_: str, attempts: Attempts) -> dict[int, str]:
        """The same for pods that have ended."""
        return self._nodes(self.ended, type_, attempts)

    @staticmethod
    def _nodes(pods: Iterable[BoundKey], type_: str, attempts: Attempts) -> dict[int, str]:
        found: dict[int, str] = {}
        for made, of_type, index, node in pods:
            if of_type != type_ or index < 0:
                continue
            if not _is_earlier(made, attempts, type_, index):
                found[index] = min(node, found.get(index, node))
        return found

    @staticmethod
    def _count(pods: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for type_, node, count in pods:
            nodes = found.setdefault(type_, {})
            nodes[node] = nodes.get(node, 0) + count
        return found


def _bound_key(pod: Mapping[str, Any], node: str) -> BoundKey:
    labels = pod["metadata"].get("labels") or {}
    index, parts = labels.get(names.REPLICA_INDEX, ""), labels.get(names.ATTEMPT, "").split(".")
    made = [int(part) if part.isdecimal() and parts[0].isdecimal() else 0 for part in (*parts, "", "")[:3]]
    attempts = _DELETING if "deletionTimestamp" in pod["metadata"] else (made[0], made[1], made[2])
    return attempts, labels.get(names.REPLICA_TYPE, ""), int(index) if index.isdecimal() else -1, node


def _is_earlier(made: Made, attempts: Attempts, type_: str, index: int) -> bool:
    """Whether a pod is of an earlier attempt of its job, its task or its replica."""
    if made == _DELETING:
        return True
    job, task, pod = made
    if job != attempts.job or index < 0:
        return 0 < job < attempts.job
    return (task, pod) < (attempts.tasks.get(type_, 0), attempts.pods.get(ReplicaId(type_, index), 0))


class _PodKinds:
    """The number of pods by node and kind. Equal kinds are the same object while such pods exist."""

    def __init__(self) -> None:
        self._on: dict[str, dict[PodKind, int]] = {}
        self._known: dict[PodKind, PodKind] = {}
        self._pods: dict[PodKind, int] = {}

    def count(self, node: str, kind: PodKind, sign: int) -> None:
        kind = self._known.setdefault(kind, kind)
        _count(self._pods, kind, sign)
        if kind not in self._pods:
            del self._known[kind]
        _count(there := self._on.setdefault(node, {}), kind, sign)
        if not there:
            del self._on[node]

    def taken(self, node: str, key: Key) -> int:
        """The amount of a resource key that the pods on a node take."""
        return sum(pods * exclusive_cost(key, kind) for kind, pods in self._on.get(node, {}).items())

    def concerned(self, keys: Iterable[Key]) -> Iterator[str]:
        """The nodes with pods that take any of these keys."""
        for key in keys:
            takers = {kind for kind in self._known if exclusive_cost(key, kind)}
            if takers:
                yield from (node for node, there in self._on.items() if not takers.isdisjoint(there))


class PodIndex:
    """Index of pods: their use of nodes, and the nodes of the pods of jobs.

    The key of a job is its ``names.owned_by_key``, and the key of pods without a job is their ``names.orphan_key``.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Mapping[str, Any]] = {}
        """All pods by uid."""
        self.stored_nodes: dict[str, Mapping[str, Any]] = {}
        """All nodes by name, including those that accept no pods."""
        self.unavailable: Mapping[str, UnavailableNode] = {}
        """The nodes that currently accept no pods. The same object until they change."""
        self._nodes: dict[str, Node] = {}
        self._used: dict[str, dict[str, Decimal]] = {}
        self._kinds = _PodKinds()
        self._keys: Mapping[str, Key] = {}
        self._bound: dict[str, BoundPods] = {}
        self._created: dict[str, dict[str, int]] = {}
        # The requests of pods on nodes, by job and by the queue that their label names.
        self._charged: dict[str, dict[str, dict[str, Decimal]]] = {}
        # The requests of pods that are being deleted, by job.
        self._leaving: dict[str, dict[LeavingPods, dict[str, Decimal]]] = {}
        # Possible changes since the last read: nodes, and jobs with changes of bound, created or charged pods.
        self._touched: set[str] = set()
        self._moved: set[str] = set()
        self._created_changes: set[str] = set()
        self._charged_changes: set[str] = set()
        # The requests of pods by the id of their list of containers. The list is kept, so that its id stays unique.
        self._requests_of: dict[int, tuple[object, Resources]] = {}

    # Input

    @property
    def is_dirty(self) -> bool:
        """Whether there are unread changes."""
        return bool(self._touched or self._moved or self._created_changes or self._charged_changes)

    def put_pod(self, uid: str, pod: Mapping[str, Any] | None) -> None:
        """Add, update or (None) remove a pod."""
        old = self.pods.pop(uid, None)
        if pod is not None:
            self.pods[uid] = pod
        before, after = node_of_pod(old) if old else "", node_of_pod(pod) if pod else ""
        lived, lives = old is not None and _lives(old), pod is not None and _lives(pod)
        if old and pod and (before, lived) == (after, lives):
            # Two versions of a pod usually differ only in their status.
            keys = ("labels", "ownerReferences", "deletionTimestamp")
            marks = [[one["metadata"].get(key) for key in keys] for one in (old, pod)]
            if old.get("spec") == pod.get("spec") and marks[0] == marks[1]:
                return
        for one, node, exists, sign in ((old, before, lived, -1), (pod, after, lives, 1)):
            if one and exists and (key := names.owner_key(one)):
                types = self._created.setdefault(key, {})
                _count(types, one["metadata"]["labels"].get(names.REPLICA_TYPE, ""), sign)
                if not types:
                    del self._created[key]
                self._created_changes.add(key)
            if one and node:
                self._count_bound(one, node, sign)
            elif one and not exists:
                self._count_ended(one, sign)

    def put_node(self, name: str, raw: Mapping[str, Any] | None) -> None:
        """Add, update or (``raw`` None) remove a node."""
        self.stored_nodes.pop(name, None)
        if raw is not None:
            self.stored_nodes[name] = raw
        self._touched.add(name)
        found = None
        if raw is not None and (why := _why_unavailable(raw)):
            # The node as it would be if it accepted pods: without pods, and without Kubernetes' own taints.
            node = self._node(raw)
            taints = (one for one in node.taints if not text(one.get("key")).startswith("node.kubernetes.io/"))
            found = UnavailableNode(replace(node, free=node.allocatable, taints=tuple(taints)), why)
        if found != self.unavailable.get(name):
            others = {other: node for other, node in self.unavailable.items() if other != name}
            self.unavailable = {**others, name: found} if found is not None else others

    def _count_bound(self, pod: Mapping[str, Any], node: str, sign: int) -> None:
        requests = self._requests(mapping(pod.get("spec")))
        _add(self._used, node, requests, sign)
        self._touched.add(node)
        labels, job = pod["metadata"].get("labels") or {}, names.owner_key(pod)
        queue = labels.get(names.QUEUE)
        if queue and (key := job or names.orphan_key(pod)):
            _add(self._charged.setdefault(key, {}), queue, requests, sign)
            if not self._charged[key]:
                del self._charged[key]
            self._charged_changes.add(key)
        kind = kind_of(pod)
        if kind is not None:
            self._kinds.count(node, kind, sign)
        if job:
            if "deletionTimestamp" in pod["metadata"]:
                of_pod = LeavingPods(names.owner_name(pod), queue or "", node)
                _add(self._leaving.setdefault(job, {}), of_pod, requests, sign)
                if not self._leaving[job]:
                    del self._leaving[job]
            self._count_of_job(job, lambda bound: bound.pods, _bound_key(pod, node), sign)

    def _count_ended(self, pod: Mapping[str, Any], sign: int) -> None:
        job, node = names.owner_key(pod), text(mapping(pod.get("spec")).get("nodeName"))
        if job and node:
            self._count_of_job(job, lambda bound: bound.ended, _bound_key(pod, node), sign)

    def _count_of_job(
        self, job: str, counts: Callable[[BoundPods], dict[BoundKey, int]], key: BoundKey, sign: int
    ) -> None:
        bound = self._bound.setdefault(job, BoundPods())
        _count(counts(bound), key, sign)
        if not bound.pods and not bound.ended:
            del self._bound[job]
        self._moved.add(job)

    def _requests(self, spec: Mapping[str, Any]) -> Resources:
        if "containers" not in spec or any(key in spec for key in ("initContainers", "overhead", "resources")):
            return pod_requests(spec)  # the requests do not depend on the containers alone
        containers = spec["containers"]
        known = self._requests_of.get(id(containers))
        if known is None:
            if len(self._requests_of) >= _MAX_KNOWN:
                self._requests_of.clear()
            known = self._requests_of[id(containers)] = (containers, pod_requests(spec))
        return known[1]

    # Output

    def bound(self, key: str) -> BoundPods:
        """The bound pods of a job."""
        return self._bound.get(key, BoundPods())

    def created(self, key: str) -> dict[str, int]:
        """The number of pods of a job that have not ended, by type, bound or not."""
        return {type_: count for type_, count in self._created.get(key, {}).items() if count > 0}

    def charged(self, key: str) -> Mapping[str, Resources]:
        """The requests on nodes of a job's pods, or of pods without a job, by queue."""
        return {queue: dict(amounts) for queue, amounts in self._charged.get(key, {}).items()}

    def leaving(self, key: str) -> Mapping[LeavingPods, Resources]:
        """The requests of a job's pods that are being deleted."""
        return {pods: dict(amounts) for pods, amounts in self._leaving.get(key, {}).items()}

    def changes(self) -> tuple[set[str], set[str], set[str]]:
        """The jobs for which ``bound``, ``created`` and ``charged`` have changed since the last call."""
        found = self._moved, self._created_changes, self._charged_changes
        self._moved, self._created_changes, self._charged_changes = set(), set(), set()
        return found

    def nodes(self, keys: Mapping[str, Key], *, whole: bool = False) -> dict[str, Node | None]:
        """The nodes that have changed since the last call, by name; None: the node accepts no pods.

        ``keys``: exclusive resources to include, by name. ``whole``: all nodes that accept pods.
        """
        if keys != self._keys:
            changed = {name for name in {*keys, *self._keys} if keys.get(name) != self._keys.get(name)}
            meant = {one[name] for one in (keys, self._keys) for name in changed if name in one}
            self._touched.update(self._kinds.concerned(meant))
            for name, raw in self.stored_nodes.items():
                if not pods_exclude_each_other(texts(raw["metadata"].get("labels"))):
                    self._touched.add(name)
            self._keys = dict(keys)
        touched, self._touched = self._touched, set()
        found: dict[str, Node | None] = {}
        for name in sorted(touched):
            stored, before = self.stored_nodes.get(name), self._nodes.get(name)
            node = self._node(stored) if stored is not None and not _why_unavailable(stored) else None
            if node == before:
                continue
            found[name] = node
            if node is not None:
                self._nodes[name] = node
            else:
                del self._nodes[name]
        return {name: self._nodes[name] for name in sorted(self._nodes)} if whole else found

    def _node(self, raw: Mapping[str, Any]) -> Node:
        status, metadata = mapping(raw.get("status")), raw["metadata"]
        allocatable = parse_resources(status.get("allocatable") or status.get("capacity"))
        left = subtract_resources(allocatable, self._used.get(metadata["name"], {}))
        free = {resource: value for resource, value in left.items() if resource in allocatable}
        labels = texts(metadata.get("labels"))
        for name, key in self._keys.items():
            if not pods_exclude_each_other(labels):
                allocatable[name] = free[name] = _PLENTY
            elif taken := self._kinds.taken(metadata["name"], key):
                free[name] = Decimal(EXCLUSIVE_CAPACITY - taken)
        taints = tuple(mappings(mapping(raw.get("spec")).get("taints")))
        return Node(name=metadata["name"], allocatable=allocatable, free=free, labels=labels, taints=taints)


def _add(totals: dict[T, dict[str, Decimal]], key: T, amounts: Resources, sign: int) -> None:
    total = totals.setdefault(key, {})
    for resource, value in amounts.items():
        total[resource] = total.get(resource, Decimal(0)) + sign * value
        if not total[resource]:
            del total[resource]
    if not total:
        del totals[key]


def _count(counts: dict[T, int], key: T, sign: int) -> None:
    counts[key] = counts.get(key, 0) + sign
    if not counts[key]:
        del counts[key]


def _lives(pod: Mapping[str, Any]) -> bool:
    return text(mapping(pod.get("status")).get("phase")) not in ("Succeeded", "Failed")


def node_of_pod(pod: Mapping[str, Any]) -> str:
    """The node whose resources a pod uses; "": none.

    A pinned pod of a job uses the resources from its creation until it ends or is deleted, because the scheduler may
    bind the pod at any time.
    """
    if not _lives(pod):
        return ""
    spec = mapping(pod.get("spec"))
    return text(spec.get("nodeName")) or (required_node(spec) if names.owner_key(pod) else "")


def takes_pod(node: Mapping[str, Any], pod_spec: Document) -> bool:
    """Whether a node is ready and not cordoned, and has no taint that such a pod does not tolerate."""
    taints = mappings(mapping(node.get("spec")).get("taints"))
    try:
        return not (_why_unavailable(node) or untolerated_taint(pod_spec, taints))
    except InvalidConstraints:
        return True  # the API server rejects the pod


def _why_unavailable(node: Mapping[str, Any]) -> str:
    conditions = mappings(mapping(node.get("status")).get("conditions"))
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), "True")
    if ready != "True":
        return "not ready"
    return "cordoned" if mapping(node.get("spec")).get("unschedulable") else ""

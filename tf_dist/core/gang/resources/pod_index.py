"""Pod index: nodes' free resources and jobs' bound pods, kept up to date pod by pod.

``PodIndex`` is fed every change of a pod, and gives nodes and gangs as values: the identical ones as long as nothing
about them has changed, so that comparing them is cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, TypeVar

from tf_dist.core.api import names
from tf_dist.core.api.fieldpath import mapping, mappings, text, texts
from tf_dist.core.api.job import Document, ReplicaId
from tf_dist.core.api.pods import required_node
from tf_dist.core.api.status import Attempts
from tf_dist.core.gang.placement.anti_affinity import (
    Key,
    PodKind,
    exclusive_cost,
    kind_of,
    pods_exclude_each_other,
)
from tf_dist.core.gang.placement.predicates import InvalidConstraints, untolerated_taint
from tf_dist.core.gang.resources.pod_requests import parse_resources, pod_requests, subtract_resources
from tf_dist.core.gang.types import EXCLUSIVE_CAPACITY, Node, Resources, UnavailableNode

_ENDED: Final = frozenset({"Succeeded", "Failed"})
_NONE: Final = Decimal(0)
# A pod with one of these requests more than its containers together.
_MORE: Final = frozenset({"initContainers", "overhead", "resources"})
_PLENTY: Final = Decimal(EXCLUSIVE_CAPACITY**2)
_MOST_SHAPES: Final = 10_000
T = TypeVar("T")
# Attempts of a job, a task and a replica, as a pod's label has them.
Made = tuple[int, int, int]


@dataclass(slots=True)
class BoundPods:
    """The bound pods of one job: how many of each attempt (of the job, the task and the replica), type and index are on
    each node.

    Zeros where their labels do not say the attempt, index -1 where they do not say that. One flat table: nested ones
    would be half a dozen mappings for each of thousands of jobs.
    """

    pods: dict[tuple[Made, str, int, str], int] = field(default_factory=dict)

    def placement(self) -> dict[str, dict[str, int]]:
        """How many pods, per type and node."""
        found: dict[str, dict[str, int]] = {}
        for (_, type_, _, node), count in self.pods.items():
            there = found.setdefault(type_, {})
            there[node] = there.get(node, 0) + count
        return found

    def earlier(self, attempts: Attempts | None) -> dict[str, dict[str, int]]:
        """Those of them that earlier attempts than these made (None: none did)."""
        found: dict[str, dict[str, int]] = {}
        for (made, type_, index, node), count in self.pods.items() if attempts is not None else ():
            if attempts is not None and _is_earlier(made, attempts, type_, index):
                there = found.setdefault(type_, {})
                there[node] = there.get(node, 0) + count
        return found

    def nodes(self, type_: str, attempts: Attempts | None) -> dict[int, str]:
        """The node of each replica but for those of earlier attempts; of two, while one replaces another, the first
        by name."""
        found: dict[int, str] = {}
        for made, of_type, index, node in self.pods:
            if of_type != type_ or index < 0:
                continue
            if attempts is None or not _is_earlier(made, attempts, type_, index):
                found[index] = min(node, found.get(index, node))
        return found


def _is_earlier(made: Made, attempts: Attempts, type_: str, index: int) -> bool:
    """Whether a pod is of an earlier attempt, of its job or of itself; a restart of the whole job counts anew."""
    job, task, pod = made
    if job != attempts.job or index < 0:
        return 0 < job < attempts.job
    return (task, pod) < (attempts.tasks.get(type_, 0), attempts.pods.get(ReplicaId(type_, index), 0))


class _PodKinds:
    """How many pods of which kind are on which node; what makes a kind is kept once, while there are such pods."""

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
        """What the pods on a node take of a resource key."""
        return sum(pods * exclusive_cost(key, kind) for kind, pods in self._on.get(node, {}).items())

    def concerned(self, keys: Iterable[Key]) -> Iterator[str]:
        """The nodes with pods that take of any of these keys."""
        for key in keys:
            takers = {kind for kind in self._known if exclusive_cost(key, kind)}
            if takers:
                yield from (node for node, there in self._on.items() if not takers.isdisjoint(there))


class PodIndex:
    """Index of pods: what they take on nodes, and the nodes of the pods of jobs."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, Decimal]] = {}
        self._kinds = _PodKinds()
        self._keys: Mapping[str, Key] = {}
        self._bound: dict[str, BoundPods] = {}
        self._touched: set[str] = set()  # nodes that may be others since they were read
        self._moved: set[str] = set()
        self._created: dict[str, dict[str, int]] = {}
        self._created_changes: set[str] = set()
        # What the pods on nodes request, by job and by the queue that their label names.
        self._charged: dict[str, dict[str, dict[str, Decimal]]] = {}
        self._charged_changes: set[str] = set()
        self._raw: dict[str, Mapping[str, Any]] = {}
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._nodes: dict[str, Node] = {}
        self._unavailable: dict[str, UnavailableNode] = {}
        # What pods of one list of containers request; the list is kept, so that its id stays its own.
        self._shapes: dict[int, tuple[object, Resources]] = {}

    # Input

    @property
    def is_dirty(self) -> bool:
        """Whether anything has changed that has not been read."""
        return bool(self._touched or self._moved or self._created_changes or self._charged_changes)

    @property
    def pods(self) -> Mapping[str, Mapping[str, Any]]:
        """The pods, by uid."""
        return self._pods

    @property
    def node_names(self) -> Iterable[str]:
        """All nodes, those that take no pods among them."""
        return self._raw

    def put_pod(self, uid: str, pod: Mapping[str, Any] | None) -> None:
        """Add, update or (None) remove a pod."""
        old = self._pods.pop(uid, None)
        if pod is not None:
            self._pods[uid] = pod
        before, after = node_of_pod(old) if old else "", node_of_pod(pod) if pod else ""
        lived, lives = old is not None and _lives(old), pod is not None and _lives(pod)
        if old and pod and (before, lived) == (after, lives):
            # Two versions of one pod mostly differ in their status only.
            marks = [(one["metadata"].get("labels"), one["metadata"].get("ownerReferences")) for one in (old, pod)]
            if old.get("spec") == pod.get("spec") and marks[0] == marks[1]:
                return
        if old and lived:
            self._count_created(old, -1)
        if pod and lives:
            self._count_created(pod, 1)
        if old and before:
            self._count_bound(old, before, -1)
        if pod and after:
            self._count_bound(pod, after, 1)

    def put_node(self, name: str, raw: Mapping[str, Any] | None) -> None:
        """Add, update or (``raw`` None) remove a node."""
        if raw is not None:
            self._raw[name] = raw
        else:
            self._raw.pop(name, None)
        self._touched.add(name)
        found = None
        if raw is not None and (why := _why_unavailable(raw)):
            # As it would be if it took pods: with none on it, and without the taints of Kubernetes' own.
            node = self._node(raw)
            taints = (one for one in node.taints if not text(one.get("key")).startswith("node.kubernetes.io/"))
            found = UnavailableNode(replace(node, free=node.allocatable, taints=tuple(taints)), why)
        if found != self._unavailable.get(name):
            others = {other: node for other, node in self._unavailable.items() if other != name}
            self._unavailable = {**others, name: found} if found is not None else others

    def _count_created(self, pod: Mapping[str, Any], sign: int) -> None:
        if key := names.owner_key(pod):
            types = self._created.setdefault(key, {})
            _count(types, pod["metadata"]["labels"].get(names.REPLICA_TYPE, ""), sign)
            if not types:
                del self._created[key]
            self._created_changes.add(key)

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
            index = labels.get(names.REPLICA_INDEX, "")
            parts = labels.get(names.ATTEMPT, "").split(".")
            made = [int(part) if part.isdecimal() and parts[0].isdecimal() else 0 for part in (*parts, "", "")[:3]]
            bound = self._bound.setdefault(job, BoundPods())
            of = labels.get(names.REPLICA_TYPE, ""), int(index) if index.isdecimal() else -1, node
            _count(bound.pods, ((made[0], made[1], made[2]), *of), sign)
            if not bound.pods:
                del self._bound[job]
            self._moved.add(job)

    def _requests(self, spec: Mapping[str, Any]) -> Resources:
        if not _MORE.isdisjoint(spec) or "containers" not in spec:
            return pod_requests(spec)
        containers = spec["containers"]
        known = self._shapes.get(id(containers))
        if known is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            known = self._shapes[id(containers)] = (containers, pod_requests(spec))
        return known[1]

    # Output

    def bound(self, key: str) -> BoundPods:
        """Where the pods of a job are, by its ``names.owned_by_key``."""
        return self._bound.get(key, BoundPods())

    def created(self, key: str) -> dict[str, int]:
        """How many pods of a job have not ended, by type, bound to a node or not."""
        return {type_: count for type_, count in self._created.get(key, {}).items() if count > 0}

    def created_changes(self) -> frozenset[str]:
        """The jobs for which ``created`` has changed since the last call."""
        changes, self._created_changes = self._created_changes, set()
        return frozenset(changes)

    def charged(self, key: str) -> Mapping[str, Resources]:
        """What the pods of a job, or of none any more (``names.orphan_key``), request on nodes, by queue."""
        return {queue: dict(amounts) for queue, amounts in self._charged.get(key, {}).items()}

    def charged_changes(self) -> frozenset[str]:
        """The keys for which ``charged`` has changed since the last call."""
        changes, self._charged_changes = self._charged_changes, set()
        return frozenset(changes)

    def moved(self) -> frozenset[str]:
        """The jobs (``names.owned_by_key``) whose pods were bound to nodes, or left them, since the last call."""
        moved, self._moved = self._moved, set()
        return frozenset(moved)

    def nodes(self, keys: Mapping[str, Key], *, whole: bool = False) -> dict[str, Node | None]:
        """The nodes that have changed since the last call, by name; None: it takes no pods (any more).

        ``keys``: what else they say is free, by name. ``whole``: all of them that take pods.
        """
        self._read(keys)
        touched, self._touched = self._touched, set()
        found: dict[str, Node | None] = {}
        for name in sorted(touched):
            raw, before = self._raw.get(name), self._nodes.get(name)
            node = self._node(raw) if raw is not None and is_schedulable(raw) else None
            if node == before:
                continue
            found[name] = node
            if node is not None:
                self._nodes[name] = node
            else:
                del self._nodes[name]
        return {name: self._nodes[name] for name in sorted(self._nodes)} if whole else found

    @property
    def unavailable(self) -> Mapping[str, UnavailableNode]:
        """The nodes that take no pods for now; the same value until that changes."""
        return self._unavailable

    def _read(self, keys: Mapping[str, Key]) -> None:
        if keys == self._keys:
            return
        changed = {name for name in {*keys, *self._keys} if keys.get(name) != self._keys.get(name)}
        meant = {one[name] for one in (keys, self._keys) for name in changed if name in one}
        self._touched.update(self._kinds.concerned(meant))
        emulated = (
            name for name, raw in self._raw.items() if not pods_exclude_each_other(texts(raw["metadata"].get("labels")))
        )
        self._touched.update(emulated)
        self._keys = dict(keys)

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
        return Node(
            name=metadata["name"],
            allocatable=allocatable,
            free=free,
            labels=labels,
            taints=tuple(mappings(mapping(raw.get("spec")).get("taints"))),
        )


def _add(totals: dict[str, dict[str, Decimal]], key: str, amounts: Resources, sign: int) -> None:
    total = totals.setdefault(key, {})
    for resource, value in amounts.items():
        total[resource] = total.get(resource, _NONE) + sign * value
        if not total[resource]:
            del total[resource]
    if not total:
        del totals[key]


def _count(counts: dict[T, int], key: T, sign: int) -> None:
    counts[key] = counts.get(key, 0) + sign
    if not counts[key]:
        del counts[key]


def _lives(pod: Mapping[str, Any]) -> bool:
    return text(mapping(pod.get("status")).get("phase")) not in _ENDED


def node_of_pod(pod: Mapping[str, Any]) -> str:
    """The node whose resources a pod uses; "": none.

    A pinned pod of a job uses them from its creation: until it is deleted, the scheduler may bind it.
    """
    if not _lives(pod):
        return ""
    spec = mapping(pod.get("spec"))
    return text(spec.get("nodeName")) or (required_node(spec) if names.owner_key(pod) else "")


def is_schedulable(node: Mapping[str, Any]) -> bool:
    """Whether a node is ready and not cordoned."""
    return not _why_unavailable(node)


def takes_pod(node: Mapping[str, Any], pod_spec: Document) -> bool:
    """Whether a node is ready and not cordoned, and has no taint that keeps such a pod away."""
    taints = mappings(mapping(node.get("spec")).get("taints"))
    try:
        return is_schedulable(node) and not untolerated_taint(pod_spec, taints)
    except InvalidConstraints:
        return True  # the API server refuses the pod


def _why_unavailable(node: Mapping[str, Any]) -> str:
    conditions = mappings(mapping(node.get("status")).get("conditions"))
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), "True")
    if ready != "True":
        return "not ready"
    return "cordoned" if mapping(node.get("spec")).get("unschedulable") else ""

"""The embedded cluster's kube-scheduler: filters and scores nodes for each pending pod and binds it.

Changes of pods and nodes trigger a cycle. A cycle decides on a fresh list, and uses events only as a signal.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple

from tf_dist.cluster.api import EVENTS, NODES, PODS, Object, PatchType, has_ended, new_event
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.informer import Informer
from tf_dist.core.gang.placement import predicates
from tf_dist.core.gang.placement.anti_affinity import (
    HOSTNAME,
    Port,
    Term,
    anti_affinity,
    host_ports,
    pods_exclude_each_other,
)
from tf_dist.core.gang.resources.pod_requests import parse_resources, pod_requests, subtract_resources
from tf_dist.core.model.fieldpath import value_at
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import ClusterError, Conflict, NotFound, Rejected

_log = logging.getLogger(__name__)
Amounts = dict[str, Decimal]
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_ZERO = Decimal(0)


class ScheduleResult(NamedTuple):
    """The node of a pod. Without a ``node``, ``message`` has the reason, in kube-scheduler's words."""

    node: str = ""
    message: str = ""


def free_resources(nodes: Iterable[Object], taken: Iterable[tuple[str, Amounts]]) -> dict[str, Amounts]:
    """Each node's allocatable resources minus the requests of its pods."""
    free = {node["metadata"]["name"]: parse_resources(value_at(node, "status", "allocatable")) for node in nodes}
    for name, wanted in taken:
        if name in free:
            free[name] = subtract_resources(free[name], wanted)
    return free


def schedule_pod(
    pod: Object,
    wanted: Amounts,
    nodes: Sequence[Object],
    free: Mapping[str, Amounts],
    neighbours: AssignedPods | None = None,
) -> ScheduleResult:
    """The best node that fits: by the pod's preferences, then by free capacity, then by name."""
    if not nodes:
        return ScheduleResult(message="no nodes available to schedule pods")
    refused = neighbours.refuse(pod) if neighbours else {}
    reasons: Counter[str] = Counter()
    fitting: list[Object] = []
    for node in nodes:
        name = node["metadata"]["name"]
        against = _filter_reasons(pod, wanted, node, free[name])
        if name in refused and not against:
            against = [refused[name]]
        reasons.update(against)
        if not against:
            fitting.append(node)
    if not fitting:
        said = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return ScheduleResult(message=f"0/{len(nodes)} nodes are available: {said}.")
    best = min(fitting, key=lambda node: _score(pod, node, free[node["metadata"]["name"]]))
    return ScheduleResult(best["metadata"]["name"])


class AssignedPods:
    """The pods that are assigned to nodes, with their host ports and required anti-affinity."""

    def __init__(self, nodes: Iterable[Object], bound: Iterable[Object]) -> None:
        self._labels = {
            node["metadata"]["name"]: _labels(node) for node in nodes if pods_exclude_each_other(_labels(node))
        }
        self._pods: list[tuple[str, Object]] = []
        self._ports: list[tuple[str, tuple[Port, ...]]] = []
        self._terms: list[tuple[str, tuple[Term, ...]]] = []
        for pod in bound:
            self.add(pod, pod["spec"]["nodeName"])

    def add(self, pod: Object, node: str) -> None:
        """Add a pod that is assigned to a node."""
        self._pods.append((node, pod))
        if ports := host_ports(pod["spec"]):
            self._ports.append((node, ports))
        if terms := _anti_affinity_terms(pod):
            self._terms.append((node, terms))

    def refuse(self, pod: Object) -> dict[str, str]:
        """The nodes with pods that conflict with this pod, and the reasons."""
        refused: dict[str, str] = {}
        for node, terms in self._terms:
            for term in (term for term in terms if _term_selects(term, pod)):
                why = "node(s) didn't satisfy existing pods anti-affinity rules"
                refused |= dict.fromkeys(self._near(node, term.topology), why)
        for term in _anti_affinity_terms(pod):
            why = "node(s) didn't match pod anti-affinity rules"
            for node in {node for node, other in self._pods if _term_selects(term, other)}:
                refused |= dict.fromkeys(self._near(node, term.topology), why)
        wanted = host_ports(pod["spec"])
        for node, ports in self._ports if wanted else ():
            if node in self._labels and any(_conflict(mine, theirs) for mine in wanted for theirs in ports):
                refused[node] = "node(s) didn't have free ports for the requested pod ports"
        return refused

    def _near(self, node: str, topology: str) -> list[str]:
        """The nodes of the same topology domain; a node without the label is in no domain."""
        domains = {
            name: labels.get(topology, name if topology == HOSTNAME else "") for name, labels in self._labels.items()
        }
        domain = domains.get(node)
        return [other for other, its_own in domains.items() if domain and its_own == domain]


def _anti_affinity_terms(pod: Object) -> tuple[Term, ...]:
    return anti_affinity(pod["spec"], pod["metadata"]["namespace"])[0] if pod["spec"].get("affinity") else ()


def _term_selects(term: Term, pod: Object) -> bool:
    return term.selects(pod["metadata"]["namespace"], pod["metadata"].get("labels") or {})


def _conflict(one: Port, other: Port) -> bool:
    same = (one.protocol, one.number) == (other.protocol, other.number)
    return same and (not one.ip or not other.ip or one.ip == other.ip)


def _score(pod: Object, node: Object, free: Amounts) -> tuple[int, Decimal, str]:
    total = parse_resources(value_at(node, "status", "allocatable"))
    emptiness = sum((free[name] / total[name] for name in ("cpu", "memory") if total.get(name)), _ZERO)
    name = node["metadata"]["name"]
    return -predicates.node_affinity_score(pod["spec"], name, _labels(node)), -emptiness, name


def _filter_reasons(pod: Object, wanted: Amounts, node: Object, free: Amounts) -> list[str]:
    """Why the pod cannot run on the node; empty if it can. As in Kubernetes, all missing resources come last."""
    spec, name, labels = pod["spec"], node["metadata"]["name"], _labels(node)
    if not _is_ready(node):
        return ["node(s) were not ready"]
    try:
        if value_at(node, "spec", "unschedulable") and predicates.untolerated_taint(spec, (_CORDON,)):
            return ["node(s) were unschedulable"]
        # Preferences are evaluated here, too: a malformed preference must be reported before nodes are ranked by it.
        predicates.node_affinity_score(spec, name, labels)
        if not predicates.matches_node_affinity(spec, name, labels):
            return ["node(s) didn't match Pod's node affinity/selector"]
        if taint := predicates.untolerated_taint(spec, value_at(node, "spec", "taints") or ()):
            return [f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value', '')}}}"]
    except predicates.InvalidConstraints:
        return ["node(s) could not be compared with a malformed node selector, affinity or toleration"]
    short = sorted(resource for resource, amount in wanted.items() if amount > free.get(resource, _ZERO))
    return ["Too many pods" if resource == "pods" else f"Insufficient {resource}" for resource in short]


def _is_ready(node: Object) -> bool:
    conditions = value_at(node, "status", "conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


class Scheduler:
    """Binds every pod without a node and without scheduling gates, whichever scheduler the pod names."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._changed = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._informers: tuple[Informer, ...] = ()
        self._known: dict[str, Amounts] = {}
        self._unreadable: set[str] = set()  # uids and versions that were logged

    def start(self) -> None:
        """Schedule in the background from now on."""
        self._informers = tuple(
            Informer(self._cluster, resource, changed=lambda *_: self._changed.set(), relisted=self._changed.set)
            for resource in (PODS, NODES)
        )
        self._thread = threading.Thread(target=self._run, name="tf-dist-scheduler", daemon=True)
        self._thread.start()
        for informer in self._informers:
            informer.start()

    def stop(self) -> None:
        """End the background threads and wait for them."""
        self._stopped = True
        for informer in self._informers:
            informer.end()
        for informer in self._informers:
            informer.stop()
        self._changed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._stopped:
                return
            try:
                self.step()
            except Exception:  # if the thread ended here, every pod would silently stay pending
                _log.exception("scheduling cycle failed; the next change starts another")

    def step(self) -> int:
        """Run one scheduling cycle. Returns the number of pods that were bound."""
        pods = self._cluster.list(PODS).items
        pending = [pod for pod in pods if self._guarded(pod, lambda one: _is_pending(one) and _queue_order(one))]
        if not pending:
            return 0
        bound = [pod for pod in pods if pod["spec"].get("nodeName") and not has_ended(pod)]
        known: dict[str, Amounts] = {}
        for pod in (*bound, *pending):
            self._guarded(pod, lambda one: known.update({one["metadata"]["uid"]: self._wanted(one)}))
        self._known = known
        nodes = [node for node in self._cluster.list(NODES).items if self._guarded(node, _read_all)]
        free = free_resources(
            nodes, ((pod["spec"]["nodeName"], known.get(pod["metadata"]["uid"], {})) for pod in bound)
        )
        neighbours = AssignedPods(nodes, ())
        for pod in bound:
            self._guarded(pod, lambda one: neighbours.add(one, one["spec"]["nodeName"]))
        placed = (
            self._guarded(pod, lambda one: self._place(one, nodes, free, neighbours))
            for pod in sorted(pending, key=_queue_order)
            if pod["metadata"]["uid"] in known
        )
        return sum(placed)

    def _guarded(self, obj: Object, read: Callable[[Object], Any]) -> bool:
        """The result of ``read`` for a pod or node. False if it is malformed, so that it does not block others."""
        try:
            return bool(read(obj))
        except ClusterError:
            raise
        except Exception:
            metadata = obj["metadata"]
            version = f"{metadata.get('uid')} {metadata.get('resourceVersion')}"
            if version not in self._unreadable:
                self._unreadable.add(version)
                _log.exception("%s is left out of scheduling: it cannot be read", metadata.get("name"))
            return False

    def _wanted(self, pod: Object) -> Amounts:
        # A pod's requests never change, and parsing quantities is slow.
        return self._known.get(pod["metadata"]["uid"]) or pod_requests(pod["spec"])

    def _place(self, pod: Object, nodes: list[Object], free: dict[str, Amounts], neighbours: AssignedPods) -> bool:
        metadata = pod["metadata"]
        choice = schedule_pod(pod, self._wanted(pod), nodes, free, neighbours)
        with suppress(NotFound, Conflict, Rejected):  # the pod was deleted, bound or replaced meanwhile
            if choice.node:
                self._cluster.bind(metadata["namespace"], metadata["name"], choice.node)
                free[choice.node] = subtract_resources(free[choice.node], self._wanted(pod))
                neighbours.add(pod, choice.node)
                return True
            self._explain(pod, choice.message)
        return False

    def _explain(self, pod: Object, message: str) -> None:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        now = format_time(self._cluster.clock())
        said: Object = next((one for one in conditions if one.get("type") == "PodScheduled"), {})
        if (said.get("reason"), said.get("message")) == ("Unschedulable", message):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": said.get("lastTransitionTime", now) if said.get("status") == "False" else now,
        }
        metadata = pod["metadata"]
        patch = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [condition]}}
        self._cluster.patch(
            PODS, metadata["namespace"], metadata["name"], patch, kind=PatchType.STRATEGIC, subresource="status"
        )
        # The same message about the same pod is one event, however often it occurs.
        mark = zlib.crc32(f"{metadata['uid']} {message}".encode())
        source = {"component": "default-scheduler"}
        body = new_event(PODS, pod, type="Warning", reason="FailedScheduling", message=message, source=source, now=now)
        body["metadata"] = {"name": f"{metadata['name'][:240]}.{mark:08x}"}
        with suppress(ClusterError):
            self._cluster.create(EVENTS, metadata["namespace"], body)


def _read_all(node: Object) -> bool:
    """True, unless the fields of the node that the scheduler uses are malformed."""
    _is_ready(node)
    parse_resources(value_at(node, "status", "allocatable"))
    predicates.untolerated_taint({}, value_at(node, "spec", "taints") or ())
    return pods_exclude_each_other(_labels(node)) is not None


def _is_pending(pod: Object) -> bool:
    spec = pod["spec"]
    leaving = pod["metadata"].get("deletionTimestamp")
    return not (spec.get("nodeName") or spec.get("schedulingGates") or leaving or has_ended(pod))


def _queue_order(pod: Object) -> tuple[int, str, str, str]:
    metadata = pod["metadata"]
    priority = int(pod["spec"].get("priority") or 0)
    return -priority, metadata["creationTimestamp"], metadata["namespace"], metadata["name"]

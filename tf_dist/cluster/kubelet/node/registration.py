"""Registration of the Node: labels, taints, cordon, status and conditions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tf_dist.cluster.api import NODES, Cluster, Object, PatchType
from tf_dist.cluster.client.informer import UidInformer
from tf_dist.cluster.kubelet.node import machine
from tf_dist.cluster.kubelet.node.node_lease import NodeLease
from tf_dist.cluster.kubelet.node.node_settings import NodeSettings
from tf_dist.core.api.timestamps import format_time
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable

NODE_LABEL: Final = "tf-dist.dev/node"
"""Label of a node: it runs pods as processes (``tf-dist node``)."""
CORDONED_ANNOTATION: Final = "tf-dist.dev/cordoned"
"""Annotation of a node: its agent has cordoned it when it ended, and uncordons it when it starts again."""
PROCESSES_TAINT: Final[Mapping[str, str]] = {"key": "tf-dist.dev/processes", "effect": "NoSchedule"}
"""Taint of a node: keeps pods that need an image away. A pod that is meant to run as a process tolerates it."""

Taint = Mapping[str, str]
_PRESSURES: Final = (
    ("MemoryPressure", "KubeletHasSufficientMemory"),
    ("DiskPressure", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "KubeletHasSufficientPID"),
)


def node_object(name: str, labels: Mapping[str, str], taints: Iterable[Taint]) -> Object:
    """The Node without its status."""
    spec = {"taints": [dict(taint) for taint in taints]} if taints else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, NODE_LABEL: "local"}},
        "spec": spec,
    }


def is_tf_dist_node(node: Object) -> bool:
    """Whether tf-dist made the Node, rather than another kubelet."""
    return NODE_LABEL in (node["metadata"].get("labels") or {})


def merge_taints(before: Sequence[Taint], wanted: Sequence[Taint]) -> list[Taint]:
    """The taints of others, and the wanted ones in place of those that this kubelet set before."""
    own = {_identity(PROCESSES_TAINT), *map(_identity, wanted)}
    return [*(taint for taint in before if _identity(taint) not in own), *wanted]


def _identity(taint: Taint) -> tuple[str | None, str | None]:
    return taint.get("key"), taint.get("effect")


def node_status(
    *,
    offers: Mapping[str, str],
    address: str,
    log_port: int,
    info: Object,
    description: str,
    leaving: bool,
    before: Object,
    now: float,
) -> Object:
    """The Node's status: capacity, addresses, the port of its log server (``log_port`` 0: none), conditions."""
    known = {item["type"]: item for item in before.get("conditions") or []}
    ready = ("Ready", "False", "NodeShutdown", "the node agent is ending") if leaving else None
    wanted = [
        *((kind, "False", reason, "not looked at") for kind, reason in _PRESSURES),
        ready or ("Ready", "True", "KubeletReady", description),
    ]
    mine = {entry[0]: _condition(known.get(entry[0]) or {}, *entry, now=now) for entry in wanted}
    status: Object = {
        "capacity": dict(offers),
        "allocatable": dict(offers),
        "conditions": [*(item for kind, item in known.items() if kind not in mine), *mine.values()],
        # No Hostname: the API server would try that first, and other machines often cannot resolve it.
        "addresses": [{"type": "InternalIP", "address": address}],
        "nodeInfo": info,
    }
    if log_port:
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": log_port}}
    return status


def _condition(before: Object, kind: str, status: str, reason: str, message: str, *, now: float) -> dict[str, Any]:
    changed = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": format_time(now),
        "lastTransitionTime": changed or format_time(now),
    }


_log = logging.getLogger(__name__)
_STATUS_REPORT_PERIOD = 300.0  # seconds, as the kubelet's nodeStatusReportFrequency
_TRIES = 5


class NodeRegistration:
    """Registers the node once and renews what must be renewed, no more often than needed. For one thread at a time.

    ``only_tf_dist_nodes`` says whether every node of the cluster is known to be one of this kind; it decides about the
    taint when the settings leave that open. ``identity``: see ``NodeLease``. ``node_informer``: of the Node.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: NodeSettings,
        address: str,
        *,
        identity: str = "",
        node_informer: UidInformer | None = None,
        only_tf_dist_nodes: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._address = address
        self._node_informer = node_informer
        self._among_processes = only_tf_dist_nodes
        self._monotonic = monotonic
        self._claim = NodeLease(cluster, settings.name, identity, 4 * settings.heartbeat, monotonic=monotonic)
        self._offers = machine.node_capacity(settings.capacity)
        self._text = ""
        self._node: Object | None = None
        self._taints: list[Taint] | None = None  # those last seen or written; None: not known
        self._leaving = False
        self._status_due = self._lease_due = float("-inf")

    def register(self, text: str, now: float, stopping: threading.Event | None = None) -> None:
        """Take the name, then create the Node or take it over; ``text`` describes the network.

        NodeNameTaken while another agent heartbeats; Unavailable when the Node is a kubelet's, or ``stopping`` is set.
        """
        self._text = text
        self._refuse_kubelets()
        self._claim.take(stopping or threading.Event())
        self._claim.renew(None, now)
        self._enter(now)
        self._lease_due = float("-inf")  # once more, owned by the Node
        self.beat(now)

    def _refuse_kubelets(self) -> None:
        try:
            node = self._cluster.get(NODES, None, self._settings.name)
        except NotFound:
            return
        if not is_tf_dist_node(node):
            name = self._settings.name
            raise Unavailable(
                f"there is a node {name} already, and none of tf-dist's: a kubelet's?",
                hint="give this node another name: tf-dist node NAME",
            )

    def valid(self) -> bool:
        """Whether this agent may act for the node: no other agent can have taken its name."""
        return self._claim.valid()

    def beat(self, now: float) -> None:
        """Renew what is due; NodeNameTaken when another agent took the name."""
        if self._monotonic() >= self._lease_due:
            self._renew(now)
        if self._monotonic() >= self._status_due or self._is_gone():
            self._report(now)
        elif self._taints is not None and merge_taints(self._taints, self._wanted()) != self._taints:
            self._adopt()

    def leave(self, now: float) -> None:
        """Cordon the node and report it not ready."""
        self._leaving = True
        self._adopt()
        self._report(now)

    def retire(self, *, keep_node: bool) -> None:
        """Delete the Lease, and the Node unless it shall stay (not ready and cordoned)."""
        if not keep_node and self._node is not None:
            try:
                self._cluster.delete(NODES, None, self._settings.name, uid=self._node["metadata"]["uid"])
            except ClusterError as error:
                _log.warning("failed to delete node: error=%s", error)
        self._claim.release()

    def _is_gone(self) -> bool:
        """Whether the Node was deleted, perhaps before it was watched."""
        if self._node_informer is None or self._node is None or not self._node_informer.synced():
            return False
        return self._node_informer.get(self._node["metadata"]["uid"]) is None

    def _wanted(self) -> Sequence[Taint]:
        if self._settings.taints is not None:
            return self._settings.taints
        return () if self._among_processes() else (PROCESSES_TAINT,)

    def _enter(self, now: float) -> None:
        labels = {**machine.node_labels(self._settings.name), **self._settings.labels}
        body = node_object(self._settings.name, labels, self._wanted())
        try:
            self._keep(self._cluster.create(NODES, None, body))
        except AlreadyExists:
            self._adopt(body["metadata"]["labels"])
        self._report(now)

    def _adopt(self, labels: dict[str, str] | None = None) -> None:
        """Reconcile labels, taints and cordon of an existing Node; what others set stays."""
        for _ in range(_TRIES):
            node = self._cluster.get(NODES, None, self._settings.name)
            change = self._change(node, labels or {})
            try:
                self._keep(self._cluster.patch(NODES, None, self._settings.name, change, kind=PatchType.MERGE))
                return
            except Conflict:
                continue
        raise Unavailable(f"node {self._settings.name} is being changed by another client all the time")

    def _change(self, node: Object, labels: dict[str, str]) -> Object:
        metadata, spec = node["metadata"], node.get("spec") or {}
        change: Object = {
            "metadata": {"resourceVersion": metadata["resourceVersion"], "labels": labels},
            "spec": {"taints": merge_taints(spec.get("taints") or [], self._wanted()) or None},
        }
        cordoned = CORDONED_ANNOTATION in (metadata.get("annotations") or {})
        if self._leaving and not spec.get("unschedulable"):
            change["metadata"]["annotations"] = {CORDONED_ANNOTATION: "shutdown"}
            change["spec"]["unschedulable"] = True
        elif cordoned and not self._leaving:  # by an agent that ended; what an administrator closed stays closed
            change["metadata"]["annotations"] = {CORDONED_ANNOTATION: None}
            change["spec"]["unschedulable"] = None
        return change

    def _keep(self, node: Object) -> None:
        self._node = node
        if self._node_informer is not None:
            self._node_informer.put(node)
        self._taints = list((node.get("spec") or {}).get("taints") or [])

    def _report(self, now: float) -> None:
        try:
            self._keep(self._cluster.get(NODES, None, self._settings.name))
        except NotFound:  # deleted meanwhile: register again, as a kubelet does
            self._enter(now)
            return
        assert self._node is not None
        status = node_status(
            offers=self._offers,
            address=self._address,
            log_port=self._settings.log_port,
            info=machine.node_info(),
            description=self._text,
            leaving=self._leaving,
            before=self._node.get("status") or {},
            now=now,
        )
        name = self._settings.name
        self._cluster.patch(NODES, None, name, {"status": status}, kind=PatchType.MERGE, subresource="status")
        self._status_due = self._monotonic() + _STATUS_REPORT_PERIOD

    def _renew(self, now: float) -> None:
        self._lease_due = self._monotonic() + self._settings.heartbeat
        try:
            self._claim.renew(self._node, now)
        except NotFound:  # it goes with its Node
            self._report(now)
            self._claim.renew(self._node, now)
        except ClusterError:
            self._lease_due = float("-inf")  # not in ten seconds but at once
            raise

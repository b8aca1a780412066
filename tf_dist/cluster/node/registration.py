"""The node's own objects: its Node, and the Lease that says it lives."""

from __future__ import annotations

from tf_dist.cluster.api import LEASES, NODES, Cluster, Object, PatchType
from tf_dist.cluster.node import machine
from tf_dist.cluster.node.settings import NodeSettings
from tf_dist.errors import AlreadyExists, ClusterError, Forbidden, NotFound

_LEASES = "kube-node-lease"
_STATUS_EVERY = 300.0  # seconds, as the kubelet's nodeStatusReportFrequency


class Registration:
    """Registers the node once and renews what must be renewed, no more often than needed."""

    def __init__(self, cluster: Cluster, settings: NodeSettings, address: str) -> None:
        self._cluster = cluster
        self._settings = settings
        self._address = address
        self._offers = machine.capacity(settings.capacity)
        self._text = ""
        self._status_due = 0.0
        self._lease_due = 0.0

    def register(self, text: str, now: float) -> None:
        """Create the Node or take it over; ``text`` describes the network."""
        self._text = text
        body = machine.node_object(self._settings.name)
        try:
            node = self._cluster.create(NODES, None, body)
        except AlreadyExists:
            labels = {"metadata": {"labels": body["metadata"]["labels"]}}
            node = self._cluster.patch(NODES, None, self._settings.name, labels, kind=PatchType.MERGE)
        self._write_status(node, now)
        self.beat(now)

    def beat(self, now: float) -> None:
        """Renew what is due."""
        if now >= self._lease_due:
            self._lease_due = now + self._settings.heartbeat
            self._renew(now)
        if now >= self._status_due:
            self._report(now)

    def _report(self, now: float) -> None:
        try:
            node = self._cluster.get(NODES, None, self._settings.name)
        except NotFound:  # somebody deleted it: a kubelet comes back, too
            self.register(self._text, now)
        else:
            self._write_status(node, now)

    def _write_status(self, node: Object, now: float) -> None:
        status = machine.node_status(self._offers, self._address, self._text, now, node.get("status") or {})
        name = self._settings.name
        self._cluster.patch(NODES, None, name, {"status": status}, kind=PatchType.MERGE, subresource="status")
        self._status_due = now + _STATUS_EVERY

    def _renew(self, now: float) -> None:
        name = self._settings.name
        body = machine.lease_object(name, now, int(4 * self._settings.heartbeat))
        try:
            self._cluster.patch(LEASES, _LEASES, name, {"spec": body["spec"]}, kind=PatchType.MERGE)
        except NotFound:
            self._first_lease(body)
        except Forbidden:
            self._lease_due = float("inf")

    def _first_lease(self, body: Object) -> None:
        try:
            self._cluster.create(LEASES, _LEASES, body)
        except ClusterError:
            self._lease_due = float("inf")  # no such namespace: this cluster does not look at leases

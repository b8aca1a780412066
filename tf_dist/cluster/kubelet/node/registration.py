"""Registration of the Node: labels, status and conditions, renewed while the kubelet lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tf_dist.cluster.api import NODES, Cluster, Object, PatchType
from tf_dist.cluster.client.informer import UidInformer
from tf_dist.cluster.kubelet.node import machine
from tf_dist.cluster.kubelet.node.node_settings import NodeSettings
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import AlreadyExists, NotFound

NODE_LABEL: Final = "tf-dist.dev/node"
"""Label of a node: the node runs pods as processes."""
_PRESSURES: Final = (
    ("MemoryPressure", "KubeletHasSufficientMemory"),
    ("DiskPressure", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "KubeletHasSufficientPID"),
)


def node_status(
    *, offers: Mapping[str, str], address: str, info: Object, description: str, before: Object, now: float
) -> Object:
    """The Node's status: capacity, addresses, conditions. Conditions of other clients are kept."""
    known = {item["type"]: item for item in before.get("conditions") or []}
    wanted = [
        *((kind, "False", reason, "not looked at") for kind, reason in _PRESSURES),
        ("Ready", "True", "KubeletReady", description),
    ]
    mine = {entry[0]: _condition(known.get(entry[0]) or {}, *entry, now=now) for entry in wanted}
    return {
        "capacity": dict(offers),
        "allocatable": dict(offers),
        "conditions": [*(item for kind, item in known.items() if kind not in mine), *mine.values()],
        # No Hostname: the API server would try that first, and other machines often cannot resolve it.
        "addresses": [{"type": "InternalIP", "address": address}],
        "nodeInfo": info,
    }


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


class NodeRegistration:
    """Registers the node, and reports its status when a report is due. For use by one thread at a time.

    ``node_informer`` follows the Node; a deleted Node is registered again, as a kubelet does.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: NodeSettings,
        address: str,
        *,
        node_informer: UidInformer | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._address = address
        self._node_informer = node_informer
        self._monotonic = monotonic
        self._offers = machine.node_capacity(settings.capacity)
        self._text = ""
        self._node: Object | None = None
        self._status_due = float("-inf")

    def register(self, text: str, now: float) -> None:
        """Create the Node, or take over the existing Node; ``text`` describes the network."""
        self._text = text
        labels = {**machine.node_labels(self._settings.name), NODE_LABEL: "local"}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._settings.name, "labels": labels}}
        try:
            self._keep(self._cluster.create(NODES, None, body))
        except AlreadyExists:
            change = {"metadata": {"labels": labels}}
            self._keep(self._cluster.patch(NODES, None, self._settings.name, change, kind=PatchType.MERGE))
        self._report(now)

    def beat(self, now: float) -> None:
        """Report the status if a report is due, or if the Node was deleted."""
        if self._monotonic() >= self._status_due or self._is_gone():
            self._report(now)

    def _is_gone(self) -> bool:
        """Whether the Node was deleted, perhaps before it was watched."""
        if self._node_informer is None or self._node is None or not self._node_informer.synced():
            return False
        return self._node_informer.by_uid(self._node["metadata"]["uid"]) is None

    def _keep(self, node: Object) -> None:
        self._node = node
        if self._node_informer is not None:
            self._node_informer.put(node)

    def _report(self, now: float) -> None:
        try:
            self._keep(self._cluster.get(NODES, None, self._settings.name))
        except NotFound:
            self.register(self._text, now)
            return
        assert self._node is not None
        status = node_status(
            offers=self._offers,
            address=self._address,
            info=machine.node_info(),
            description=self._text,
            before=self._node.get("status") or {},
            now=now,
        )
        name = self._settings.name
        self._cluster.patch(NODES, None, name, {"status": status}, kind=PatchType.MERGE, subresource="status")
        self._status_due = self._monotonic() + self._settings.heartbeat

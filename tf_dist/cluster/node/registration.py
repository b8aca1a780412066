"""The node's own objects: its Node, and the Lease that says it lives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from tf_dist.cluster.api import NODES, Cluster, Object, PatchType
from tf_dist.cluster.node import machine
from tf_dist.cluster.node.claim import Claim
from tf_dist.cluster.node.mirror import Mirror
from tf_dist.cluster.node.presence import (
    CORDONED_ANNOTATION,
    PROCESSES,
    Taint,
    is_ours,
    merged_taints,
    node_object,
    node_status,
)
from tf_dist.cluster.node.settings import NodeSettings
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable

_log = logging.getLogger(__name__)
_STATUS_EVERY = 300.0  # seconds, as the kubelet's nodeStatusReportFrequency
_TRIES = 5


class Registration:
    """Registers the node once and renews what must be renewed, no more often than needed. For one thread at a time.

    ``among_processes`` says whether every node of the cluster is known to be one of this kind; it decides about the
    taint when the settings leave that open. ``identity``: see ``Claim``. ``itself``: what is seen of the Node.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: NodeSettings,
        address: str,
        *,
        identity: str = "",
        itself: Mirror | None = None,
        among_processes: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._address = address
        self._itself = itself
        self._among_processes = among_processes
        self._monotonic = monotonic
        self._claim = Claim(cluster, settings.name, identity, 4 * settings.heartbeat, monotonic=monotonic)
        self._offers = machine.capacity(settings.capacity)
        self._text = ""
        self._node: Object | None = None
        self._taints: list[Taint] | None = None  # those last seen or written; None: not known
        self._leaving = False
        self._status_due = self._lease_due = float("-inf")

    def register(self, text: str, now: float, stopping: threading.Event | None = None) -> None:
        """Take the name, then create the Node or take it over; ``text`` describes the network.

        NameTaken while another agent heartbeats; Unavailable when the Node is a kubelet's, or ``stopping`` is set.
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
        if not is_ours(node):
            name = self._settings.name
            raise Unavailable(
                f"there is a node {name} already, and none of tf-dist's: a kubelet's?",
                hint="give this node another name: tf-dist node NAME",
            )

    def valid(self) -> bool:
        """Whether this agent may act for the node: no other agent can have taken its name."""
        return self._claim.valid()

    def beat(self, now: float) -> None:
        """Renew what is due; NameTaken when another agent took the name."""
        if self._monotonic() >= self._lease_due:
            self._renew(now)
        if self._monotonic() >= self._status_due or self._is_gone():
            self._report(now)
        elif self._taints is not None and merged_taints(self._taints, self._wanted()) != self._taints:
            self._adopt()

    def leave(self, now: float) -> None:
        """From now on: no new pods, and not ready."""
        self._leaving = True
        self._adopt()
        self._report(now)

    def retire(self, *, keep_node: bool) -> None:
        """The end: the Lease goes, and the Node unless it shall stay (not ready and closed to pods)."""
        if not keep_node and self._node is not None:
            try:
                self._cluster.delete(NODES, None, self._settings.name, uid=self._node["metadata"]["uid"])
            except ClusterError as error:
                _log.warning("the Node stays: %s", error)
        self._claim.release()

    def _is_gone(self) -> bool:
        """Whether somebody has deleted the Node, perhaps before anybody watched it."""
        if self._itself is None or self._node is None or not self._itself.synced():
            return False
        return self._itself.get(self._node["metadata"]["uid"]) is None

    def _wanted(self) -> Sequence[Taint]:
        if self._settings.taints is not None:
            return self._settings.taints
        return () if self._among_processes() else (PROCESSES,)

    def _enter(self, now: float) -> None:
        labels = {**machine.labels(self._settings.name), **self._settings.labels}
        body = node_object(self._settings.name, labels, self._wanted())
        try:
            self._keep(self._cluster.create(NODES, None, body))
        except AlreadyExists:
            self._adopt(body["metadata"]["labels"])
        self._report(now)

    def _adopt(self, labels: dict[str, str] | None = None) -> None:
        """Make labels, taints and cordon of the existing Node what they shall be; what others set stays."""
        for _ in range(_TRIES):
            node = self._cluster.get(NODES, None, self._settings.name)
            change = self._change(node, labels or {})
            try:
                self._keep(self._cluster.patch(NODES, None, self._settings.name, change, kind=PatchType.MERGE))
                return
            except Conflict:
                continue
        raise Unavailable(f"node {self._settings.name} is being changed by somebody else all the time")

    def _change(self, node: Object, labels: dict[str, str]) -> Object:
        metadata, spec = node["metadata"], node.get("spec") or {}
        change: Object = {
            "metadata": {"resourceVersion": metadata["resourceVersion"], "labels": labels},
            "spec": {"taints": merged_taints(spec.get("taints") or [], self._wanted()) or None},
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
        if self._itself is not None:
            self._itself.put(node)
        self._taints = list((node.get("spec") or {}).get("taints") or [])

    def _report(self, now: float) -> None:
        try:
            self._keep(self._cluster.get(NODES, None, self._settings.name))
        except NotFound:  # somebody deleted it: a kubelet comes back, too
            self._enter(now)
            return
        assert self._node is not None
        status = node_status(
            offers=self._offers,
            address=self._address,
            log_port=self._settings.log_port,
            info=machine.info(),
            description=self._text,
            leaving=self._leaving,
            before=self._node.get("status") or {},
            now=now,
        )
        name = self._settings.name
        self._cluster.patch(NODES, None, name, {"status": status}, kind=PatchType.MERGE, subresource="status")
        self._status_due = self._monotonic() + _STATUS_EVERY

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

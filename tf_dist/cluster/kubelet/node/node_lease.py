"""The node's Lease: its heartbeat, and the claim by which one kubelet holds the node's name."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tf_dist.cluster.api import LEASES, Cluster, Object
from tf_dist.core.api.timestamps import format_micro_time
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, Forbidden, NotFound, Unavailable

_log = logging.getLogger(__name__)
_POLL = 0.5  # seconds between two reads of another agent's heartbeat
_RENEW_ATTEMPTS = 3


class NodeNameTaken(Conflict):
    """Another agent heartbeats for a node of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"another agent runs node {name}: its heartbeat in {LEASE_NAMESPACE} goes on",
            hint="stop that agent, or give this node another name",
        )


class NodeLease:
    """The Lease of node ``name``, renewed by the agent ``identity`` ("": heartbeat only, without a claim on the name).

    It is good for ``seconds`` after a renewal. Whether another agent lives is judged by watching its Lease for as
    long as that Lease says, by this machine's monotonic clock: the clocks of two machines are never compared.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        identity: str,
        seconds: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._identity = identity
        self._seconds = seconds
        self._monotonic = monotonic
        self._lease: Object | None = None
        self._renewed = float("-inf")
        self._off = False

    @property
    def off(self) -> bool:
        """Whether this cluster has no Leases of nodes, or does not let this agent have one."""
        return self._off

    def valid(self) -> bool:
        """Whether this agent surely still holds the name: no other can take it before the lease expires."""
        unguarded = self._off or not self._identity
        return unguarded or self._monotonic() - self._renewed < self._seconds

    def take(self, stopping: threading.Event) -> None:
        """Return when the name is free or was this agent's before; NodeNameTaken; Unavailable when ``stopping`` is set.

        A predecessor that says nothing is waited for until its Lease is over.
        """
        first, since = "", 0.0
        if not self._identity:
            return
        while (lease := self._look()) is not None:
            self._lease = lease
            if lease_identity(lease) == self._identity:
                return
            version, now = lease["metadata"]["resourceVersion"], self._monotonic()
            if first and version != first:
                raise NodeNameTaken(self._name)
            seconds = float(lease["spec"].get("leaseDurationSeconds") or self._seconds)
            if not first:
                first, since = version, now
                _log.warning("waiting for the lease of another agent: node=%s seconds=%g", self._name, seconds)
            if now - since >= seconds:
                return
            if stopping.wait(_POLL):
                raise Unavailable(f"stopped while waiting for the name {self._name}")

    def _look(self) -> Object | None:
        try:
            return self._cluster.get(LEASES, LEASE_NAMESPACE, self._name)
        except NotFound:
            return None
        except Forbidden as error:
            self._give_up(error)
            return None

    def renew(self, owner: Object | None, now: float) -> None:
        """Say that the node lives; NotFound when the Lease was taken away, NodeNameTaken when another agent has it."""
        if self._off:
            return
        body = lease_object(self._name, self._identity, owner, self._seconds, now)
        for _ in range(_RENEW_ATTEMPTS):
            if self._once(body) or self._off:
                return
        raise Unavailable(f"the lease of node {self._name} is written by another client all the time")

    def _once(self, body: Object) -> bool:
        """One attempt; False when the Lease was written meanwhile, by this agent as far as one can see."""
        asked = self._monotonic()
        try:
            self._lease = self._write(body)
        except (AlreadyExists, Conflict):  # another agent; or it was this one, and the answer was lost
            self._lease = self._look()
            if self._lease is not None and self._identity and lease_identity(self._lease) != self._identity:
                raise NodeNameTaken(self._name) from None
            return False
        except NotFound:
            gone, self._lease = self._lease is not None, None
            if gone:
                raise
            self._off = True  # not even the namespace: this cluster does not look at leases
        except Forbidden as error:
            self._give_up(error)
        else:
            self._renewed = asked
        return True

    def _write(self, body: Object) -> Object:
        if self._lease is None:
            return self._cluster.create(LEASES, LEASE_NAMESPACE, body)
        known = {"resourceVersion": self._lease["metadata"]["resourceVersion"]}
        fenced = {**body, "metadata": {**body["metadata"], **known}}
        return self._cluster.replace(LEASES, LEASE_NAMESPACE, self._name, fenced)

    def _give_up(self, error: ClusterError) -> None:
        _log.warning("running without node lease, unprotected from a second agent of this name: error=%s", error)
        self._off = True

    def release(self) -> None:
        """Take the Lease away, so that a successor need not wait."""
        if self._lease is None or self._off or lease_identity(self._lease) != self._identity:
            return
        try:
            uid = self._lease["metadata"]["uid"]
            self._cluster.delete(LEASES, LEASE_NAMESPACE, self._name, uid=uid)
        except ClusterError as error:
            _log.info("failed to release node lease, it expires by itself: node=%s error=%s", self._name, error)


AGENT_ANNOTATION: Final = "tf-dist.dev/agent"
"""Annotation of a Lease: the process that keeps the node's Lease."""


LEASE_NAMESPACE: Final = "kube-node-lease"


def lease_object(name: str, identity: str, owner: Object | None, seconds: float, now: float) -> Object:
    """The node's heartbeat. It names the agent (``identity``), and goes with the Node (``owner``)."""
    metadata: Object = {"name": name}
    if identity:
        metadata["annotations"] = {AGENT_ANNOTATION: identity}
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner["metadata"]["uid"]}
        metadata["ownerReferences"] = [reference]
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": max(1, round(seconds)),
        "renewTime": format_micro_time(now),
    }
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def lease_identity(lease: Object) -> str:
    """Which agent renewed a Lease; "" for one that does not say so, as kubelets' do not."""
    return str((lease["metadata"].get("annotations") or {}).get(AGENT_ANNOTATION, ""))

"""The objects by which a cluster knows a node: its Node, and the Lease that says it lives. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tf_dist.cluster.api import Object
from tf_dist.core.times import format_micro_time, format_time

NODE_LABEL: Final = "tf-dist.dev/node"
AGENT_ANNOTATION: Final = "tf-dist.dev/agent"
CORDONED_ANNOTATION: Final = "tf-dist.dev/cordoned"
LEASE_NAMESPACE: Final = "kube-node-lease"
PROCESSES: Final[Mapping[str, str]] = {"key": "tf-dist.dev/processes", "effect": "NoSchedule"}
"""Keeps pods that need an image away. A pod that is meant to run as a process tolerates it."""

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


def is_ours(node: Object) -> bool:
    """Whether a Node is one that a node agent made, not a kubelet's."""
    return NODE_LABEL in (node["metadata"].get("labels") or {})


def merged_taints(before: Sequence[Taint], wanted: Sequence[Taint]) -> list[Taint]:
    """The taints that others put on a Node, and the wanted ones in place of those that the agent put there before."""
    own = {_identity(PROCESSES), *map(_identity, wanted)}
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
    """The Node's status: what it offers, where its logs are read (``log_port`` 0: nowhere), and how it is."""
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
        # No Hostname: the API server would try that first, and often nobody else can resolve it.
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


def agent_of(lease: Object) -> str:
    """Which agent renewed a Lease; "" for one that does not say so, as kubelets' do not."""
    return str((lease["metadata"].get("annotations") or {}).get(AGENT_ANNOTATION, ""))

"""From raw nodes, pods and jobs to what admission decides on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.gang.demand import added, members, parsed, requests, subtracted
from tf_dist.core.gang.model import Gang, Node, Resources, Snapshot
from tf_dist.core.model import Job
from tf_dist.core.status import LIVE, Status

_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that has or wants a place: the job, its memory, and when it came (epoch seconds)."""

    job: Job
    status: Status
    created_at: float


def snapshot(
    claims: Iterable[Claim], nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]
) -> Snapshot:
    """What admission decides on: pods on nodes take their room, admitted gangs that of their pods still to come."""
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    placed: dict[str, dict[str, int]] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in _ENDED:
            by_node.setdefault(node, []).append(pod)
            _count(pod, placed)
    gangs = (_gang(claim, placed.get(claim.job.uid, {})) for claim in claims if claim.status.phase in LIVE)
    asked = _Requests()
    usable = (_node(node, asked.of(by_node.get(node["metadata"]["name"], ()))) for node in nodes if _takes_pods(node))
    return Snapshot(gangs=tuple(gangs), nodes=tuple(usable))


def _count(pod: Mapping[str, Any], placed: dict[str, dict[str, int]]) -> None:
    labels = pod["metadata"].get("labels") or {}
    if names.JOB_UID in labels:
        types = placed.setdefault(labels[names.JOB_UID], {})
        type_ = labels.get(names.REPLICA_TYPE, "")
        types[type_] = types.get(type_, 0) + 1


def _gang(claim: Claim, placed: Mapping[str, int]) -> Gang:
    admitted = claim.status.admission is not None
    done = claim.status.succeeded if admitted else frozenset()
    held = {s.type: placed.get(s.type, 0) + sum(r.type == s.type for r in done) for s in claim.job.replica_specs}
    return Gang(
        key=claim.job.key,
        uid=claim.job.uid,
        created_at=claim.created_at,
        members=members(claim.job, held if admitted else None),
        queue=claim.job.scheduling.queue,
        admitted=admitted,
    )


def _takes_pods(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), "True")
    return ready == "True" and not (node.get("spec") or {}).get("unschedulable")


class _Requests:
    """Adds up what pods request; pods that share their list of containers, as most do, are read once."""

    def __init__(self) -> None:
        self._known: dict[int, Resources] = {}

    def of(self, pods: Iterable[Mapping[str, Any]]) -> Resources:
        """What these pods request together."""
        counts: Counter[int] = Counter()
        alone: list[Resources] = []
        for pod in pods:
            spec = pod.get("spec") or {}
            if "initContainers" in spec or "overhead" in spec or "containers" not in spec:
                alone.append(requests(spec))
                continue
            # The snapshot's pods hold their lists as long as this lives: no other can have the same id.
            shape = id(spec["containers"])
            if shape not in self._known:
                self._known[shape] = requests(spec)
            counts[shape] += 1
        return added((*alone, *(_times(self._known[shape], count) for shape, count in counts.items())))


def _times(resources: Resources, count: int) -> Resources:
    return {resource: value * count for resource, value in resources.items()}


def _node(node: Mapping[str, Any], used: Resources) -> Node:
    status = node.get("status") or {}
    stated = status.get("allocatable") or status.get("capacity") or {}
    allocatable = parsed(stated)
    return Node(
        name=node["metadata"]["name"],
        allocatable=allocatable,
        free={r: v for r, v in subtracted(allocatable, used).items() if r in allocatable},
        labels=node["metadata"].get("labels") or {},
        taints=tuple((node.get("spec") or {}).get("taints") or ()),
    )

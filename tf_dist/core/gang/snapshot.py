"""From raw nodes, pods and jobs to what admission decides on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.gang.demand import added, members, parsed, requests, subtracted
from tf_dist.core.gang.model import PREEMPTING, Gang, Locality, Node, Place, Policy, Queue, Resources, Snapshot
from tf_dist.core.gang.queue_tree import DEFAULT
from tf_dist.core.model import Job
from tf_dist.core.seats import seats
from tf_dist.core.sizes import grows_live
from tf_dist.core.status import LIVE, Status

_ENDED: Final = frozenset({"Succeeded", "Failed"})
_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|s))+", re.ASCII)
_PART: Final = re.compile(r"([0-9.]+)(h|ms|m|s)", re.ASCII)
_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that has or wants a place: the job, its memory, and when it came (epoch seconds)."""

    job: Job
    status: Status
    created_at: float


@dataclass(frozen=True, slots=True)
class Priority:
    """What a PriorityClass says: its value, and whether its jobs may have others stopped for them."""

    value: int
    preempts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What else counts: the queues, and the priority classes by name ("": that of jobs which name none).

    ``queues`` None: there are none, or they may not be seen. The queue that a job names is another system's then.
    """

    queues: tuple[Queue, ...] | None = None
    priorities: Mapping[str, Priority] = field(default_factory=dict)


NO_RULES: Final = Rules()


@dataclass(slots=True)
class Bound:
    """The pods of one job that are on nodes: per type and node how many, and per type and index the node."""

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    seats: dict[str, dict[int, str]] = field(default_factory=dict)


_NO_PODS: Final = Bound()


def snapshot(
    claims: Iterable[Claim],
    nodes: Iterable[Mapping[str, Any]] | None,
    pods: Iterable[Mapping[str, Any]],
    *,
    now: float = 0.0,
    rules: Rules = NO_RULES,
    policy: Policy | None = None,
) -> Snapshot:
    """What admission decides on. ``nodes`` None: they may not be seen."""
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    bound: dict[str, Bound] = {}
    for pod in pods:
        node = node_of(pod)
        if node:
            by_node.setdefault(node, []).append(pod)
            count_pod(pod, bound)
    gangs = tuple(
        gang(claim, bound.get(claim.job.uid, _NO_PODS), rules) for claim in claims if claim.status.phase in LIVE
    )
    asked = _Requests()
    usable = None
    if nodes is not None:
        usable = tuple(
            _node(node, asked.of(by_node.get(node["metadata"]["name"], ()))) for node in nodes if takes_pods(node)
        )
    return Snapshot(gangs=gangs, nodes=usable, now=now, queues=rules.queues or (), policy=policy or Policy())


def node_of(pod: Mapping[str, Any]) -> str:
    """The node on which a pod takes room; "": it takes none."""
    ended = (pod.get("status") or {}).get("phase") in _ENDED
    return "" if ended else str((pod.get("spec") or {}).get("nodeName") or "")


def count_pod(pod: Mapping[str, Any], bound: dict[str, Bound]) -> None:
    """Add a pod that takes room on a node to those of its job, by the job's uid."""
    labels = pod["metadata"].get("labels") or {}
    if names.JOB_UID in labels:
        node, type_ = node_of(pod), labels.get(names.REPLICA_TYPE, "")
        job = bound.setdefault(labels[names.JOB_UID], Bound())
        counts = job.counts.setdefault(type_, {})
        counts[node] = counts.get(node, 0) + 1
        index = labels.get(names.REPLICA_INDEX, "")
        if index.isdecimal():
            job.seats.setdefault(type_, {})[int(index)] = node


def gang(claim: Claim, bound: Bound = _NO_PODS, rules: Rules = NO_RULES) -> Gang:
    """A job as admission sees it, with those of its pods that are on nodes."""
    job, status, admission = claim.job, claim.status, claim.status.admission
    place = None
    if admission is not None:
        place = Place(at=admission.at, sizes=admission.sizes, placement=admission.placement, resized=admission.resized)
    done = Counter(replica.type for replica in status.succeeded) if admission is not None else {}
    priority = _priority(job, rules)
    return Gang(
        key=job.key,
        uid=job.uid,
        created_at=claim.created_at,
        members=members(job),
        queue=job.scheduling.queue if rules.queues is not None else "",
        priority=priority.value,
        preempts=priority.preempts,
        promised=place is None and status.reason == PREEMPTING,
        live=grows_live(job),
        locality=_locality(job),
        estimate=_estimate(job),
        not_before=status.not_before,
        place=place,
        bound=bound.counts,
        seats={spec.type: _seats(claim, bound, spec.type) for spec in job.replica_specs} if place else {},
        done=dict(done),
    )


def _seats(claim: Claim, bound: Bound, type_: str) -> tuple[str, ...]:
    """The nodes of a type's replicas by index: where their pods are, else where they are to be."""
    admission = claim.status.admission
    meant = seats(claim.job, admission.placement, type_) if admission else ()
    found = bound.seats.get(type_, {})
    count = max(len(meant), max(found, default=-1) + 1)
    return tuple(found.get(index) or (meant[index] if index < len(meant) else "") for index in range(count))


def _priority(job: Job, rules: Rules) -> Priority:
    """The one its class has, else its queue's, else that of jobs without a class."""
    templates = (spec.template.get("spec") or {} for spec in job.replica_specs)
    named = (body.get("priorityClassName") for body in templates)
    name = job.scheduling.priority_class or next(filter(None, named), "")
    known = rules.priorities.get(name) if name else None
    if known is not None:
        return known
    queue = next((queue for queue in rules.queues or () if queue.name == (job.scheduling.queue or DEFAULT)), None)
    if queue is not None and queue.default_priority:
        return Priority(queue.default_priority)
    return rules.priorities.get("", Priority(0))


def _locality(job: Job) -> Locality | None:
    label = job.annotations.get(names.TOPOLOGY, "")
    required = job.annotations.get(names.TOPOLOGY_REQUIRED, "").lower() == "true"
    return Locality(label=label, required=required) if label else None


def _estimate(job: Job) -> float | None:
    """How long it is expected to run, or at most may; what cannot be read counts as not said."""
    return seconds(job.annotations.get(names.EXPECTED_DURATION, "")) or job.run_policy.active_deadline


def seconds(text: str) -> float | None:
    """``5400``, ``90m`` or ``1h30m`` as seconds; None if it is none of these, or nothing."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text) or None
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text)) or None


def takes_pods(node: Mapping[str, Any]) -> bool:
    """Whether a node is ready and not cordoned."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), "True")
    return ready == "True" and not (node.get("spec") or {}).get("unschedulable")


def node(raw: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> Node:
    """A node as admission sees it; ``pods``: those that take room on it."""
    return _node(raw, _Requests().of(pods))


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

"""What gang admission assigns to a job: its verdict, replica counts, and the node of each replica.

Everything else in the core sees the granted numbers as if the document said them (``granted_job``): TF_CONFIG,
services, success rules and counts need not know about elasticity.

Replicas take nodes in one order everywhere: first the nodes with parameter servers, then the fullest. So the highest
indexes, which go first when a job shrinks, are those far from the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from tf_dist.core.api.job import Job, JobKey, ReplicaId, ReplicaSpec, Role, TFConfigStyle
from tf_dist.core.api.pod_events import PodClassification
from tf_dist.core.api.status import LIVE, PREEMPTED, RECOVERY_TIMEOUT, Status

# How many replicas of each type, and how many of each type on which node.
Sizes = Mapping[str, int]
Placement = Mapping[str, Mapping[str, int]]

_WHOLE = frozenset({Role.PS, Role.CHIEF, Role.MASTER, Role.EVALUATOR})


def replica_counts(job: Job) -> dict[str, int]:
    """The replicas of each type."""
    return {spec.type: spec.replicas for spec in job.replica_specs}


def granted_job(job: Job, status: Status) -> Job:
    """The job with as many replicas as it has been granted, or had when it gave its place back; ``job`` itself if all.

    A document that asks for less by now has less at once; a type that came into it since is not held back.
    """
    sizes = _granted_counts(status)
    return _within(job, sizes) if sizes else job


def _granted_counts(status: Status) -> Sizes:
    if status.admission is not None:
        return status.admission.sizes
    return {} if status.phase in LIVE else status.last_sizes


def _within(job: Job, sizes: Sizes) -> Job:
    wanted = {spec.type: sizes.get(spec.type, spec.replicas) for spec in job.replica_specs}
    return with_replica_counts(job, {spec.type: min(wanted[spec.type], spec.most) for spec in job.replica_specs})


def expected_job(job: Job, status: Status, verdict: Verdict | None) -> Job:
    """The job with as many replicas as it will have once the verdict is recorded."""
    if not isinstance(verdict, Admit | Resize) or not verdict.sizes:
        return granted_job(job, status)
    return _within(job, {**_granted_counts(status), **verdict.sizes})


def largest_job(job: Job) -> Job:
    """The job with every replica that it may ever have."""
    return with_replica_counts(job, {spec.type: spec.most for spec in job.replica_specs})


def with_replica_counts(job: Job, sizes: Sizes) -> Job:
    """The job with other numbers of replicas; what has to be there, or to succeed, is never more than there are."""
    if all(sizes[spec.type] == spec.replicas for spec in job.replica_specs):
        return job
    total = sum(sizes[spec.type] for spec in job.replica_specs)
    specs = tuple(
        replace(spec, replicas=sizes[spec.type], min_replicas=min(spec.min_replicas, sizes[spec.type]))
        for spec in job.replica_specs
    )
    counting = job.counting
    if counting is not None:
        most = None if counting.min_success is None else min(counting.min_success, total)
        counting = replace(counting, min_available=min(counting.min_available, total), min_success=most)
    scheduling = replace(job.scheduling, min_available=min(job.scheduling.min_available, total))
    return replace(job, replica_specs=specs, counting=counting, scheduling=scheduling)


def replica_bounds(job: Job) -> dict[str, tuple[int, int]]:
    """The fewest replicas of each type with which the gang may run, and the most it may grow to.

    Parameter servers, chiefs and evaluators are all needed; so is worker 0. A minimum of the whole gang
    (``minAvailable``) that says more than those of the types is made up by the workers; one that says less stands above
    theirs, as in Volcano: workers may be missing then, all but the first.
    """
    wanted, least = job.scheduling.min_available, {spec.type: _least(job, spec) for spec in job.replica_specs}
    elastic = [spec for spec in job.replica_specs if spec.role not in _WHOLE]
    # Workers are the last to be given up, and the first to make up what the gang's minimum asks beyond its types'.
    for spec in sorted(elastic, key=lambda spec: spec.role is not Role.WORKER):
        missing = wanted - sum(least.values())
        floor = min(spec.replicas, _first(job, spec)) if missing < 0 else least[spec.type]
        least[spec.type] = min(spec.replicas, max(floor, least[spec.type] + missing))
    return {spec.type: (least[spec.type], spec.most) for spec in job.replica_specs}


def _least(job: Job, spec: ReplicaSpec) -> int:
    return spec.replicas if spec.role in _WHOLE else min(spec.replicas, max(_first(job, spec), spec.min_replicas))


def _first(job: Job, spec: ReplicaSpec) -> int:
    """So many that the one whose success is the job's is among them."""
    deciding = [rule.index for rule in job.success if rule.type == spec.type and rule.index is not None]
    return 1 + max(deciding, default=0)


def resize_restarts(job: Job, before: Sizes, after: Sizes) -> bool:
    """Whether pods that were started among ``before`` replicas cannot go on among ``after``.

    TF_CONFIG stands in the environment of a process and never changes. A sparse one names the parameter servers, so
    workers may come and go. A dense one names every replica: those who come are unknown to those who are there, and so
    all start again. Those who leave are missed only where workers talk to each other; with parameter servers they do
    not (the first operator removed workers from under the others in the same way). Programs that make their own
    configuration look at the host files, which follow.
    """
    if job.tf_config is TFConfigStyle.NONE:
        return False
    named = (spec for spec in job.replica_specs if spec.role is not Role.OTHER)
    changed = [spec for spec in named if before.get(spec.type, 0) != after.get(spec.type, 0)]
    others = any(spec.role is not Role.WORKER for spec in changed)
    if others or not changed or job.tf_config is TFConfigStyle.SPARSE:
        return others
    servers = any(spec.role is Role.PS and spec.replicas for spec in job.replica_specs)
    return not servers or any(after.get(spec.type, 0) > before.get(spec.type, 0) for spec in changed)


def grows_live(job: Job) -> bool:
    """Whether workers that come leave those that run undisturbed."""
    more = {spec.type: spec.replicas + (spec.role not in _WHOLE) for spec in job.replica_specs}
    return not resize_restarts(job, replica_counts(job), more)


def replica_nodes(job: Job, placement: Placement, type_: str) -> tuple[str, ...]:
    """The nodes of a type's replicas, by index; as many as the placement has."""
    serving = {node for spec in job.replica_specs if spec.role is Role.PS for node in placement.get(spec.type, ())}
    counts = placement.get(type_, {})
    nodes = sorted(counts, key=lambda node: (node not in serving, -counts[node], node))
    return tuple(node for node in nodes for _ in range(counts[node]))


def placement_within(job: Job, placement: Placement, sizes: Mapping[str, int]) -> Placement:
    """The placement without the nodes of replicas beyond these sizes."""
    if all(sum(nodes.values()) <= sizes.get(type_, 0) for type_, nodes in placement.items()):
        return placement
    return {type_: dict(Counter(replica_nodes(job, placement, type_)[: sizes.get(type_, 0)])) for type_ in placement}


def assign_nodes(
    job: Job, placement: Placement, facts: PodClassification, wanted: Collection[ReplicaId]
) -> dict[ReplicaId, str]:
    """The nodes of these replicas, which have none yet: each its own if that is free, else any free one of its type.

    ``job`` has its granted size. Other replicas keep their nodes. A replica for which none is free is left out: the
    scheduler of the cluster finds a node for it.
    """
    found: dict[ReplicaId, str] = {}
    for type_ in {replica.type for replica in wanted} if placement else ():
        found |= _of_type(job, placement, facts, type_)
    return {replica: node for replica, node in found.items() if replica in wanted}


def _of_type(job: Job, placement: Placement, facts: PodClassification, type_: str) -> dict[ReplicaId, str]:
    listed = replica_nodes(job, placement, type_)
    free = Counter(listed)
    free.subtract(pod.node for replica, pod in facts.current.items() if replica.type == type_ and pod.node)
    waiting = [replica for replica in job.replicas if replica.type == type_ and _lacks_node(replica, facts)]
    found: dict[ReplicaId, str] = {}
    for replica in waiting:
        if replica.index < len(listed) and free[listed[replica.index]] > 0:
            found[replica] = listed[replica.index]
            free[found[replica]] -= 1
    for replica in waiting:
        if replica not in found and (node := next((node for node in listed if free[node] > 0), "")):
            found[replica] = node
            free[node] -= 1
    return found


def _lacks_node(replica: ReplicaId, facts: PodClassification) -> bool:
    pod = facts.current.get(replica)
    return replica not in facts.succeeded if pod is None else not pod.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """The gang may start, with ``sizes`` pods per type (empty: as many as it wants), on the nodes of ``placement``."""

    placement: Placement = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)


class PendingReason(StrEnum):
    """Why a job waits, as the reason of its status; a contract: values are added and never renamed."""

    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    WAITING_IN_QUEUE = "WaitingInQueue"
    RESERVED = "Reserved"  # there is room, which is reserved for gangs that have waited longer
    PREEMPTING = "Preempting"  # others are preempted for it; it counts as ``promised`` from then on
    QUOTA_EXCEEDED = "QuotaExceeded"
    RESOURCE_QUOTA_EXCEEDED = "ResourceQuotaExceeded"
    NEVER_FITS = "NeverFits"
    UNREADABLE = "Unreadable"  # its pods' requests or constraints cannot be read
    NODES_REFUSED = "NodesRefused"  # large enough are only nodes that the scheduler refused it; tried again later
    QUEUE_NOT_FOUND = "QueueNotFound"
    NAMESPACE_MISMATCH = "NamespaceMismatch"  # its queue takes no jobs from its namespace
    SCHEDULER_MISSING = "GangSchedulerMissing"
    QUEUE_REFUSED = "QueueRefused"  # another gang scheduler does not serve its queue
    DEACTIVATED = "Deactivated"  # switched off in another gang scheduler
    BACKOFF = "Backoff"
    SCHEDULE_TIMEOUT = "ScheduleTimeout"
    PODS_REJECTED = "PodsRejected"
    PREEMPTED = PREEMPTED
    RECOVERY_TIMEOUT = RECOVERY_TIMEOUT
    WAITING_FOR_LOST_NODE = "WaitingForLostNode"

    @property
    def unreachable(self) -> bool:
        """Whether no change of load lets the gang start, only a change of the job or of the nodes."""
        return self in (PendingReason.NEVER_FITS, PendingReason.UNREADABLE)


_PENDING_REASONS: Final[Mapping[str, PendingReason]] = {one.value: one for one in PendingReason}


def pending_reason(status: Status) -> PendingReason | None:
    """Why a job without a place waits; None if its status says no such reason."""
    return _PENDING_REASONS.get(status.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The gang waits. ``position``: its place in its queue, from 1 (0: it has none)."""

    reason: PendingReason
    message: str
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An admitted gang is to have other ``sizes`` from now on; ``placement`` says where all of its pods then are."""

    sizes: Sizes
    placement: Placement
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """An admitted gang is preempted for the gang ``by`` (None: not known for which)."""

    by: JobKey | None
    message: str


Verdict = Admit | Wait | Resize | Preempt


def replica_change_text(job: Job, before: Sizes, after: Sizes) -> str:
    """``goes from 2 to 4 worker``, for every type of which the number changes."""
    parts = [
        f"from {before.get(spec.type, 0)} to {after[spec.type]} {spec.type}"
        for spec in job.replica_specs
        if before.get(spec.type, 0) != after[spec.type]
    ]
    return f"goes {' and '.join(parts)}"


def replica_difference_text(asked: Job, sized: Job) -> str:
    """``3 worker instead of 5``, for every type that has another number of replicas than asked for; "" if none has."""
    pairs = zip(asked.replica_specs, sized.replica_specs, strict=True)
    return ", ".join(f"{b.replicas} {a.type} instead of {a.replicas}" for a, b in pairs if a.replicas != b.replicas)

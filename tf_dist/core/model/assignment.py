"""What gang admission assigns to a job: its verdict, replica counts, and the node of each replica.

Everything else in the core sees the admitted numbers as if the document said them (``current_job``): TF_CONFIG,
services, success rules and counts need not know about elasticity.

Replicas take nodes in one order everywhere: first the nodes with parameter servers, then the fullest. So the highest
indexes, which go first when a job shrinks, are those far from the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tf_dist.core.model import names
from tf_dist.core.model.job import Job, JobKey, ReplicaId, ReplicaSpec, Role, TFConfigStyle
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import LIVE, Admission, Status

# How many replicas of each type, and how many of each type on which node.
Sizes = Mapping[str, int]
Placement = Mapping[str, Mapping[str, int]]

_WHOLE = frozenset({Role.PS, Role.CHIEF, Role.MASTER, Role.EVALUATOR})


def replica_counts(job: Job) -> dict[str, int]:
    """The replicas of each type."""
    return {spec.type: spec.replicas for spec in job.replica_specs}


def fallback_job(job: Job, number: int) -> Job:
    """The job as one of its fallbacks (1, 2, …); ``job`` itself for 0, and for one that it has no more."""
    if not 0 < number <= len(job.fallbacks):
        return job
    return replace(job.fallbacks[number - 1], fallbacks=job.fallbacks)


def current_job(job: Job, status: Status, verdict: Verdict | None = None) -> Job:
    """The job as it runs now: as the fallback, and with the replica counts, that it was admitted with last.

    While it waits, and where nothing differs, that is ``job`` itself, as it was requested. ``verdict``: as the job runs
    once this is applied. A document with fewer replicas than were admitted holds at once; a replica type that was added
    later has all its replicas.
    """
    admission = status.admission
    if isinstance(verdict, Admit):
        job = fallback_job(job, verdict.fallback)
    elif admission is not None or status.phase not in LIVE:
        job = fallback_job(job, status.fallback)
    sizes = admission.sizes if admission is not None else {} if status.phase in LIVE else status.last_sizes
    if isinstance(verdict, Admit | Resize) and verdict.sizes:
        sizes = {**sizes, **admitted_with(admission or Admission(0.0), job, verdict.sizes).sizes}
    return with_replica_counts(job, bounded_counts(job, sizes)) if sizes else job


def bounded_counts(job: Job, counts: Sizes) -> dict[str, int]:
    """These numbers of replicas, none above what the type may have; of a type without one, what the job says."""
    return {spec.type: min(counts.get(spec.type, spec.replicas), spec.most) for spec in job.replica_specs}


def possible_replicas(job: Job) -> tuple[ReplicaId, ...]:
    """Every replica that the job may ever have, at its largest size and as any of its fallbacks."""
    most = {spec.type: spec.most for spec in job.replica_specs}
    for spec in (spec for other in job.fallbacks for spec in other.replica_specs):
        most[spec.type] = max(most.get(spec.type, 0), spec.most)
    return with_replica_counts(job, most).replicas


def with_replica_counts(job: Job, sizes: Sizes) -> Job:
    """The job with other numbers of replicas; what has to be there, or to succeed, is never more than there are."""
    if all(sizes[spec.type] == spec.replicas for spec in job.replica_specs):
        return job
    total = sum(sizes[spec.type] for spec in job.replica_specs)
    specs = tuple(_with_count(spec, sizes[spec.type]) for spec in job.replica_specs)
    counting = job.counting
    if counting is not None:
        most = None if counting.min_success is None else min(counting.min_success, total)
        counting = replace(counting, min_available=min(counting.min_available, total), min_success=most)
    scheduling = replace(job.scheduling, min_available=min(job.scheduling.min_available, total))
    return replace(job, replica_specs=specs, counting=counting, scheduling=scheduling)


def _with_count(spec: ReplicaSpec, count: int) -> ReplicaSpec:
    least = None if spec.min_available is None else min(spec.min_available, count)
    return replace(spec, replicas=count, min_replicas=min(spec.min_replicas, count), min_available=least)


def replica_bounds(job: Job) -> dict[str, tuple[int, int]]:
    """The fewest replicas of each type to which the job may be resized, and the most it may grow to.

    Only workers of a job that says it is elastic can be fewer than the document asks for; worker 0 is always needed.
    A minimum of the whole gang (``minAvailable``) that says more than those of the types is made up by the workers; one
    that says less resizes nothing (see ``start_counts``).
    """
    least = {spec.type: _least(job, spec) for spec in job.replica_specs}
    for spec in sorted(job.replica_specs, key=lambda spec: spec.role is not Role.WORKER):
        missing = job.scheduling.min_available - sum(least.values())
        least[spec.type] = min(spec.replicas, least[spec.type] + max(0, missing))
    return {spec.type: (least[spec.type], spec.most) for spec in job.replica_specs}


def _least(job: Job, spec: ReplicaSpec) -> int:
    return spec.replicas if spec.role in _WHOLE else min(spec.replicas, max(_first(job, spec), spec.min_replicas))


def minimum_met(job: Job, have: Mapping[str, int]) -> bool:
    """Whether so many pods of each type are the gang's minimum.

    As in Volcano (``CheckTaskReady`` of its scheduler): the minimums of the tasks count beside the job's, unless the
    job's is smaller than their sum: then any pods will do.
    """
    tasks = {spec.type: spec.min_available or 0 for spec in job.replica_specs}
    total = sum(have.get(spec.type, 0) for spec in job.replica_specs)
    counted = job.scheduling.min_available >= sum(tasks.values())
    short = any(have.get(type_, 0) < count for type_, count in tasks.items())
    return total >= job.scheduling.min_available and not (counted and short)


# Those that the others need start first; evaluators, which only watch, come last.
_START_ORDER: Final = (Role.CHIEF, Role.MASTER, Role.PS, Role.OTHER, Role.WORKER, Role.EVALUATOR)


def start_counts(job: Job, priorities: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    """With how many replicas of each type the gang starts at least: its minimum; the others start as room appears.

    The minimums of the tasks as they are written, 0 included, and of the others so many that ``minAvailable`` is met;
    a ``minAvailable`` below the sum of the tasks' minimums stands above them (``minimum_met``). ``priorities``: by
    type; replicas of a higher one are counted first, as Volcano's scheduler places them.
    """
    most = {type_: low for type_, (low, _) in replica_bounds(job).items()}
    tasks = {spec.type: min(most[spec.type], spec.min_available or 0) for spec in job.replica_specs}
    wanted = job.scheduling.min_available
    counts = dict.fromkeys(most, 0) if wanted < sum(tasks.values()) else tasks
    order = sorted(job.replica_specs, key=lambda spec: (-priorities.get(spec.type, 0), _START_ORDER.index(spec.role)))
    for spec in order:
        counts[spec.type] += min(most[spec.type] - counts[spec.type], max(0, wanted - sum(counts.values())))
    return counts


def admitted_with(admission: Admission, job: Job, admitted: Sizes) -> Admission:
    """The admission with room for so many pods of each type (empty: for all).

    Only an elastic job is resized to what has room; another keeps its size, and the replicas beyond wait for room.
    """
    if not admitted:
        return replace(admission, sizes={}, started={})
    bounds = replica_bounds(job)
    sizes = {type_: max(count, bounds[type_][0]) if type_ in bounds else count for type_, count in admitted.items()}
    return replace(admission, sizes=sizes, started=dict(admitted) if sizes != dict(admitted) else {})


def startable_replicas(job: Job, status: Status) -> frozenset[ReplicaId]:
    """The replicas that may have pods: those that have succeeded and the first of the others, as many as have room.

    ``job`` has its admitted size.
    """
    started = status.admission.started if status.admission is not None else {}
    if not started:
        return frozenset(job.replicas)
    found: set[ReplicaId] = set()
    for spec in job.replica_specs:
        listed = sorted(spec.ids, key=lambda replica: (replica not in status.succeeded, replica.index))
        found.update(listed[: started.get(spec.type, spec.replicas)])
    return frozenset(found)


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


def topology_label(job: Job) -> str:
    """The node label in one of whose domains all of the gang's nodes are to be; "": none."""
    return job.annotations.get(names.TOPOLOGY, "") or job.scheduling.topology


def requires_domain(job: Job) -> bool:
    """Whether the gang may only be admitted within one topology domain."""
    return bool(topology_label(job)) and job.annotations.get(names.TOPOLOGY_REQUIRED, "").lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """The gang may start, with ``sizes`` pods per type (empty: as many as it wants), on the nodes of ``placement``.

    ``fallback``: as which of its fallbacks (0: as its document says).
    """

    placement: Placement = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)
    fallback: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The gang waits. ``position``: its place in its queue, from 1 (0: it has none). ``rank``: about how many gangs of
    all queues have their turn until it has its own (0: not known), so how soon its message matters.
    """

    reason: Reason
    message: str
    position: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An admitted gang is to have other ``sizes`` from now on; ``placement`` says where all of its pods then are."""

    sizes: Sizes
    placement: Placement
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """An admitted gang is preempted for the gang ``by`` (None: not known for which), which waits in ``queue``."""

    by: JobKey | None
    message: str
    queue: str = ""


Verdict = Admit | Wait | Resize | Preempt


def replica_change_text(before: Sizes, after: Sizes) -> str:
    """``goes from 2 to 4 worker``, for every type of which the number changes."""
    pairs = ((before.get(type_, 0), count, type_) for type_, count in after.items())
    return f"goes {' and '.join(f'from {old} to {new} {type_}' for old, new, type_ in pairs if old != new)}"


def replica_difference_text(asked: Job, sized: Job) -> str:
    """``3 worker instead of 5``, for every type that has another number of replicas than asked for; "" if none has."""
    pairs = zip(asked.replica_specs, sized.replica_specs, strict=True)
    return ", ".join(f"{b.replicas} {a.type} instead of {a.replicas}" for a, b in pairs if a.replicas != b.replicas)

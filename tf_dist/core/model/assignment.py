"""The decisions of gang admission about a job: its verdict, replica counts, and the node of each replica.

The rest of the core uses the admitted numbers like those of a document (``current_job``), so TF_CONFIG, services,
success rules and counts do not handle elasticity.

Replicas always take nodes in the same order: first the nodes with parameter servers, then the fullest. The highest
indexes, which are removed first when a job shrinks, are therefore far from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tf_dist.core.model import names
from tf_dist.core.model.job import Job, JobKey, ReplicaId, ReplicaSpec, Role, TFConfigStyle
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import LIVE, Admission, Status
from tf_dist.core.model.wording import are, share_text

# Replicas by type, and replicas by type and node.
Sizes = Mapping[str, int]
Placement = Mapping[str, Mapping[str, int]]

_WHOLE = frozenset({Role.PS, Role.CHIEF, Role.MASTER, Role.EVALUATOR})


def replica_counts(job: Job) -> dict[str, int]:
    """The number of replicas of each type."""
    return {spec.type: spec.replicas for spec in job.replica_specs}


def fallback_job(job: Job, number: int) -> Job:
    """The job as one of its fallbacks (1, 2, …); ``job`` itself for 0, and for a fallback that no longer exists."""
    if not 0 < number <= len(job.fallbacks):
        return job
    return replace(job.fallbacks[number - 1], fallbacks=job.fallbacks)


def current_job(job: Job, status: Status, verdict: Verdict | None = None) -> Job:
    """The job as it runs now, with the fallback and the replica counts of its last admission.

    While the job waits, or if nothing differs, this is ``job`` itself. ``verdict``: a verdict to apply first. If the
    document has fewer replicas than were admitted, the document takes effect at once. A replica type that was added
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
    """These numbers of replicas, limited to the maximum of each type; for missing types, the job's numbers."""
    return {spec.type: min(counts.get(spec.type, spec.replicas), spec.most) for spec in job.replica_specs}


def possible_replicas(job: Job) -> tuple[ReplicaId, ...]:
    """Every replica that the job may have, at its largest size and as any of its fallbacks."""
    most = {spec.type: spec.most for spec in job.replica_specs}
    for spec in (spec for other in job.fallbacks for spec in other.replica_specs):
        most[spec.type] = max(most.get(spec.type, 0), spec.most)
    return with_replica_counts(job, most).replicas


def with_replica_counts(job: Job, sizes: Sizes) -> Job:
    """The job with other numbers of replicas, and with minimums that do not exceed them."""
    if all(sizes[spec.type] == spec.replicas for spec in job.replica_specs):
        return job
    total = sum(sizes[spec.type] for spec in job.replica_specs)
    specs = tuple(_with_count(spec, sizes[spec.type]) for spec in job.replica_specs)
    counting = job.counting
    if counting is not None and counting.min_success is not None:
        counting = replace(counting, min_success=min(counting.min_success, total))
    scheduling = replace(job.scheduling, min_available=min(job.scheduling.min_available, total))
    return replace(job, replica_specs=specs, counting=counting, scheduling=scheduling)


def _with_count(spec: ReplicaSpec, count: int) -> ReplicaSpec:
    least = None if spec.min_available is None else min(spec.min_available, count)
    return replace(spec, replicas=count, min_replicas=min(spec.min_replicas, count), min_available=least)


def replica_bounds(job: Job) -> dict[str, tuple[int, int]]:
    """The minimum and maximum of each replica type for resizing.

    Only workers of an elastic job can be fewer than the document requests, and worker 0 always stays. If the gang's
    minimum (``minAvailable``) exceeds the sum of the types' minimums, more workers are needed. A lower ``minAvailable``
    has no effect on resizing (see ``start_counts``).
    """
    least = {}
    for spec in job.replica_specs:
        # Enough replicas to include the replica that decides the job's success.
        deciding = [rule.index for rule in job.success if rule.type == spec.type and rule.index is not None]
        fewest = max(1 + max(deciding, default=0), spec.min_replicas)
        least[spec.type] = spec.replicas if spec.role in _WHOLE else min(spec.replicas, fewest)
    for spec in sorted(job.replica_specs, key=lambda spec: spec.role is not Role.WORKER):
        missing = job.scheduling.min_available - sum(least.values())
        least[spec.type] = min(spec.replicas, least[spec.type] + max(0, missing))
    return {spec.type: (least[spec.type], spec.most) for spec in job.replica_specs}


def minimum_met(job: Job, have: Mapping[str, int]) -> bool:
    """Whether these numbers of pods reach the gang's minimum.

    As in Volcano (``CheckTaskReady`` of its scheduler), the minimums of the tasks apply in addition to the job's
    minimum. If the job's minimum is smaller than their sum, pods of any task count.
    """
    tasks = {spec.type: spec.min_available or 0 for spec in job.replica_specs}
    total = sum(have.get(spec.type, 0) for spec in job.replica_specs)
    counted = job.scheduling.min_available >= sum(tasks.values())
    short = any(have.get(type_, 0) < count for type_, count in tasks.items())
    return total >= job.scheduling.min_available and not (counted and short)


# Replicas that other replicas need start first. Evaluators, which only observe, start last.
_START_ORDER: Final = (Role.CHIEF, Role.MASTER, Role.PS, Role.OTHER, Role.WORKER, Role.EVALUATOR)


def start_counts(job: Job, priorities: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    """The minimum numbers of replicas with which the gang starts. Other replicas start when capacity is free.

    These are the tasks' minimums from the document, including 0, plus other replicas up to ``minAvailable``. A
    ``minAvailable`` below the sum of the tasks' minimums has precedence (``minimum_met``). ``priorities``: by type.
    Replicas of a type with a higher priority count first, as in Volcano's scheduler.
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
    """The admission with these numbers of pods of each type (empty: all pods).

    Only an elastic job is resized to these numbers. Another job keeps its size, and its other replicas wait for
    capacity.
    """
    if not admitted:
        return replace(admission, sizes={}, started={})
    bounds = replica_bounds(job)
    sizes = {type_: max(count, bounds[type_][0]) if type_ in bounds else count for type_, count in admitted.items()}
    return replace(admission, sizes=sizes, started=dict(admitted) if sizes != dict(admitted) else {})


def startable_replicas(job: Job, status: Status) -> frozenset[ReplicaId]:
    """The replicas that may have pods, up to the admitted number of each type.

    Replicas that have succeeded come first, then the others by index. ``job`` has its admitted size.
    """
    started = status.admission.started if status.admission is not None else {}
    if not started:
        return frozenset(job.replicas)
    found: set[ReplicaId] = set()
    for spec in job.replica_specs:
        listed = sorted(spec.ids, key=lambda replica: (replica not in status.succeeded, replica.index))
        found.update(listed[: started.get(spec.type, spec.replicas)])
    return frozenset(found)


def resize_restarts(job: Job, before: Sizes, after: Sizes) -> bool:
    """Whether pods that were started among ``before`` replicas cannot continue among ``after``.

    TF_CONFIG is an environment variable and never changes. A sparse TF_CONFIG names the parameter servers, so workers
    can be added and removed. A dense TF_CONFIG names every replica: running replicas do not know added replicas, so all
    replicas restart. Removed workers matter only if workers communicate with each other, which they do not with
    parameter servers (the first operator also removed workers without a restart). Programs with their own configuration
    read the host files, which are updated.
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
    """Whether running workers continue when workers are added."""
    more = {spec.type: spec.replicas + (spec.role not in _WHOLE) for spec in job.replica_specs}
    return not resize_restarts(job, replica_counts(job), more)


def replica_nodes(job: Job, placement: Placement, type_: str) -> tuple[str, ...]:
    """The nodes of a type's replicas, by index. Replicas without a node in the placement are omitted."""
    serving = {node for spec in job.replica_specs if spec.role is Role.PS for node in placement.get(spec.type, ())}
    counts = placement.get(type_, {})
    nodes = sorted(counts, key=lambda node: (node not in serving, -counts[node], node))
    return tuple(node for node in nodes for _ in range(counts[node]))


def topology_label(job: Job) -> str:
    """The node label whose value should be equal on all nodes of the gang; "": none."""
    return job.annotations.get(names.TOPOLOGY, "") or job.scheduling.topology


def requires_domain(job: Job) -> bool:
    """Whether the gang may only be admitted within one topology domain."""
    return bool(topology_label(job)) and job.annotations.get(names.TOPOLOGY_REQUIRED, "").lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """The gang may start, with ``sizes`` pods of each type (empty: as requested), on the nodes of ``placement``.

    ``fallback``: the number of the fallback (0: the document itself).
    """

    placement: Placement = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)
    fallback: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The gang waits.

    ``position``: its position in its queue, from 1 (0: none). ``rank``: approximately how many gangs of all queues come
    before it (0: unknown). The rank decides how often its message is refreshed.
    """

    reason: Reason
    message: str
    position: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An admitted gang gets other ``sizes``; ``placement`` has the nodes of all its pods."""

    sizes: Sizes
    placement: Placement
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """An admitted gang is preempted for the gang ``by`` (None: unknown), which waits in ``queue``."""

    by: JobKey | None
    message: str
    queue: str = ""


Verdict = Admit | Wait | Resize | Preempt


def replica_change_text(before: Sizes, after: Sizes) -> str:
    """``goes from 2 to 4 worker``, for every type whose number changes."""
    pairs = ((before.get(type_, 0), count, type_) for type_, count in after.items())
    return f"goes {' and '.join(f'from {old} to {new} {type_}' for old, new, type_ in pairs if old != new)}"


def replica_difference_text(asked: Job, sized: Job) -> str:
    """``3 worker instead of 5``, for every type whose number of replicas is not the requested one."""
    pairs = zip(asked.replica_specs, sized.replica_specs, strict=True)
    return ", ".join(f"{b.replicas} {a.type} instead of {a.replicas}" for a, b in pairs if a.replicas != b.replicas)


def fallback_text(job: Job, number: int) -> str:
    """``fallback 1 of 2 (4 worker instead of 8, queue spot)``: the fallback and its differences."""
    other = fallback_job(job, number)
    pairs = zip(job.replica_specs, other.replica_specs, strict=True)
    parts = [replica_difference_text(job, other)]
    if other.scheduling.queue != job.scheduling.queue:
        parts.append(f"queue {other.scheduling.queue or 'default'}")
    if any(one.template != two.template for one, two in pairs):
        parts.append("other pods")
    return f"fallback {number} of {len(job.fallbacks)} ({', '.join(filter(None, parts))})"


def waiting_replicas(job: Job, status: Status) -> int:
    """The number of replicas of an admitted job that wait for capacity, after the others have started."""
    return len(job.replicas) - len(startable_replicas(job, status))


def waiting_text(job: Job, status: Status) -> str:
    """``; 2 more wait for capacity``, if any replicas do. ``job`` has its admitted size."""
    waiting = waiting_replicas(job, status)
    return f"; {waiting} more {are(waiting, 'waits', 'wait')} for capacity" if waiting else ""


def admitted_text(job: Job, status: Status) -> str:
    """The message of a new admission: the number of replicas, and whether quota alone decided."""
    sized = current_job(job, status)
    smaller = replica_difference_text(job, sized)
    count, waiting = len(sized.replicas), waiting_replicas(sized, status)
    if waiting:
        text = f"{share_text(count - waiting, count)} admitted{waiting_text(sized, status)}"
        text += f"; begins with {smaller}" if smaller else ""
    elif smaller:
        text = f"begins with {smaller}"
    else:
        text = "the replica is admitted" if count == 1 else f"all {count} replicas are admitted"
    admission = status.admission
    # A controller without visible nodes has admitted the gang, and the scheduler has not found all nodes since.
    unseen = admission is not None and not admission.placement and not admission.by and admission.complete is None
    return text + (", by quota alone; the scheduler may still hold pods back" if unseen else "")

"""Snapshot of stored nodes, pods and jobs, the input of admission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tf_dist.core.api import names
from tf_dist.core.api.assignment import (
    PendingReason,
    Placement,
    chosen_job,
    fallback_job,
    grows_live,
    replica_nodes,
)
from tf_dist.core.api.job import Document, Job, ReplicaId, ReplicaSpec, priority_class
from tf_dist.core.api.lifecycle_policy import policy_may_restart
from tf_dist.core.api.status import LIVE, NO_PODS, Attempts, Phase, Status
from tf_dist.core.api.timestamps import parse_duration
from tf_dist.core.gang.placement.anti_affinity import ExclusiveResources
from tf_dist.core.gang.placement.predicates import REFUSED_NODES
from tf_dist.core.gang.resources.namespace_selector import LabelsOf, NamespaceMatcher
from tf_dist.core.gang.resources.pod_index import BoundPods, PodIndex
from tf_dist.core.gang.resources.pod_requests import add_resources, gang_exclusions, pod_sets
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas, gang_quota_usage
from tf_dist.core.gang.types import (
    DEFAULT_QUEUE,
    NO_ADMISSION_CONFIG,
    AdmissionPolicy,
    AssignedPods,
    Gang,
    GangQuotaUsage,
    Node,
    PriorityClass,
    Queue,
    Resources,
    Snapshot,
    TopologyRequest,
    UnavailableNode,
)

if TYPE_CHECKING:
    from tf_dist.core.gang.types import AdmissionConfig


_MOST_CHARACTERS: Final = 500
_SYSTEM_CLASSES: Final = "system-"  # a prefix that Kubernetes keeps for its own classes
_NO_QUOTAS: Final[ResourceQuotas] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A job that is admitted or waits: the job, its status, and its creation (epoch seconds)."""

    job: Job
    status: Status
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChanges:
    """Changes for admission. ``gangs`` by uid, ``nodes`` by name; None: it is gone, or takes no more pods.

    ``unavailable``: all nodes that take none for now. ``orphans``: by queue, what pods on nodes request whose job has
    no part in admission (any more): it is deleted or being deleted, suspended, or finished.
    """

    gangs: Mapping[str, Gang | None]
    nodes: Mapping[str, Node | None]
    queues: tuple[Queue, ...]
    bounds: ResourceQuotas
    unavailable: Mapping[str, UnavailableNode]
    orphans: Mapping[str, Resources]


class SnapshotBuilder:
    """Builder of the input of admission: what has not changed stays the identical value.

    It is fed every change of a pod or node; an ``update`` costs what is new. Not thread-safe.
    """

    def __init__(self) -> None:
        self._pod_index = PodIndex()
        self._rules = NO_ADMISSION_CONFIG
        self._bounds: ResourceQuotas = _NO_QUOTAS
        self._claims: dict[str, AdmissionRequest] = {}
        self._gangs: dict[str, Gang] = {}  # of each of them
        self._columns = ExclusiveResources()
        self._doors = NamespaceMatcher()
        self._left: dict[str, Mapping[str, Resources]] = {}  # what pods without a gang request, by job and queue
        self._orphans: Mapping[str, Resources] = {}

    def change(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        """Apply a change of a pod: added (``old`` None), changed, or deleted (``new`` None)."""
        self._pod_index.change(old, new)

    def put_node(self, name: str, raw: Mapping[str, Any] | None) -> None:
        """Add, update or (``raw`` None) remove a node."""
        self._pod_index.put_node(name, raw)

    def update(
        self,
        claims: Mapping[str, AdmissionRequest | None],
        *,
        rules: AdmissionConfig = NO_ADMISSION_CONFIG,
        bounds: ResourceQuotas = _NO_QUOTAS,
        namespaces: LabelsOf = lambda _: None,
        whole: bool = False,
    ) -> SnapshotChanges:
        """The changes since the last call. ``claims``: the changed ones by uid (None: there is none any more).

        ``whole``: they are all there are, and all is given, for a reader that knows nothing yet. ``namespaces``: their
        labels.
        """
        if whole:
            claims = {**dict.fromkeys(self._gangs), **claims}
        moved, came = self._pod_index.moved(), self._pod_index.came()
        anew = rules.counted != self._rules.counted
        judged = self._doors.turn(rules.queues or (), namespaces)
        wide = anew or judged or bounds.keys() != self._bounds.keys()
        self._rules, self._bounds = rules, bounds
        found: dict[str, Gang | None] = {}
        turned: set[str] = set()
        for uid in {**claims, **self._gangs} if wide else dict.fromkeys([*claims, *self._uids(moved | came)]):
            before, gang_before = self._claims.get(uid), self._gangs.get(uid)
            claim = claims.get(uid, before)
            if claim is None or claim.status.phase not in LIVE:
                gang = None
                self._claims.pop(uid, None)
                self._gangs.pop(uid, None)
            else:
                key = names.owned_by_key(claim.job.key.namespace, uid)
                known = gang_before if before is not None and not anew and before.job is claim.job else None
                stays = before is not None and key not in moved and _same(before, claim)
                gang = self._gang(claim, known, key, stays=stays, came=key in came)
                gang = self._judged(gang, namespaces)
                if gang_before is not None and gang == gang_before:
                    gang = gang_before
                self._claims[uid], self._gangs[uid] = claim, gang
            if (gang is None) is not (gang_before is None):
                namespace = (gang or gang_before).key.namespace  # type: ignore[union-attr]
                turned.add(names.owned_by_key(namespace, uid))
            if gang is not gang_before:
                found[uid] = gang
                self._columns.hold(uid, _columns(gang))
        self._columns.settle()
        if whole:
            found = dict(self._gangs)
        nodes = self._pod_index.nodes(self._columns.keys, whole=whole)
        return SnapshotChanges(
            gangs=found,
            nodes=nodes,
            queues=rules.queues or (),
            bounds=bounds,
            unavailable=self._pod_index.unavailable,
            orphans=self._count_orphans(turned | self._pod_index.recharged(), namespaces, again=judged or anew),
        )

    def _count_orphans(self, keys: Collection[str], namespaces: LabelsOf, *, again: bool) -> Mapping[str, Resources]:
        """What pods without a gang request, by queue.

        Labels prove nothing where users may create pods: a pod counts only in a queue that is open to its namespace.
        """
        before = {key: self._left.get(key) for key in keys}
        for key in keys:
            left = {} if key.rpartition("/")[2] in self._gangs and "//" not in key else self._pod_index.charged(key)
            if left:
                self._left[key] = left
            else:
                self._left.pop(key, None)
        if not again and all(self._left.get(key) == left for key, left in before.items()):
            return self._orphans
        found: dict[str, list[Resources]] = {}
        for key in sorted(self._left):
            for label, amounts in self._left[key].items():
                queue = self._rules.queue_of(label) or DEFAULT_QUEUE
                if not self._doors.shut(queue, key.partition("/")[0], namespaces):
                    found.setdefault(queue, []).append(amounts)
        self._orphans = {queue: add_resources(parts) for queue, parts in sorted(found.items())}
        return self._orphans

    def _uids(self, keys: Iterable[str]) -> list[str]:
        """The jobs with these ``names.owned_by_key`` that are known."""
        uids = (key.rpartition("/")[2] for key in sorted(keys))
        return [uid for uid in uids if uid in self._gangs]

    def _gang(self, claim: AdmissionRequest, known: Gang | None, key: str, *, stays: bool, came: bool) -> Gang:
        """A job as admission sees it. ``known``: as it was, if it is the same job under the same rules; ``stays``:
        and nothing but its quotas can have changed since.
        """
        bounded = claim.job.key.namespace in self._bounds
        if known is None or not stays:
            try:
                counted = build_gang(claim, self._pod_index.bound(key), self._rules, self._columns, known)
            except Exception as error:  # it must not affect others
                counted = _gang_with_problem(claim, f"it cannot be counted: {type(error).__name__}: {error}")
            return self._charged(claim, counted, self._rules, key, bounded=bounded)
        if (known.charges is not None) != bounded or (bounded and came):
            return self._charged(claim, known, self._rules, key, bounded=bounded)
        return known

    def _judged(self, gang: Gang, namespaces: LabelsOf) -> Gang:
        """The gang with why its queue does not take it, if so: its namespace, or its priority class."""
        queue = gang.queue or DEFAULT_QUEUE
        found, reason = self._doors.shut(queue, gang.key.namespace, namespaces), PendingReason.NAMESPACE_MISMATCH
        if not found and (found := _refused_class(self._rules, queue, gang.priority_classes)):
            reason = PendingReason.PRIORITY_CLASS_REFUSED
        others = tuple(self._judged(one, namespaces) for one in gang.fallbacks)
        same = (found, reason) == (gang.inadmissible, gang.inadmissible_reason)
        if same and all(one is two for one, two in zip(others, gang.fallbacks, strict=True)):
            return gang
        return replace(gang, inadmissible=found, inadmissible_reason=reason, fallbacks=others)

    def _charged(self, claim: AdmissionRequest, gang: Gang, rules: AdmissionConfig, key: str, *, bounded: bool) -> Gang:
        """The gang with its usage of the ResourceQuotas of its namespace, if there are any."""
        if not bounded or gang.problem:
            others = tuple(replace(one, charges=None) for one in gang.fallbacks)
            return replace(gang, charges=None, created={}, fallbacks=others) if gang.charges is not None else gang

        def charges(fallback: int) -> GangQuotaUsage:
            return gang_quota_usage(fallback_job(claim.job, fallback), rules)

        others = tuple(replace(one, charges=charges(one.fallback)) for one in gang.fallbacks)
        created = self._pod_index.created(key)
        return replace(gang, charges=charges(gang.fallback), created=created, fallbacks=others)


def _refused_class(rules: AdmissionConfig, queue: str, classes: Collection[str]) -> str:
    """Why a queue does not take a job because of its priority classes; "" if it does."""
    for name in classes:
        if name.startswith(_SYSTEM_CLASSES):
            return f'priority class "{name}" is for components of the cluster, not for jobs; name another one, or none'
    allowed = next((one.priority_classes for one in rules.queues or () if one.name == queue), None)
    refused = [name for name in classes if name not in allowed] if allowed is not None else []
    if allowed is None or not refused:
        return ""
    listed = f"its priorityClasses: {', '.join(allowed)}" if allowed else "its priorityClasses are empty"
    return f'queue "{queue}" does not take priority class "{refused[0]}" ({listed}); name another one, or none'


def _same(one: AdmissionRequest, other: AdmissionRequest) -> bool:
    """Whether they are read from the same version of a job."""
    return one.job is other.job and one.status is other.status and one.created_at == other.created_at


def build_snapshot(
    claims: Iterable[AdmissionRequest],
    nodes: Iterable[Mapping[str, Any]] | None,
    pods: Iterable[Mapping[str, Any]],
    *,
    now: float = 0.0,
    rules: AdmissionConfig = NO_ADMISSION_CONFIG,
    policy: AdmissionPolicy | None = None,
    bounds: ResourceQuotas = _NO_QUOTAS,
    namespaces: LabelsOf = lambda _: None,
) -> Snapshot:
    """The whole input of admission at once. ``nodes`` None: they cannot be listed."""
    snapshots = SnapshotBuilder()
    for pod in pods:
        snapshots.change(None, pod)
    for node in nodes or ():
        snapshots.put_node(node["metadata"]["name"], node)
    listed = {claim.job.uid: claim for claim in claims}
    seen = snapshots.update(listed, rules=rules, bounds=bounds, namespaces=namespaces, whole=True)
    return Snapshot(
        gangs=tuple(gang for gang in seen.gangs.values() if gang is not None),
        nodes=tuple(node for node in seen.nodes.values() if node is not None) if nodes is not None else None,
        now=now,
        queues=seen.queues,
        policy=policy or AdmissionPolicy(),
        bounds=bounds,
        unavailable=seen.unavailable,
        orphans=seen.orphans,
    )


def _columns(gang: Gang | None) -> frozenset[str]:
    """The columns that a gang has of what a node has once."""
    gangs = (gang, *gang.fallbacks) if gang else ()
    return frozenset(one.name for each in gangs for member in each.members for one in member.exclusives)


def build_gang(
    claim: AdmissionRequest,
    bound: BoundPods,
    rules: AdmissionConfig,
    columns: ExclusiveResources,
    known: Gang | None = None,
) -> Gang:
    """A job as admission sees it, with those of its pods that are on nodes, and with its fallbacks while it waits.
    ``known``: as it was, if it is the same job under the same rules.

    They are tried once it has waited for its admission timeout. After a disruption the next fallback comes first, and
    those behind it are tried at once, too.
    """
    job, status = claim.job, claim.status
    if status.admission is not None or not job.fallbacks:
        chosen = replace(claim, job=chosen_job(job, status))
        return _build_gang(chosen, bound, rules, columns, status.fallback, known)
    number = len(job.fallbacks) + 1
    first = status.fallback_from % number
    timeout = job.scheduling.admission_timeout
    since = claim.created_at if status.since is None else status.since
    later = inf if timeout is None else since + timeout
    gangs = []
    for turn in range(number):
        which = (first + turn) % number
        as_that = replace(claim, job=fallback_job(job, which))
        gang = _build_gang(as_that, bound if not turn else BoundPods(), rules, columns, which)
        if turn:
            tried_from = 0.0 if which > first > 0 else later
            gang = replace(
                gang, uid=f"{gang.uid}/{which}", fallback_of=gang.uid, nominated=False, tried_from=tried_from
            )
        gangs.append(gang)
    return replace(gangs[0], fallbacks=tuple(gang for gang in gangs[1:] if gang.tried_from < inf))


def _build_gang(
    claim: AdmissionRequest,
    bound: BoundPods,
    rules: AdmissionConfig,
    columns: ExclusiveResources,
    fallback: int,
    known: Gang | None = None,
) -> Gang:
    progress, refused = _progress(claim, bound), claim.status.refused_nodes
    if known is not None and known.fallback == fallback and not refused and _has_plain_members(known):
        return replace(known, fallbacks=(), **progress)
    return Gang(**_of_document(claim.job, rules, columns, refused), fallback=fallback, **progress)


def _has_plain_members(gang: Gang) -> bool:
    """Whether its members are as its document and the rules say: without columns and nodes that were refused."""
    plain = not any(member.exclusives or REFUSED_NODES in member.constraints for member in gang.members)
    return plain and gang.pinned and gang.locality is None and not gang.problem


def _of_document(
    job: Job, rules: AdmissionConfig, columns: ExclusiveResources, refused: Collection[str]
) -> dict[str, Any]:
    """The fields of a gang that its document decides, with the nodes that were refused to its pods."""
    apart, predictable = columns.exclusives(gang_exclusions(job))
    locality, priority = _locality(job), _priority(job, rules)
    defaults = rules.container_defaults.get(job.key.namespace)
    members = pod_sets(job, rules.overheads, rules.priorities, defaults)
    if refused or any(apart):
        members = tuple(
            replace(member, exclusives=one, constraints=_without(member.constraints, refused))
            for member, one in zip(members, apart, strict=True)
        )
    return {
        "key": job.key,
        "uid": job.uid,
        "members": members,
        "queue": rules.queue_of(job.scheduling.queue),
        "priority_classes": tuple(dict.fromkeys(_named_classes(job))),
        "priority": priority.value,
        "preempts": priority.preempts,
        "preemptable": job.scheduling.preemptable,
        "patience": job.scheduling.patience,
        "live": grows_live(job),
        # Only nodes that are named are surely in one rack.
        "pinned": predictable or (locality is not None and locality.required),
        "locality": locality,
        "estimate": _estimate(job),
    }


def _progress(claim: AdmissionRequest, bound: BoundPods) -> dict[str, Any]:
    """The other fields: those that its status and its pods decide."""
    job, status, admission = claim.job, claim.status, claim.status.admission
    assigned = admission and AssignedPods(
        at=admission.at, sizes=admission.granted, placement=admission.placement, resized=admission.resized
    )
    ended = _ended(status, bound)
    bound_now: Placement = bound.placement()
    if assigned is not None and bound_now == assigned.placement:
        bound_now = assigned.placement  # so it is with nearly all, and there may be thousands
    return {
        "created_at": claim.created_at,
        "nominated": assigned is None and status.reason == PendingReason.PREEMPTING,
        "not_before": status.not_before,
        "assigned": assigned,
        "bound": bound_now,
        "earlier": bound.earlier(_requeued(status)),
        "pod_nodes": {spec.type: _replica_nodes(claim, bound, spec) for spec in job.replica_specs} if assigned else {},
        "done": dict(_done(job, status, ended)) if assigned else {},
        "vacated": _vacated(job, ended, assigned.placement) if assigned else {},
    }


def _requeued(status: Status) -> Attempts | None:
    """The attempts of a job whose pods of earlier ones are not of its place; None: they are, it starts again in it.

    One of its replicas may have been given up alone: its pod was sent to a node that is gone.
    """
    return status.attempts if status.phase is Phase.PENDING else None


def _ended(status: Status, bound: BoundPods) -> frozenset[ReplicaId]:
    """The replicas that succeeded and use no node any more: a sidecar may keep the pod of one running."""
    on_nodes = {type_: bound.nodes(type_, _requeued(status)) for type_ in {one.type for one in status.succeeded}}
    return frozenset(replica for replica in status.succeeded if replica.index not in on_nodes[replica.type])


def _done(job: Job, status: Status, ended: frozenset[ReplicaId]) -> Counter[str]:
    """By type, the replicas that have ended for good: those that succeeded, and those that nothing restarts.

    Should the job start again as a whole, they need room again; they wait for it where others have it by then.
    """
    done = Counter(replica.type for replica in ended)
    for spec in job.replica_specs:
        failed = status.counts.get(spec.type, NO_PODS).failed
        if failed and not policy_may_restart(job, spec):
            done[spec.type] += failed
    return done


def _vacated(job: Job, ended: frozenset[ReplicaId], placement: Placement) -> dict[str, Counter[str]]:
    """Per type and node, the replicas that have succeeded: their room is free for others."""
    found: dict[str, Counter[str]] = {}
    for type_ in {replica.type for replica in ended}:
        nodes = replica_nodes(job, placement, type_)
        done = (replica.index for replica in ended if replica.type == type_)
        found[type_] = Counter(nodes[index] for index in done if index < len(nodes))
    return found


def _gang_with_problem(claim: AdmissionRequest, problem: str) -> Gang:
    """A job that cannot be counted, as admission sees it: it says why."""
    admission = claim.status.admission
    return Gang(
        key=claim.job.key,
        uid=claim.job.uid,
        created_at=claim.created_at,
        members=(),
        assigned=AssignedPods(at=admission.at, sizes={}, placement={}) if admission is not None else None,
        problem=problem[:_MOST_CHARACTERS],
    )


def _without(constraints: Document, refused: Collection[str]) -> Document:
    return {**constraints, REFUSED_NODES: sorted(refused)} if refused else constraints


def _replica_nodes(claim: AdmissionRequest, bound: BoundPods, spec: ReplicaSpec) -> tuple[str, ...]:
    """The nodes of a type's replicas by index: where their pods are, else where they are to be.

    What index a pod has is only a label: one beyond all that there can be is passed over.
    """
    admission = claim.status.admission
    meant = replica_nodes(claim.job, admission.placement, spec.type) if admission else ()
    found = bound.nodes(spec.type, _requeued(claim.status))
    most = max(len(meant), spec.replicas, len(found))
    count = max(len(meant), max((index for index in found if index < most), default=-1) + 1)
    return tuple(found.get(index) or (meant[index] if index < len(meant) else "") for index in range(count))


def _named_classes(job: Job) -> Iterator[str]:
    """The priority classes that the job and its templates name."""
    found = (job.scheduling.priority_class, *(spec.pod_spec.get("priorityClassName") for spec in job.replica_specs))
    return (str(name) for name in found if name)


def _priority(job: Job, rules: AdmissionConfig) -> PriorityClass:
    """The priority of a job: of its class, else its queue's default, else that of jobs without a class."""
    name = priority_class(job)
    known = rules.priorities.get(name) if name else None
    if known is not None:
        return known
    queue = next(
        (
            queue
            for queue in rules.queues or ()
            if queue.name == (rules.queue_of(job.scheduling.queue) or DEFAULT_QUEUE)
        ),
        None,
    )
    if queue is not None and queue.default_priority:
        return PriorityClass(queue.default_priority)
    return rules.priorities.get("", PriorityClass(0))


def _locality(job: Job) -> TopologyRequest | None:
    label = job.annotations.get(names.TOPOLOGY, "") or job.scheduling.topology
    required = job.annotations.get(names.TOPOLOGY_REQUIRED, "").lower() == "true"
    return TopologyRequest(label=label, required=required) if label else None


def _estimate(job: Job) -> float | None:
    """The expected run time of a job, else its deadline; an invalid one is ignored."""
    said = parse_duration(job.annotations.get(names.EXPECTED_DURATION, "").strip())
    return said or job.run_policy.active_deadline

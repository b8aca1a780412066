"""From raw nodes, pods and jobs to what admission decides on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.gang.bounds import Quotas
from tf_dist.core.gang.charges import charges
from tf_dist.core.gang.demand import Overheads, excluded, members
from tf_dist.core.gang.exclusive import Columns
from tf_dist.core.gang.fit import REFUSED
from tf_dist.core.gang.model import PREEMPTING, Gang, Locality, Node, Place, Placement, Policy, Queue, Snapshot
from tf_dist.core.gang.namespaces import Doors, LabelsOf
from tf_dist.core.gang.queue_tree import DEFAULT
from tf_dist.core.gang.sight import Bound, Sight
from tf_dist.core.model import Document, Job, ReplicaSpec
from tf_dist.core.policies import may_restart
from tf_dist.core.seats import seats
from tf_dist.core.sizes import grows_live
from tf_dist.core.status import LIVE, NO_PODS, Status

_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|s))+", re.ASCII)
_PART: Final = re.compile(r"([0-9.]+)(h|ms|m|s)", re.ASCII)
_MOST_CHARACTERS: Final = 500
_LONGEST: Final = 64
_NO_QUOTAS: Final[Quotas] = MappingProxyType({})
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
    """What else counts: the queues, and the priority classes by name ("": that of jobs which name none, whose
    name is ``default_class``), and what a pod of a runtime class takes besides its containers, by its name.

    ``queues`` None: there are none, or they may not be seen. The queue that a job names is another system's then.
    """

    queues: tuple[Queue, ...] | None = None
    priorities: Mapping[str, Priority] = field(default_factory=dict)
    default_class: str = ""
    overheads: Overheads = field(default_factory=dict)

    @property
    def counted(self) -> tuple[object, ...]:
        """What of it decides how jobs are counted, as a value to compare: quotas do not."""
        queues = None if self.queues is None else {one.name: one.default_priority for one in self.queues}
        return queues, self.priorities, self.default_class, self.overheads


NO_RULES: Final = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is new for admission. ``gangs`` by uid, ``nodes`` by name; None: it is gone, or takes no more pods."""

    gangs: Mapping[str, Gang | None]
    nodes: Mapping[str, Node | None]
    queues: tuple[Queue, ...]
    bounds: Quotas


class Snapshots:
    """Keeps what admission decides on: what has not changed stays the very same value.

    It is told of every pod and every node that changes; an ``update`` costs what there is new. Not thread-safe.
    """

    def __init__(self) -> None:
        self._sight = Sight()
        self._rules = NO_RULES
        self._bounds: Quotas = _NO_QUOTAS
        self._gangs: dict[str, tuple[Claim, Gang]] = {}
        self._columns = Columns()
        self._doors = Doors()

    def change(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        """A pod has come (``old`` None), has changed, or is gone (``new`` None)."""
        self._sight.change(old, new)

    def put_node(self, name: str, raw: Mapping[str, Any] | None) -> None:
        """A node has come or changed, or is gone (``raw`` None)."""
        self._sight.put_node(name, raw)

    def update(
        self,
        claims: Mapping[str, Claim | None],
        *,
        rules: Rules = NO_RULES,
        bounds: Quotas = _NO_QUOTAS,
        namespaces: LabelsOf = lambda _: None,
        whole: bool = False,
    ) -> Changes:
        """What is new since the last time. ``claims``: by uid those that have changed (None: there is none any more).

        ``whole``: they are all there are, and all is given, for a reader that knows nothing yet. ``namespaces``: their
        labels.
        """
        if whole:
            claims = {**dict.fromkeys(self._gangs), **claims}
        moved, came = self._sight.moved(), self._sight.came()
        anew = rules.counted != self._rules.counted
        judged = self._doors.turn(rules.queues or (), namespaces)
        wide = anew or judged or bounds.keys() != self._bounds.keys()
        self._rules, self._bounds = rules, bounds
        found: dict[str, Gang | None] = {}
        for uid in {**claims, **self._gangs} if wide else dict.fromkeys([*claims, *self._uids(moved | came)]):
            before = self._gangs.get(uid)
            claim = claims[uid] if uid in claims else before and before[0]
            if claim is None or claim.status.phase not in LIVE:
                gang = None
                self._gangs.pop(uid, None)
            else:
                key = names.owned_key(claim.job.key.namespace, uid)
                same = before is not None and not anew and key not in moved and _same(before[0], claim)
                gang = self._gang(claim, before[1] if before and same else None, key, came=key in came)
                gang = self._judged(gang, namespaces)
                if before is not None and gang == before[1]:
                    gang = before[1]
                self._gangs[uid] = claim, gang
            if gang is not (before and before[1]):
                found[uid] = gang
                self._columns.hold(uid, _columns(gang))
        self._columns.settle()
        if whole:
            found = {uid: gang for uid, (_, gang) in self._gangs.items()}
        nodes = self._sight.nodes(self._columns.keys, whole=whole)
        return Changes(gangs=found, nodes=nodes, queues=rules.queues or (), bounds=bounds)

    def _uids(self, keys: Iterable[str]) -> list[str]:
        """The jobs with these ``names.owned_key`` that are known."""
        uids = (key.rpartition("/")[2] for key in sorted(keys))
        return [uid for uid in uids if uid in self._gangs]

    def _gang(self, claim: Claim, known: Gang | None, key: str, *, came: bool) -> Gang:
        """A job as admission sees it. ``known``: as it was, where nothing but its quotas can have changed since."""
        bounded = claim.job.key.namespace in self._bounds
        if known is None:
            counted = _counted(claim, self._sight.bound(key), self._rules, self._columns)
            return self._charged(claim, counted, self._rules, key, bounded=bounded)
        if (known.charges is not None) != bounded or (bounded and came):
            return self._charged(claim, known, self._rules, key, bounded=bounded)
        return known

    def _judged(self, gang: Gang, namespaces: LabelsOf) -> Gang:
        """The gang with what its queue says of its namespace."""
        found = self._doors.shut(gang.queue or DEFAULT, gang.key.namespace, namespaces)
        return replace(gang, inadmissible=found) if found != gang.inadmissible else gang

    def _charged(self, claim: Claim, gang: Gang, rules: Rules, key: str, *, bounded: bool) -> Gang:
        """The gang with what it counts as in the quotas of its namespace, if there are any."""
        if not bounded or gang.problem:
            return replace(gang, charges=None, created={}) if gang.charges is not None else gang
        return replace(
            gang, charges=charges(claim.job, rules.overheads, rules.default_class), created=self._sight.created(key)
        )


def _same(one: Claim, other: Claim) -> bool:
    """Whether they are read from the same version of a job."""
    return one.job is other.job and one.status is other.status and one.created_at == other.created_at


def snapshot(
    claims: Iterable[Claim],
    nodes: Iterable[Mapping[str, Any]] | None,
    pods: Iterable[Mapping[str, Any]],
    *,
    now: float = 0.0,
    rules: Rules = NO_RULES,
    policy: Policy | None = None,
    bounds: Quotas = _NO_QUOTAS,
    namespaces: LabelsOf = lambda _: None,
) -> Snapshot:
    """What admission decides on, from everything there is. ``nodes`` None: they may not be seen."""
    snapshots = Snapshots()
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
        policy=policy or Policy(),
        bounds=bounds,
    )


def _columns(gang: Gang | None) -> frozenset[str]:
    """The columns that a gang has of what a node has once."""
    return frozenset(one.name for member in gang.members for one in member.exclusives) if gang else frozenset()


def gang(claim: Claim, bound: Bound, rules: Rules, columns: Columns) -> Gang:
    """A job as admission sees it, with those of its pods that are on nodes."""
    job, status, admission = claim.job, claim.status, claim.status.admission
    apart, predictable = columns.exclusives(excluded(job))
    locality = _locality(job)
    place = None
    if admission is not None:
        place = Place(at=admission.at, sizes=admission.sizes, placement=admission.placement, resized=admission.resized)
    done = _done(job, status) if admission is not None else {}
    priority = _priority(job, rules)
    return Gang(
        key=job.key,
        uid=job.uid,
        created_at=claim.created_at,
        members=tuple(
            replace(member, exclusives=one, constraints=_without(member.constraints, status.refused_nodes))
            if one or status.refused_nodes
            else member
            for member, one in zip(members(job, rules.overheads), apart, strict=True)
        ),
        queue=job.scheduling.queue if rules.queues is not None else "",
        priority=priority.value,
        preempts=priority.preempts,
        promised=place is None and status.reason == PREEMPTING,
        live=grows_live(job),
        # Only nodes that are named are surely in one rack.
        pinned=predictable or (locality is not None and locality.required),
        locality=locality,
        estimate=_estimate(job),
        not_before=status.not_before,
        place=place,
        bound=bound.placement(),
        seats={spec.type: _seats(claim, bound, spec) for spec in job.replica_specs} if place else {},
        done=dict(done),
        vacated=_vacated(job, status, place.placement) if place else {},
    )


def _counted(claim: Claim, bound: Bound, rules: Rules, columns: Columns) -> Gang:
    """A job as admission sees it; one that cannot be counted says why, and does not affect others."""
    try:
        return gang(claim, bound, rules, columns)
    except Exception as error:
        return _uncounted(claim, f"it cannot be counted: {type(error).__name__}: {error}")


def _done(job: Job, status: Status) -> Counter[str]:
    """By type, the replicas that have ended for good: those that succeeded, and those that nothing restarts.

    Should the job start again as a whole, they need room again; they wait for it where others have it by then.
    """
    done = Counter(replica.type for replica in status.succeeded)
    for spec in job.replica_specs:
        failed = status.counts.get(spec.type, NO_PODS).failed
        if failed and not may_restart(job, spec):
            done[spec.type] += failed
    return done


def _vacated(job: Job, status: Status, placement: Placement) -> dict[str, Counter[str]]:
    """Per type and node, the seats of the replicas that have succeeded: their room is others' by now."""
    found: dict[str, Counter[str]] = {}
    for type_ in {replica.type for replica in status.succeeded}:
        nodes = seats(job, placement, type_)
        done = (replica.index for replica in status.succeeded if replica.type == type_)
        found[type_] = Counter(nodes[index] for index in done if index < len(nodes))
    return found


def _uncounted(claim: Claim, problem: str) -> Gang:
    admission = claim.status.admission
    return Gang(
        key=claim.job.key,
        uid=claim.job.uid,
        created_at=claim.created_at,
        members=(),
        place=Place(at=admission.at, sizes={}) if admission is not None else None,
        problem=problem[:_MOST_CHARACTERS],
    )


def _without(constraints: Document, refused: Collection[str]) -> Document:
    return {**constraints, REFUSED: sorted(refused)} if refused else constraints


def _seats(claim: Claim, bound: Bound, spec: ReplicaSpec) -> tuple[str, ...]:
    """The nodes of a type's replicas by index: where their pods are, else where they are to be.

    What index a pod has is only a label: one beyond all that there can be is passed over.
    """
    admission = claim.status.admission
    meant = seats(claim.job, admission.placement, spec.type) if admission else ()
    found = bound.nodes(spec.type)
    most = max(len(meant), spec.replicas, len(found))
    count = max(len(meant), max((index for index in found if index < most), default=-1) + 1)
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
    text = text.strip() if len(text) <= _LONGEST else ""
    if text.isascii() and text.isdecimal():
        return float(text) or None
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text)) or None

"""The scheduler cache: all gangs, their use of nodes and quotas, their positions in queues, and their expected ends."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from tf_dist.core.gang.placement.pod_sets import (
    NO_REQUEST,
    GangRequest,
    GangRequests,
    PodClass,
    PodSetRequest,
    PodsOnNode,
    total_resources,
)
from tf_dist.core.gang.placement.predicates import InvalidConstraints
from tf_dist.core.gang.placement.search import AssumedPods
from tf_dist.core.gang.quota import Quotas
from tf_dist.core.gang.resources.pod_requests import add_resources
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas, ResourceQuotaUsage
from tf_dist.core.gang.types import Gang, Node, PodSet, Resources, UnavailableNode
from tf_dist.core.model.assignment import Placement, Sizes
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE, Queue
from tf_dist.core.model.job import JobKey


class UnstartedPods(NamedTuple):
    """Assigned pods of a type that do not exist yet. Pods of earlier attempts may still use their capacity."""

    type: str
    """Their replica type."""
    shape: PodClass
    """Their class."""
    number: int
    """The number of pods."""
    nodes: Mapping[str, int]
    """The number that may run on each node. The sum exceeds ``number`` if other pods of the type have ended."""


@dataclass(slots=True)
class Usage:
    """Usage of a gang."""

    assumed: tuple[PodsOnNode, ...] = ()
    """Assigned pods that are not bound yet, by node."""
    unassigned: tuple[tuple[PodClass, int], ...] = ()
    """Assigned pods without a node."""
    terminating: tuple[PodsOnNode, ...] = ()
    """Bound pods that will be deleted."""
    remaining: tuple[PodsOnNode, ...] = ()
    """All other pods."""
    unstarted: tuple[UnstartedPods, ...] = ()
    """Assigned pods that do not exist yet, but have assigned nodes."""
    quota: Resources = field(default_factory=dict)
    """The requests of all pods."""
    terminating_quota: Resources = field(default_factory=dict)
    """The requests of pods that will be deleted."""
    remaining_quota: Resources = field(default_factory=dict)
    """The requests of pods that remain or will be created."""

    @property
    def pods(self) -> int:
        """The number of remaining pods."""
        return sum(pods.number for pods in self.remaining)


NO_USAGE: Final = Usage()


def usage_of(gang: Gang, request: GangRequest) -> Usage:
    """The usage of a gang. The usage of an invalid gang includes only its quota."""
    if gang.assigned is None and not gang.bound:
        return NO_USAGE
    wanted = tuple(_wanted(gang, member) for member in gang.members)
    remaining = (
        request.need(wanted)
        if request is not NO_REQUEST
        else total_resources(zip((member.requests for member in gang.members), wanted, strict=True))
    )
    if gang.bound:
        bound = (sum(gang.bound.get(member.type, {}).values()) for member in gang.members)
        excess = (max(0, there - count) for there, count in zip(bound, wanted, strict=True))
        gone = total_resources(zip((member.requests for member in gang.members), excess, strict=True))
        held = Usage(quota=add_resources((remaining, gone)), terminating_quota=gone, remaining_quota=remaining)
    else:
        held = Usage(quota=remaining, remaining_quota=remaining)
    for want in request.wants:
        _add(held, gang, want)
    return held


def assigned_count(gang: Gang, member: PodSet) -> int:
    """The number of assigned pods of a member; 0 if the gang waits."""
    return gang.assigned.sizes.get(member.type, member.count) if gang.assigned else 0


def assigned_counts(gang: Gang) -> dict[str, int]:
    """The number of assigned pods of each type."""
    return {member.type: assigned_count(gang, member) for member in gang.members}


def _wanted(gang: Gang, member: PodSet) -> int:
    return max(0, assigned_count(gang, member) - gang.done.get(member.type, 0)) if gang.assigned else 0


def _placed(gang: Gang, type_: str) -> Mapping[str, int]:
    return gang.assigned.placement.get(type_, {}) if gang.assigned else {}


def _add(held: Usage, gang: Gang, want: PodSetRequest) -> None:
    shape = want.shape
    bound, outgoing = _present(gang, want.member)
    wanted, there = _wanted(gang, want.member), sum(bound.values())
    to_come, assumed = max(0, wanted - there), list[PodsOnNode]()
    placed, vacated = _placed(gang, want.type), gang.vacated.get(want.type) or {}
    if placed and (to_come or gang.earlier.get(want.type)):
        number, nodes = _unstarted(gang, want.member)
        held.unstarted += (UnstartedPods(want.type, shape, number, nodes),) if number and nodes else ()
    for node in sorted(placed):
        spare = min(to_come, placed[node] - vacated.get(node, 0) - bound.get(node, 0))
        if spare > 0:
            assumed.append(PodsOnNode(shape, node, spare))
            to_come -= spare
    held.assumed += tuple(assumed)
    if to_come:
        held.unassigned += ((shape, to_come),)
    if not bound and not outgoing:
        held.remaining += tuple(assumed)
        return
    excess = there - wanted
    surplus = last_nodes(_nodes_by_index(gang, want.type, bound), excess) if excess > 0 else Counter()
    terminating = surplus + Counter(outgoing)
    held.terminating += tuple(PodsOnNode(shape, node, terminating[node]) for node in sorted(terminating) if node)
    remaining = Counter(bound)
    remaining.subtract(surplus)
    for pods in assumed:
        remaining[pods.node] += pods.number
    held.remaining += tuple(
        PodsOnNode(shape, node, remaining[node]) for node in sorted(remaining) if remaining[node] > 0
    )


def _unstarted(gang: Gang, member: PodSet) -> tuple[int, dict[str, int]]:
    """The number and the nodes of a member's ``UnstartedPods``."""
    earlier = gang.earlier.get(member.type, {})
    there = {node: count - earlier.get(node, 0) for node, count in gang.bound.get(member.type, {}).items()}
    vacated = gang.vacated.get(member.type, {})
    placed = _placed(gang, member.type).items()
    free = {node: count - vacated.get(node, 0) - there.get(node, 0) for node, count in placed}
    count = max(0, _wanted(gang, member) - sum(there.values()))
    return count, {node: count for node, count in free.items() if count > 0}


def _present(gang: Gang, member: PodSet) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The pods of a type, and the pods of earlier attempts that will be deleted, both by node.

    If an assigned pod will run on a node with a pod of an earlier attempt, it takes over that pod's capacity, because
    attempts never overlap. Therefore the earlier pod counts as the assigned pod. Unless the job was requeued, this also
    holds for assigned pods without a node.
    """
    bound, earlier = gang.bound.get(member.type) or {}, gang.earlier.get(member.type)
    if not earlier:
        return bound, {}
    count, nodes = _unstarted(gang, member)
    anywhere = 0 if gang.requeued else max(0, count - sum(nodes.values()))
    outgoing: dict[str, int] = {}
    for node, there in sorted(earlier.items()):
        left = there - min(there, nodes.get(node, 0))
        taken_over = min(left, anywhere)
        anywhere -= taken_over
        outgoing[node] = left - taken_over
    return dict(Counter(bound) - Counter(outgoing)), {node: count for node, count in outgoing.items() if count}


def _nodes_by_index(gang: Gang, type_: str, there: Mapping[str, int]) -> list[str]:
    """The nodes of a type's pods by replica index.

    If the index is unknown, nodes with pods of other types (parameter servers) come first, then the nodes with most
    pods.
    """
    known = list(gang.pod_nodes.get(type_, ()))
    left = Counter(there)
    left.subtract(node for node in known if node)
    placement = gang.assigned.placement if gang.assigned else {}
    others = {node for other, nodes in placement.items() if other != type_ for node in nodes}
    order = sorted(left, key=lambda node: (node not in others, -left[node], node))
    spare = [node for node in order for _ in range(left[node])]
    spare.reverse()
    return [node or (spare.pop() if spare else "") for node in known] + spare[::-1]


def last_nodes(nodes: list[str], count: int) -> Counter[str]:
    """The nodes of the last pods."""
    return Counter(nodes[len(nodes) - count :] if count else ())


def nodes_by_index(gang: Gang, type_: str) -> list[str]:
    """The nodes of a gang's assigned pods, by replica index; "" if unknown.

    A gang that shrinks gives up the pods with the highest indexes.
    """
    member = next(member for member in gang.members if member.type == type_)
    placed, (bound, _) = _placed(gang, type_), _present(gang, member)
    where = {node: max(placed.get(node, 0), bound.get(node, 0)) for node in {**placed, **bound}}
    count = assigned_count(gang, member)
    nodes = _nodes_by_index(gang, type_, where)
    return (nodes + [""] * (count - len(nodes)))[:count]


def subtract_pods(pods: Iterable[PodsOnNode], others: Iterable[PodsOnNode]) -> list[PodsOnNode]:
    """``pods`` without ``others``."""
    left: Counter[tuple[PodClass, str]] = Counter()
    for sign, listed in ((1, pods), (-1, others)):
        for shape, node, count in listed:
            left[shape, node] += sign * count
    return [PodsOnNode(shape, node, count) for (shape, node), count in left.items() if count > 0]


def assigned_placement(gang: Gang, sizes: Sizes) -> Placement:
    """The placement of a gang, reduced to these sizes by the removal of the highest indexes."""
    kept = {type_: Counter(nodes_by_index(gang, type_)[:count]) for type_, count in sizes.items()}
    return {
        type_: {node: counts[node] for node in sorted(counts) if node} for type_, counts in kept.items() if any(counts)
    }


class Rank(NamedTuple):
    """A gang's rank in its queue. The smallest rank is first."""

    nominated: int
    """-1 if others are preempted for the gang, else 0."""
    priority: int
    """The negative priority of the gang."""
    patient: int
    """0 if the gang starves, else 1."""
    since: float
    """The start of the wait, or later for a long gang: see ``AdmissionPolicy.stretch``."""
    created_at: float
    """The creation time of the job: epoch seconds."""
    key: JobKey
    """The job."""
    uid: str
    """The uid of the gang."""


@dataclass(slots=True, eq=False)
class EquivalentGangs:
    """Gangs of a queue with equal requests and priority, and similar estimates. If the first cannot start, none can."""

    queue: str
    """The name of their queue."""
    key: tuple[object, ...]
    """Their common properties."""
    request: GangRequest
    """The request of each gang."""
    ranks: list[Rank]
    """The ranks of the gangs in order; never empty."""
    no_preemption_at: object = None
    """The state in which no gang could be preempted for the first gang."""
    blocked_by: str | None = None
    """The last reason why these gangs cannot start even if all others end; "": they can; None: not evaluated yet."""


@dataclass(slots=True, eq=False)
class Workload:
    """A gang with its state in the scheduler."""

    gang: Gang
    """The gang as last reported, or after a decision of the scheduler."""
    request: GangRequest
    """Its request; ``NO_REQUEST`` if the gang is invalid."""
    problem: str = ""
    """Why the gang is invalid; "" if it is valid."""
    uid: str = field(init=False)
    """The uid of the gang."""
    held: Usage = field(default_factory=lambda: NO_USAGE)
    """Its usage of nodes and quota."""
    released_pods: Sequence[PodsOnNode] = ()
    """The pods that the gang gives up by a verdict that it has not confirmed."""
    released_resources: Resources = field(default_factory=dict)
    """The requests of the released pods."""
    rank: Rank | None = None
    """Its rank; None if it is not queued."""
    group: EquivalentGangs | None = None
    """Its group; None if it is not queued."""
    _nodes: dict[str, list[str]] = field(default_factory=dict)
    """Cache of ``nodes_by_index``, by type."""

    def __post_init__(self) -> None:
        self.uid = self.gang.uid

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self.gang.queue or DEFAULT_QUEUE

    @property
    def admitted(self) -> bool:
        """Whether it is admitted."""
        return self.gang.assigned is not None

    @property
    def releasing(self) -> bool:
        """Whether the gang is being preempted or shrunk, and has not confirmed this."""
        return bool(self.released_pods or self.released_resources)

    @property
    def since(self) -> float:
        """The time from which on the gang may start: epoch seconds."""
        return max(self.gang.created_at, self.gang.not_before)

    @property
    def changed_at(self) -> float:
        """The time of the last change of its assigned pods: epoch seconds; -inf: it has none."""
        assigned = self.gang.assigned
        return -inf if assigned is None else assigned.at if assigned.resized is None else assigned.resized

    def update(self, gang: Gang, request: GangRequest, problem: str) -> None:
        """Update the gang."""
        self.gang, self.request, self.problem = gang, request, problem
        self._nodes = {}

    def nodes_by_index(self, type_: str) -> list[str]:
        """The nodes of its assigned pods, from ``nodes_by_index``. Must not be changed."""
        found = self._nodes.get(type_)
        if found is None:
            found = self._nodes[type_] = nodes_by_index(self.gang, type_)
        return found


PreemptionRank = tuple[int, float, float, str]
"""The order of preemption: the lowest priority first, then the youngest gang, then the largest, then by uid."""


def expected_end(gang: Gang, now: float) -> float:
    """The expected end of a gang: epoch seconds; inf: unknown.

    If a gang exceeds its estimate, the estimate doubles.
    """
    if gang.assigned is None or gang.estimate is None:
        return inf
    estimate = max(1.0, gang.estimate)
    while gang.assigned.at + estimate <= now:
        estimate *= 2
    return gang.assigned.at + estimate


class ExpectedCompletions:
    """Admitted gangs by expected end. Gangs without an estimate come last, small gangs first.

    A node with a small gang lacks little capacity.
    """

    def __init__(self) -> None:
        self.version = 0
        """Increases when time alone has changed the order."""
        self._order: list[tuple[float, int, float, str]] = []
        self._gangs: dict[str, tuple[Gang, tuple[float, int, float, str]]] = {}
        self._now = 0.0

    def put(self, gang: Gang, pods: int) -> None:
        """Add or update an admitted gang, with its number of pods."""
        self.remove(gang.uid)
        time = expected_end(gang, self._now)
        key = (time, pods if time == inf else 0, gang.assigned.at if gang.assigned else 0.0, gang.uid)
        self._gangs[gang.uid] = gang, key
        insort(self._order, key)

    def remove(self, uid: str) -> None:
        """Remove a gang; an unknown gang is ignored."""
        known = self._gangs.pop(uid, None)
        if known is not None:
            del self._order[bisect_left(self._order, known[1])]

    def advance(self, now: float) -> None:
        """Move the clock to ``now``. Gangs that should have ended get a later expected end."""
        self._now = now
        while self._order and self._order[0][0] <= now:
            _, pods, _, uid = self._order[0]
            self.put(self._gangs[uid][0], pods)
            self.version += 1

    def __iter__(self) -> Iterator[str]:
        """The uids, in order."""
        return (key[3] for key in self._order)

    def time(self, uid: str) -> float:
        """The expected end of a gang: epoch seconds."""
        return self._gangs[uid][1][0]

    @property
    def first(self) -> float:
        """The earliest expected end: epoch seconds; inf if all are unknown."""
        return self._order[0][0] if self._order else inf


class SchedulerCache:
    """All gangs, with their nodes and quotas. If ``sees_nodes`` is False, nodes cannot be listed."""

    def __init__(self, *, sees_nodes: bool = True) -> None:
        self.assumed_pods = AssumedPods(sees_nodes=sees_nodes)
        """The nodes, with the pods assumed on them."""
        self.quotas = Quotas(())
        self.resource_quotas = ResourceQuotaUsage()
        self.queues: Mapping[str, Queue] = {DEFAULT_QUEUE: Queue(name=DEFAULT_QUEUE)}
        self.entries: dict[str, Workload] = {}
        self.running: dict[str, Workload] = {}
        """Admitted gangs."""
        self.departing: dict[str, Workload] = {}
        """Gangs that release pods, or have terminating pods, and such pods without a gang."""
        self.elastic: dict[str, Workload] = {}
        """Admitted gangs that could be smaller or larger."""
        self.partial: dict[str, Workload] = {}
        """Admitted gangs that have started with less than their smallest size."""
        self.unstarted: dict[str, Workload] = {}
        """Admitted gangs with pods that do not exist yet, but have assigned nodes."""
        self._unchecked: dict[str, Workload] = {}  # those of ``unstarted`` with nodes that may have closed
        self._checked_layout = 0
        self.youngest: dict[str, list[PreemptionRank]] = {}
        """Admitted gangs by queue, in the order of preemption."""
        self.ends = ExpectedCompletions()
        self.moves: list[tuple[float, str]] = []
        """The times of the last changes of admitted gangs, in order."""
        self.pending: Counter[str] = Counter()
        """The number of waiting gangs of each queue."""
        self.admitted: Counter[str] = Counter()
        """The number of admitted gangs of each queue."""
        self.changes = 0
        """Increases with every change."""
        self.state = 0
        """Increases with changes of the capacity that gangs use or may use."""
        # Requests depend on the nodes that they are made for.
        self._requests = GangRequests(self.assumed_pods.snapshot.shape)
        self._orphans: Mapping[str, Resources] = {}
        self._leaving: Sequence[tuple[JobKey, str, str, Resources]] = ()
        self._rules = 0
        # Hypothetical changes of the quotas. For each mark: the number of these changes, and the mark of the nodes.
        self._supposed: list[tuple[str, Resources, bool]] = []
        self._marks: list[tuple[int, int]] = []

    @property
    def limits(self) -> tuple[int, int]:
        """A value that changes whenever the maximum for a lone gang may have changed."""
        return self._rules, self.assumed_pods.layout

    # -- nodes, queues and quotas --

    def put_node(self, node: Node) -> None:
        """Add or update a node."""
        if self.assumed_pods.sees_nodes:
            layout = self.assumed_pods.layout
            self.assumed_pods.put_node(node)
            if self.assumed_pods.layout != layout:
                self.quotas.put_capacity(self.assumed_pods.capacity)
            self._changed()

    def remove_node(self, name: str) -> None:
        """Remove a node that is deleted or unschedulable. An unknown node is ignored."""
        self.assumed_pods.remove_node(name)
        self.quotas.put_capacity(self.assumed_pods.capacity)
        self._changed()

    def put_unavailable(self, nodes: Mapping[str, UnavailableNode]) -> None:
        """Replace the nodes that currently accept no pods."""
        if self.assumed_pods.sees_nodes and nodes != self.assumed_pods.unavailable:
            self.assumed_pods.put_unavailable(nodes)
            self._changed()

    def put_queues(self, queues: Iterable[Queue]) -> None:
        """Replace all queues. Raises ValueError if two queues have the same name."""
        listed = {queue.name: queue for queue in queues}
        self.quotas = Quotas(queues, self.assumed_pods.capacity)
        self.queues = {DEFAULT_QUEUE: Queue(name=DEFAULT_QUEUE)} | listed
        for entry in self.entries.values():
            if entry.held.quota:
                self.quotas.take(entry.queue, entry.held.quota)
        for queue, amounts in self._orphans.items():
            self.quotas.take(queue, amounts)
        self._rules += 1
        self._changed()

    def put_orphans(self, orphans: Mapping[str, Resources]) -> None:
        """Replace the requests of pods without a gang, which use the quota of queues."""
        if orphans == self._orphans:
            return
        for queue, amounts in self._orphans.items():
            self.quotas.give(queue, amounts)
        for queue, amounts in orphans.items():
            self.quotas.take(queue, amounts)
        self._orphans = orphans
        self._changed()

    def put_leaving(self, leaving: Sequence[tuple[JobKey, str, str, Resources]]) -> None:
        """Replace the pods without a gang that are being deleted: their job, queue, node and requests.

        A waiting gang may wait for their capacity, as for the capacity of preempted gangs. Without a queue (""), they
        use no quota.
        """
        if leaving == self._leaving:
            return
        for number in range(len(self._leaving)):
            del self.departing[_leaving_uid(number)]
        for number, (key, queue, node, requests) in enumerate(leaving):
            uid = _leaving_uid(number)
            entry = Workload(Gang(key=key, uid=uid, created_at=0.0, members=(), queue=queue), NO_REQUEST)
            shape = self.assumed_pods.snapshot.catalogue.shape(PodSet(type="", count=1, requests=requests))
            entry.released_pods, entry.released_resources = (PodsOnNode(shape, node, 1),), requests if queue else {}
            self.departing[uid] = entry
        self._leaving = leaving
        self._changed()

    def put_resource_quotas(self, quotas: ResourceQuotas) -> None:
        """Replace all ResourceQuotas."""
        self.resource_quotas.put(quotas)
        self._rules += 1
        self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self.state += 1

    def on_closed_nodes(self) -> list[tuple[Workload, dict[str, Counter[str]]]]:
        """Gangs with assigned pods that do not exist yet and whose nodes accept none: their number by type and node.

        All gangs are checked if any node has changed, otherwise only gangs that are new, have changed, or were in the
        last result.
        """
        pods = self.assumed_pods
        if not pods.sees_nodes:
            return []
        if self._checked_layout != pods.layout:
            self._checked_layout, self._unchecked = pods.layout, dict(self.unstarted)
        found: list[tuple[Workload, dict[str, Counter[str]]]] = []
        for entry in self._unchecked.values():
            left: dict[str, Counter[str]] = {}
            for type_, shape, number, nodes in entry.held.unstarted:
                if closed := [node for node in nodes if not pods.takes(shape, node)]:
                    left[type_] = Counter([node for node in sorted(closed) for _ in range(nodes[node])][:number])
            if left:
                found.append((entry, left))
        self._unchecked = {entry.uid: entry for entry, _ in found}
        return found

    # -- gangs --

    def put(self, gang: Gang) -> Workload:
        """Add or update a gang. This drops an unconfirmed preemption of the gang."""
        entry = self.entries.get(gang.uid)
        if entry is not None and entry.gang == gang and not entry.releasing:
            return entry
        self.changes += 1
        self.resource_quotas.hold(gang)
        if entry is None:
            request, problem, held = self._counted(gang)
            entry = self.entries[gang.uid] = Workload(gang, request, problem)
            self._tally(entry, 1)
            self._enter(entry, held)
            return entry
        before = entry.gang
        self._tally(entry, -1)
        same = (gang.members, gang.locality, gang.problem) == (before.members, before.locality, before.problem)
        request, problem, held = self._counted(gang, entry if same else None)
        if held != entry.held or gang.queue != before.queue or request is not entry.request or entry.releasing:
            self._leave(entry)
            entry.update(gang, request, problem)
            self._enter(entry, held)
        elif _ordering_key(gang) != _ordering_key(before):
            self.state += 1
            self._unlist(entry)
            entry.update(gang, request, problem)
            self._list(entry)
        else:
            entry.update(gang, request, problem)
        self._tally(entry, 1)
        return entry

    def recount(self) -> list[Workload]:
        """Build requests for absent resources again, because a node has a new resource. Returns their gangs."""
        self.assumed_pods.snapshot.catalogue.outdated = False
        found = [entry for entry in self.entries.values() if entry.request.absent]
        if found:
            self._requests.forget([entry.request for entry in self.entries.values() if not entry.request.absent])
            self._changed()
        for entry in found:
            request, problem, held = self._counted(entry.gang)
            self._leave(entry)
            entry.update(entry.gang, request, problem)
            self._enter(entry, held)
        return found

    @property
    def outdated(self) -> bool:
        """Whether ``recount`` may change something."""
        return self.assumed_pods.snapshot.catalogue.outdated

    def remove(self, uid: str) -> None:
        """Remove a gang with all its usage. An unknown gang is ignored."""
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self._tally(entry, -1)
            self._leave(entry)
            self.resource_quotas.drop(entry.gang)
            self.changes += 1
        if len(self._requests) > 2 * len(self.entries) + 64:
            self._requests.forget([entry.request for entry in self.entries.values()])

    def release(self, entry: Workload, released_pods: Sequence[PodsOnNode], released_resources: Resources) -> None:
        """Let a gang give up these pods. Their capacity becomes free when the gang confirms."""
        self.state += 1
        entry.released_pods, entry.released_resources = released_pods, released_resources
        self.departing[entry.uid] = entry

    # -- hypothetical states --

    def mark(self) -> int:
        """Start to record hypothetical changes, until ``rollback`` with this mark."""
        self._marks.append((len(self._supposed), self.assumed_pods.snapshot.mark()))
        return len(self._marks) - 1

    def suppose(self, queue: str, quota: Resources, pods: Iterable[PodsOnNode] = (), *, released: bool = False) -> None:
        """Assume that a queue uses this quota, and nodes have these pods, or that both are ``released``.

        Unknown nodes are ignored.
        """
        (self.quotas.give if released else self.quotas.take)(queue, quota)
        self._supposed.append((queue, quota, released))
        snapshot = self.assumed_pods.snapshot
        for shape, node, number in pods:
            if node in snapshot:
                snapshot.take(shape, node, -number if released else number)

    def rollback(self, mark: int) -> None:
        """Undo the hypothetical changes since the mark, and drop later marks."""
        supposed, nodes = self._marks[mark]
        del self._marks[mark:]
        while len(self._supposed) > supposed:
            queue, quota, released = self._supposed.pop()
            (self.quotas.take if released else self.quotas.give)(queue, quota)
        self.assumed_pods.snapshot.rollback(nodes)

    # -- usage --

    def _counted(self, gang: Gang, known: Workload | None = None) -> tuple[GangRequest, str, Usage]:
        """The request of a gang, or its problem, and its usage. ``known``: a gang with the same request.

        The cache is not changed before this, so that an invalid gang has no effect.
        """
        request, problem = (known.request, known.problem) if known is not None else (NO_REQUEST, gang.problem)
        try:
            if known is None and not problem:
                try:
                    request = self._requests.of(gang)
                except InvalidConstraints as error:
                    problem = str(error)
            return request, problem, usage_of(gang, request)
        except Exception as error:
            return NO_REQUEST, f"it cannot be counted: {type(error).__name__}: {error}", NO_USAGE

    def _tally(self, entry: Workload, step: int) -> None:
        if entry.gang.fallback_of:
            return  # the job counts once, in the queue of its document
        counts = self.admitted if entry.admitted else self.pending
        counts[entry.queue] += step
        if not counts[entry.queue]:
            del counts[entry.queue]

    def _enter(self, entry: Workload, held: Usage) -> None:
        entry.held = held
        if held is not NO_USAGE:
            self.state += bool(held.quota or entry.admitted)
            self.quotas.take(entry.queue, held.quota)
            self.assumed_pods.assume(held.assumed, held.unassigned)
        self._list(entry)

    def _leave(self, entry: Workload) -> None:
        if entry.held is not NO_USAGE:
            self.state += bool(entry.held.quota or entry.admitted)
            self.quotas.give(entry.queue, entry.held.quota)
            self.assumed_pods.forget(entry.held.assumed, entry.held.unassigned)
        self._unlist(entry)

    def _list(self, entry: Workload) -> None:
        """Add the gang to its lists and orders."""
        if entry.held.terminating:
            self.departing[entry.uid] = entry
        if entry.admitted:
            self.running[entry.uid] = entry
            if entry.held.unstarted:
                self.unstarted[entry.uid] = self._unchecked[entry.uid] = entry
            insort(self.youngest.setdefault(entry.queue, []), _preemption_rank(entry))
            self.ends.put(entry.gang, entry.held.pods)
            insort(self.moves, (entry.changed_at, entry.uid))
            counts = [(assigned_count(entry.gang, want.member), want) for want in entry.request.wants]
            if any(count > want.least or count < want.most for count, want in counts):
                self.elastic[entry.uid] = entry
            if any(count < want.least for count, want in counts):
                self.partial[entry.uid] = entry

    def _unlist(self, entry: Workload) -> None:
        if entry.admitted:
            del self.running[entry.uid]
            self.ends.remove(entry.uid)
            del self.moves[bisect_left(self.moves, (entry.changed_at, entry.uid))]
            ranks = self.youngest[entry.queue]
            del ranks[bisect_left(ranks, _preemption_rank(entry))]
            if not ranks:
                del self.youngest[entry.queue]
        for listed in (self.departing, self.elastic, self.partial, self.unstarted, self._unchecked):
            listed.pop(entry.uid, None)
        entry.released_pods, entry.released_resources = (), {}


def _leaving_uid(number: int) -> str:
    return f"leaving/{number}"


def _preemption_rank(entry: Workload) -> PreemptionRank:
    at = entry.gang.assigned.at if entry.gang.assigned else 0.0
    return entry.gang.priority, -at, -entry.held.pods, entry.uid


def _ordering_key(gang: Gang) -> tuple[object, ...]:
    """The properties that determine the order in the cache, in addition to usage."""
    assigned = gang.assigned
    return gang.queue, gang.priority, gang.estimate, assigned and (assigned.at, assigned.sizes, assigned.resized)

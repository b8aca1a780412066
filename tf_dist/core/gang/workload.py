"""A gang in the scheduler: its request, its use of nodes and quota, and its position in its queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from tf_dist.core.gang.placement.pod_sets import GangRequest, PodClass, PodSetRequest, PodsOnNode, total_resources
from tf_dist.core.gang.resources.pod_requests import add_resources
from tf_dist.core.gang.types import Gang, PodSet, Resources
from tf_dist.core.model.assignment import Placement, Sizes
from tf_dist.core.model.gang_queue import DEFAULT_QUEUE
from tf_dist.core.model.job import JobKey


class UnstartedPods(NamedTuple):
    """Assigned pods of a type that do not exist yet; pods of earlier attempts may still run in their place."""

    type: str
    """Their replica type."""
    shape: PodClass
    """Their class."""
    number: int
    """How many there are."""
    nodes: Mapping[str, int]
    """The number that may be assigned to each node; more than ``number`` if others of the type have ended."""


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


def usage_of(gang: Gang, request: GangRequest | None) -> Usage:
    """The usage of a gang; for an invalid gang without a request, only its quota."""
    if gang.assigned is None and not gang.bound:
        return NO_USAGE
    wanted = tuple(_wanted(gang, member) for member in gang.members)
    remaining = (
        request.need(wanted)
        if request
        else total_resources(zip((member.requests for member in gang.members), wanted, strict=True))
    )
    if gang.bound:
        bound = (sum(gang.bound.get(member.type, {}).values()) for member in gang.members)
        excess = (max(0, there - count) for there, count in zip(bound, wanted, strict=True))
        gone = total_resources(zip((member.requests for member in gang.members), excess, strict=True))
        held = Usage(quota=add_resources((remaining, gone)), terminating_quota=gone, remaining_quota=remaining)
    else:
        held = Usage(quota=remaining, remaining_quota=remaining)
    for want in request.wants if request else ():
        _add(held, gang, want)
    return held


def assigned_count(gang: Gang, member: PodSet) -> int:
    """The number of assigned pods of a member; 0 while it waits."""
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
    attempts never overlap. So such a pod counts as an assigned one. Unless the job was requeued, this also holds for
    assigned pods without a node.
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
    """The nodes of a type's pods by replica index. If the index is unknown, nodes with pods of other types
    (parameter servers) come first, then the node with most pods.
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
    """The nodes of a gang's assigned pods, by replica index; "" where unknown.

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


def resizable(gang: Gang, request: GangRequest | None) -> tuple[bool, bool]:
    """Whether it may have fewer or more pods, and whether it has started below its smallest size, so that the
    rest waits for capacity.
    """
    counts = [(assigned_count(gang, want.member), want) for want in (request.wants if request is not None else ())]
    elastic = any(count > want.least or count < want.most for count, want in counts)
    return elastic, any(count < want.least for count, want in counts)


def assigned_placement(gang: Gang, sizes: Sizes) -> Placement:
    """Its placement, reduced to these sizes by removing the highest indexes."""
    kept = {type_: Counter(nodes_by_index(gang, type_)[:count]) for type_, count in sizes.items()}
    return {
        type_: {node: counts[node] for node in sorted(counts) if node} for type_, counts in kept.items() if any(counts)
    }


class Rank(NamedTuple):
    """A gang's rank in its queue; the smallest is first."""

    nominated: int
    """-1 if others are preempted for it."""
    priority: int
    """The negative of its priority."""
    patient: int
    """0 if it starves."""
    since: float
    """The start of its wait, or later for a long gang: see ``AdmissionPolicy.stretch``."""
    created_at: float
    """When the job was created: epoch seconds."""
    key: JobKey
    """The job."""
    uid: str
    """The uid of the gang."""


@dataclass(slots=True, eq=False)
class EquivalentGangs:
    """Gangs of a queue with equal requests and priority, and about the same estimate: if the first cannot start, none
    can.
    """

    queue: str
    """The name of their queue."""
    key: tuple[object, ...]
    """Their common properties."""
    request: GangRequest
    """The request of each of them."""
    ranks: list[Rank]
    """Their ranks, the first in front; never empty."""
    no_preemption_at: object = None
    """The state in which nothing could be preempted for the first."""
    blocked_by: str | None = None
    """The last reason why none could start even if all others ended; "": they could; None: not evaluated yet."""


@dataclass(slots=True, eq=False)
class Workload:
    """A gang with its state in the scheduler."""

    gang: Gang
    """The gang as last reported, or after a decision of the scheduler."""
    request: GangRequest | None
    """Its request; None: it is invalid."""
    problem: str = ""
    """Why it is invalid."""
    uid: str = field(init=False)
    """The uid of the gang."""
    held: Usage = field(default_factory=lambda: NO_USAGE)
    """Its usage of nodes and quota."""
    released_pods: Sequence[PodsOnNode] = ()
    """The pods that it gives up by a verdict that it has not confirmed."""
    released_resources: Resources = field(default_factory=dict)
    """The requests of those."""
    rank: Rank | None = None
    """None: it is not queued."""
    group: EquivalentGangs | None = None
    """None: it is not queued."""
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
        """Whether it is being preempted or shrunk and has not confirmed it."""
        return bool(self.released_pods or self.released_resources)

    @property
    def since(self) -> float:
        """The time since which it may start: epoch seconds."""
        return max(self.gang.created_at, self.gang.not_before)

    @property
    def changed_at(self) -> float:
        """When its assigned pods changed last: epoch seconds; -inf: it has none."""
        assigned = self.gang.assigned
        return -inf if assigned is None else assigned.at if assigned.resized is None else assigned.resized

    def update(self, gang: Gang, request: GangRequest | None, problem: str) -> None:
        """Update the gang."""
        self.gang, self.request, self.problem = gang, request, problem
        self._nodes = {}

    def nodes_by_index(self, type_: str) -> list[str]:
        """The nodes of its assigned pods, from ``nodes_by_index``. Must not be changed."""
        found = self._nodes.get(type_)
        if found is None:
            found = self._nodes[type_] = nodes_by_index(self.gang, type_)
        return found

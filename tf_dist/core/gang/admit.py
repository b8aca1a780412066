"""``admit``: which waiting gangs may start now. All of a gang or nothing of it, first come first served.

A gang that waits holds back those behind it, so that no stream of small jobs starves a large one; a gang that this
cluster could not hold even when empty holds back nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from tf_dist.core.gang import fit
from tf_dist.core.gang.demand import added, subtracted
from tf_dist.core.gang.model import Admit, Gang, Member, Node, Resources, Snapshot, Verdict, Wait
from tf_dist.core.model import JobKey
from tf_dist.core.quantity import format_quantity

Room = dict[str, Resources]
_NONE: Final = Decimal(0)


def admit(snapshot: Snapshot) -> dict[str, Verdict]:
    """The verdict on every gang, by its uid; those already admitted keep their place."""
    nodes = _Nodes.of(snapshot.nodes)
    admitted = [gang for gang in snapshot.gangs if gang.admitted]
    verdicts: dict[str, Verdict] = {gang.uid: Admit() for gang in admitted}
    free = _reserve(admitted, nodes, {node.name: node.free for node in snapshot.nodes})
    ahead: list[JobKey] = []
    for gang in sorted((g for g in snapshot.gangs if not g.admitted), key=lambda g: (g.created_at, g.key, g.uid)):
        verdict, free = _judge(gang, nodes, free, ahead)
        verdicts[gang.uid] = verdict
        if isinstance(verdict, Wait) and not verdict.never:
            ahead.append(gang.key)
    return verdicts


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes; what the cluster has of a resource, as a factor that makes amounts of different ones comparable."""

    all: tuple[Node, ...]
    scale: Mapping[str, float]
    allowed: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: tuple[Node, ...]) -> _Nodes:
        total = added(node.allocatable for node in nodes)
        return cls(nodes, {resource: 1 / float(value) for resource, value in total.items() if value > 0})

    @property
    def empty(self) -> Room:
        return {node.name: node.allocatable for node in self.all}

    def open_to(self, member: Member) -> tuple[str, ...]:
        """The nodes that a member's pods may go to. Most gangs constrain nothing, and then this is asked once."""
        key = repr(member.constraints)
        if key not in self.allowed:
            self.allowed[key] = tuple(node.name for node in self.all if _may_go(member, node))
        return self.allowed[key]

    def share(self, resources: Resources) -> float:
        return sum(float(value) * self.scale.get(resource, 0.0) for resource, value in resources.items())


def _judge(gang: Gang, nodes: _Nodes, free: Room, ahead: list[JobKey]) -> tuple[Verdict, Room]:
    try:
        packed = _pack(gang, nodes, free)
    except fit.Unreadable as error:
        return Wait(reason="Unreadable", message=str(error), never=True), free
    if isinstance(packed, Member):
        never = _pack(gang, nodes, nodes.empty)
        if isinstance(never, Member):
            return Wait(reason="NeverFits", message=_never(never, nodes.all), never=True), free
        return Wait(reason="WaitingForCapacity", message=_shortage(packed, nodes.all, free) + _behind(ahead)), free
    if ahead:
        message = f"there is room for it, but it came later{_behind(ahead)}"
        return Wait(reason="WaitingInQueue", message=message), free
    return Admit(), packed


def _pack(gang: Gang, nodes: _Nodes, free: Room) -> Room | Member:
    """The room left with the whole gang placed; the member that does not fit if it cannot be.

    The most demanding pods go first; if that fails, last. Both may fail where a cleverer order would do: in a few of
    100 gangs that fit only just (``tests/core/gang`` counts). Such a gang waits until there is a little more room.
    """
    order = sorted(gang.members, key=lambda m: nodes.share(m.requests), reverse=True)
    packed = _pack_in_order(order, nodes, free)
    if isinstance(packed, Member) and len(order) > 1:
        again = _pack_in_order(order[::-1], nodes, free)
        return packed if isinstance(again, Member) else again
    return packed


def _pack_in_order(order: list[Member], nodes: _Nodes, free: Room) -> Room | Member:
    room = dict(free)
    for member in order:
        if _place(member, nodes, room) < member.count:
            return member
    return room


def _reserve(gangs: Iterable[Gang], nodes: _Nodes, free: Room) -> Room:
    """The room left beside gangs that have their place; where a part of one does not fit now, the rest still counts.

    Pods that ask for the same are placed together, whichever gang they are of: after a rush there are thousands.
    """
    shapes: dict[tuple[object, ...], Member] = {}
    for member in (member for gang in gangs for member in gang.members):
        shape = (repr(member.constraints), *sorted(member.requests.items()))
        known = shapes.get(shape)
        shapes[shape] = replace(known, count=known.count + member.count) if known else member
    room = dict(free)
    for member in sorted(shapes.values(), key=lambda m: nodes.share(m.requests), reverse=True):
        with suppress(fit.Unreadable):  # edited since: its pods that are still to come will never be placed
            _place(member, nodes, room)
    return room


def _place(member: Member, nodes: _Nodes, room: Room) -> int:
    """Take room for the member's pods, on the fullest nodes first; for how many there was some.

    What is left stays in large pieces, and pods that need no GPU go where there is none.
    """
    placed = 0
    for name in sorted(nodes.open_to(member), key=lambda name: (nodes.share(room[name]), name)):
        count = min(member.count - placed, _how_many(member.requests, room[name], member.count))
        if count:
            taken = {resource: value * count for resource, value in member.requests.items()}
            room[name] = subtracted(room[name], taken)
            placed += count
        if placed == member.count:
            break
    return placed


def _how_many(needed: Resources, room: Resources, most: int) -> int:
    """How many pods that each need so much have room, up to ``most``."""
    for resource, value in needed.items():
        there = room.get(resource, _NONE)
        if value > 0 and value * most > there:
            most = max(0, int(there // value))
    return most


def _may_go(member: Member, node: Node) -> bool:
    try:
        allowed = fit.allows(member.constraints, node.name, node.labels)
        return allowed and fit.untolerated(member.constraints, node.taints) is None
    except fit.Unreadable as error:
        raise fit.Unreadable(f"{member.type}: {error}") from error


def _text(requests: Resources) -> str:
    shown = {r: v for r, v in requests.items() if r != "pods"} or requests
    return ", ".join(f"{resource} {format_quantity(value, resource)}" for resource, value in sorted(shown.items()))


def _need(member: Member) -> str:
    return f"needs {member.count} × ({_text(member.requests)}) for {member.type}"


def _never(member: Member, nodes: tuple[Node, ...]) -> str:
    if not nodes:
        return "the cluster has no node"
    allowed = [node for node in nodes if _may_go(member, node)]
    if not allowed:
        return f"{_need(member)}, but no node matches its node selector, affinity and tolerations"
    lacking = _lacking(member, [node.allocatable for node in allowed])
    return f"{_need(member)}, and even the empty cluster has only {lacking}"


def _shortage(member: Member, nodes: tuple[Node, ...], free: Room) -> str:
    lacking = _lacking(member, [free[node.name] for node in nodes if _may_go(member, node)])
    return f"{_need(member)}; free now: {lacking}"


def _lacking(member: Member, rooms: Iterable[Resources]) -> str:
    """What there is of the resources that the member asks for, over the nodes it may go to."""
    listed = list(rooms)
    there = {r: sum((max(room.get(r, Decimal(0)), Decimal(0)) for room in listed), Decimal(0)) for r in member.requests}
    nodes = "1 node" if len(listed) == 1 else f"{len(listed)} nodes"
    return f"{_text(there)} on {nodes}"


def _behind(ahead: list[JobKey]) -> str:
    if not ahead:
        return ""
    more = f" and {len(ahead) - 3} more" if len(ahead) > 3 else ""
    return "; ahead of it: " + ", ".join(map(str, ahead[:3])) + more

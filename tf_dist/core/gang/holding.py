"""What a gang holds: of its place, the pods still to come; of its pods, those on their way out; and its quota."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tf_dist.core.gang.asks import Ask, Want, total
from tf_dist.core.gang.demand import added
from tf_dist.core.gang.model import Gang, Member, Placement, Resources, Sizes
from tf_dist.core.gang.shapes import Shape


class Pods(NamedTuple):
    """``number`` equal pods on a node."""

    shape: Shape
    node: str
    number: int


@dataclass(slots=True)
class Holding:
    """``coming``: granted pods that no node counts yet, where they are to be; ``afloat``: those that may be anywhere.
    ``leaving``: pods that nodes count and that go; ``staying``: those to come and those there that do not go.
    ``quota``: what all of them ask for, ``leaving_quota`` and ``staying_quota`` what those do."""

    coming: list[Pods] = field(default_factory=list)
    afloat: list[tuple[Shape, int]] = field(default_factory=list)
    leaving: list[Pods] = field(default_factory=list)
    staying: list[Pods] = field(default_factory=list)
    quota: Resources = field(default_factory=dict)
    leaving_quota: Resources = field(default_factory=dict)
    staying_quota: Resources = field(default_factory=dict)

    @property
    def pods(self) -> int:
        """How many stay."""
        return sum(pods.number for pods in self.staying)


NOTHING: Final = Holding()


def of(gang: Gang, ask: Ask | None) -> Holding:
    """What a gang holds. Without an ask (it cannot be read): its quota alone."""
    if gang.place is None and not gang.bound:
        return NOTHING
    wanted = tuple(_wanted(gang, member) for member in gang.members)
    staying = ask.need(wanted) if ask else total(zip((member.requests for member in gang.members), wanted, strict=True))
    if gang.bound:
        leaving = total((member.requests, _excess(gang, member)) for member in gang.members)
        held = Holding(quota=added((staying, leaving)), leaving_quota=leaving, staying_quota=staying)
    else:
        held = Holding(quota=staying, staying_quota=staying)
    for want in ask.wants if ask else ():
        if want.shape is not None:
            _add(held, gang, want, want.shape)
    return held


def size(gang: Gang, member: Member) -> int:
    """How many pods of a member the gang has been given; 0 while it waits."""
    return gang.place.sizes.get(member.type, member.count) if gang.place else 0


def _wanted(gang: Gang, member: Member) -> int:
    return max(0, size(gang, member) - gang.done.get(member.type, 0)) if gang.place else 0


def _excess(gang: Gang, member: Member) -> int:
    return max(0, sum(gang.bound.get(member.type, {}).values()) - _wanted(gang, member))


def _add(held: Holding, gang: Gang, want: Want, shape: Shape) -> None:
    bound = gang.bound.get(want.type) or {}
    wanted, there = _wanted(gang, want.member), sum(bound.values())
    to_come, known = max(0, wanted - there), len(held.coming)
    placed: Mapping[str, int] = gang.place.placement.get(want.type, {}) if gang.place else {}
    vacated = gang.vacated.get(want.type) or {}
    for node in sorted(placed):
        spare = min(to_come, placed[node] - vacated.get(node, 0) - bound.get(node, 0))
        if spare > 0:
            held.coming.append(Pods(shape, node, spare))
            to_come -= spare
    if to_come:
        held.afloat.append((shape, to_come))
    if not bound:
        held.staying += held.coming[known:]
        return
    excess = there - wanted
    leaving = last(_seating(gang, want.type, bound), excess) if excess > 0 else Counter()
    held.leaving += [Pods(shape, node, leaving[node]) for node in sorted(leaving) if node]
    staying = Counter(bound)
    staying.subtract(leaving)
    for pods in held.coming[known:]:
        staying[pods.node] += pods.number
    held.staying += [Pods(shape, node, staying[node]) for node in sorted(staying) if staying[node] > 0]


def _seating(gang: Gang, type_: str, there: Mapping[str, int]) -> list[str]:
    """The nodes of a type's pods by replica index. Where that is not known, those of other types (its
    parameter servers) first, then the node with the most of them."""
    seats = list(gang.seats.get(type_, ()))
    left = Counter(there)
    left.subtract(seat for seat in seats if seat)
    others = {
        node
        for other, nodes in (gang.place.placement if gang.place else {}).items()
        if other != type_
        for node in nodes
    }
    order = sorted(left, key=lambda node: (node not in others, -left[node], node))
    spare = [node for node in order for _ in range(left[node])]
    spare.reverse()
    filled = [seat or (spare.pop() if spare else "") for seat in seats]
    return filled + spare[::-1]


def last(seating: list[str], count: int) -> Counter[str]:
    """On which nodes the last pods sit."""
    return Counter(seating[len(seating) - count :] if count else ())


def seating(gang: Gang, type_: str) -> list[str]:
    """The nodes of the pods a gang has been given, by replica index; "" where nobody knows.

    Pods go from the end: a gang made smaller gives up those of the highest indexes.
    """
    given = gang.place.placement.get(type_, {}) if gang.place else {}
    bound = gang.bound.get(type_) or {}
    where = {node: max(given.get(node, 0), bound.get(node, 0)) for node in {**given, **bound}}
    member = next(member for member in gang.members if member.type == type_)
    seats = _seating(gang, type_, where)
    granted = size(gang, member)
    return (seats + [""] * (granted - len(seats)))[:granted]


def less(pods: list[Pods], others: list[Pods]) -> list[Pods]:
    """``pods`` without ``others``."""
    left: Counter[tuple[Shape, str]] = Counter()
    for sign, listed in ((1, pods), (-1, others)):
        for shape, node, count in listed:
            left[shape, node] += sign * count
    return [Pods(shape, node, count) for (shape, node), count in left.items() if count > 0]


def shrinks(gang: Gang, ask: Ask | None) -> bool:
    """Whether it has more than the least it may start with."""
    return ask is not None and any(size(gang, want.member) > want.least for want in ask.wants)


def grows(gang: Gang, ask: Ask | None) -> bool:
    """Whether it may have more than it has."""
    return ask is not None and any(size(gang, want.member) < want.most for want in ask.wants)


def sizes(gang: Gang) -> dict[str, int]:
    """How many pods per type it has been given."""
    return {member.type: size(gang, member) for member in gang.members}


def placement(gang: Gang, sizes: Sizes) -> Placement:
    """Where its pods are to be when it has no more than ``sizes``: those of the highest indexes go."""
    kept = {type_: Counter(seating(gang, type_)[:count]) for type_, count in sizes.items()}
    return {
        type_: {node: counts[node] for node in sorted(counts) if node} for type_, counts in kept.items() if any(counts)
    }

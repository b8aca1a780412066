"""Pod sets of a gang, one object for all gangs with equal requests: what is found out for one holds for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple

from tf_dist.core.gang.placement import predicates
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_classes import PodClass
from tf_dist.core.gang.types import Gang, PodSet, Resources, TopologyRequest

Counts = tuple[int, ...]
"""How many pods of each member of a gang, in the order of its members."""


@dataclass(frozen=True, slots=True, eq=False)
class PodSetRequest:
    """A member of a gang, and its shape (None: there are no nodes to see)."""

    member: PodSet
    shape: PodClass | None
    least: int
    count: int
    most: int
    start: int

    @property
    def type(self) -> str:
        """The replica type."""
        return self.member.type


@dataclass(slots=True, eq=False)
class GangRequest:
    """The members of a gang and where they may be. ``full``: as many as it wants, ``least``: as few as it starts with,
    ``whole``: as many as a gang of the smallest size has.

    The rest is what is known: by counts, in which state of the room they surely lacked room (it holds until room
    becomes free), or were not placed (until anything changes); whether even empty nodes could hold it; and in which
    words it was last said what is missing.
    """

    wants: tuple[PodSetRequest, ...]
    locality: TopologyRequest | None
    full: Counts
    least: Counts
    whole: Counts
    lacking: dict[Counts, int] = field(default_factory=dict)
    unplaced: dict[Counts, int] = field(default_factory=dict)
    never: tuple[int, int | None] = (-1, None)
    said: dict[Counts, tuple[int, str]] = field(default_factory=dict)
    needs: dict[Counts, Resources] = field(default_factory=dict)

    @property
    def elastic(self) -> bool:
        """Whether it may start smaller than it wants to be."""
        return self.least != self.full

    @property
    def starts_early(self) -> bool:
        """Whether it starts before all have room that a gang of its smallest size has."""
        return self.least != self.whole

    def need(self, counts: Counts) -> Resources:
        """What so many pods ask for together."""
        need = self.needs.get(counts)
        if need is None:
            pairs = zip(self.wants, counts, strict=True)
            need = self.needs[counts] = total_resources((want.member.requests, count) for want, count in pairs)
        return need


def total_resources(parts: Iterable[tuple[Resources, int]]) -> dict[str, Decimal]:
    """The sum of so many times each."""
    added: dict[str, Decimal] = {}
    for requests, count in parts:
        if count:
            for resource, value in requests.items():
                added[resource] = added.get(resource, Decimal(0)) + value * count
    return added


_SEEN: Final = 4096


class GangRequests:
    """All asks there are, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], GangRequest] = {}
        self._seen: dict[
            int, tuple[tuple[PodSet, ...], GangRequest]
        ] = {}  # by the identity of the members, which it keeps

    def of(self, gang: Gang, snapshot: NodeSnapshot | None) -> GangRequest:
        """What a gang asks for; fit.Unreadable if its constraints make no sense."""
        seen = self._seen.get(id(gang.members))
        if seen is not None and seen[0] is gang.members and seen[1].locality == gang.locality:
            return seen[1]
        request = self._of(gang, snapshot)
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen[id(gang.members)] = gang.members, request
        return request

    def _of(self, gang: Gang, snapshot: NodeSnapshot | None) -> GangRequest:
        wants = tuple(_want(member, snapshot) for member in gang.members)
        key = (gang.locality, *(_key(want) for want in wants))
        known = self._known.get(key)
        if known is None:
            full, least = tuple(want.count for want in wants), tuple(want.start for want in wants)
            whole = tuple(want.least for want in wants)
            known = self._known[key] = GangRequest(wants, gang.locality, full, least, whole)
        return known

    def forget(self, kept: Sequence[GangRequest]) -> None:
        """Forget all but those."""
        keep = {id(request) for request in kept}
        self._known = {key: request for key, request in self._known.items() if id(request) in keep}
        self._seen.clear()

    def __len__(self) -> int:
        return len(self._known)


def _want(member: PodSet, snapshot: NodeSnapshot | None) -> PodSetRequest:
    least = member.count if member.least is None else max(0, min(member.least, member.count))
    most = member.count if member.most is None else max(member.most, member.count)
    start = least if member.start is None else max(0, min(member.start, least))
    return PodSetRequest(member, _shape(member, snapshot) if snapshot else None, least, member.count, most, start)


def _shape(member: PodSet, snapshot: NodeSnapshot) -> PodClass:
    try:
        return snapshot.shape(member)
    except predicates.InvalidConstraints as error:
        raise predicates.InvalidConstraints(f"{member.type}: {error}") from error


def _key(want: PodSetRequest) -> tuple[object, ...]:
    same = want.shape or tuple(sorted(want.member.requests.items()))
    sizes = want.least, want.count, want.most, want.start
    return want.type, same, tuple(sorted(want.member.requests.items())), *sizes, want.member.priority


class PodsOnNode(NamedTuple):
    """``number`` equal pods on a node."""

    shape: PodClass
    node: str
    number: int

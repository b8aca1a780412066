"""What gangs request, as integers and each once: pod classes (pods with equal requests and constraints) and requests of
gangs (equal pod sets). What is found out for one holds for all that are equal.

A column is a resource; its amounts are integers: thousandths of a CPU, bytes, pieces. Requests are rounded up and free
capacity down, so that no rounding ever lets in a pod that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from tf_dist.core.gang.placement.predicates import InvalidConstraints
from tf_dist.core.gang.types import (
    EXCLUSIVE_CAPACITY,
    EXCLUSIVE_PREFIX,
    Gang,
    PodSet,
    Resources,
    TopologyRequest,
)
from tf_dist.core.model.job import Document

CPU: Final = 0
# More than this of anything counts as this much: 281 TB, 281 thousand million CPUs. So sums of some dozen of them are
# below 2 ** 53, up to which a float64 is exact.
_MOST: Final = 1 << 48
UNLIMITED: Final = (1 << 24) - 1
"""So many pods that request nothing fit on a node."""
_MAX_SEEN: Final = 4096

Requests = tuple[tuple[int, int], ...]
"""(column, amount), none of them 0."""
Counts = tuple[int, ...]
"""How many pods of each member of a gang, in the order of its members."""


# -- pod classes --


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PodClass:
    """Pods that request the same, and may go to the same nodes; equal ones of one registry are one object."""

    requests: Requests
    """What one pod requests."""
    accelerators: int
    """How many pieces of extended resources, such as GPUs, are among the requests."""
    cpu: int
    """Requested CPU, in thousandths."""
    constraints: Document
    """Parts of the pod spec that ``predicates`` reads."""
    signature: str
    """Equal for equal constraints; empty without any."""


class PodsOnNode(NamedTuple):
    """Equal pods on a node."""

    shape: PodClass
    """Their class."""
    node: str
    """The name of the node."""
    number: int
    """How many pods there are."""


class PodClassRegistry:
    """The columns and the pod classes that snapshots have in common."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = {"cpu": CPU, "memory": 1, "pods": 2}
        self._shapes: WeakValueDictionary[tuple[Requests, str], PodClass] = WeakValueDictionary()

    def column(self, resource: str) -> int:
        """The column of a resource; a new one for a new resource."""
        return self.columns.setdefault(resource, len(self.columns))

    def shape(self, member: PodSet) -> PodClass:
        """The class of a member's pods."""
        amounts = ((resource, to_units(resource, value, up=True)) for resource, value in member.requests.items())
        asked = {resource: value for resource, value in amounts if value > 0}
        asked |= {one.name: one.amount for one in member.exclusives}
        requests = tuple(sorted((self.column(resource), value) for resource, value in asked.items()))
        accelerators = sum(value for resource, value in asked.items() if is_extended_resource(resource))
        return self._one(requests, accelerators, asked.get("cpu", 0), member.constraints)

    def without(self, shape: PodClass, constraint: str) -> PodClass:
        """The class of pods that lack this constraint, and are the same else."""
        left = {key: value for key, value in shape.constraints.items() if key != constraint}
        return self._one(shape.requests, shape.accelerators, shape.cpu, left)

    def _one(self, requests: Requests, accelerators: int, cpu: int, constraints: Document) -> PodClass:
        stated = {key: value for key, value in constraints.items() if value}
        signature = json.dumps(stated, sort_keys=True, default=repr) if stated else ""
        known = self._shapes.get((requests, signature))
        if known is not None:
            return known
        made = PodClass(requests, accelerators, cpu, constraints, signature)
        return self._shapes.setdefault((requests, signature), made)


def units(resource: str, amounts: Resources) -> int:
    """The amount of a resource as an integer. A node has an exclusive resource once unless it says what is left."""
    if resource in amounts:
        return to_units(resource, amounts[resource], up=False)
    return EXCLUSIVE_CAPACITY if resource.startswith(EXCLUSIVE_PREFIX) else 0


def is_extended_resource(resource: str) -> bool:
    """Whether it is a resource that some nodes have pieces of, such as GPUs: their names have a domain."""
    return "/" in resource


def to_units(resource: str, value: Decimal, *, up: bool) -> int:
    """A quantity as the integer of its column, rounded up or down."""
    scaled = value * 1000 if resource == "cpu" else value
    whole = int(scaled)  # towards zero
    if whole != scaled:
        whole += (up and scaled > 0) - (not up and scaled < 0)
    return max(-_MOST, min(_MOST, whole))


def from_units(resource: str, amount: int) -> Decimal:
    """The integer of a column as a quantity."""
    return Decimal(amount) / 1000 if resource == "cpu" else Decimal(amount)


@dataclass(frozen=True, slots=True)
class PodGroups:
    """The pods of a gang by class, in the order in which nodes are found for them: most accelerators first."""

    counts: Mapping[PodClass, int]
    """How many pods of each class there are."""
    together: Requests
    """What all of them request together."""


@lru_cache(maxsize=1024)  # the same few gangs are tried again and again
def group_by_class(wants: tuple[tuple[PodClass, int], ...]) -> PodGroups:
    """So many pods of each class; a class may come several times."""
    counts: dict[PodClass, int] = {}
    together: dict[int, int] = {}
    for shape, count in wants:
        if count > 0:
            counts[shape] = counts.get(shape, 0) + count
            for column, value in shape.requests:
                together[column] = together.get(column, 0) + value * count
    ordered = sorted(counts.items(), key=lambda group: (-group[0].accelerators, -group[0].cpu * group[1]))
    return PodGroups(MappingProxyType(dict(ordered)), tuple(sorted(together.items())))


# -- requests of gangs --


@dataclass(frozen=True, slots=True, eq=False)
class PodSetRequest:
    """A member of a gang, with its sizes filled in."""

    member: PodSet
    """The member as the job has it."""
    shape: PodClass | None
    """The class of its pods; None: nodes are not visible."""
    least: int
    """The size to which the gang may shrink."""
    count: int
    """The pods that the job asks for."""
    most: int
    """The size to which the gang may grow."""
    start: int
    """With so many pods the gang starts."""

    @property
    def type(self) -> str:
        """The replica type."""
        return self.member.type


@dataclass(slots=True, eq=False)
class GangRequest:
    """The members of a gang and where they may be, and what is known about that."""

    wants: tuple[PodSetRequest, ...]
    """Its members, in order."""
    locality: TopologyRequest | None
    """The topology domain in which its pods are to be; None: any nodes."""
    full: Counts
    """As many pods as it asks for."""
    least: Counts
    """As few as it starts with."""
    whole: Counts
    """As many as a gang of the smallest size has."""
    lacking: dict[Counts, int] = field(default_factory=dict)
    """At which epoch of the nodes a member alone did not fit: it holds until capacity becomes free."""
    unplaced: dict[Counts, int] = field(default_factory=dict)
    """At which version of the nodes no assignment was found: it holds until anything changes."""
    never: tuple[int, int | None] = (-1, None)
    """For which layout, which member would not fit on empty nodes (None: all would)."""
    said: dict[Counts, tuple[int, str]] = field(default_factory=dict)
    """At which version of the nodes it was said what is missing, and how."""
    needs: dict[Counts, Resources] = field(default_factory=dict)
    """Cache of ``need``."""

    @property
    def elastic(self) -> bool:
        """Whether it may start smaller than it asks for."""
        return self.least != self.full

    @property
    def starts_early(self) -> bool:
        """Whether it starts before all pods fit that a gang of its smallest size has."""
        return self.least != self.whole

    def need(self, counts: Counts) -> Resources:
        """What so many pods request together."""
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


class GangRequests:
    """All distinct requests. ``shape_of``: the class of a member's pods; None: there are no nodes to see."""

    def __init__(self, shape_of: Callable[[PodSet], PodClass] | None = None) -> None:
        self._shape_of = shape_of
        self._known: dict[tuple[object, ...], GangRequest] = {}
        # By the identity of the members, which it keeps.
        self._seen: dict[int, tuple[tuple[PodSet, ...], GangRequest]] = {}

    def of(self, gang: Gang) -> GangRequest:
        """What a gang requests. InvalidConstraints: its constraints make no sense."""
        seen = self._seen.get(id(gang.members))
        if seen is not None and seen[0] is gang.members and seen[1].locality == gang.locality:
            return seen[1]
        wants = tuple(map(self._want, gang.members))
        key = gang.locality, *map(_key, wants)
        request = self._known.get(key)
        if request is None:
            full, least = tuple(want.count for want in wants), tuple(want.start for want in wants)
            whole = tuple(want.least for want in wants)
            request = self._known[key] = GangRequest(wants, gang.locality, full, least, whole)
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen[id(gang.members)] = gang.members, request
        return request

    def _want(self, member: PodSet) -> PodSetRequest:
        least = member.count if member.least is None else max(0, min(member.least, member.count))
        most = member.count if member.most is None else max(member.most, member.count)
        start = least if member.start is None else max(0, min(member.start, least))
        try:
            shape = self._shape_of(member) if self._shape_of else None
        except InvalidConstraints as error:
            raise InvalidConstraints(f"{member.type}: {error}") from error
        return PodSetRequest(member, shape, least, member.count, most, start)

    def forget(self, kept: Sequence[GangRequest]) -> None:
        """Forget all others."""
        keep = {id(request) for request in kept}
        self._known = {key: request for key, request in self._known.items() if id(request) in keep}
        self._seen.clear()

    def __len__(self) -> int:
        return len(self._known)


def _key(want: PodSetRequest) -> tuple[object, ...]:
    requests = tuple(sorted(want.member.requests.items()))
    return want.type, want.shape, requests, want.least, want.count, want.most, want.start, want.member.priority

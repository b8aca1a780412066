"""Requests of gangs as integers: pod classes and gang requests.

A pod class is a set of pods with equal requests and constraints. Equal pod classes, and equal requests of gangs, are
the same object, so results are shared. A column is a resource. Its amounts are integers: thousandths of a CPU, bytes,
pieces. Requests are rounded up and free capacity down, so that rounding never admits a pod that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from tf_dist.core.gang.placement.predicates import InvalidConstraints
from tf_dist.core.gang.types import EXCLUSIVE_CAPACITY, EXCLUSIVE_PREFIX, Gang, PodSet, Resources, TopologyRequest
from tf_dist.core.model.job import Document

CPU: Final = 0
ABSENT: Final = 3
"""The column of all resources that no node has had yet. Jobs may name any number of these, so they share a column."""
# Larger amounts count as this amount: 281 TB, or 281 thousand million CPUs. Sums of up to 32 amounts are then at most
# 2 ** 53, up to which a float64 is exact.
_MOST: Final = 1 << 48
UNLIMITED: Final = (1 << 24) - 1
"""The number of pods without requests that fit on a node."""
_MAX_SEEN: Final = 4096

Requests = tuple[tuple[int, int], ...]
"""Pairs (column, amount), without amounts of 0."""
Counts = tuple[int, ...]
"""The number of pods of each member of a gang, in order."""


# -- pod classes --


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PodClass:
    """Pods with equal requests and constraints. Equal classes of a registry are the same object."""

    requests: Requests
    """The requests of one pod."""
    accelerators: int
    """The number of extended resources, such as GPUs, in the requests."""
    cpu: int
    """Requested CPU, in thousandths."""
    constraints: Document
    """Parts of the pod spec that ``predicates`` reads."""
    signature: str
    """A text that is equal for equal constraints; empty without constraints."""


class PodsOnNode(NamedTuple):
    """Equal pods on a node."""

    shape: PodClass
    """Their class."""
    node: str
    """The name of the node."""
    number: int
    """The number of pods."""


class PodClassRegistry:
    """The columns and pod classes that snapshots share."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = {"cpu": CPU, "memory": 1, "pods": 2, "": ABSENT}
        self.outdated = False
        """Whether a node has a new resource, which a class may count as absent."""
        self._offered: set[str] = set()
        self._shapes: WeakValueDictionary[tuple[Requests, str], PodClass] = WeakValueDictionary()

    def offer(self, resources: Collection[str]) -> None:
        """Record the resources of a node."""
        if self._offered.issuperset(resources):
            return
        self.outdated = True
        self._offered.update(resources)
        for resource in filter(is_extended_resource, resources):
            self.column(resource)

    def column(self, resource: str) -> int:
        """The column of a resource."""
        if resource in self._offered or resource.startswith(EXCLUSIVE_PREFIX):
            return self.columns.setdefault(resource, len(self.columns))
        return self.columns.get(resource, ABSENT)

    def shape(self, member: PodSet) -> PodClass:
        """The class of a member's pods."""
        amounts = ((resource, to_units(resource, value, up=True)) for resource, value in member.requests.items())
        asked = {resource: value for resource, value in amounts if value > 0}
        asked |= {one.name: one.amount for one in member.exclusives}
        columns = ((self.column(resource), value) for resource, value in asked.items())
        # No amount of an absent resource fits.
        requests = tuple(sorted({column: 1 if column == ABSENT else value for column, value in columns}.items()))
        accelerators = sum(value for resource, value in asked.items() if is_extended_resource(resource))
        return self._one(requests, accelerators, asked.get("cpu", 0), member.constraints)

    def without(self, shape: PodClass, constraint: str) -> PodClass:
        """The same class without this constraint."""
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
    """The amount of a resource as an integer.

    A node has an exclusive resource once, unless ``amounts`` contains its remaining amount.
    """
    if resource in amounts:
        return to_units(resource, amounts[resource], up=False)
    return EXCLUSIVE_CAPACITY if resource.startswith(EXCLUSIVE_PREFIX) else 0


def is_extended_resource(resource: str) -> bool:
    """Whether a resource is a countable device such as a GPU. The names of these resources have a domain."""
    return "/" in resource


def to_units(resource: str, value: Decimal, *, up: bool) -> int:
    """A quantity as the integer of its column, rounded up or down."""
    scaled = value * 1000 if resource == "cpu" else value
    whole = int(scaled)  # towards zero
    if whole != scaled:
        whole += (up and scaled > 0) - (not up and scaled < 0)
    return max(-_MOST, min(_MOST, whole))


@dataclass(frozen=True, slots=True)
class PodGroups:
    """The pods of a gang by class, in the order of placement: most accelerators first."""

    counts: Mapping[PodClass, int]
    """The number of pods of each class."""
    together: Requests
    """The sum of their requests."""


@lru_cache(maxsize=1024)  # the same few gangs are evaluated repeatedly
def group_by_class(wants: tuple[tuple[PodClass, int], ...]) -> PodGroups:
    """The groups for these numbers of pods of each class. A class may be repeated."""
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
    """The member of the job."""
    shape: PodClass
    """The class of its pods."""
    least: int
    """The size to which the gang may shrink."""
    count: int
    """The number of pods that the job requests."""
    most: int
    """The size to which the gang may grow."""
    start: int
    """The number of pods with which the gang starts."""

    @property
    def type(self) -> str:
        """The replica type."""
        return self.member.type


@dataclass(slots=True, eq=False)
class GangRequest:
    """The members of a gang, their allowed nodes, and cached results."""

    wants: tuple[PodSetRequest, ...]
    """Its members, in order."""
    locality: TopologyRequest | None
    """The topology constraint of its pods; None: any nodes."""
    full: Counts
    """The requested numbers of pods."""
    least: Counts
    """The minimum numbers with which it starts."""
    whole: Counts
    """The numbers of pods at the smallest size."""
    lacking: dict[Counts, int] = field(default_factory=dict)
    """The epoch of the nodes at which a member did not fit even alone. Valid until capacity becomes free."""
    unplaced: dict[Counts, int] = field(default_factory=dict)
    """The version of the nodes at which no assignment was found. Valid until anything changes."""
    never: tuple[int, int | None] = (-1, None)
    """The layout, and the member that would not fit on its empty nodes (None: all would)."""
    said: dict[Counts, tuple[int, str]] = field(default_factory=dict)
    """The version of the nodes, and the message about what was missing."""
    needs: dict[Counts, Resources] = field(default_factory=dict)
    """Cache of ``need``."""

    @property
    def absent(self) -> bool:
        """Whether the gang requests resources that no node has had."""
        return any(column == ABSENT for want in self.wants for column, _ in want.shape.requests)

    @property
    def elastic(self) -> bool:
        """Whether the gang may start with less than its requested size."""
        return self.least != self.full

    @property
    def starts_early(self) -> bool:
        """Whether the gang may start before all pods of its smallest size fit."""
        return self.least != self.whole

    def need(self, counts: Counts) -> Resources:
        """The sum of the requests of these pods."""
        need = self.needs.get(counts)
        if need is None:
            pairs = zip(self.wants, counts, strict=True)
            need = self.needs[counts] = total_resources((want.member.requests, count) for want, count in pairs)
        return need


NO_REQUEST: Final = GangRequest((), None, (), (), ())
"""The request of an invalid gang, which is not queued."""


def total_resources(parts: Iterable[tuple[Resources, int]]) -> dict[str, Decimal]:
    """The weighted sum of resources."""
    added: dict[str, Decimal] = {}
    for requests, count in parts:
        if count:
            for resource, value in requests.items():
                added[resource] = added.get(resource, Decimal(0)) + value * count
    return added


class GangRequests:
    """All distinct requests. ``shape_of``: the class of a member's pods."""

    def __init__(self, shape_of: Callable[[PodSet], PodClass]) -> None:
        self._shape_of = shape_of
        self._known: dict[tuple[object, ...], GangRequest] = {}
        # By the id of the members. The value keeps the members, so that ids stay unique.
        self._seen: dict[int, tuple[tuple[PodSet, ...], GangRequest]] = {}

    def of(self, gang: Gang) -> GangRequest:
        """The request of a gang. Raises InvalidConstraints if its constraints are malformed."""
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
            shape = self._shape_of(member)
        except InvalidConstraints as error:
            raise InvalidConstraints(f"{member.type}: {error}") from error
        return PodSetRequest(member, shape, least, member.count, most, start)

    def forget(self, kept: Sequence[GangRequest]) -> None:
        """Drop all requests except ``kept``."""
        keep = {id(request) for request in kept}
        self._known = {key: request for key, request in self._known.items() if id(request) in keep}
        self._seen.clear()

    def __len__(self) -> int:
        return len(self._known)


def _key(want: PodSetRequest) -> tuple[object, ...]:
    requests = tuple(sorted(want.member.requests.items()))
    return want.type, want.shape, requests, want.least, want.count, want.most, want.start, want.member.priority

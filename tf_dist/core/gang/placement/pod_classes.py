"""Pod classes: pods with equal requests and constraints, as integers, one object for all of them.

A column is a resource; its amounts are integers: thousandths of a CPU, bytes, pieces. What is asked for is rounded up
and what there is down, so that no rounding ever lets in a pod for which there is no room.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from weakref import WeakValueDictionary

from tf_dist.core.api.job import Document
from tf_dist.core.gang.types import EXCLUSIVE_CAPACITY, EXCLUSIVE_PREFIX, PodSet, Resources

CPU: Final = 0
# The columns that every room has.
_ALWAYS: Final = ("cpu", "memory", "pods")
# More than this of anything counts as this much: 281 TB, 281 thousand million CPUs. So sums of some dozen of them are
# below 2 ** 53, up to which a float64 is exact.
_MOST: Final = 1 << 48
# Of pods that ask for nothing a node has room for so many.
UNLIMITED: Final = (1 << 24) - 1

Requests = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PodClass:
    """Pods that ask for the same, and may go to the same nodes; from one catalogue, equal ones are one object.

    ``requests``: (column, amount) of what one pod asks for, none of them 0. ``accelerators``: how many pieces of
    extended resources, such as GPUs, are among it; ``cpu``: thousandths of a CPU. ``signature``: equal for equal
    ``constraints``; empty without any.
    """

    requests: Requests
    accelerators: int
    cpu: int
    constraints: Document
    signature: str


class PodClassRegistry:
    """The columns and the shapes that rooms have in common."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = {resource: column for column, resource in enumerate(_ALWAYS)}
        self._shapes: WeakValueDictionary[tuple[Requests, str], PodClass] = WeakValueDictionary()

    def column(self, resource: str) -> int:
        """The column of a resource; a new one for a new resource."""
        return self.columns.setdefault(resource, len(self.columns))

    def shape(self, member: PodSet) -> PodClass:
        """The shape of a member's pods."""
        amounts = ((resource, to_units(resource, value, up=True)) for resource, value in member.requests.items())
        asked = {resource: value for resource, value in amounts if value > 0}
        asked |= {one.name: one.amount for one in member.exclusives}
        requests = tuple(sorted((self.column(resource), value) for resource, value in asked.items()))
        accelerators = sum(value for resource, value in asked.items() if is_extended_resource(resource))
        return self._one(requests, accelerators, asked.get("cpu", 0), member.constraints)

    def without(self, shape: PodClass, constraint: str) -> PodClass:
        """The shape of pods that lack this constraint, and are the same else."""
        left = {key: value for key, value in shape.constraints.items() if key != constraint}
        return self._one(shape.requests, shape.accelerators, shape.cpu, left)

    def _one(self, requests: Requests, accelerators: int, cpu: int, constraints: Document) -> PodClass:
        signature = _signature(constraints)
        known = self._shapes.get((requests, signature))
        if known is not None:
            return known
        made = PodClass(requests, accelerators, cpu, constraints, signature)
        return self._shapes.setdefault((requests, signature), made)


def _signature(constraints: Document) -> str:
    stated = {key: value for key, value in constraints.items() if value}
    return json.dumps(stated, sort_keys=True, default=repr) if stated else ""


def units(resource: str, amounts: Resources) -> int:
    """What of a resource there is among these amounts. Of what every node has once, it is said where some is taken."""
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
    """The pods of a gang by shape, in the order in which they are placed: those that ask for most accelerators first.

    ``together``: what all of them ask for; ``pods``: how many they are.
    """

    counts: Mapping[PodClass, int]
    together: Requests
    pods: int


@lru_cache(maxsize=1024)  # the same few gangs are tried again and again
def group_by_class(wants: tuple[tuple[PodClass, int], ...]) -> PodGroups:
    """So many pods of each shape; a shape may come several times."""
    counts: dict[PodClass, int] = {}
    together: dict[int, int] = {}
    for shape, count in wants:
        if count > 0:
            counts[shape] = counts.get(shape, 0) + count
            for column, value in shape.requests:
                together[column] = together.get(column, 0) + value * count
    ordered = sorted(counts.items(), key=lambda group: (-group[0].accelerators, -group[0].cpu * group[1]))
    return PodGroups(MappingProxyType(dict(ordered)), tuple(sorted(together.items())), sum(counts.values()))

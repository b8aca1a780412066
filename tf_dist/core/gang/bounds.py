"""The ResourceQuotas of namespaces: what their pods and services may be in all, beside queues and nodes.

The API server refuses a pod that would go beyond one. So a gang starts only when all of it is within every quota of its
namespace: what is used, and what gangs that were admitted have still to create, leave room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tf_dist.core.gang.model import Gang, Resources, Sizes
from tf_dist.core.gang.resource_quota import Charges, ResourceQuota
from tf_dist.core.quantity import format_quantity

_NONE: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """Why a gang is not within a quota: of ``resource`` it needs ``needed``, of ``hard`` so much is ``used``."""

    quota: str
    resource: str
    needed: Decimal
    used: Decimal
    hard: Decimal

    @property
    def never(self) -> bool:
        """Whether it would not be even in an empty namespace."""
        return self.needed > self.hard

    def __str__(self) -> str:
        """For people."""
        needed, hard = self._text(self.needed), self._text(self.hard)
        if self.never:
            return f"needs {self.resource} {needed}, and ResourceQuota {self.quota} allows no more than {hard}"
        used = self._text(self.used)
        return f"waits for ResourceQuota {self.quota}: {self.resource} {used} of {hard} used, needs {needed}"

    def _text(self, value: Decimal) -> str:
        return format_quantity(value, self.resource.rpartition(".")[2] if "/" not in self.resource else self.resource)


Quotas = Mapping[str, tuple[ResourceQuota, ...]]
"""The quotas by namespace."""


class Bounds:
    """What gangs hold, and may still have, of the quotas of their namespaces."""

    def __init__(self) -> None:
        self._quotas: Quotas = {}
        self._held: dict[str, dict[str, Gang]] = {}
        self._supposed: list[tuple[str, Charges, tuple[int, ...]]] = []

    def put(self, quotas: Quotas) -> None:
        """All quotas there are."""
        self._quotas = quotas

    def hold(self, gang: Gang) -> None:
        """A gang is as it is now."""
        if gang.charges is not None and gang.place is not None:
            self._held.setdefault(gang.key.namespace, {})[gang.uid] = gang
        elif self._held:
            self.drop(gang)

    def drop(self, gang: Gang) -> None:
        """A gang is gone; one that is not known is no error."""
        held = self._held.get(gang.key.namespace)
        if held is not None:
            held.pop(gang.uid, None)
            if not held:
                del self._held[gang.key.namespace]

    def beyond(self, gang: Gang, counts: Sequence[int], *, more: bool = False) -> Beyond | None:
        """Why there may not be so many pods of each member of a gang (``more``: besides those it has); None: they may.

        If it can never be, that is what it says.
        """
        if gang.charges is None:
            return None
        found = self._beyond(gang, gang.charges, counts, more=more)
        return min(found, key=lambda one: (not one.never, one.quota, one.resource), default=None)

    def never(self, gang: Gang, counts: Sequence[int]) -> Beyond | None:
        """Why there may not be so many pods of each member of a gang even in an empty namespace; None: there may."""
        if gang.charges is None:
            return None
        found = self._beyond(gang, gang.charges, counts, more=False, empty=True)
        return min(found, key=lambda one: (one.quota, one.resource), default=None)

    def _beyond(
        self, gang: Gang, charges: Charges, counts: Sequence[int], *, more: bool, empty: bool = False
    ) -> Iterator[Beyond]:
        for quota in self._quotas.get(gang.key.namespace, ()):
            need = quota.need(charges, counts, once=not more)
            used = self._usage(gang, quota) if need and not empty else {}
            for resource, needed in need.items():
                if needed > quota.hard[resource] - used.get(resource, _NONE):
                    yield Beyond(
                        quota=quota.name,
                        resource=resource,
                        needed=needed,
                        used=used.get(resource, _NONE),
                        hard=quota.hard[resource],
                    )

    def _usage(self, gang: Gang, quota: ResourceQuota) -> dict[str, Decimal]:
        """What is used and promised. What the API server has counted may not have been heard of yet: then our own."""
        counted, ours = dict(quota.used), dict[str, Decimal]()
        for other in self._held.get(gang.key.namespace, {}).values():
            charges, wanted = other.charges, _wanted(other)
            if charges is None:
                continue
            created = [other.created.get(member.type, 0) for member in other.members]
            missing = [max(0, many - there) for many, there in zip(wanted, created, strict=True)]
            _add(counted, quota.need(charges, missing, once=not any(created)))
            _add(ours, quota.need(charges, wanted))
        for namespace, charges, counts in self._supposed:
            if namespace == gang.key.namespace:
                _add(counted, quota.need(charges, counts, once=False))
                _add(ours, quota.need(charges, counts, once=False))
        return {r: max(counted.get(r, _NONE), ours.get(r, _NONE)) for r in {*counted, *ours}}

    def suppose(self, gang: Gang, counts: tuple[int, ...]) -> None:
        """So many pods more of a gang, until ``forget``."""
        if gang.charges is not None:
            self._supposed.append((gang.key.namespace, gang.charges, counts))

    def forget(self) -> None:
        """Nothing is supposed any more."""
        self._supposed.clear()


def _wanted(gang: Gang) -> list[int]:
    sizes: Sizes = gang.place.sizes if gang.place else {}
    return [max(0, sizes.get(one.type, one.count) - gang.done.get(one.type, 0)) for one in gang.members]


def _add(total: dict[str, Decimal], part: Resources) -> None:
    for resource, value in part.items():
        total[resource] = total.get(resource, _NONE) + value


def by_namespace(quotas: Iterable[tuple[str, ResourceQuota]]) -> Quotas:
    """The quotas of each namespace, by name."""
    found: dict[str, list[ResourceQuota]] = {}
    for namespace, quota in quotas:
        found.setdefault(namespace, []).append(quota)
    return {name: tuple(sorted(listed, key=lambda quota: quota.name)) for name, listed in found.items()}

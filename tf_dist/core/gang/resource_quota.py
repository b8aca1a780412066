"""A namespace's ResourceQuota, and what pods and gangs count as in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple

_NONE: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCharge:
    """What one pod counts as in the ResourceQuotas of its namespace, and what says in which of them."""

    amounts: tuple[tuple[str, Decimal], ...]
    terminating: bool = False
    best_effort: bool = False
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class Charges:
    """What a gang counts as there: a pod of each member, in their order; and ``once``, however many pods there are."""

    members: tuple[PodCharge, ...]
    once: tuple[tuple[str, Decimal], ...] = ()


class Scope(NamedTuple):
    """Which pods a quota counts: all whose property fulfils the operator."""

    name: str
    operator: str = "Exists"
    values: frozenset[str] = frozenset()

    def counts(self, pod: PodCharge) -> bool:
        """Whether it counts a pod. What is not known here counts none."""
        match self.name:
            case "Terminating":
                return pod.terminating
            case "NotTerminating":
                return not pod.terminating
            case "BestEffort":
                return pod.best_effort
            case "NotBestEffort":
                return not pod.best_effort
            case "PriorityClass":
                return self._holds(pod.priority_class)
        return False

    def _holds(self, name: str) -> bool:
        match self.operator:
            case "In":
                return name in self.values
            case "NotIn":
                return name not in self.values
            case "Exists":
                return bool(name)
        return not name


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuota:
    """A quota of a namespace: of each resource how much there may be, and how much the API server has counted."""

    name: str
    hard: Mapping[str, Decimal]
    used: Mapping[str, Decimal]
    scopes: tuple[Scope, ...] = ()

    def counts(self, pod: PodCharge) -> bool:
        """Whether it counts a pod."""
        return all(scope.counts(pod) for scope in self.scopes)

    def need(self, charges: Charges, counts: Sequence[int], *, once: bool = True) -> dict[str, Decimal]:
        """What so many pods of each member take of it, and (``once``) what a gang takes however many they are."""
        need = {resource: value for resource, value in charges.once if resource in self.hard} if once else {}
        for pod, count in zip(charges.members, counts, strict=True):
            if count and self.counts(pod):
                for resource, value in pod.amounts:
                    if resource in self.hard:
                        need[resource] = need.get(resource, _NONE) + count * value
        return need

"""Queues of gangs: quotas, and the rules by which a queue serves and preempts gangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Final

from tf_dist.core.model.names import Requirements

DEFAULT_QUEUE: Final = "default"
"""The queue of jobs that name no queue. It always exists, and has no quotas unless it is defined."""


class QueueingStrategy(StrEnum):
    """Whether a gang that cannot start blocks those behind it in its queue."""

    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"


class PreemptionPolicy(StrEnum):
    """What the gangs of a queue may preempt: nothing, gangs of lower priority in the queue, or also gangs of other
    queues that have borrowed this queue's nominal quota."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    RECLAIM = "Reclaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota of one resource."""

    nominal: Decimal
    """The queue's own quota."""
    borrowing_limit: Decimal | None = None
    """The maximum that the queue borrows; None: all that others lend."""
    lending_limit: Decimal | None = None
    """The maximum that the queue lends; None: all that it does not use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of gangs. Queues with the same ``parent`` are a cohort, and lend each other unused quota."""

    name: str
    """Its name."""
    parent: str = ""
    """The parent queue; "": none."""
    weight: int = 1
    """Its weight in fair sharing."""
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """Quotas by resource. A resource without a quota here and in every ancestor is not limited."""
    order: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    """Whether a gang that cannot start blocks those behind it."""
    preemption: PreemptionPolicy = PreemptionPolicy.RECLAIM
    """What its gangs may preempt."""
    default_priority: int = 0
    """The priority of jobs that name no priority class."""
    recovery_timeout: float | None = None
    """Seconds, see ``gang_rules``; None: the default."""
    namespace_selector: Requirements | None = None
    """The selector of namespaces whose jobs the queue accepts; None: all. Child queues have their own selectors."""
    priority: int = 0
    """Queues of a higher priority are served first, independent of their usage."""
    reclaimable: bool = True
    """Whether gangs of other queues may take back the quota that the queue borrowed."""
    priority_classes: tuple[str, ...] | None = None
    """The classes that its jobs may name; None: any."""
    default: bool = False
    """Whether jobs that name no queue use this queue."""


def circular_parents(parents: Mapping[str, str]) -> list[str]:
    """The queues whose parents (by name; "": none) form a cycle."""
    circular: list[str] = []
    settled: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}
        name = start
        while name in parents and name not in settled and name not in path:
            path[name] = None
            name = parents[name]
        if name in path:
            walked = list(path)
            circular += walked[walked.index(name) :]
        settled.update(path)
    return circular

"""What-if evaluation: nodes and quotas after gangs have released theirs. Always rolled back."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple, Self

from tf_dist.core.gang.cache import SchedulerCache
from tf_dist.core.gang.placement.assumed_pods import NodeAssignments
from tf_dist.core.gang.placement.pod_sets import Counts, PodsOnNode
from tf_dist.core.gang.types import Resources
from tf_dist.core.gang.workload import Workload


class Release(NamedTuple):
    """A step of a what-if evaluation: a gang releases pods."""

    entry: Workload
    """The gang."""
    pods: Sequence[PodsOnNode]
    """The pods that it releases."""
    quota: Resources
    """The quota that it releases."""
    type: str = ""
    """The type of the one pod that it releases; "": all pods."""


class WhatIf:
    """Context in which ``to`` assumes steps as done. Leaving the ``with`` block rolls them back."""

    def __init__(self, cache: SchedulerCache, steps: Iterator[Release]) -> None:
        self._cache = cache
        self._more = steps
        self._marks: list[int] = []
        self._known: list[Release] = []

    @property
    def count(self) -> int:
        """The number of steps assumed as done."""
        return len(self._marks)

    @property
    def steps(self) -> list[Release]:
        """The steps assumed as done."""
        return self._known[: self.count]

    def to(self, count: int) -> int:
        """Assume ``count`` steps as done. Returns their number, if there are fewer."""
        snapshot = self._cache.assumed_pods.snapshot
        if count < self.count:
            for step in reversed(self._known[count : self.count]):
                self._cache.quotas.take(step.entry.queue, step.quota)
            snapshot.rollback(self._marks[count])
            del self._marks[count:]
        while self.count < count:
            if self.count == len(self._known):
                more = next(self._more, None)
                if more is None:
                    break
                self._known.append(more)
            step = self._known[self.count]
            self._cache.quotas.give(step.entry.queue, step.quota)
            self._marks.append(snapshot.mark())
            for shape, node, number in step.pods:
                if node in snapshot:
                    snapshot.give(shape, node, number)
        return self.count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.to(0)


def retake(cache: SchedulerCache, step: Release, nodes: Container[str]) -> bool:
    """Take back the capacity of a step if ``nodes`` have enough. Returns whether they had; otherwise nothing
    changes.
    """
    snapshot = cache.assumed_pods.snapshot
    here = [pods for pods in step.pods if pods.node in nodes and pods.node in snapshot]
    mark = snapshot.mark()
    for shape, node, count in here:
        snapshot.take(shape, node, count)
    table = snapshot.table
    if any(table.cells[column][table.row[node]] < 0 for shape, node, _ in here for column, _ in shape.requests):
        snapshot.rollback(mark)
        return False
    snapshot.commit(mark)
    return True


def find_now(cache: SchedulerCache, entry: Workload, counts: Counts) -> NodeAssignments | None:
    """The nodes of a gang if it were admitted now, or None if capacity or quota is missing."""
    request = entry.request
    if request is None or not cache.quotas.fits(entry.queue, request.need(counts)):
        return None
    return None if cache.assumed_pods.short(request, counts) is not None else cache.assumed_pods.fit(request, counts)


def fewest_releases(
    cache: SchedulerCache, supposing: WhatIf, entry: Workload, counts: Counts
) -> NodeAssignments | None:
    """Assume as few steps as the gang needs to start, and return its nodes; None: all steps do not suffice.

    The number is estimated from the effect of the last steps, and then found by bisection. If more capacity can make a
    placement fail, it may be one of several answers.
    """
    found = find_now(cache, entry, counts)
    high, more = supposing.count, 1
    low = high - 1
    request = entry.request
    if request is None:
        return found
    missing = cache.assumed_pods.missing(request, counts)
    while found is None:
        low, high = high, supposing.to(high + more)
        if high == low:
            return None
        found = find_now(cache, entry, counts)
        left = cache.assumed_pods.missing(request, counts)
        brought, missing = missing - left, left
        # Rounded up: with as many steps again for every pod that these brought, none is missing.
        more = min(-(-left * (high - low) // brought), 8 * (high - low)) if left and brought > 0 else 2 * more
    middle = high - 1  # the guess is mostly right
    while high - low > 1:
        supposing.to(middle)
        fewer = find_now(cache, entry, counts)
        if fewer is None:
            low = middle
        else:
            high, found = middle, fewer
        middle = (low + high) // 2
    supposing.to(high)
    return found

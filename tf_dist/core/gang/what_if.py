"""What-if evaluation: nodes and quotas with gangs having released what they use; always rolled back."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple, Self

from tf_dist.core.gang.cache import SchedulerCache
from tf_dist.core.gang.placement.assumed_pods import NodeAssignments
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_sets import Counts, PodsOnNode
from tf_dist.core.gang.types import Resources
from tf_dist.core.gang.workload import Workload


class Release(NamedTuple):
    """Release of pods of a gang, with their quota: one pod of a ``type``, or ("") all of them."""

    entry: Workload
    pods: Sequence[PodsOnNode]
    quota: Resources
    type: str = ""


class WhatIf:
    """Context in which ``to`` supposes steps as done; leaving its ``with`` rolls them back."""

    def __init__(self, cache: SchedulerCache, steps: Iterator[Release]) -> None:
        self._cache = cache
        self._more = steps
        self._marks: list[int] = []
        self.known: list[Release] = []

    @property
    def count(self) -> int:
        """How many steps are supposed as done."""
        return len(self._marks)

    @property
    def steps(self) -> list[Release]:
        """The steps supposed as done."""
        return self.known[: self.count]

    def to(self, count: int) -> int:
        """Suppose ``count`` steps as done; returns how many are, if there are fewer."""
        if count < self.count:
            for step in reversed(self.known[count : self.count]):
                self._cache.quotas.take(step.entry.queue, step.quota)
            if self._cache.assumed_pods is not None:
                self._cache.assumed_pods.snapshot.rollback(self._marks[count])
            del self._marks[count:]
        while self.count < count and self._next():
            pass
        return self.count

    def _next(self) -> bool:
        if self.count == len(self.known):
            step = next(self._more, None)
            if step is None:
                return False
            self.known.append(step)
        step = self.known[self.count]
        self._marks.append(apply_release(self._cache, step))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.to(0)


def apply_release(cache: SchedulerCache, step: Release) -> int:
    """Suppose one step as done; returns the mark to roll back to."""
    cache.quotas.give(step.entry.queue, step.quota)
    if cache.assumed_pods is None:
        return 0
    snapshot = cache.assumed_pods.snapshot
    mark = snapshot.mark()
    for shape, node, count in step.pods:
        if node in snapshot:
            snapshot.give(shape, node, count)
    return mark


def retake(cache: SchedulerCache, step: Release, nodes: Container[str]) -> bool:
    """Take the room of a step again if ``nodes`` have enough of it; whether they had, else nothing is changed."""
    if cache.assumed_pods is None:
        return True
    snapshot = cache.assumed_pods.snapshot
    here = [pods for pods in step.pods if pods.node in nodes and pods.node in snapshot]
    mark = snapshot.mark()
    for shape, node, count in here:
        snapshot.take(shape, node, count)
    if any(is_overcommitted(snapshot, pods) for pods in here):
        snapshot.rollback(mark)
        return False
    snapshot.commit(mark)
    return True


def is_overcommitted(snapshot: NodeSnapshot, pods: PodsOnNode) -> bool:
    """Whether the pods' node is overcommitted in a resource that they request."""
    row = snapshot.table.row[pods.node]
    return any(snapshot.table.cells[column][row] < 0 for column, _ in pods.shape.requests)


def find_now(cache: SchedulerCache, entry: Workload, counts: Counts) -> NodeAssignments | None:
    """The placement of a gang if it were admitted now; None: it lacks room or quota."""
    request = entry.request
    if request is None or not cache.quotas.fits(entry.queue, request.need(counts)):
        return None
    if cache.assumed_pods is None:
        return [{} for _ in counts]
    return None if cache.assumed_pods.short(request, counts) is not None else cache.assumed_pods.fit(request, counts)


def fewest_releases(
    cache: SchedulerCache, supposing: WhatIf, entry: Workload, counts: Counts
) -> NodeAssignments | None:
    """Suppose as few steps as let the gang start, and return its placement; None: all of them do not suffice.

    How many that are is guessed from what the last steps brought, and then looked for by halving: where more room ever
    lets fewer gangs in, it may be one of several answers.
    """
    found = find_now(cache, entry, counts)
    high, more = supposing.count, 1
    low = high - 1
    missing = _missing(cache, entry, counts)
    while found is None:
        low, high = high, supposing.to(high + more)
        if high == low:
            return None
        found = find_now(cache, entry, counts)
        left = _missing(cache, entry, counts)
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


def _missing(cache: SchedulerCache, entry: Workload, counts: Counts) -> int:
    """The number of pods without room, of the member where that is most."""
    if cache.assumed_pods is None or entry.request is None:
        return 0
    snapshot = cache.assumed_pods.snapshot
    wants = zip(entry.request.wants, counts, strict=True)
    return max((count - snapshot.most(want.shape, count) for want, count in wants if want.shape and count), default=0)

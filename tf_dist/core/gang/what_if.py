"""What-if evaluation: nodes and quotas with gangs having released what they use; always rolled back."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple, Self

from tf_dist.core.gang.cache import SchedulerCache, WorkloadInfo
from tf_dist.core.gang.placement.assumed_pods import NodeAssignments
from tf_dist.core.gang.placement.node_snapshot import NodeSnapshot
from tf_dist.core.gang.placement.pod_sets import Counts, PodsOnNode
from tf_dist.core.gang.types import Resources


class Release(NamedTuple):
    """Release of pods of a gang, with their quota: one pod of a ``type``, or ("") all of them."""

    entry: WorkloadInfo
    pods: list[PodsOnNode]
    quota: Resources
    type: str = ""


class WhatIf:
    """Context in which ``to`` supposes steps as done; leaving its ``with`` rolls them back."""

    def __init__(self, books: SchedulerCache, steps: Iterator[Release]) -> None:
        self._books = books
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
                self._books.quotas.take(step.entry.queue, step.quota)
            if self._books.grants is not None:
                self._books.grants.room.rollback(self._marks[count])
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
        self._marks.append(apply_release(self._books, step))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.to(0)


def apply_release(books: SchedulerCache, step: Release) -> int:
    """Suppose one step as done; returns the mark to roll back to."""
    books.quotas.give(step.entry.queue, step.quota)
    if books.grants is None:
        return 0
    room = books.grants.room
    mark = room.mark()
    for shape, node, count in step.pods:
        if node in room:
            room.give(shape, node, count)
    return mark


def retake(books: SchedulerCache, step: Release, nodes: Container[str]) -> bool:
    """Take the room of a step again if ``nodes`` have enough of it; whether they had, else nothing is changed."""
    if books.grants is None:
        return True
    room = books.grants.room
    here = [pods for pods in step.pods if pods.node in nodes and pods.node in room]
    mark = room.mark()
    for shape, node, count in here:
        room.take(shape, node, count)
    if any(is_overcommitted(room, pods) for pods in here):
        room.rollback(mark)
        return False
    room.commit(mark)
    return True


def is_overcommitted(room: NodeSnapshot, pods: PodsOnNode) -> bool:
    """Whether the pods' node is overcommitted in a resource that they request."""
    row = room.table.row[pods.node]
    return any(room.table.cells[column][row] < 0 for column, _ in pods.shape.requests)


def find_now(books: SchedulerCache, entry: WorkloadInfo, counts: Counts) -> NodeAssignments | None:
    """The placement of a gang if it were admitted now; None: it lacks room or quota."""
    ask = entry.ask
    if ask is None or not books.quotas.fits(entry.queue, ask.need(counts)):
        return None
    if books.grants is None:
        return [{} for _ in counts]
    return None if books.grants.short(ask, counts) is not None else books.grants.fit(ask, counts)


def fewest_releases(
    books: SchedulerCache, supposing: WhatIf, entry: WorkloadInfo, counts: Counts
) -> NodeAssignments | None:
    """Suppose as few steps as let the gang start, and return its placement; None: all of them do not suffice.

    How many that are is guessed from what the last steps brought, and then looked for by halving: where more room ever
    lets fewer gangs in, it may be one of several answers.
    """
    found = find_now(books, entry, counts)
    high, more = supposing.count, 1
    low = high - 1
    missing = _missing(books, entry, counts)
    while found is None:
        low, high = high, supposing.to(high + more)
        if high == low:
            return None
        found = find_now(books, entry, counts)
        left = _missing(books, entry, counts)
        brought, missing = missing - left, left
        # Rounded up: with as many steps again for every pod that these brought, none is missing.
        more = min(-(-left * (high - low) // brought), 8 * (high - low)) if left and brought > 0 else 2 * more
    middle = high - 1  # the guess is mostly right
    while high - low > 1:
        supposing.to(middle)
        fewer = find_now(books, entry, counts)
        if fewer is None:
            low = middle
        else:
            high, found = middle, fewer
        middle = (low + high) // 2
    supposing.to(high)
    return found


def _missing(books: SchedulerCache, entry: WorkloadInfo, counts: Counts) -> int:
    """The number of pods without room, of the member where that is most."""
    if books.grants is None or entry.ask is None:
        return 0
    room = books.grants.room
    wants = zip(entry.ask.wants, counts, strict=True)
    return max((count - room.most(want.shape, count) for want, count in wants if want.shape and count), default=0)

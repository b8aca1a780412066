"""Queues of pending gangs, their order, and the order in which a cycle serves them.

Gangs for which others are preempted come first, then gangs of higher priority, then starving gangs, then older gangs. A
gang with a long estimate lets slightly younger gangs pass (``AdmissionPolicy.stretch``). Its rank is a fixed time, so
two gangs only swap when one of them starves.

Gangs of a queue with equal requests and priority and a similar estimate form a group: if its first gang cannot start,
none can. A cycle evaluates only groups, so its cost does not depend on the length of the queue.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import frexp, inf
from types import MappingProxyType
from typing import Any

from tf_dist.core.gang.cache import EquivalentGangs, Rank, Workload
from tf_dist.core.gang.quota import Quotas, Share
from tf_dist.core.gang.types import AdmissionPolicy


@dataclass(slots=True, eq=False)
class PendingQueue:
    """The pending gangs of a queue."""

    order: list[Rank] = field(default_factory=list)
    """The gangs in order."""
    groups: dict[tuple[object, ...], EquivalentGangs] = field(default_factory=dict)
    """The same gangs by group."""


class PendingQueues:
    """The pending gangs of all queues.

    Gangs in back-off, invalid gangs, and gangs that their queue does not accept are not queued.
    """

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.policy = policy
        self.queues: dict[str, PendingQueue] = {}
        self._queued: dict[str, Workload] = {}
        self._now = 0.0
        self._backoff: dict[str, Workload] = {}
        self._backoff_ends: list[tuple[float, str]] = []
        self._starving: list[tuple[float, str]] = []

    @property
    def number(self) -> int:
        """The number of queued gangs."""
        return len(self._queued)

    def put(self, entry: Workload) -> None:
        """Add a pending gang."""
        self.remove(entry.uid)
        if entry.gang.wakes_at > self._now:
            self._backoff[entry.uid] = entry
            heappush(self._backoff_ends, (entry.gang.wakes_at, entry.uid))
        else:
            self._enqueue(entry, starving=False)

    def remove(self, uid: str) -> None:
        """Remove a gang; an unknown gang is ignored."""
        self._backoff.pop(uid, None)
        entry = self._queued.pop(uid, None)
        if entry is None or entry.rank is None or entry.group is None:
            return
        group, queue = entry.group, self.queues[entry.group.queue]
        del queue.order[bisect_left(queue.order, entry.rank)]
        del group.ranks[bisect_left(group.ranks, entry.rank)]
        if not group.ranks:
            del queue.groups[group.key]
        if not queue.order:
            del self.queues[group.queue]
        entry.rank = entry.group = None

    def wake(self, now: float) -> tuple[bool, list[Workload]]:
        """Enqueue gangs whose back-off has ended, and move starving gangs ahead.

        Returns whether anything changed, and the gangs whose back-off has ended.
        """
        self._now = now
        moved, ended = False, list[Workload]()
        while self._backoff_ends and self._backoff_ends[0][0] <= now:
            at, uid = heappop(self._backoff_ends)
            entry = self._backoff.get(uid)
            if entry is not None and entry.gang.wakes_at == at:
                del self._backoff[uid]
                self._enqueue(entry, starving=False)
                ended.append(entry)
        while self._starving and self._starving[0][0] <= now:
            at, uid = heappop(self._starving)
            entry = self._queued.get(uid)
            if entry is not None and entry.rank and entry.rank.patient and entry.since + self.policy.starving == at:
                self.remove(uid)
                self._enqueue(entry, starving=True)
                moved = True
        return moved or bool(ended), ended

    def next_wake(self) -> float:
        """The time of the next ``wake``: epoch seconds; inf: never."""
        return min(times[0][0] if times else inf for times in (self._backoff_ends, self._starving))

    def in_backoff(self, uid: str) -> bool:
        """Whether the gang is in back-off."""
        return uid in self._backoff

    def ahead(self, uid: str, counts: Callable[[EquivalentGangs], bool]) -> tuple[int, Iterator[Rank]]:
        """The number of gangs ahead of a gang, and their ranks in order. ``counts``: whether a group counts."""
        entry = self._queued[uid]
        assert entry.rank is not None
        assert entry.group is not None
        queue, rank = self.queues[entry.group.queue], entry.rank
        absent = {group for group in queue.groups.values() if not counts(group)}
        number = bisect_left(queue.order, rank)
        before = number - sum(bisect_left(group.ranks, rank) for group in absent)
        ranks = (queue.order[at] for at in range(number))
        return before, (one for one in ranks if not absent or self._queued[one.uid].group not in absent)

    def _enqueue(self, entry: Workload, *, starving: bool) -> None:
        gang = entry.gang
        if entry.problem or gang.inadmissible:
            return
        magnitude = None if gang.estimate is None else _magnitude(gang.estimate)
        since = entry.since
        if not starving:  # gangs that are younger by less than this time precede the gang
            length = _magnitude(self.policy.assumed) if magnitude is None else magnitude
            since += min(self.policy.starving, self.policy.stretch * 2.0**length)
        rank = Rank(-gang.nominated, -gang.priority, not starving, since, gang.created_at, gang.key, gang.uid)
        key = (
            id(entry.request),
            gang.charges and (gang.key.namespace, gang.charges),
            bool(gang.fallback_of),
            gang.nominated,
            gang.priority,
            gang.preempts,
            gang.patience,
            magnitude,
        )
        queue = self.queues.setdefault(entry.queue, PendingQueue())
        insort(queue.order, rank)
        group = queue.groups.get(key)
        if group is None:
            group = queue.groups[key] = EquivalentGangs(entry.queue, key, entry.request, [])
        insort(group.ranks, rank)
        entry.rank, entry.group = rank, group
        self._queued[entry.uid] = entry
        if not starving:
            heappush(self._starving, (entry.since + self.policy.starving, entry.uid))


def _magnitude(estimate: float) -> int:
    """The exponent of the smallest power of two that is not less than an estimate, because estimates are not exact."""
    mantissa, exponent = frexp(max(1.0, min(estimate, 1e12)))
    return exponent - 1 if mantissa == 0.5 else exponent


class FairSharingIterator:
    """The queues with pending gangs: the highest priority first, and the smallest share first among equal priorities.

    ``priorities``: by queue, default 0. ``ties``: by queue, a comparable value that decides between equal shares, such
    as the priority and age of its first gang. If these are equal, the name decides. ``Quotas.take`` only increases
    shares, so the share of a queue is computed again when it reaches the top. ``Quotas.give`` decreases shares, so all
    shares are computed again.
    """

    def __init__(
        self, quotas: Quotas, ties: Mapping[str, Any], priorities: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._quotas = quotas
        self._priorities = priorities
        self._heap = [(self._rank(queue), tie, queue) for queue, tie in ties.items()]
        heapify(self._heap)
        self._gives = quotas.gives

    def __bool__(self) -> bool:
        """Whether a queue is left."""
        return bool(self._heap)

    def next(self) -> str:
        """Remove and return the queue that is served next. Raises IndexError if no queue is left."""
        if self._gives != self._quotas.gives:
            self._gives = self._quotas.gives
            self._heap = [(self._rank(queue), tie, queue) for _, tie, queue in self._heap]
            heapify(self._heap)
        while True:
            rank, tie, queue = self._heap[0]
            now = self._rank(queue)
            if now == rank:
                return heappop(self._heap)[2]
            heapreplace(self._heap, (now, tie, queue))

    def back(self, queue: str, tie: Any) -> None:
        """Put a queue with more pending gangs back."""
        heappush(self._heap, (self._rank(queue), tie, queue))

    def _rank(self, queue: str) -> tuple[int, Share]:
        return -self._priorities.get(queue, 0), self._quotas.share(queue)


class QueueIterator:
    """The groups of a queue, in the order of their first gangs.

    ``asleep``: whether nothing can have changed for the first gang of a group. Such groups are skipped, except the
    first group that is nominated or ``due`` for a reservation. A strict queue skips no group, and ends at a blocked
    gang.
    """

    def __init__(
        self,
        queue: PendingQueue,
        *,
        strict: bool,
        asleep: Callable[[EquivalentGangs], bool],
        due: Callable[[EquivalentGangs], bool],
    ) -> None:
        self.is_strict = strict
        self.has_reservation = False
        """Whether a gang of the queue already has a reservation."""
        groups: Iterable[EquivalentGangs] = queue.groups.values()
        if not strict:
            awake, reserving = [], []
            for group in groups:
                if not asleep(group):
                    awake.append(group)
                elif due(group) or group.ranks[0].nominated:
                    reserving.append(group)
            groups = awake + sorted(reserving, key=lambda group: group.ranks[0])[:1]
        self._heap = [(group.ranks[0], group) for group in groups]
        heapify(self._heap)

    def __bool__(self) -> bool:
        """Whether a gang is left."""
        return bool(self._heap)

    @property
    def head(self) -> Rank:
        """The next gang."""
        return self._heap[0][0]

    def pop(self) -> tuple[Rank, EquivalentGangs]:
        """Remove the head."""
        return heappop(self._heap)

    def push(self, group: EquivalentGangs) -> None:
        """Put a group back after its first gang has started."""
        if group.ranks:
            heappush(self._heap, (group.ranks[0], group))

    def stop(self, keep: Container[str]) -> None:
        """End the iteration for all gangs except those in ``keep``."""
        self._heap = [(rank, group) for rank, group in self._heap if rank.uid in keep]
        heapify(self._heap)

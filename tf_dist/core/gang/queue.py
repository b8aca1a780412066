"""Queues of pending gangs, their order, and the order in which a cycle serves them.

Gangs for which others are preempted come first, then those of higher priority; of equal ones those that starve, then
the older ones: but a gang with an estimate of its run time lets gangs go first that come a little later, the longer it
will run the more (``AdmissionPolicy.stretch``). Its rank is a fixed moment, so two gangs only swap when one starves.

Gangs of one queue with equal requests and priority and about the same estimate form a group: if its first gang cannot
start, none can. So a cycle looks at groups, however long the queue is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import frexp, inf
from types import MappingProxyType
from typing import Any, NamedTuple

from tf_dist.core.api.job import JobKey
from tf_dist.core.gang.cache import WorkloadInfo
from tf_dist.core.gang.placement.pod_sets import GangRequest
from tf_dist.core.gang.quota import Quotas, Share
from tf_dist.core.gang.types import AdmissionPolicy, Gang


class Rank(NamedTuple):
    """A gang's rank in its queue; the smallest is first."""

    nominated: int
    urgency: int
    patient: int
    turn: float
    created_at: float
    key: JobKey
    uid: str


@dataclass(slots=True, eq=False)
class EquivalentGangs:
    """Gangs of a queue that can only start one after the other, in order. ``ranks`` is never empty.

    ``no_preemption_at``: the state in which nothing could be preempted for its first gang. ``blocked_by``: the last
    reason why none of them could start however many others end ("": they could; None: not looked at yet).
    """

    request: GangRequest
    ranks: list[Rank]
    no_preemption_at: object = None
    blocked_by: str | None = None


EquivalenceKey = tuple[object, ...]


@dataclass(slots=True, eq=False)
class PendingQueue:
    """The pending gangs of one queue, in order."""

    order: list[Rank] = field(default_factory=list)
    groups: dict[EquivalenceKey, EquivalentGangs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Waiting:
    queue: str
    rank: Rank
    kind: EquivalenceKey


class PendingQueues:
    """The pending gangs of all queues, except gangs in backoff (``not_before``), gangs that cannot be read, and gangs
    whose namespace their queue does not take."""

    def __init__(self, policy: AdmissionPolicy) -> None:
        self.policy = policy
        self._now = 0.0
        self.lines: dict[str, PendingQueue] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._asleep: dict[str, WorkloadInfo] = {}
        self._alarms: list[tuple[float, str]] = []
        self._starving: list[tuple[float, str]] = []

    @property
    def number(self) -> int:
        """How many gangs are queued."""
        return len(self._waiting)

    def put(self, entry: WorkloadInfo) -> None:
        """Add a pending gang."""
        self.remove(entry.uid)
        if entry.gang.wakes_at > self._now:
            self._asleep[entry.uid] = entry
            heappush(self._alarms, (entry.gang.wakes_at, entry.uid))
        else:
            self._line_up(entry, starving=False)

    def remove(self, uid: str) -> None:
        """Remove a gang; an unknown one is no error."""
        self._asleep.pop(uid, None)
        waiting = self._waiting.pop(uid, None)
        if waiting is None:
            return
        line = self.lines[waiting.queue]
        _discard(line.order, waiting.rank)
        group = line.groups[waiting.kind]
        _discard(group.ranks, waiting.rank)
        if not group.ranks:
            del line.groups[waiting.kind]
        if not line.order:
            del self.lines[waiting.queue]

    def wake(self, now: float, entries: dict[str, WorkloadInfo]) -> bool:
        """Enqueue gangs whose backoff has ended, and move starving ones ahead. Whether there were any."""
        self._now = now
        moved = False
        while self._alarms and self._alarms[0][0] <= now:
            at, uid = heappop(self._alarms)
            entry = self._asleep.get(uid)
            if entry is not None and entry.gang.wakes_at == at:
                del self._asleep[uid]
                self._line_up(entry, starving=False)
                moved = True
        while self._starving and self._starving[0][0] <= now:
            at, uid = heappop(self._starving)
            waiting = self._waiting.get(uid)
            if waiting is not None and waiting.rank.patient and entries[uid].since + self.policy.starving == at:
                self.remove(uid)
                self._line_up(entries[uid], starving=True)
                moved = True
        return moved

    def next_wake(self) -> float:
        """When ``wake`` has something to do next: epoch seconds, inf for never."""
        asleep = self._alarms[0][0] if self._alarms else inf
        starving = self._starving[0][0] if self._starving else inf
        return min(asleep, starving)

    def asleep(self, uid: str) -> bool:
        """Whether the gang is in backoff."""
        return uid in self._asleep

    def ahead(self, uid: str, counts: Callable[[EquivalentGangs], bool]) -> tuple[int, Iterator[Rank]]:
        """How many gangs are ahead of one, and which, the first one first; of the groups that count."""
        waiting = self._waiting[uid]
        line = self.lines[waiting.queue]
        out = [group for group in line.groups.values() if not counts(group)]
        number = bisect_left(line.order, waiting.rank)
        before = number - sum(bisect_left(group.ranks, waiting.rank) for group in out)
        absent = {id(group) for group in out}
        ranks = (line.order[at] for at in range(number))
        return before, (rank for rank in ranks if not absent or id(self.group(rank.uid)) not in absent)

    def group(self, uid: str) -> EquivalentGangs:
        """The group of a gang that is queued."""
        waiting = self._waiting[uid]
        return self.lines[waiting.queue].groups[waiting.kind]

    def _line_up(self, entry: WorkloadInfo, *, starving: bool) -> None:
        gang = entry.gang
        if entry.request is None or gang.inadmissible:
            return
        rank = self._rank(entry, starving=starving)
        bounded = gang.charges and (gang.key.namespace, gang.charges)
        kind: EquivalenceKey = (
            id(entry.request),
            bounded,
            bool(gang.fallback_of),
            gang.nominated,
            gang.priority,
            gang.preempts,
            gang.patience,
            _magnitude(gang.estimate),
        )
        line = self.lines.setdefault(entry.queue, PendingQueue())
        insort(line.order, rank)
        group = line.groups.get(kind)
        if group is None:
            line.groups[kind] = EquivalentGangs(entry.request, [rank])
        else:
            insort(group.ranks, rank)
        self._waiting[entry.uid] = _Waiting(entry.queue, rank, kind)
        if not starving:
            heappush(self._starving, (entry.since + self.policy.starving, entry.uid))

    def _rank(self, entry: WorkloadInfo, *, starving: bool) -> Rank:
        gang = entry.gang
        turn = entry.since + (0.0 if starving else shortest_job_delay(gang, self.policy))
        return Rank(-gang.nominated, -gang.priority, not starving, turn, gang.created_at, gang.key, gang.uid)


def shortest_job_delay(gang: Gang, policy: AdmissionPolicy) -> float:
    """Seconds by which others may come later than the gang and still go first."""
    magnitude = _magnitude(gang.estimate if gang.estimate is not None else policy.assumed)
    return min(policy.starving, policy.stretch * 2.0 ** (magnitude or 0))


def _magnitude(estimate: float | None) -> int | None:
    """The smallest power of two that is not less than an estimate: estimates are no more exact."""
    if estimate is None:
        return None
    mantissa, exponent = frexp(max(1.0, min(estimate, 1e12)))
    return exponent - 1 if mantissa == 0.5 else exponent


def _discard(ranks: list[Rank], rank: Rank) -> None:
    at = bisect_left(ranks, rank)
    if at < len(ranks) and ranks[at] == rank:
        del ranks[at]


class FairSharingIterator:
    """The queues with pending gangs: those of the highest priority first, of these the one with the smallest share.

    ``priorities``: by queue, 0 for one that is not named. ``ties``: by queue, what decides between equal shares
    (anything comparable, such as the priority and age of its first gang); after that, the name. What is taken from
    ``Quotas`` meanwhile only makes shares larger, so a queue is measured again when it comes to the top; what is given
    makes them smaller, and then all are.
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
        """Take out the queue whose turn it is. IndexError: none is left."""
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
        """Put a queue back that has more pending gangs."""
        heappush(self._heap, (self._rank(queue), tie, queue))

    def _rank(self, queue: str) -> tuple[int, Share]:
        return -self._priorities.get(queue, 0), self._quotas.share(queue)


class QueueIterator:
    """The groups of a queue, the one with the first gang first. ``owns``: a gang of it has a reservation already.

    ``asleep``: whether nothing can have changed for the first gang of a group; the group is skipped then, except the
    first one that is ``due`` for a reservation. A ``strict`` queue skips none, and ends at a blocked gang.
    """

    def __init__(
        self,
        line: PendingQueue,
        *,
        strict: bool,
        asleep: Callable[[EquivalentGangs], bool],
        due: Callable[[EquivalentGangs], bool],
    ) -> None:
        self.strict = strict
        self.owns = False
        groups: Iterable[EquivalentGangs] = line.groups.values()
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
    def next(self) -> Rank:
        """The next gang."""
        return self._heap[0][0]

    def pop(self) -> tuple[Rank, EquivalentGangs]:
        """Take it out."""
        return heappop(self._heap)

    def again(self, group: EquivalentGangs) -> None:
        """Put a group back whose first gang has started."""
        if group.ranks:
            heappush(self._heap, (group.ranks[0], group))

    def stop(self, keep: Callable[[Rank], bool]) -> None:
        """End the iteration, but for those to keep."""
        self._heap = [(rank, group) for rank, group in self._heap if keep(rank)]
        heapify(self._heap)

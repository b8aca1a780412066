"""Reservations and backfilling (EASY): when and where a waiting gang will start, and the capacity reserved for it.

As in EASY backfilling, running gangs are assumed to end at their estimated times, one after the other, until the
waiting gang fits. Gangs behind it may start if they do not delay it: they end before it starts, or use capacity that it
does not need. A reservation is exact for each node: it only holds capacity that gangs which end earlier do not release.
``WhatIf`` evaluates the state after releases on the nodes and quotas themselves, and always rolls it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import NamedTuple, Self

from tf_dist.core.gang.cache import SchedulerCache, Workload
from tf_dist.core.gang.placement.pod_sets import Counts, PodClass, PodsOnNode
from tf_dist.core.gang.placement.search import NodeAssignments
from tf_dist.core.gang.resources.pod_requests import add_resources, subtract_resources
from tf_dist.core.gang.types import Resources


class Release(NamedTuple):
    """A step of a what-if evaluation: a gang releases pods."""

    entry: Workload
    """The gang."""
    pods: Sequence[PodsOnNode]
    """The pods that it releases."""
    quota: Resources
    """The quota that it releases."""
    type: str = ""
    """The type of the single pod that it releases; "": all pods."""


class WhatIf:
    """Context in which ``to`` assumes that steps are done. The end of the ``with`` block rolls them back."""

    def __init__(self, cache: SchedulerCache, steps: Iterator[Release]) -> None:
        self._cache = cache
        self._more = steps
        self._marks: list[int] = []
        self._known: list[Release] = []

    @property
    def count(self) -> int:
        """The number of steps that are assumed to be done."""
        return len(self._marks)

    @property
    def steps(self) -> list[Release]:
        """The steps that are assumed to be done."""
        return self._known[: self.count]

    def to(self, count: int) -> int:
        """Assume that ``count`` steps are done. Returns their number, which is smaller if fewer steps exist."""
        if count < self.count:
            self._cache.rollback(self._marks[count])
            del self._marks[count:]
        while self.count < count:
            if self.count == len(self._known):
                more = next(self._more, None)
                if more is None:
                    break
                self._known.append(more)
            step = self._known[self.count]
            self._marks.append(self._cache.mark())
            self._cache.suppose(step.entry.queue, step.quota, step.pods, released=True)
        return self.count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.to(0)


def find_now(cache: SchedulerCache, entry: Workload, counts: Counts) -> NodeAssignments | None:
    """The nodes of a gang if it were admitted now, or None if capacity or quota is missing."""
    request, pods = entry.request, cache.assumed_pods
    if not cache.quotas.fits(entry.queue, request.need(counts)) or pods.short(request, counts) is not None:
        return None
    return pods.fit(request, counts)


def fewest_releases(
    cache: SchedulerCache, supposing: WhatIf, entry: Workload, counts: Counts
) -> NodeAssignments | None:
    """Assume as few steps as the gang needs to start, and return its nodes; None if all steps are not sufficient.

    The number is estimated from the effect of the last steps, and then determined by bisection. It may not be the
    smallest number, because more capacity can make a placement fail.
    """
    found = find_now(cache, entry, counts)
    high, more = supposing.count, 1
    low = high - 1
    missing = cache.assumed_pods.missing(entry.request, counts)
    while found is None:
        low, high = high, supposing.to(high + more)
        if high == low:
            return None
        found = find_now(cache, entry, counts)
        left = cache.assumed_pods.missing(entry.request, counts)
        brought, missing = missing - left, left
        # Rounded up: after this number of steps, no pod is missing if steps continue to have the same effect.
        more = min(-(-left * (high - low) // brought), 8 * (high - low)) if left and brought > 0 else 2 * more
    middle = high - 1  # the estimate is usually right
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


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """When and where a gang will start."""

    entry: Workload
    """The gang."""
    counts: Counts
    """The number of its pods, by member."""
    nodes: NodeAssignments
    """The future nodes of its pods, by member."""
    start: float
    """Epoch seconds; inf: unknown."""
    after: Workload | None
    """The gang that ends immediately before; None if the reservation only waits for terminating pods."""
    ending: frozenset[str] = frozenset()
    """The uids of the gangs that end before."""
    hold: list[PodsOnNode] = field(default_factory=list)
    """The free capacity that is reserved for the gang."""
    reserved_quota: Resources = field(default_factory=dict)
    """The remaining quota that is reserved for the gang."""

    @property
    def need(self) -> Resources:
        """The quota that the gang needs."""
        return self.entry.request.need(self.counts)

    @property
    def pods(self) -> list[PodsOnNode]:
        """The future pods of the gang, by class and node."""
        return placed_pods(self.entry, self.nodes)


def placed_pods(entry: Workload, nodes: NodeAssignments) -> list[PodsOnNode]:
    """The pods of a gang on these nodes, by class and node."""
    together: Counter[tuple[PodClass, str]] = Counter()
    for want, placed in zip(entry.request.wants, nodes, strict=True):
        for node, count in placed.items():
            together[want.shape, node] += count
    return [PodsOnNode(shape, node, count) for (shape, node), count in together.items()]


def releases_underway(cache: SchedulerCache) -> list[Release]:
    """The capacity that preempted or shrunk gangs and terminating pods are releasing."""
    return [
        Release(
            entry,
            (*entry.released_pods, *entry.held.terminating),
            add_resources((entry.released_resources, entry.held.terminating_quota)),
        )
        for _, entry in sorted(cache.departing.items())
    ]


def make_reservation(
    cache: SchedulerCache,
    entry: Workload,
    counts: Counts,
    now: float,
    earlier: Sequence[Reservation] = (),
    *,
    ended: bool = True,
) -> Reservation | None:
    """A reservation for a gang in addition to ``earlier`` reservations; None if the gang would not fit.

    By default, the expected ends of all running gangs count. If ``ended`` is False, only capacity that is already being
    released counts.
    """
    underway = releases_underway(cache)
    running = (cache.running[uid] for uid in cache.ends) if ended else ()
    coming = (Release(one, one.held.remaining, one.held.remaining_quota) for one in running if not one.releasing)
    with with_reserved(cache, earlier, started=True), WhatIf(cache, chain(underway, coming)) as supposing:
        supposing.to(len(underway))
        nodes = fewest_releases(cache, supposing, entry, counts)
        if nodes is None:
            return None
        steps = supposing.steps
    # Reserve the needed quota that does not become free in the gang's queue. Released quota that earlier reservations
    # count on does not become free.
    released = add_resources(step.quota for step in steps if step.entry.queue == entry.queue)
    for one in earlier:
        if one.entry.queue == entry.queue:
            released = subtract_resources(released, subtract_resources(one.need, one.reserved_quota))
    need = entry.request.need(counts).items()
    short = {resource: value - max(Decimal(0), released.get(resource, Decimal(0))) for resource, value in need}
    ending = [step.entry for step in steps[len(underway) :]]
    after = ending[-1] if ending else None
    return Reservation(
        entry=entry,
        counts=counts,
        nodes=nodes,
        start=cache.ends.time(after.uid) if after else now,
        after=after,
        ending=frozenset(one.uid for one in ending),
        hold=_held_back(entry, nodes, steps, earlier),
        reserved_quota={resource: value for resource, value in short.items() if value > 0},
    )


def _held_back(
    entry: Workload, nodes: NodeAssignments, steps: Sequence[Release], earlier: Sequence[Reservation]
) -> list[PodsOnNode]:
    """The pods of a reservation for which the capacity that becomes free on their nodes is not sufficient."""
    free: dict[str, dict[int, int]] = {node: {} for placed in nodes for node in placed}

    def add(pods: PodsOnNode, number: int) -> None:
        there = free.get(pods.node)
        if there is not None:
            for column, value in pods.shape.requests:
                there[column] = there.get(column, 0) + value * number

    for step in steps:
        for pods in step.pods:
            add(pods, pods.number)
    for one in earlier:  # earlier reservations count on a part of it
        kept = Counter({(pods.shape, pods.node): pods.number for pods in one.hold})
        for pods in one.pods:
            add(pods, kept[pods.shape, pods.node] - pods.number)
    hold = []
    for pods in placed_pods(entry, nodes):
        there = free[pods.node]
        covered = min((max(0, there.get(column, 0)) // value for column, value in pods.shape.requests), default=None)
        covered = pods.number if covered is None else min(covered, pods.number)
        add(pods, -covered)
        if pods.number > covered:
            hold.append(pods._replace(number=pods.number - covered))
    return hold


@contextmanager
def with_reserved(cache: SchedulerCache, reserved: Sequence[Reservation], *, started: bool) -> Iterator[None]:
    """Nodes and quota after these reservations have ``started``, or else without their reserved capacity."""
    mark = cache.mark()
    for one in reserved:
        if started:
            cache.suppose(one.entry.queue, one.need, one.pods)
        else:
            cache.suppose(one.entry.queue, one.reserved_quota, one.hold)
    try:
        yield
    finally:
        cache.rollback(mark)


class ReservationCache:
    """Cache of reservations. It is valid as long as no gang gets or gives up capacity and no estimate is exceeded."""

    def __init__(self) -> None:
        self.kept_out: set[object] = set()
        """Gangs that do not fit in addition to certain reservations."""
        self._made: dict[object, Reservation | None] = {}
        self._state: object = None

    def at(self, cache: SchedulerCache) -> ReservationCache:
        """This cache, without entries that are no longer valid."""
        state = cache.state, cache.ends.version
        if state != self._state:
            self._made, self.kept_out, self._state = {}, set(), state
        return self

    def reserve(
        self,
        cache: SchedulerCache,
        entry: Workload,
        counts: Counts,
        now: float,
        before: Sequence[Reservation] = (),
        *,
        ended: bool,
    ) -> Reservation | None:
        """``make_reservation``, cached."""
        made = self.at(cache)._made
        key = entry, entry.request, entry.queue, counts, ended, *before
        if key not in made:
            made[key] = make_reservation(cache, entry, counts, now, before, ended=ended)
        return made[key]


class Reservations:
    """The reservations of a cycle. Later gangs get the remaining capacity."""

    def __init__(self, cache: SchedulerCache, now: float, known: ReservationCache) -> None:
        self.made: list[Reservation] = []
        self._wanted: list[tuple[Workload, Counts]] = []
        self._cache = cache
        self._now = now
        self._known = known

    def __bool__(self) -> bool:
        """Whether the cycle has made a reservation."""
        return bool(self.made)

    def want(self, entry: Workload, counts: Counts) -> None:
        """Reserve capacity for a gang, after the earlier reservations. It is computed on first use."""
        self._wanted.append((entry, counts))

    def when_left(self, entry: Workload, counts: Counts) -> bool:
        """Whether a gang can start after terminating pods have ended. If so, that capacity is reserved for it."""
        self._make()
        return self._reserve(entry, counts, ended=False)

    def find(self, entry: Workload, counts: Counts) -> NodeAssignments | None:
        """The nodes on which a gang can have these pods without a delay of reservations, or None.

        No capacity is taken.
        """
        request, cache = entry.request, self._cache
        if not cache.quotas.fits(entry.queue, request.need(counts)):
            return None  # the quota is checked again below, without what is reserved of it
        found: NodeAssignments | None = None
        if not self.made or self._ends_before(entry):
            found = cache.assumed_pods.look(request, counts)
            if found is None:
                return None
            self._make()
        if not self.made or self._ends_before(entry):
            return found
        self._make()
        known = self._known.at(cache)
        key = request, entry.queue, counts, *self.made
        if key in known.kept_out or cache.assumed_pods.surely_lacks(request, counts):
            return None
        with with_reserved(cache, self.made, started=False):
            found = find_now(cache, entry, counts)
        if found is None:
            known.kept_out.add(key)
        return found

    def find_more(self, entry: Workload, counts: Counts) -> NodeAssignments | None:
        """The nodes on which a running gang can have these further pods without a delay of reservations, or None.

        Nodes of the gang are preferred. No capacity is taken. A reservation that waits for the end of the gang holds
        nothing back from it: otherwise each would wait for the other.
        """
        request, cache = entry.request, self._cache
        if cache.assumed_pods.surely_lacks(request, counts):
            return None
        self._make()
        others = [one for one in self.made if entry.uid not in one.ending]
        with with_reserved(cache, others, started=False):
            if not cache.quotas.fits(entry.queue, request.need(counts)):
                return None
            keep = Counter(node for want in request.wants for node in entry.nodes_by_index(want.type) if node)
            return cache.assumed_pods.fit(request, counts, keep)

    def taken(self) -> AbstractContextManager[None]:
        """Nodes and quota after all reservations have started."""
        self._make()
        return with_reserved(self._cache, self.made, started=True)

    def _make(self) -> None:
        for entry, counts in self._wanted:
            self._reserve(entry, counts, ended=True)
        self._wanted.clear()

    def _reserve(self, entry: Workload, counts: Counts, *, ended: bool) -> bool:
        reservation = self._known.reserve(self._cache, entry, counts, self._now, self.made, ended=ended)
        if reservation is not None:
            self.made.append(reservation)
        return reservation is not None

    def _ends_before(self, entry: Workload) -> bool:
        """Whether a gang that starts now ends before the first reservation can start."""
        estimate = entry.gang.estimate
        return estimate is not None and all(self._now + estimate <= one.start for one in self.made)

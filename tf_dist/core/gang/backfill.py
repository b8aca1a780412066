"""Reservations and backfilling (EASY): when and where a waiting gang will start, and what others must leave to it.

As in EASY backfilling: running gangs are assumed to end by their estimates, one after the other, until the gang fits.
Gangs behind it may start if they do not delay it: they end before it starts, or run where it will not. It is exact to
the node: of its place only the part is held back that no gang vacates that ends before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain

from tf_dist.core.gang.cache import SchedulerCache
from tf_dist.core.gang.placement.assumed_pods import NodeAssignments
from tf_dist.core.gang.placement.pod_classes import PodClass
from tf_dist.core.gang.placement.pod_sets import Counts, PodsOnNode
from tf_dist.core.gang.resources.pod_requests import add_resources, subtract_resources
from tf_dist.core.gang.types import Resources
from tf_dist.core.gang.what_if import Release, WhatIf, fewest_releases, find_now
from tf_dist.core.gang.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """A reservation: ``entry`` starts with ``counts`` pods at ``start`` (inf: unknown) at ``places``, once ``after``
    has ended (None: once terminating pods are gone). ``hold``: what of the free room is kept for it;
    ``reserved_quota``: and of the quota that is left.
    """

    entry: Workload
    counts: Counts
    places: NodeAssignments
    start: float
    after: Workload | None
    hold: list[PodsOnNode] = field(default_factory=list)
    reserved_quota: Resources = field(default_factory=dict)

    @property
    def need(self) -> Resources:
        """What it needs of its quota."""
        return self.entry.request.need(self.counts) if self.entry.request else {}

    @property
    def pods(self) -> list[PodsOnNode]:
        """Where its pods will be."""
        return placed_pods(self.entry, self.places)


def releases_underway(cache: SchedulerCache) -> list[Release]:
    """What is being released: by gangs that are preempted or shrunk, and by terminating pods."""
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
    """A reservation for a gang, beside the ``earlier`` ones; None: it would not fit even when all running gangs ended.

    Not ``ended``: only what is being released already counts, no expected end.
    """
    going = releases_underway(cache)
    running = (cache.running[uid] for uid in cache.ends) if ended else ()
    coming = (Release(one, one.held.remaining, one.held.remaining_quota) for one in running if not one.releasing)
    with with_reserved_taken(cache, earlier), WhatIf(cache, chain(going, coming)) as supposing:
        supposing.to(len(going))
        places = fewest_releases(cache, supposing, entry, counts)
        if places is None:
            return None
        steps = supposing.steps
    after = steps[-1].entry if len(steps) > len(going) else None
    return Reservation(
        entry=entry,
        counts=counts,
        places=places,
        start=cache.ends.time(after.uid) if after else now,
        after=after,
        hold=_hold(entry, places, _vacated(steps, places, earlier)),
        reserved_quota=_hold_quota(entry, counts, steps, earlier),
    )


def with_reserved_taken(cache: SchedulerCache, reserved: Sequence[Reservation]) -> AbstractContextManager[None]:
    """Nodes and quota as they are once these reservations have started."""
    return _taken(cache, [(one.entry.queue, one.need, one.pods) for one in reserved])


def with_reserved_kept(cache: SchedulerCache, reserved: Sequence[Reservation]) -> AbstractContextManager[None]:
    """Nodes and quota less what is held for these reservations."""
    return _taken(cache, [(one.entry.queue, one.reserved_quota, one.hold) for one in reserved])


@contextmanager
def _taken(cache: SchedulerCache, taken: list[tuple[str, Resources, Sequence[PodsOnNode]]]) -> Iterator[None]:
    """Nodes and quota without what is taken of them, by queue."""
    snapshot = cache.assumed_pods.snapshot if cache.assumed_pods else None
    mark = snapshot.mark() if snapshot is not None else 0
    for queue, quota, pods in taken:
        cache.quotas.take(queue, quota)
        if snapshot is not None:
            for shape, node, count in pods:
                snapshot.take(shape, node, count)
    try:
        yield
    finally:
        if snapshot is not None:
            snapshot.rollback(mark)
        for queue, quota, _ in taken:
            cache.quotas.give(queue, quota)


def _hold_quota(entry: Workload, counts: Counts, steps: Sequence[Release], earlier: Sequence[Reservation]) -> Resources:
    """What a reservation needs of its quota beyond what becomes free in its queue."""
    free = add_resources(step.quota for step in steps if step.entry.queue == entry.queue)
    for one in earlier:
        if one.entry.queue == entry.queue:
            free = subtract_resources(free, subtract_resources(one.need, one.reserved_quota))
    need = entry.request.need(counts) if entry.request else {}
    left = {resource: value - max(Decimal(0), free.get(resource, Decimal(0))) for resource, value in need.items()}
    return {resource: value for resource, value in left.items() if value > 0}


Amounts = dict[str, dict[int, int]]


def _vacated(steps: Sequence[Release], places: NodeAssignments, earlier: Sequence[Reservation]) -> Amounts:
    """What becomes free on the nodes of a place, less what earlier reservations count on."""
    free: Amounts = {node: {} for placed in places for node in placed}
    for step in steps:
        for pods in step.pods:
            _add(free, pods, 1)
    for one in earlier:
        kept = Counter({(pods.shape, pods.node): pods.number for pods in one.hold})
        for shape, node, count in one.pods:
            _add(free, PodsOnNode(shape, node, count - kept[shape, node]), -1)
    return free


def _add(free: Amounts, pods: PodsOnNode, sign: int) -> None:
    there = free.get(pods.node)
    if there is not None:
        for column, value in pods.shape.requests:
            there[column] = there.get(column, 0) + sign * value * pods.number


def _hold(entry: Workload, places: NodeAssignments, free: Amounts) -> list[PodsOnNode]:
    """The pods of a place for which what becomes free does not suffice."""
    hold = []
    for shape, node, count in placed_pods(entry, places):
        there = free[node]
        covered = min((max(0, there.get(column, 0)) // value for column, value in shape.requests), default=count)
        covered = min(covered, count)
        _add(free, PodsOnNode(shape, node, covered), -1)
        if count > covered:
            hold.append(PodsOnNode(shape, node, count - covered))
    return hold


def placed_pods(entry: Workload, places: NodeAssignments) -> list[PodsOnNode]:
    """The pods of a place, one shape on one node at a time."""
    wants = entry.request.wants if entry.request else ()
    together: Counter[tuple[PodClass, str]] = Counter()
    for want, placed in zip(wants, places, strict=True):
        for node, count in placed.items():
            if want.shape is not None:
                together[want.shape, node] += count
    return [PodsOnNode(shape, node, count) for (shape, node), count in together.items()]


class ReservationCache:
    """Cache of reservations, valid while no gang gets or gives up anything and no estimate is overrun.

    ``made``: by the gang, its pods and the reservations before it; ``kept_out``: which gang finds nothing beside which.
    """

    def __init__(self) -> None:
        self.made: dict[object, Reservation | None] = {}
        self.kept_out: set[object] = set()
        self._state: object = None

    def at(self, cache: SchedulerCache) -> ReservationCache:
        """The part that is valid now."""
        state = cache.state, cache.ends.version
        if state != self._state:
            self.made, self.kept_out, self._state = {}, set(), state
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
        known = self.at(cache)
        key = entry, entry.request, entry.queue, counts, ended, *before
        if key not in known.made:
            known.made[key] = make_reservation(cache, entry, counts, now, before, ended=ended)
        return known.made[key]


class Reservations:
    """The reservations of a cycle: later gangs get what they do not need."""

    def __init__(self, cache: SchedulerCache, now: float, known: ReservationCache) -> None:
        self.made: list[Reservation] = []
        self._wanted: list[tuple[Workload, Counts]] = []
        self._cache = cache
        self._now = now
        self._known = known

    def __bool__(self) -> bool:
        """Whether any has been made."""
        return bool(self.made)

    def want(self, entry: Workload, counts: Counts) -> None:
        """Reserve room for a gang, beside the reservations before it; made when it is first needed."""
        self._wanted.append((entry, counts))

    def when_left(self, entry: Workload, counts: Counts) -> bool:
        """Whether a gang can start once terminating pods are gone; if so, the room is reserved for it."""
        self._make()
        return self._reserve(entry, counts, ended=False)

    def find(self, entry: Workload, counts: Counts) -> NodeAssignments | None:
        """Where a gang can have so many pods without delaying a reservation; None: nowhere. Nothing is taken."""
        request, cache = entry.request, self._cache
        if request is None or not cache.quotas.fits(entry.queue, request.need(counts)):
            return None
        found: NodeAssignments | None = None
        if not self.made or self._ends_before(entry):
            found = cache.assumed_pods.look(request, counts) if cache.assumed_pods else [{} for _ in counts]
            if found is None:
                return None
            self._make()
        if not self.made or self._ends_before(entry):
            return found
        self._make()
        known = self._known.at(cache)
        key = request, entry.queue, counts, *self.made
        if key in known.kept_out or (
            cache.assumed_pods is not None and cache.assumed_pods.surely_lacks(request, counts)
        ):
            return None
        with with_reserved_kept(cache, self.made):
            found = find_now(cache, entry, counts)
        if found is None:
            known.kept_out.add(key)
        return found

    def find_more(self, entry: Workload, counts: Counts) -> NodeAssignments | None:
        """Where a running gang can have so many more pods without delaying a reservation; None: nowhere.

        They go where the gang is already, as far as there is room. Nothing is taken.
        """
        request, cache = entry.request, self._cache
        if request is None or (cache.assumed_pods is not None and cache.assumed_pods.surely_lacks(request, counts)):
            return None
        self._make()
        with with_reserved_kept(cache, self.made):
            if not cache.quotas.fits(entry.queue, request.need(counts)):
                return None
            keep = Counter(node for want in request.wants for node in entry.nodes_by_index(want.type) if node)
            return cache.assumed_pods.fit(request, counts, keep) if cache.assumed_pods else [{} for _ in counts]

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Nodes and quota as they are once all reservations have started."""
        self._make()
        with with_reserved_taken(self._cache, self.made):
            yield

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

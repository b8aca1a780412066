"""Reservations: when and where a gang that waits will start, and which free room others must leave to it.

As in EASY backfilling: running gangs are taken to end when their estimates say, one after the other, until the gang
fits. Those behind it may have what they do not take away from it: they end before it can start, or go where it will not
be. It is exact to the node: of its place only the part is held back that nobody who ends before will vacate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain

from tf_dist.core.gang.asks import Counts
from tf_dist.core.gang.books import Books, Entry
from tf_dist.core.gang.demand import added, subtracted
from tf_dist.core.gang.grants import Places
from tf_dist.core.gang.holding import Pods
from tf_dist.core.gang.model import Resources
from tf_dist.core.gang.shapes import Shape
from tf_dist.core.gang.supposing import Step, Supposing, fewest


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """``entry`` starts with ``counts`` pods at ``start`` (inf: nobody knows when) at ``places``, once ``after`` has
    ended (None: once those that are leaving have left). ``hold``: what of the free room is kept for it; ``hold_quota``:
    and of the quota that is left.
    """

    entry: Entry
    counts: Counts
    places: Places
    start: float
    after: Entry | None
    hold: list[Pods] = field(default_factory=list)
    hold_quota: Resources = field(default_factory=dict)

    @property
    def need(self) -> Resources:
        """What it asks for, of its quota."""
        return self.entry.ask.need(self.counts) if self.entry.ask else {}

    @property
    def pods(self) -> list[Pods]:
        """Where its pods will be."""
        return placed_pods(self.entry, self.places)


def leaving(books: Books) -> list[Step]:
    """What those give back that have been told to, or whose pods are on their way out already."""
    return [
        Step(entry, entry.going + entry.held.leaving, added((entry.goes, entry.held.leaving_quota)))
        for _, entry in sorted(books.departing.items())
    ]


def reserve(
    books: Books,
    entry: Entry,
    counts: Counts,
    now: float,
    earlier: Sequence[Reservation] = (),
    *,
    ended: bool = True,
) -> Reservation | None:
    """A reservation for a gang, beside the ``earlier`` ones; None: it would not fit if all gangs that run had ended.

    Not ``ended``: none of those has; only those leave that are leaving already.
    """
    going = leaving(books)
    running = (books.running[uid] for uid in books.ends) if ended else ()
    coming = (Step(one, one.held.staying, one.held.staying_quota) for one in running if not one.told)
    with taken(books, earlier), Supposing(books, chain(going, coming)) as supposing:
        supposing.to(len(going))
        places = fewest(books, supposing, entry, counts)
        if places is None:
            return None
        steps = supposing.steps
    after = steps[-1].entry if len(steps) > len(going) else None
    return Reservation(
        entry=entry,
        counts=counts,
        places=places,
        start=books.ends.time(after.uid) if after else now,
        after=after,
        hold=_hold(entry, places, _vacated(steps, places, earlier)),
        hold_quota=_hold_quota(entry, counts, steps, earlier),
    )


@contextmanager
def taken(books: Books, reserved: Sequence[Reservation]) -> Iterator[None]:
    """Room and quota as they are once those who have reserved have what they reserved."""
    mark = books.grants.room.mark() if books.grants else 0
    for one in reserved:
        books.quotas.take(one.entry.queue, one.need)
        if books.grants:
            for shape, node, count in one.pods:
                books.grants.room.take(shape, node, count)
    try:
        yield
    finally:
        if books.grants:
            books.grants.room.rollback(mark)
        for one in reserved:
            books.quotas.give(one.entry.queue, one.need)


@contextmanager
def kept(books: Books, reserved: Sequence[Reservation]) -> Iterator[None]:
    """Room and quota less what is kept for those who have reserved."""
    mark = books.grants.room.mark() if books.grants else 0
    for one in reserved:
        books.quotas.take(one.entry.queue, one.hold_quota)
        if books.grants:
            for shape, node, count in one.hold:
                books.grants.room.take(shape, node, count)
    try:
        yield
    finally:
        if books.grants:
            books.grants.room.rollback(mark)
        for one in reserved:
            books.quotas.give(one.entry.queue, one.hold_quota)


def _hold_quota(entry: Entry, counts: Counts, steps: Sequence[Step], earlier: Sequence[Reservation]) -> Resources:
    """What it needs of its quota beyond what becomes free in its queue."""
    free = added(step.quota for step in steps if step.entry.queue == entry.queue)
    for one in earlier:
        if one.entry.queue == entry.queue:
            free = subtracted(free, subtracted(one.need, one.hold_quota))
    need = entry.ask.need(counts) if entry.ask else {}
    left = {resource: value - max(Decimal(0), free.get(resource, Decimal(0))) for resource, value in need.items()}
    return {resource: value for resource, value in left.items() if value > 0}


Amounts = dict[str, dict[int, int]]


def _vacated(steps: Sequence[Step], places: Places, earlier: Sequence[Reservation]) -> Amounts:
    """What becomes free on the nodes of a place, less that on which earlier reservations count already."""
    free: Amounts = {node: {} for placed in places for node in placed}
    for step in steps:
        for pods in step.pods:
            _add(free, pods, 1)
    for one in earlier:
        kept = Counter({(pods.shape, pods.node): pods.number for pods in one.hold})
        for shape, node, count in one.pods:
            _add(free, Pods(shape, node, count - kept[shape, node]), -1)
    return free


def _add(free: Amounts, pods: Pods, sign: int) -> None:
    there = free.get(pods.node)
    if there is not None:
        for column, value in pods.shape.requests:
            there[column] = there.get(column, 0) + sign * value * pods.number


def _hold(entry: Entry, places: Places, free: Amounts) -> list[Pods]:
    """The pods for which what becomes free does not suffice."""
    hold = []
    for shape, node, count in placed_pods(entry, places):
        there = free[node]
        covered = min((max(0, there.get(column, 0)) // value for column, value in shape.requests), default=count)
        covered = min(covered, count)
        _add(free, Pods(shape, node, covered), -1)
        if count > covered:
            hold.append(Pods(shape, node, count - covered))
    return hold


def placed_pods(entry: Entry, places: Places) -> list[Pods]:
    """The pods of a place, one shape on one node at a time."""
    wants = entry.ask.wants if entry.ask else ()
    together: Counter[tuple[Shape, str]] = Counter()
    for want, placed in zip(wants, places, strict=True):
        for node, count in placed.items():
            if want.shape is not None:
                together[want.shape, node] += count
    return [Pods(shape, node, count) for (shape, node), count in together.items()]

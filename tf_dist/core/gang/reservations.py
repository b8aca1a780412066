"""The reservations of one round, made when somebody comes who might take from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tf_dist.core.gang.asks import Counts
from tf_dist.core.gang.books import Books, Entry
from tf_dist.core.gang.grants import Places
from tf_dist.core.gang.reserve import Reservation, kept, reserve, taken
from tf_dist.core.gang.supposing import fits


class Reservations:
    """Who comes later in the round gets what those who have reserved do not need."""

    def __init__(self, books: Books, now: float) -> None:
        self.made: list[Reservation] = []
        self._wanted: list[tuple[Entry, Counts]] = []
        self._books = books
        self._now = now

    def __bool__(self) -> bool:
        """Whether any has been made."""
        return bool(self.made)

    def want(self, entry: Entry, counts: Counts) -> None:
        """Reserve room for a gang, beside those that came before it, should that ever matter."""
        self._wanted.append((entry, counts))

    def when_left(self, entry: Entry, counts: Counts) -> bool:
        """Whether a gang can start once those that are leaving have left; if so, the room is reserved for it."""
        self._make()
        reservation = reserve(self._books, entry, counts, self._now, self.made, ended=False)
        if reservation is not None:
            self.made.append(reservation)
        return reservation is not None

    def find(self, entry: Entry, counts: Counts) -> Places | None:
        """Where a gang can have so many pods, delaying nobody who has reserved; None: nowhere. Nothing is taken."""
        ask, books = entry.ask, self._books
        if ask is None or books.quotas.lack(entry.queue, ask.need(counts)) is not None:
            return None
        found = books.grants.look(ask, counts) if books.grants else [{} for _ in counts]
        if found is None:
            return None
        self._make()
        if not self.made or self._ends_before(entry):
            return found
        with kept(books, self.made):
            return fits(books, entry, counts)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Room and quota as they are once all who have reserved have what they reserved."""
        self._make()
        with taken(self._books, self.made):
            yield

    def _make(self) -> None:
        for entry, counts in self._wanted:
            reservation = reserve(self._books, entry, counts, self._now, self.made)
            if reservation is not None:
                self.made.append(reservation)
        self._wanted.clear()

    def _ends_before(self, entry: Entry) -> bool:
        """Whether a gang that starts now has ended before anybody who has reserved can start."""
        estimate = entry.gang.estimate
        return estimate is not None and all(self._now + estimate <= one.start for one in self.made)

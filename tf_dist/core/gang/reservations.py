"""The reservations of one round, made when somebody comes who might take from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tf_dist.core.gang.asks import Counts
from tf_dist.core.gang.books import Books, Entry
from tf_dist.core.gang.grants import Places
from tf_dist.core.gang.reserve import Reservation, kept, reserve, taken
from tf_dist.core.gang.supposing import fits


class Known:
    """What was found out about reservations while nobody gets or gives up anything, and no estimate is overrun.

    ``made``: by the gang, its pods and those who reserved before it; ``kept_out``: who finds nothing beside whom.
    """

    def __init__(self) -> None:
        self.made: dict[object, Reservation | None] = {}
        self.kept_out: set[object] = set()
        self._state: object = None

    def at(self, books: Books) -> Known:
        """What of it is true now."""
        state = books.state, books.ends.version
        if state != self._state:
            self.made, self.kept_out, self._state = {}, set(), state
        return self

    def reserve(
        self, books: Books, entry: Entry, counts: Counts, now: float, before: Sequence[Reservation] = (), *, ended: bool
    ) -> Reservation | None:
        """As ``reserve``, but what is known already is not found out again."""
        known = self.at(books)
        key = entry, entry.ask, entry.queue, counts, ended, *before
        if key not in known.made:
            known.made[key] = reserve(books, entry, counts, now, before, ended=ended)
        return known.made[key]


class Reservations:
    """Who comes later in the round gets what those who have reserved do not need."""

    def __init__(self, books: Books, now: float, known: Known) -> None:
        self.made: list[Reservation] = []
        self._wanted: list[tuple[Entry, Counts]] = []
        self._books = books
        self._now = now
        self._known = known

    def __bool__(self) -> bool:
        """Whether any has been made."""
        return bool(self.made)

    def want(self, entry: Entry, counts: Counts) -> None:
        """Reserve room for a gang, beside those that came before it, should that ever matter."""
        self._wanted.append((entry, counts))

    def when_left(self, entry: Entry, counts: Counts) -> bool:
        """Whether a gang can start once those that are leaving have left; if so, the room is reserved for it."""
        self._make()
        return self._reserve(entry, counts, ended=False)

    def find(self, entry: Entry, counts: Counts) -> Places | None:
        """Where a gang can have so many pods, delaying nobody who has reserved; None: nowhere. Nothing is taken."""
        ask, books = entry.ask, self._books
        if ask is None or not books.quotas.fits(entry.queue, ask.need(counts)):
            return None
        found: Places | None = None
        if not self.made or self._ends_before(entry):
            found = books.grants.look(ask, counts) if books.grants else [{} for _ in counts]
            if found is None:
                return None
            self._make()
        if not self.made or self._ends_before(entry):
            return found
        self._make()
        known = self._known.at(books)
        key = ask, entry.queue, counts, *self.made
        if key in known.kept_out or (books.grants is not None and books.grants.surely_lacks(ask, counts)):
            return None
        with kept(books, self.made):
            found = fits(books, entry, counts)
        if found is None:
            known.kept_out.add(key)
        return found

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Room and quota as they are once all who have reserved have what they reserved."""
        self._make()
        with taken(self._books, self.made):
            yield

    def _make(self) -> None:
        for entry, counts in self._wanted:
            self._reserve(entry, counts, ended=True)
        self._wanted.clear()

    def _reserve(self, entry: Entry, counts: Counts, *, ended: bool) -> bool:
        reservation = self._known.reserve(self._books, entry, counts, self._now, self.made, ended=ended)
        if reservation is not None:
            self.made.append(reservation)
        return reservation is not None

    def _ends_before(self, entry: Entry) -> bool:
        """Whether a gang that starts now has ended before anybody who has reserved can start."""
        estimate = entry.gang.estimate
        return estimate is not None and all(self._now + estimate <= one.start for one in self.made)

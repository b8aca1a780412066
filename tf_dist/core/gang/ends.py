"""When running gangs are expected to end, in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf

from tf_dist.core.gang.model import Gang

_Key = tuple[float, int, float, str]


def end(gang: Gang, now: float) -> float:
    """When a gang is expected to end; inf: nobody knows.

    One that is over its time is taken to need as long again as it has needed: the estimate doubles.
    """
    if gang.place is None or gang.estimate is None:
        return inf
    estimate = max(1.0, gang.estimate)
    while gang.place.at + estimate <= now:
        estimate *= 2
    return gang.place.at + estimate


class Ends:
    """Gangs with a place, those first that end first; those of whom nobody knows last, of these the small ones first.

    (To wait for a small gang is to reserve a node of which little is missing.) ``version`` grows when time alone has
    changed it.
    """

    def __init__(self) -> None:
        self._order: list[_Key] = []
        self._gangs: dict[str, tuple[Gang, _Key]] = {}
        self._now = 0.0
        self.version = 0

    def put(self, gang: Gang, pods: int) -> None:
        """A gang that has a place, and so many pods."""
        self.remove(gang.uid)
        time = end(gang, self._now)
        key = (time, pods if time == inf else 0, gang.place.at if gang.place else 0.0, gang.uid)
        self._gangs[gang.uid] = gang, key
        insort(self._order, key)

    def remove(self, uid: str) -> None:
        """A gang that has none any more; one that is not known is no error."""
        known = self._gangs.pop(uid, None)
        if known is not None:
            del self._order[bisect_left(self._order, known[1])]

    def advance(self, now: float) -> None:
        """It is ``now``: those who should have ended are expected later."""
        self._now = now
        while self._order and self._order[0][0] <= now:
            gang, (_, pods, _, uid) = self._gangs[self._order[0][3]][0], self._order[0]
            self.remove(uid)
            self.put(gang, pods)
            self.version += 1

    def __iter__(self) -> Iterator[str]:
        """The uids, in order."""
        return (key[3] for key in self._order)

    def time(self, uid: str) -> float:
        """When a gang is expected to end."""
        return self._gangs[uid][1][0]

    @property
    def first(self) -> float:
        """When the first of them is expected to end; inf: nobody knows of any."""
        return self._order[0][0] if self._order else inf

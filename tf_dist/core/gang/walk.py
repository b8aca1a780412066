"""The way along one line in a round: which gangs are looked at, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from tf_dist.core.gang.pending import Group, Line, Rank


class Walk:
    """The groups of a line, the one with the first gang first. ``owns``: somebody on it has a reservation already.

    ``asleep``: says of a group that nothing can have changed for its first gang; it is left out, but for the first of
    those that are ``due`` for a reservation. In a ``strict`` line nobody is left out, and who is blocked ends it.
    """

    def __init__(
        self, line: Line, *, strict: bool, asleep: Callable[[Group], bool], due: Callable[[Group], bool]
    ) -> None:
        self.strict = strict
        self.owns = False
        groups: Iterable[Group] = line.groups.values()
        if not strict:
            awake, reserving = [], []
            for group in groups:
                if not asleep(group):
                    awake.append(group)
                elif due(group) or group.ranks[0].promised:
                    reserving.append(group)
            groups = awake + sorted(reserving, key=lambda group: group.ranks[0])[:1]
        self._heap = [(group.ranks[0], group) for group in groups]
        heapify(self._heap)

    def __bool__(self) -> bool:
        """Whether there is somebody left to look at."""
        return bool(self._heap)

    @property
    def next(self) -> Rank:
        """The gang that is next."""
        return self._heap[0][0]

    def pop(self) -> tuple[Rank, Group]:
        """Take it out."""
        return heappop(self._heap)

    def again(self, group: Group) -> None:
        """Its first gang has started: the next of the group is to be looked at."""
        if group.ranks:
            heappush(self._heap, (group.ranks[0], group))

    def stop(self) -> None:
        """Nobody behind is looked at."""
        self._heap.clear()

"""Where pods of a shape go: one rule, found in two ways.

The rule: on the node that holds all of them, if there is one; else as many as possible on the node that holds the most
of them, and so on with the rest. Among nodes that are equally good, ``Table.key`` decides. ``Few`` asks the ladder once
for every node; ``Sweep`` looks at all nodes, or those of a domain, at once. Both find the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tf_dist.core.gang.capacity import count_in
from tf_dist.core.gang.ladder import TooMany
from tf_dist.core.gang.masks import EVERYWHERE, Mask
from tf_dist.core.gang.room import Room
from tf_dist.core.gang.shapes import Groups, Requests, Shape
from tf_dist.core.gang.table import Ints, Rows, Table

# row -> pods, for each shape
Found = dict[Shape, dict[int, int]]
# Up to so many nodes are looked at one by one.
_ONE_BY_ONE: Final = 16


@dataclass(frozen=True, slots=True)
class Short:
    """There was no room for all pods of this shape."""

    shape: Shape


class Search(Protocol):
    """A way to find nodes."""

    def whole(self, requests: Requests, masks: Sequence[Mask]) -> int | None:
        """The node that holds all of this, None if there is none. Takes nothing."""

    def spread(self, shape: Shape, count: int) -> dict[int, int] | None:
        """Take room for so many pods; None if there is not enough (some may have been taken)."""


class Sweep:
    """Looks at all nodes, or at some rows, at once."""

    def __init__(self, room: Room, rows: Rows | None = None) -> None:
        self._room = room
        self._rows = rows

    def whole(self, requests: Requests, masks: Sequence[Mask]) -> int | None:
        """See Search."""
        table, rows = self._room.table, self._rows
        rows = _with_room(table, requests, rows)
        for mask in masks:
            if mask.rows is not None:
                rows = rows[mask.rows[rows]]
        table.derive()
        return int(rows[table.key[rows].argmin()]) if len(rows) else None

    def spread(self, shape: Shape, count: int) -> dict[int, int] | None:
        """See Search."""
        capacity = self._room.capacity(shape)
        self._room.table.derive()
        if capacity.total < count:
            return None
        counts = capacity.counts if self._rows is None else capacity.counts[self._rows]
        found: dict[int, int] = {}
        taken: list[Rows] = []
        times: list[int] = []
        while count:
            most = int(np.maximum.reduce(counts, initial=0))
            if not most:
                return None
            each, nodes = (count, 1) if most >= count else (most, count // most)
            at = (counts >= each).nonzero()[0]
            rows = at if self._rows is None else self._rows[at]
            first = _first(self._room.table.key[rows], nodes)
            taken.append(rows[first])
            times.append(each)
            found |= dict.fromkeys(taken[-1].tolist(), each)
            count -= each * len(first)
            if count:
                counts = counts.copy() if counts is capacity.counts else counts
                counts[at[first]] = 0
        self._room.take_rows(shape.requests, np.concatenate(taken), np.array(times).repeat([*map(len, taken)]))
        return found


def _first(keys: Ints, nodes: int) -> Rows:
    """Where the ``nodes`` smallest keys are, the smallest first."""
    if nodes == 1:
        return np.array([keys.argmin()])
    if nodes >= len(keys):
        return keys.argsort()
    first = np.argpartition(keys, nodes - 1)[:nodes]
    return first[keys[first].argsort()]


def _with_room(table: Table, requests: Requests, rows: Rows | None) -> Rows:
    """Those of the rows (None: of all) that have room for the requests once."""
    if rows is not None:
        return rows[count_in(table.free, requests, EVERYWHERE, rows) > 0]
    enough: NDArray[np.bool_] = np.ones(table.size, bool)
    for column, value in requests:
        enough &= table.free[column] >= value
    return enough.nonzero()[0]


class Few:
    """Looks at one node after the other; for few pods faster, however many nodes there are."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def whole(self, requests: Requests, masks: Sequence[Mask]) -> int | None:
        """See Search."""
        try:
            return self._room.ladder.best(requests, masks)
        except TooMany:
            return Sweep(self._room).whole(requests, masks)

    def spread(self, shape: Shape, count: int) -> dict[int, int] | None:
        """See Search."""
        masks = (self._room.mask(shape),)
        found: dict[int, int] = {}
        ladder = self._room.ladder
        each = ladder.at_most(shape, count)
        try:
            while count and each > 0:
                each = min(each, count)
                row = ladder.best(shape.requests, masks, each)
                if row is not None:
                    # It keeps its old rung until all are placed; no more of these pods fit on it anyway.
                    self._room.take_at(shape.requests, row, each)
                    found[row] = each
                    count -= each
                else:
                    each -= 1
        except TooMany:
            rest = Sweep(self._room).spread(shape, count)
            return None if rest is None else found | rest
        return None if count else found


def on_one_node(room: Room, search: Search, groups: Groups, within: Mask = EVERYWHERE) -> Found | None:
    """Take room for all groups on one node, of those ``within``; None: no node has so much."""
    largest = room.table.largest
    for column, value in groups.together:
        if value > largest[column]:
            return None
    row = search.whole(groups.together, [*map(room.mask, groups.counts), within])
    if row is None:
        return None
    room.take_at(groups.together, row, 1)
    return {shape: {row: count} for shape, count in groups.counts.items()}


def on_several(room: Room, search: Search, groups: Mapping[Shape, int], keep: Sequence[int]) -> Found | Short:
    """Take room for all groups in their order or, if that fails, in the reverse; nothing is taken if both do."""
    found = _in_order(room, search, list(groups.items()), keep)
    if isinstance(found, Short) and len(groups) > 1:
        again = _in_order(room, search, list(groups.items())[::-1], keep)
        return found if isinstance(again, Short) else again
    return found


def _in_order(room: Room, search: Search, groups: Sequence[tuple[Shape, int]], keep: Sequence[int]) -> Found | Short:
    found: Found = {}
    used = list(keep)
    begin = room.begin()
    for shape, count in groups:
        here = _fill(room, shape, count, used) if used else {}
        rest = count - sum(here.values())
        elsewhere = search.spread(shape, rest) if rest else {}
        if elsewhere is None:
            room.end(begin, keep=False)
            return Short(shape)
        found[shape] = here | elsewhere
        used += elsewhere
    room.end(begin, keep=True)
    return found


def _fill(room: Room, shape: Shape, count: int, used: Sequence[int]) -> dict[int, int]:
    """Take room for up to so many pods on the nodes that the gang uses already."""
    if count > _ONE_BY_ONE and len(used) > _ONE_BY_ONE:
        found = _fill_at_once(room, shape, count, used[:count])  # mostly enough of them
        left = count - sum(found.values())
        return found | _fill(room, shape, left, used[count:]) if left and used[count:] else found
    found = {}
    allowed = room.mask(shape).cells
    for row in used[:_ONE_BY_ONE]:
        fitting = room.table.fitting(shape.requests, row) if allowed is None or allowed[row] else 0
        if fitting:
            found[row] = fitting if fitting < count else count
            room.take_at(shape.requests, row, found[row])
            count -= found[row]
            if not count:
                return found
    return found | _fill_at_once(room, shape, count, used[_ONE_BY_ONE:]) if len(used) > _ONE_BY_ONE else found


def _fill_at_once(room: Room, shape: Shape, count: int, used: Sequence[int]) -> dict[int, int]:
    rows = np.array(used)
    counts = count_in(room.table.free, shape.requests, room.mask(shape), rows).astype(np.int64)
    before = counts.cumsum() - counts  # how many the nodes before it have room for
    some = ((counts > 0) & (before < count)).nonzero()[0]
    rows, taken = rows[some], np.minimum(counts[some], count - before[some])
    room.take_rows(shape.requests, rows, taken)
    return dict(zip(rows.tolist(), taken.tolist(), strict=True))

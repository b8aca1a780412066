"""Node index: nodes by free capacity, and how many pods of a class each has room for."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from math import inf, nextafter
from typing import Final

import numpy as np

from tf_dist.core.gang.placement.node_filter import NodeFilter
from tf_dist.core.gang.placement.node_table import LEVEL_BITS, ROW, Floats, Ints, NodeTable, Rows, from_cpu
from tf_dist.core.gang.placement.pod_classes import CPU, UNLIMITED, PodClass, Requests

# After looking at so many nodes in vain a scan over all of them is faster.
_MAX_VISITED: Final = 128


class TooManyNodes(Exception):
    """Too many nodes have enough accelerators and CPU, but not the rest."""


class NodeIndex:
    """The order of the nodes; ``refresh`` brings it up to date."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._build()

    def _build(self) -> None:
        self._table.derive()
        self._keys: list[int] = self._table.key.tolist()
        self._change = self._table.changes
        self._rungs: list[list[int]] = []
        for key in sorted(self._keys):
            self._rung(key).append(key)

    def _rung(self, key: int) -> list[int]:
        level = key >> LEVEL_BITS
        while len(self._rungs) <= level:
            self._rungs.append([])
        return self._rungs[level]

    def refresh(self) -> None:
        """Move the nodes that have changed to where they belong now."""
        table, keys = self._table, self._keys
        if self._change == table.changes:
            return
        touched = table.since(self._change, table.size)
        if touched is None:
            self._build()
            return
        self._change = table.changes
        for row in set(touched):
            before, now = keys[row], table.key_of(row)
            if before != now:
                rung = self._rungs[before >> LEVEL_BITS]
                del rung[bisect_left(rung, before)]
                insort(self._rung(now), now)
                keys[row] = now
        while self._rungs and not self._rungs[-1]:
            self._rungs.pop()

    def at_most(self, shape: PodClass, count: int) -> int:
        """No node has room for more such pods, of the ``count`` that are wanted."""
        pieces = self._table.level_of(shape.requests) - 1
        return min(count, (len(self._rungs) - 2) // pieces) if pieces > 0 else count

    def best(self, requests: Requests, masks: Sequence[NodeFilter] = (), times: int = 1) -> int | None:
        """The first node that has room for ``times`` the requests and that all masks allow.

        TooMany when it is hard to find.
        """
        rungs, cells = self._rungs, self._table.cells
        cpu = from_cpu(requests[0][1] * times) if requests and requests[0][0] == CPU else 0
        # The rung is in the order of CPU: what lacks is another column, so that one is looked at last.
        ask = [(cells[column], value * times) for column, value in (*requests[1:], *requests[:1])]
        allowed = [mask.cells for mask in masks if mask.cells is not None]
        patience = _MAX_VISITED
        for level in range(self._table.level_of(requests, times), len(rungs)):
            rung = rungs[level]
            if not rung:
                continue
            for at in range(bisect_left(rung, (level << LEVEL_BITS) + cpu), len(rung)):
                row = rung[at] & ROW
                for line, value in ask:
                    if line[row] < value:
                        break
                else:
                    if not allowed or all(mask[row] for mask in allowed):
                        return row
                patience -= 1
                if not patience:
                    raise TooManyNodes
        return None


# Sums are kept for the domains of so many labels.
_LABELS: Final = 16
# Up to so many nodes are counted again one by one.
_ONE_BY_ONE: Final = 16


class PodCapacity:
    """The count for every node (``counts``), and sums of it, kept up to date by ``refresh``.

    ``grown``: up to date, but for what has been taken since, in the room's state of that number.
    """

    def __init__(self, table: NodeTable, requests: Requests, mask: NodeFilter) -> None:
        self._table = table
        self._requests = requests
        self._mask = mask
        self._total: int | None = None
        self._sums: dict[str, tuple[Rows, Ints]] = {}
        self._change = table.changes
        self.grown = -1
        self._count_all()

    @property
    def known_total(self) -> int | None:
        """The sum when it was last asked for; None: that is not known any more."""
        return self._total

    @property
    def total(self) -> int:
        """The sum over all nodes."""
        if self._total is None:
            self._total = int(np.add.reduce(self.counts))
        return self._total

    def by_domain(self, label: str, domain: Rows, domains: int) -> Ints:
        """The sum for each domain of a label; ``domain`` says for each row in which it is (``domains``: in none)."""
        if label not in self._sums:
            if len(self._sums) >= _LABELS:
                self._sums.clear()
            sums = np.bincount(domain, weights=self.counts, minlength=domains + 1).astype(np.int64)
            self._sums[label] = (domain, sums)
        return self._sums[label][1][:domains]

    def refresh(self) -> None:
        """Count again where something has changed."""
        table = self._table
        if self._change == table.changes:
            return
        touched = table.since(self._change, table.size // 8 + _ONE_BY_ONE)
        self._change = table.changes
        if touched is None:
            self._count_all()
        elif len(touched) <= _ONE_BY_ONE:
            self._count_each(set(touched))
        else:
            rows = np.frombuffer(touched, np.int64)
            self._count_some(np.unique(rows) if self._sums else rows)

    def _count_all(self) -> None:
        self.counts: Floats = pods_per_node(self._table.free, self._requests, self._mask)
        self._cells = self.counts.data
        self._change = self._table.changes
        self._total = None
        self._sums.clear()

    def _count_each(self, rows: Iterable[int]) -> None:
        allowed = self._mask.cells
        for row in rows:
            now = self._table.fitting(self._requests, row) if allowed is None or allowed[row] else 0
            more = now - int(self._cells[row])
            if more:
                self._cells[row] = now
                if self._total is not None:
                    self._total += more
                for domain, sums in self._sums.values():
                    sums[domain[row]] += more

    def _count_some(self, rows: Rows) -> None:
        now = pods_per_node(self._table.free, self._requests, self._mask, rows)
        for domain, sums in self._sums.values():
            np.add.at(sums, domain[rows], (now - self.counts[rows]).astype(np.int64))
        self.counts[rows] = now
        self._total = None


def _inverse(value: int) -> float:
    """What to multiply by instead of dividing, which takes three times as long; the floor of the product is exact.

    It is more than 1 / value by at most 3 parts in 2 ** 53. So a multiple of ``value`` never comes out too small, and
    what is one short of a multiple comes out too large only from 2 ** 51 on: eight times what there may be of anything.
    """
    return nextafter(1 / value, inf)


def pods_per_node(amounts: Floats, requests: Requests, mask: NodeFilter, rows: Rows | None = None) -> Floats:
    """How many such pods have room, of these amounts by column and row, in each row (``rows``: in each of these)."""
    found: Floats | None = None
    for column, value in requests:
        there = amounts[column] if rows is None else amounts[column].take(rows)
        # The floor of the least is the least of the floors: once at the end is enough.
        if found is None:
            found = there * _inverse(value)
        else:
            np.minimum(found, there if value == 1 else there * _inverse(value), out=found)
    if found is None:
        found = np.full(amounts.shape[1] if rows is None else len(rows), float(UNLIMITED))
    np.maximum(np.floor(found, out=found), 0, out=found)
    if mask.rows is not None:
        found *= mask.rows if rows is None else mask.rows[rows]
    return found

"""Node table: allocatable and free resources of the nodes as arrays of integers, and how many pods of a class fit.

Rows are in the order of the nodes' names, so that no result depends on the order in which nodes were listed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tf_dist.core.gang.placement.pod_sets import (
    CPU,
    UNLIMITED,
    PodClassRegistry,
    Requests,
    is_extended_resource,
    units,
)
from tf_dist.core.gang.types import Node

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
NodeMask = Mask | None
"""True for the rows of the nodes that pods may go to; None: all of them."""
ALL_NODES: Final[NodeMask] = None

# Of a resource of which a node has more pieces (shared network cards, say) they are not what gangs compete for.
_MOST_PIECES: Final = 128
# Up to so many rows are counted again one by one.
_FEW_ROWS: Final = 8
# Of more changes than this each row is taken once.
_MANY_ROWS: Final = 256
# The parts of a key, from the lowest bit on: the row, and the free CPU in thousandths.
_ROW_BITS: Final = 20
_CPU_BITS: Final = 24
_LEVEL_BITS: Final = _ROW_BITS + _CPU_BITS
_MOST_ROWS: Final = (1 << _ROW_BITS) - 1
_MOST_CPU: Final = (1 << _CPU_BITS) - 1


class NodeTable:
    """Allocatable and free resources, by column (resource) and row (node).

    ``cells`` is ``free``, quicker for one number. ``key`` is the order in which equally good nodes are taken: nodes
    without accelerators first, then those with the fewest free, then the least free CPU, then the name. ``touched``:
    the rows that have changed, in order, from the ``base``-th change on.
    """

    def __init__(
        self,
        catalogue: PodClassRegistry,
        nodes: Sequence[Node],
        before: NodeTable | None = None,
        source: Rows | None = None,
    ) -> None:
        """``nodes`` by name; ``source``: the row of each in ``before``, of which the amounts are kept, or -1."""
        self.names = [node.name for node in nodes]
        self.size = len(nodes)
        if self.size > _MOST_ROWS:
            raise ValueError(f"{self.size} nodes are more than the {_MOST_ROWS} that admission can count")
        self.row = {name: row for row, name in enumerate(self.names)}
        for node in nodes:
            for resource in filter(is_extended_resource, node.allocatable):
                catalogue.column(resource)
        self._resources = list(catalogue.columns)
        self.columns = len(self._resources)
        self.free: Ints = np.zeros((self.columns, self.size), np.int64)
        self.whole: Ints = self.free.copy()
        if before is None or source is None:
            before, source = None, np.full(self.size, -1, np.intp)
        kept = source >= 0
        known = before.columns if before else 0
        if before:
            self.free[:known, kept] = before.free[:, source[kept]]
            self.whole[:known, kept] = before.whole[:, source[kept]]
        for row in range(self.size) if known < self.columns else (~kept).nonzero()[0].tolist():
            self._read(row, nodes[row], known if kept[row] else 0)
        self.cells = [line.data for line in self.free]
        self._extended = [c for c, resource in enumerate(self._resources) if is_extended_resource(resource)]
        # A key is the row and a sum over these columns: what is free, at most so much, times a weight (0 on nodes that
        # have more); and a bit of the level for nodes that have any accelerators.
        self._keyed = [(CPU, _MOST_CPU, _ROW_BITS), *((c, _MOST_PIECES, _LEVEL_BITS) for c in self._extended)]
        self._weights: Ints = np.zeros((self.columns, self.size), np.int64)
        self._bare_keys: Ints = np.arange(self.size, dtype=np.int64)
        self._weigh(np.arange(self.size))
        self.key: Ints = np.zeros(self.size, np.int64)
        self._find_keys(np.arange(self.size))
        self._key_cells = self.key.data
        self._key_parts = {column: (most, self._weights[column].data) for column, most, _ in self._keyed}
        self.touched = array("q")
        self.base = 1  # so that since(0) is all rows

    def _read(self, row: int, node: Node, first: int = 0) -> None:
        """Write the amounts of a node, from a column on."""
        for column in range(first, self.columns):
            self.free[column, row] = units(self._resources[column], node.free)
            self.whole[column, row] = units(self._resources[column], node.allocatable)

    def _weigh(self, rows: Rows) -> None:
        """Find the weights of these rows, and their keys without what is free."""
        for column, most, shift in self._keyed:
            whole = self.whole[column].take(rows)
            self._weights[column, rows] = ((whole > 0) & (whole <= most)).astype(np.int64) << shift
        special = np.logical_or.reduce(self._weights[self._extended][:, rows] > 0)
        self._bare_keys[rows] = rows + (special.astype(np.int64) << _LEVEL_BITS)

    def _find_keys(self, rows: Rows) -> None:
        """The keys of these rows."""
        key = self._bare_keys.take(rows)
        for column, most, _ in self._keyed:
            free = self.free[column].take(rows)
            np.minimum(np.maximum(free, 0, out=free), most, out=free)
            key += np.multiply(free, self._weights[column].take(rows), out=free)
        self.key[rows] = key

    def put(self, row: int, node: Node) -> None:
        """Write a node that has changed."""
        self._read(row, node)
        self._weigh(np.array([row]))
        self._find_keys(np.array([row]))
        self._touch((row,))

    def add(self, requests: Requests, times: Mapping[int, int], sign: int) -> None:
        """Add the requests so many times, or with ``sign`` -1 subtract them, on the nodes of some rows."""
        if len(times) > _FEW_ROWS:
            rows = np.fromiter(times, np.intp, len(times))
            amounts = np.fromiter(times.values(), np.int64, len(times)) * sign
            for column, value in requests:
                line = self.free[column]
                line[rows] += value * amounts
            self._find_keys(rows)
        else:
            for row, number in times.items():
                self._add_to_row(requests, row, number * sign)
        self._touch(times)

    def _add_to_row(self, requests: Requests, row: int, times: int) -> None:
        # The key follows each column: for a few rows that is quicker than to find it anew.
        for column, value in requests:
            line = self.cells[column]
            before = line[row]
            after = line[row] = before + value * times
            part = self._key_parts.get(column)
            if part is not None:
                most, weights = part
                weight = weights[row]
                if weight:
                    # Conditions, for calls of min and max would be half the time that this takes.
                    counted = most if after > most else after if after > 0 else 0
                    counted -= most if before > most else before if before > 0 else 0
                    self._key_cells[row] += counted * weight

    def _touch(self, rows: Iterable[int]) -> None:
        self.touched.extend(rows)
        if len(self.touched) > 4 * self.size + 1024:
            self.base += len(self.touched)
            del self.touched[:]

    @property
    def changes(self) -> int:
        """How many changes there have been."""
        return self.base + len(self.touched)

    def since(self, change: int) -> Rows | None:
        """The rows touched since the ``change``-th change, some perhaps twice; None: too many, or too long ago."""
        if change < self.base or self.changes - change > self.size:
            return None
        rows = np.frombuffer(self.touched[change - self.base :], np.int64)
        if len(rows) <= _MANY_ROWS:
            return rows
        seen = np.zeros(self.size, np.bool_)
        seen[rows] = True
        rows = seen.nonzero()[0]
        return rows if 2 * len(rows) < self.size else None

    def fitting(self, requests: Requests, row: int) -> int:
        """How many times the requests fit on a node."""
        cells = self.cells
        return max(0, min([cells[column][row] // value for column, value in requests], default=UNLIMITED))


class PodCapacity:
    """How many pods of a class fit on each node: ``counts``, as of the last ``refresh``."""

    def __init__(self, table: NodeTable, requests: Requests, mask: NodeMask) -> None:
        self._table = table
        self._requests = requests
        self._mask = mask
        self.counts: Ints = np.zeros(table.size, np.int64)
        self._cells = self.counts.data
        self._total: int | None = None
        self._change = 0
        self.refresh()

    @property
    def total(self) -> int:
        """The sum over all nodes."""
        if self._total is None:
            self._total = int(np.add.reduce(self.counts))
        return self._total

    def refresh(self) -> None:
        """Count again where something has changed."""
        table = self._table
        if self._change != table.changes:
            rows = table.since(self._change)
            self._change = table.changes
            if rows is not None and len(rows) <= _FEW_ROWS:
                for row in rows.tolist():
                    now = table.fitting(self._requests, row) if self._mask is None or self._mask[row] else 0
                    if self._total is not None:
                        self._total += now - self._cells[row]
                    self._cells[row] = now
            else:
                counts = pods_per_node(table.free, self._requests, self._mask, rows)
                self.counts[slice(None) if rows is None else rows] = counts
                self._total = None


def pods_per_node(amounts: Ints, requests: Requests, mask: NodeMask, rows: Rows | None = None) -> Ints:
    """How many such pods fit in each row (``rows``: in each of these), of these amounts by column and row."""
    found: Ints | None = None
    for column, value in requests:
        there = (amounts[column] if rows is None else amounts[column].take(rows)) // value
        found = there if found is None else np.minimum(found, there, out=found)
    if found is None:
        found = np.full(amounts.shape[1] if rows is None else len(rows), UNLIMITED, np.int64)
    np.maximum(found, 0, out=found)
    if mask is None:
        return found
    return found * (mask if rows is None else mask.take(rows))

"""Nodes as rows of integers, for a scan over all of them and for a look at one alike.

Rows are in the order of the nodes' names, so that nothing depends on the order in which nodes came. What is free is
exact; from it are derived, when somebody looks, what a scan over all nodes needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tf_dist.core.gang.model import Node, Resources
from tf_dist.core.gang.shapes import CPU, Catalogue, Requests, amount, extended, in_bytes

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Rows = NDArray[np.intp]

# Integers below it are exact in a float32, and so is the floor of the quotient of two of them.
COARSE_LIMIT: Final = 1 << 24
# Of a resource of which a node has more pieces (shared network cards, say) they are not what gangs compete for.
FEW: Final = 128
_ROW_BITS: Final = 20
_CPU_BITS: Final = 24
LEVEL_BITS: Final = _ROW_BITS + _CPU_BITS
_MOST_CPU: Final = (1 << _CPU_BITS) - 1
ROW: Final = (1 << _ROW_BITS) - 1


class Table:
    """What is free on every node.

    ``free`` and ``whole``: for each row and column what is free and what the empty node has; ``cells`` is ``free``,
    quicker for one number. ``largest``: no node has more of a column free. ``touched``: the rows changed, in order,
    from the ``base``-th change on.

    Derived, after ``derive``: ``coarse``, for each column and row what is free (or 0 if less) in ``units`` of the
    column, rounded down: exact unless the column ``is_fine``; and ``key``, the order in which equally good nodes are
    taken: those without accelerators first, then those with the fewest free, then the least CPU, then the name.
    """

    def __init__(
        self, catalogue: Catalogue, nodes: Sequence[Node], before: Table | None = None, source: Rows | None = None
    ) -> None:
        """``nodes`` by name; ``source``: for each the row that it had in ``before``, which is taken over, or -1."""
        self.catalogue = catalogue
        self.names = [node.name for node in nodes]
        if len(self.names) > ROW:
            raise ValueError(f"{len(self.names)} nodes are more than the {ROW} that admission can count")
        self.row = {name: row for row, name in enumerate(self.names)}
        self.touched = array("q")
        self.base = 0
        for node in nodes:
            for resource in filter(extended, node.allocatable):
                catalogue.column(resource)
        free, whole = _read(catalogue, nodes, before, source)
        self._hold(free, whole)

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.names)

    @property
    def columns(self) -> int:
        """How many columns there are; the catalogue may have more by now."""
        return len(self.units)

    def add_columns(self, nodes: Sequence[Node]) -> None:
        """Columns for the resources of the catalogue that have none yet. Nothing taken so far has asked for them."""
        free, whole = _read(self.catalogue, nodes, None, None)
        self._hold(np.hstack((self.free, free[:, self.columns :])), np.hstack((self.whole, whole[:, self.columns :])))

    def _hold(self, free: Ints, whole: Ints) -> None:
        resources = list(self.catalogue.columns)
        self.free = free
        self.whole = whole
        self.cells = free.data
        self.largest: list[int] = np.maximum(whole, free).max(axis=0, initial=0).tolist()
        self.units = [1 << 20 if in_bytes(resource) else 1 for resource in resources]
        self._shifts: Ints = np.array([[unit.bit_length() - 1] for unit in self.units], np.int64)
        self.coarse: Floats = np.zeros((len(resources), self.size), np.float32)
        self.key: Ints = np.zeros(self.size, np.int64)
        self._extended = [column for column, resource in enumerate(resources) if extended(resource)]
        # The key is ``_base`` and a sum over the columns: what is free, up to ``_counted``, by weight.
        self._counted: Ints = np.zeros((len(resources), 1), np.int64)
        self._counted[CPU] = _MOST_CPU
        self._counted[self._extended] = FEW
        self._weight: Ints = np.zeros(whole.shape, np.int64)
        self._base: Ints = np.zeros(self.size, np.int64)
        # The columns that count towards the level on every node that has any of them.
        self._pieces = {column for column in self._extended if self.largest[column] <= FEW}
        self._weigh(np.arange(self.size))
        self._ordering = [CPU, *self._extended]
        self._most: list[int] = self._counted[:, 0].tolist()
        self._weight_cells, self._base_cells = self._weight.data, self._base.data
        self._forget_changes()
        self._derived = -1

    def _weigh(self, rows: Rows) -> None:
        few = (self.whole[rows] > 0) & (self.whole[rows] <= FEW)
        few[:, [column for column in range(self.columns) if column not in self._extended]] = False
        self._weight[rows] = few.astype(np.int64) << LEVEL_BITS
        self._weight[rows, CPU] = 1 << _ROW_BITS
        self._base[rows] = (few.any(axis=1).astype(np.int64) << LEVEL_BITS) + rows

    def put(self, row: int, node: Node) -> None:
        """Write a node that has changed."""
        resources = list(self.catalogue.columns)[: self.columns]  # the others are read when they are added
        self.free[row] = [_integer(resource, node.free) for resource in resources]
        self.whole[row] = [_integer(resource, node.allocatable) for resource in resources]
        self.largest = list(map(max, self.largest, self.whole[row].tolist(), self.free[row].tolist()))
        self._pieces = {column for column in self._pieces if self.largest[column] <= FEW}
        self._weigh(np.array([row]))
        self.touched.append(row)
        self._forget_old_changes()

    def add(self, requests: Requests, row: int, times: int) -> None:
        """Add ``times`` (may be negative) the requests to what is free on a node."""
        cells = self.cells
        for column, value in requests:
            left = cells[row, column] = cells[row, column] + value * times
            if left > self.largest[column]:
                self.largest[column] = left
        self.touched.append(row)
        self._forget_old_changes()

    def add_rows(self, requests: Requests, rows: Rows, times: Ints) -> None:
        """The same for several nodes, none of them twice."""
        each = np.zeros(self.columns, np.int64)
        for column, value in requests:
            each[column] = value
        self.free[rows] = self.free.take(rows, axis=0) + times[:, None] * each
        self.touched.frombytes(rows.astype(np.int64).tobytes())
        self._forget_old_changes()

    def derive(self) -> None:
        """Bring ``coarse`` and ``key`` up to date."""
        if self._derived == self.changes:
            return
        known = self._derived >= self.base and self.changes - self._derived < self.size
        # That some are among them twice does no harm.
        rows = np.frombuffer(self.touched[self._derived - self.base :], np.int64) if known else np.arange(self.size)
        self._derived = self.changes
        # One line a column, and take() instead of []: with these shapes each is several times as fast.
        free = np.maximum(self.free.take(rows, axis=0).T, 0, order="C")
        self.coarse[:, rows] = free >> self._shifts
        np.minimum(free, self._counted, out=free)
        self.key[rows] = np.einsum("cr,rc->r", free, self._weight.take(rows, axis=0)) + self._base.take(rows)

    def key_of(self, row: int) -> int:
        """The key of one node now, whether derived or not."""
        key = self._base_cells[row]
        for column in self._ordering:
            free = self.cells[row, column]
            if free > 0:
                key += min(free, self._most[column]) * self._weight_cells[row, column]
        return key

    def level_of(self, requests: Requests, times: int = 1) -> int:
        """The lowest level of ``key`` at which a node may have room for so much."""
        pieces = 0
        for column, value in requests:
            if column in self._pieces:
                pieces += value
        return pieces * times + 1 if pieces else 0

    def is_fine(self, column: int) -> bool:
        """Whether some node has so much of it that ``coarse`` is not exact."""
        return self.largest[column] // self.units[column] >= COARSE_LIMIT

    @property
    def changes(self) -> int:
        """How many changes there have been."""
        return self.base + len(self.touched)

    def since(self, change: int, most: int) -> set[int] | None:
        """The rows touched since the ``change``-th change; None: nobody remembers, or there were more than ``most``."""
        if change < self.base or self.changes - change > most:
            return None
        return set(self.touched[change - self.base :])

    def _forget_old_changes(self) -> None:
        if len(self.touched) > 4 * self.size + 1024:
            self._forget_changes()

    def _forget_changes(self) -> None:
        # One more, so that nobody who is up to date takes himself for it.
        self.base += len(self.touched) + 1
        del self.touched[:]


def start(level: int, cpu: int) -> int:
    """The least key of a node at this level with so much CPU."""
    return (level << _CPU_BITS | min(cpu, _MOST_CPU)) << _ROW_BITS


def _read(catalogue: Catalogue, nodes: Sequence[Node], before: Table | None, source: Rows | None) -> tuple[Ints, Ints]:
    """What is free and what there is, for each node and column."""
    free = np.zeros((len(nodes), len(catalogue.columns)), np.int64)
    whole = free.copy()
    new: Sequence[int] = range(len(nodes))
    if before is not None and source is not None:
        kept = source >= 0
        free[kept, : before.columns] = before.free[source[kept]]
        whole[kept, : before.columns] = before.whole[source[kept]]
        new = (~kept).nonzero()[0].tolist()
    for row in new:
        free[row] = [_integer(resource, nodes[row].free) for resource in catalogue.columns]
        whole[row] = [_integer(resource, nodes[row].allocatable) for resource in catalogue.columns]
    return free, whole


def _integer(resource: str, amounts: Resources) -> int:
    return amount(resource, amounts[resource], up=False) if resource in amounts else 0

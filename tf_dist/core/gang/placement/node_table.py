"""Node table: allocatable and free resources of all nodes as arrays of integers.

Rows are in the order of the nodes' names, so that nothing depends on the order in which nodes came. What is free is
exact; from it the order of the nodes is derived, when somebody looks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tf_dist.core.gang.placement.pod_classes import (
    CPU,
    UNLIMITED,
    PodClassRegistry,
    Requests,
    is_extended_resource,
    units,
)
from tf_dist.core.gang.types import Node

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

# Of a resource of which a node has more pieces (shared network cards, say) they are not what gangs compete for.
FEW: Final = 128
_ROW_BITS: Final = 20
_CPU_BITS: Final = 24
LEVEL_BITS: Final = _ROW_BITS + _CPU_BITS
_MOST_CPU: Final = (1 << _CPU_BITS) - 1
ROW: Final = (1 << _ROW_BITS) - 1


class NodeTable:
    """What is free on every node.

    ``free`` and ``whole``: for each column and row what is free and what the empty node has: whole numbers, small
    enough (``shapes.amount``) for a float64, which divides faster, to hold them and the floors of their quotients
    exactly. ``cells`` is ``free``, quicker for one number. ``largest``: no node has more of a column free. ``touched``:
    the rows changed, in order, from the ``base``-th change on.

    ``key``, after ``derive``: the order in which equally good nodes are taken: those without accelerators first, then
    those with the fewest free, then the least CPU, then the name.
    """

    def __init__(
        self,
        catalogue: PodClassRegistry,
        nodes: Sequence[Node],
        before: NodeTable | None = None,
        source: Rows | None = None,
    ) -> None:
        """``nodes`` by name; ``source``: for each the row that it had in ``before``, which is taken over, or -1."""
        self.catalogue = catalogue
        self.names = [node.name for node in nodes]
        if len(self.names) > ROW:
            raise ValueError(f"{len(self.names)} nodes are more than the {ROW} that admission can count")
        self.size = len(self.names)
        self.row = {name: row for row, name in enumerate(self.names)}
        self.touched = array("q")
        self.base = 0
        for node in nodes:
            for resource in filter(is_extended_resource, node.allocatable):
                catalogue.column(resource)
        free, whole = _read(catalogue, nodes, before, source)
        self._hold(free, whole)

    def add_columns(self, nodes: Sequence[Node]) -> None:
        """Columns for the resources of the catalogue that have none yet. Nothing taken so far has asked for them."""
        free, whole = _read(self.catalogue, nodes, None, None)
        self._hold(np.vstack((self.free, free[self.columns :])), np.vstack((self.whole, whole[self.columns :])))

    def _hold(self, free: Floats, whole: Floats) -> None:
        self.free = free
        self.whole = whole
        self.columns = len(free)
        self.cells = [line.data for line in free]
        self.largest: list[float] = np.maximum(whole, free).max(axis=1, initial=0).tolist()
        self._extended = [
            column for column, resource in enumerate(self.catalogue.columns) if is_extended_resource(resource)
        ]
        # The columns that count towards the level on every node that has any of them.
        self._pieces = {column for column in self._extended if self.largest[column] <= FEW}
        # The key is ``_base`` and a sum over columns: what is free, up to so much, by weight.
        self.key: Ints = np.zeros(self.size, np.int64)
        self._base: Ints = np.zeros(self.size, np.int64)
        self._base_cells = self._base.data
        self._most = np.zeros((self.columns, 1))
        self._most[CPU], self._most[self._extended] = _MOST_CPU, FEW
        self._weights = np.zeros((self.columns, self.size))
        self._keyed_cells = [
            (self.cells[column], float(self._most[column, 0]), self._weights[column].data)
            for column in (CPU, *self._extended)
        ]
        self._weigh(np.arange(self.size))
        self._memory = 4 * self.size + 1024
        self._forget_changes()
        self._derived = -1

    def _weigh(self, rows: Rows) -> None:
        levels: Ints = np.zeros(len(rows), np.int64)
        self._weights[CPU, rows] = 1 << _ROW_BITS
        for column in self._extended:
            few = (self.whole[column, rows] > 0) & (self.whole[column, rows] <= FEW)
            self._weights[column, rows] = few * float(1 << LEVEL_BITS)
            levels |= few
        self._base[rows] = (levels << LEVEL_BITS) + rows

    def put(self, row: int, node: Node) -> None:
        """Write a node that has changed."""
        resources = list(self.catalogue.columns)[: self.columns]  # the others are read when they are added
        self.free[:, row] = [units(resource, node.free) for resource in resources]
        self.whole[:, row] = [units(resource, node.allocatable) for resource in resources]
        self.largest = list(map(max, self.largest, self.whole[:, row].tolist(), self.free[:, row].tolist()))
        self._pieces = {column for column in self._pieces if self.largest[column] <= FEW}
        self._weigh(np.array([row]))
        self.touched.append(row)
        self._forget_old_changes()

    def add(self, requests: Requests, row: int, times: int) -> None:
        """Add ``times`` (may be negative) the requests to what is free on a node."""
        cells, largest = self.cells, self.largest
        for column, value in requests:
            line = cells[column]
            left = line[row] = line[row] + value * times
            if left > largest[column]:
                largest[column] = left
        self.touched.append(row)
        if len(self.touched) > self._memory:
            self._forget_changes()

    def add_rows(self, requests: Requests, rows: Rows, times: Ints) -> None:
        """The same for several nodes, none of them twice."""
        # All columns in one go: what is not asked for stays as it is.
        self.free[:, rows] = self.free.take(rows, axis=1) + _dense(requests, self.columns) * times
        self.touched.frombytes(rows.astype(np.int64).tobytes())
        self._forget_old_changes()

    def derive(self) -> None:
        """Bring ``key`` up to date."""
        if self._derived == self.changes:
            return
        touched = self.since(self._derived, self.size)
        rows = np.arange(self.size) if touched is None else np.frombuffer(touched, np.int64)
        self._derived = self.changes
        parts = self.free.take(rows, axis=1)
        np.minimum(np.maximum(parts, 0, out=parts), self._most, out=parts)
        parts *= self._weights.take(rows, axis=1)
        self.key[rows] = self._base.take(rows) + np.add.reduce(parts).astype(np.int64)

    def key_of(self, row: int) -> int:
        """The key of one node now, whether derived or not."""
        total = 0.0
        for line, most, weights in self._keyed_cells:
            free = line[row]
            if free > 0:
                total += (free if free < most else most) * weights[row]
        return self._base_cells[row] + int(total)

    def fitting(self, requests: Requests, row: int) -> int:
        """How many times a node has room for the requests."""
        found = inf if requests else UNLIMITED
        for column, value in requests:
            there = self.cells[column][row] // value
            if there < found:
                found = there
        return int(found) if found > 0 else 0

    def level_of(self, requests: Requests, times: int = 1) -> int:
        """The lowest level of ``key`` at which a node may have room for so much."""
        pieces = 0
        for column, value in requests:
            if column in self._pieces:
                pieces += value
        return pieces * times + 1 if pieces else 0

    @property
    def changes(self) -> int:
        """How many changes there have been."""
        return self.base + len(self.touched)

    def since(self, change: int, most: int) -> array[int] | None:
        """The rows touched since the ``change``-th change, some perhaps twice; None: nobody remembers, or there were
        more than ``most``."""
        if change < self.base or self.changes - change > most:
            return None
        return self.touched[change - self.base :]

    def _forget_old_changes(self) -> None:
        if len(self.touched) > self._memory:
            self._forget_changes()

    def _forget_changes(self) -> None:
        # One more, so that nobody who is up to date takes himself for it.
        self.base += len(self.touched) + 1
        del self.touched[:]


@lru_cache(maxsize=1024)
def _dense(requests: Requests, columns: int) -> Floats:
    """The requests as a number for each column, one below the other."""
    amounts = np.zeros((columns, 1))
    for column, value in requests:
        amounts[column] = value
    return amounts


def from_cpu(cpu: int) -> int:
    """How far above the least key of a level that of a node with so much CPU is, at least."""
    return min(cpu, _MOST_CPU) << _ROW_BITS


def _read(
    catalogue: PodClassRegistry, nodes: Sequence[Node], before: NodeTable | None, source: Rows | None
) -> tuple[Floats, ...]:
    """What is free and what there is, for each column and node."""
    free = np.zeros((len(catalogue.columns), len(nodes)))
    whole = free.copy()
    new: Sequence[int] = range(len(nodes))
    if before is not None and source is not None:
        kept = source >= 0
        free[: before.columns, kept] = before.free[:, source[kept]]
        whole[: before.columns, kept] = before.whole[:, source[kept]]
        new = (~kept).nonzero()[0].tolist()
    for row in new:
        free[:, row] = [units(resource, nodes[row].free) for resource in catalogue.columns]
        whole[:, row] = [units(resource, nodes[row].allocatable) for resource in catalogue.columns]
    return free, whole

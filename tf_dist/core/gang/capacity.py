"""How many pods of a shape each node has room for: counted once, then only where something changed."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tf_dist.core.gang.masks import Mask
from tf_dist.core.gang.shapes import Requests
from tf_dist.core.gang.table import COARSE_LIMIT, Floats, Ints, Rows, Table

# A pod that asks for nothing finds so much room on a node; more of any kind are not counted either.
UNLIMITED: Final = float(COARSE_LIMIT - 1)


# Sums are kept for the domains of so many labels.
_LABELS: Final = 16


class Capacity:
    """The count for every node (``counts``), and sums of it, kept up to date by ``refresh``.

    ``grown``: up to date, but for what has been taken since, in the room's state of that number.
    """

    def __init__(self, table: Table, requests: Requests, mask: Mask) -> None:
        self._table = table
        self._requests = requests
        self._mask = mask
        self.counts: Floats = count(table, requests, mask)
        self._change = table.changes
        self._total: int | None = None
        self._sums: dict[str, tuple[Rows, Ints]] = {}
        self.grown = -1

    @property
    def known_total(self) -> int | None:
        """The sum when it was last asked for; None: never."""
        return self._total

    @property
    def total(self) -> int:
        """The sum over all nodes."""
        if self._total is None:
            total = float(self.counts.sum())
            # Below, a sum of float32 is exact.
            self._total = int(total if total < COARSE_LIMIT else self.counts.sum(dtype=np.float64))
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
        if self._change == self._table.changes:
            return
        touched = self._table.since(self._change, len(self.counts) // 64 + 8)
        self._change = self._table.changes
        if touched is None:
            self.counts = count(self._table, self._requests, self._mask)
            self._total = None
            self._sums.clear()
            return
        rows = np.fromiter(touched, np.intp, len(touched))
        allowed = None if self._mask.rows is None else self._mask.rows[rows]
        now = count_in(self._table.free.take(rows, axis=0), self._requests, allowed)
        more = now - self.counts[rows].astype(np.int64)
        self.counts[rows] = now
        if self._total is not None:
            self._total += int(more.sum())
        for domain, sums in self._sums.values():
            np.add.at(sums, domain[rows], more)


def count(table: Table, requests: Requests, mask: Mask) -> Floats:
    """For each node how many such pods have room."""
    table.derive()
    found: Floats | None = None
    for column, value in requests:
        unit = table.units[column]
        if table.is_fine(column) or value % unit or value // unit >= COARSE_LIMIT:
            exact = (table.free[:, column] // value).clip(0, UNLIMITED)
            room: Floats = exact.astype(np.float32)
        elif value == unit and found is not None:
            room = table.coarse[column]
        else:
            room = np.divide(table.coarse[column], value // unit, dtype=np.float32)
        # The floor of the least is the least of the floors: once at the end is enough.
        found = room if found is None else np.minimum(found, room, out=found)
    found = np.full(table.size, UNLIMITED, np.float32) if found is None else np.floor(found, out=found)
    if mask.rows is not None:
        found *= mask.rows
    return found


def count_in(amounts: Ints, requests: Requests, allowed: NDArray[np.bool_] | None) -> Ints:
    """The same for some nodes that have these amounts, one line a node."""
    found: Ints = np.full(len(amounts), int(UNLIMITED))
    for column, value in requests:
        np.minimum(found, amounts[:, column] // value, out=found)
    np.maximum(found, 0, out=found)
    if allowed is not None:
        found *= allowed
    return found

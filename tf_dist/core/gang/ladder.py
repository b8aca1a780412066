"""Nodes in the order of ``Table.key``, on a rung for each level: finds the best node for a few pods without a scan."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

from tf_dist.core.gang.masks import Mask
from tf_dist.core.gang.shapes import CPU, Requests, Shape
from tf_dist.core.gang.table import LEVEL_BITS, ROW, Table, from_cpu

# After looking at so many nodes in vain a scan over all of them is faster.
_PATIENCE: Final = 128


class TooMany(Exception):
    """Too many nodes have enough accelerators and CPU, but not the rest."""


class Ladder:
    """The order of the nodes; ``refresh`` brings it up to date."""

    def __init__(self, table: Table) -> None:
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

    def at_most(self, shape: Shape, count: int) -> int:
        """No node has room for more such pods, of the ``count`` that are wanted."""
        pieces = self._table.level_of(shape.requests) - 1
        return min(count, (len(self._rungs) - 2) // pieces) if pieces > 0 else count

    def best(self, requests: Requests, masks: Sequence[Mask] = (), times: int = 1) -> int | None:
        """The first node that has room for ``times`` the requests and that all masks allow.

        TooMany when it is hard to find.
        """
        rungs, cells = self._rungs, self._table.cells
        cpu = from_cpu(requests[0][1] * times) if requests and requests[0][0] == CPU else 0
        # The rung is in the order of CPU: what lacks is another column, so that one is looked at last.
        ask = [(cells[column], value * times) for column, value in (*requests[1:], *requests[:1])]
        allowed = [mask.cells for mask in masks if mask.cells is not None]
        patience = _PATIENCE
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
                    raise TooMany
        return None

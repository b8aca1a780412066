"""Ways to place a gang to measure ours against: two that come to mind first, and one that knows racks.

The first two go pod by pod. Of the nodes with room each takes the fullest, as ours does for the last pods of a gang,
and takes back what it has placed when one pod finds none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# What each pod of a member asks for (CPU, memory, pods, GPUs), and how many there are.
Asked = Sequence[tuple[Sequence[int], int]]


class Scan:
    """For every pod a look at every node."""

    def __init__(self, free: Sequence[Sequence[int]]) -> None:
        self.free = [list(row) for row in free]

    def place(self, gang: Asked) -> list[tuple[int, Sequence[int]]]:
        """The node of each pod; empty if they have no room together."""
        placed: list[tuple[int, Sequence[int]]] = []
        for pod, count in gang:
            for _ in range(count):
                best, left = None, (0, 0)
                cpu, memory, one, gpu = pod
                for row, (its_cpu, its_memory, its_pods, its_gpu) in enumerate(self.free):
                    fits = its_gpu >= gpu and its_cpu >= cpu and its_memory >= memory and its_pods >= one
                    if fits and (best is None or (its_gpu, its_cpu) < left):
                        best, left = row, (its_gpu, its_cpu)
                if best is None:
                    self.give(placed)
                    return []
                self.free[best] = [there - value for there, value in zip(self.free[best], pod, strict=True)]
                placed.append((best, pod))
        return placed

    def give(self, placed: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Give back what was placed."""
        for row, pod in placed:
            self.free[row] = [there + value for there, value in zip(self.free[row], pod, strict=True)]


class Vector:
    """The look at every node is left to numpy."""

    def __init__(self, free: Sequence[Sequence[int]]) -> None:
        self.free = np.array(free, np.int64)

    def place(self, gang: Asked) -> list[tuple[int, NDArray[np.int64]]]:
        """The node of each pod; empty if they have no room together."""
        placed: list[tuple[int, NDArray[np.int64]]] = []
        for pod, count in gang:
            asked = np.array(pod, np.int64)
            for _ in range(count):
                fits = (self.free >= asked).all(axis=1)
                if not fits.any():
                    self.give(placed)
                    return []
                row = int(
                    np.where(fits, self.free[:, -1] * 1_000_000 + self.free[:, 0], np.iinfo(np.int64).max).argmin()
                )
                self.free[row] -= asked
                placed.append((row, asked))
        return placed

    def give(self, placed: Sequence[tuple[int, NDArray[np.int64]]]) -> None:
        """Give back what was placed."""
        for row, asked in placed:
            self.free[row] += asked


class BestFit:
    """Equal pods into racks by the rule that Kueue calls best fit, on nodes of which only the CPUs are counted.

    The rack with least room that holds the gang; if there is none (and it is not required), the rack with most room,
    and so on, the last one the tightest that holds the rest. The same within a rack, with nodes.
    """

    def __init__(self, racks: int, each: int, cpu: int) -> None:
        self._each = each
        self._free = np.full((racks, each), cpu)

    def place(self, cpu: int, count: int, *, required: bool) -> dict[int, int]:
        """How many of the pods go to which node (racks one after the other); empty if there is no room for all."""
        room = self._free // cpu
        placed: dict[int, int] = {}
        for rack, pods in _fitted(room.sum(axis=1), count, alone=required).items():
            for node, there in _fitted(room[rack], pods).items():
                placed[rack * self._each + node] = there
                self._free[rack, node] -= cpu * there
        return placed

    def give(self, cpu: int, placed: dict[int, int]) -> None:
        """The pods are gone."""
        for node, count in placed.items():
            self._free[divmod(node, self._each)] += cpu * count


def _fitted(room: NDArray[np.int64], count: int, *, alone: bool = False) -> dict[int, int]:
    """How many pods go where, if so many have room in each place; empty if there is none for all of them."""
    found: dict[int, int] = {}
    if int(room.sum()) < count or (alone and int(room.max()) < count):
        return found
    room = room.copy()
    while count:
        enough = (room >= count).nonzero()[0]
        at = int(enough[room[enough].argmin()]) if len(enough) else int(room.argmax())
        found[at] = min(count, int(room[at]))
        count -= found[at]
        room[at] = 0
    return found

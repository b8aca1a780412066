"""Two ways to place a gang that come to mind first, to measure ours against: both go pod by pod.

Of the nodes with room each takes the fullest, as ours does for the last pods of a gang, and takes back what it has
placed when one pod finds none.
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

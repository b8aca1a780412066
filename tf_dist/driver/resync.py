"""When each job is looked at though nothing is known to have changed: once a period, all of them spread over it."""

from __future__ import annotations

import math
import threading
from typing import Final
from zlib import crc32

from tf_dist.driver.refs import JobRef

# Parts of a period; the jobs of one part are looked at together.
_PARTS: Final = 1000


class Resync:
    """The jobs there are, each in the part of the period that its name falls into. Thread-safe.

    ``period`` and all moments: seconds of a clock that only goes forward; ``now``: from when on it counts.
    """

    def __init__(self, period: float, now: float) -> None:
        self._length = period / _PARTS
        self._parts: list[set[JobRef]] = [set() for _ in range(_PARTS)]
        self._next = self._part(now)  # the first part, counted from moment 0, that has not come yet
        self._lock = threading.Lock()

    def _part(self, now: float) -> int:
        return math.floor(now / self._length)

    def _of(self, ref: JobRef) -> set[JobRef]:
        return self._parts[crc32(str(ref).encode()) % _PARTS]

    def add(self, ref: JobRef) -> None:
        """A job is there."""
        with self._lock:
            self._of(ref).add(ref)

    def discard(self, ref: JobRef) -> None:
        """A job is gone."""
        with self._lock:
            self._of(ref).discard(ref)

    def due(self, now: float) -> list[JobRef]:
        """The jobs whose time has come since this was asked last; each once, however long ago that was."""
        with self._lock:
            end = self._part(now)
            first, self._next = max(self._next, end - _PARTS), max(self._next, end)
            return [ref for part in range(first, end) for ref in self._parts[part % _PARTS]]

    def pause(self, now: float, longest: float) -> float:
        """Seconds until a job is due, ``longest`` at most; at least those of a part, so that few rounds see to all."""
        with self._lock:
            last = min(self._part(now + longest), self._next + _PARTS)
            for part in range(self._next, last):
                if self._parts[part % _PARTS]:
                    return min(longest, max(self._length, (part + 1) * self._length - now))
        return longest

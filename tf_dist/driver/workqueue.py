"""Keys that need a look, each at most once, now or at a time; with a back-off of its own for keys that fail."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_RETRY: Final = 0.1
_LONGEST_RETRY: Final = 30.0


class WorkQueue(Generic[K]):
    """A thread-safe, de-duplicating, delayed queue. Times are those of ``clock``, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0
        self._failures: dict[K, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._woken = False

    def add(self, key: K, at: float | None = None) -> None:
        """Ask for a look at ``key`` now, or at ``at``; the earliest wish counts."""
        with self._changed:
            when = self._clock() if at is None else at
            if key in self._due and self._due[key] <= when:
                return
            self._due[key] = when
            self._serial += 1
            heapq.heappush(self._heap, (when, self._serial, key))
            self._changed.notify_all()

    def retry(self, key: K, after: float | None = None) -> float:
        """Ask for another look after a failure; returns the pause, which doubles with every failure in a row."""
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(_LONGEST_RETRY, _FIRST_RETRY * 2.0 ** min(failures - 1, 30)) if after is None else after
        self.add(key, self._clock() + pause)
        return pause

    def failures(self, key: K) -> int:
        """How often in a row ``key`` has failed."""
        with self._changed:
            return self._failures.get(key, 0)

    def succeeded(self, key: K) -> None:
        """Forget the failures of ``key``."""
        with self._changed:
            self._failures.pop(key, None)

    def take(self) -> list[K]:
        """Every key that is due, earliest first; they are out of the queue then."""
        with self._changed:
            return self._take()

    def wait(self, longest: float) -> list[K]:
        """The due keys, waiting for the first up to ``longest`` seconds of real time; empty then, or when woken."""
        with self._changed:
            end = time.monotonic() + longest
            while not (keys := self._take()) and not self._closed and not self._woken:
                rest = end - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(min(rest, self._until_next(rest)))
            self._woken = False
            return keys

    def wake(self) -> None:
        """End a wait though no key is due."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Wake whoever waits, for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self) -> list[K]:
        now = self._clock()
        keys: list[K] = []
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heapq.heappop(self._heap)
            # A key that was asked for earlier since leaves an outdated entry behind.
            if self._due.get(key) == when:
                del self._due[key]
                keys.append(key)
        return keys

    def _until_next(self, longest: float) -> float:
        return max(self._heap[0][0] - self._clock(), 0.0) if self._heap else longest

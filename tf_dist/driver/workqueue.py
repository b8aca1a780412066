"""A delaying, rate-limited work queue: keys that need a look, each at most once, now or after a while."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from tf_dist.cluster.runtime import MACHINE, Runtime

K = TypeVar("K", bound=Hashable)

_FIRST_RETRY: Final = 0.1
_LONGEST_RETRY: Final = 30.0
# Outdated entries that are borne with before the heap is made anew.
_SLACK: Final = 64


class WorkQueue(Generic[K]):
    """A thread-safe, de-duplicating, delaying queue, with a back-off of its own for each key that fails.

    ``monotonic``: seconds that only go forward; no wall clock has a part in it. ``runtime``: what ``wait`` waits with.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, runtime: Runtime = MACHINE) -> None:
        self._monotonic = monotonic
        self._runtime = runtime
        # When a key is due, and the serial number of the heap's entry that says so.
        self._due: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0
        self._failures: dict[K, int] = {}
        self._ready_at: dict[K, float] = {}  # of the keys that were taken last
        self.adds = 0
        self.retries = 0
        self._changed = runtime.condition()
        self._closed = False
        self._woken = False

    def __len__(self) -> int:
        return len(self._due)

    def ready(self) -> int:
        """How many keys are due."""
        with self._changed:
            now = self._monotonic()
            return sum(when <= now for when, _ in self._due.values())

    def ready_at(self, key: K) -> float | None:
        """When a key that was taken last had become due; None for others."""
        with self._changed:
            return self._ready_at.get(key)

    @property
    def entries(self) -> int:
        """The size of the heap: a few more than there are keys at most."""
        return len(self._heap)

    def add(self, key: K, after: float = 0.0) -> None:
        """Ask for a look at ``key`` in ``after`` seconds; the earliest wish counts."""
        with self._changed:
            when = self._monotonic() + max(0.0, after)
            if key in self._due and self._due[key][0] <= when:
                return
            self.adds += key not in self._due
            self._serial += 1
            self._due[key] = when, self._serial
            heapq.heappush(self._heap, (when, self._serial, key))
            if len(self._heap) > _SLACK + 2 * len(self._due):
                self._compact()
            self._changed.notify_all()

    def _compact(self) -> None:
        """Drop the entries of wishes that earlier ones have replaced, or that were granted."""
        self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[:2]]
        heapq.heapify(self._heap)

    def retry(self, key: K, after: float | None = None) -> float:
        """Ask for another look after a failure; returns the pause, which doubles with every failure in a row."""
        with self._changed:
            self.retries += 1
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(_LONGEST_RETRY, _FIRST_RETRY * 2.0 ** min(failures - 1, 30)) if after is None else after
        self.add(key, pause)
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
        """The due keys, waiting for the first up to ``longest`` seconds of the runtime; empty then, or when woken."""
        with self._changed:
            end = self._runtime.monotonic() + longest
            while not (keys := self._take()) and not self._closed and not self._woken:
                rest = end - self._runtime.monotonic()
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
        now = self._monotonic()
        keys: list[K] = []
        ready: dict[K, float] = {}
        while self._heap and self._heap[0][0] <= now:
            when, serial, key = heapq.heappop(self._heap)
            # A key that was asked for earlier since leaves an outdated entry behind.
            if self._due.get(key) == (when, serial):
                del self._due[key]
                keys.append(key)
                ready[key] = when
        if keys:
            self._ready_at = ready
        return keys

    def _until_next(self, longest: float) -> float:
        return max(self._heap[0][0] - self._monotonic(), 0.0) if self._heap else longest

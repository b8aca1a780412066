"""Delaying, rate-limited work queue, the order and the progress of its workers, the resync schedule, token buckets."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar
from zlib import crc32

from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime

K = TypeVar("K", bound=Hashable)

# So many urgent keys are taken for one of the others that wait beside them: a driver that always has something urgent
# to do still comes to everything.
_URGENT_PER_ROUTINE: Final = 10


class TokenBucket:
    """Allows ``burst`` at once, then one every ``interval`` seconds. Not thread-safe.

    All moments: seconds of one clock that only goes forward.
    """

    def __init__(self, *, interval: float, burst: int) -> None:
        self._interval, self._burst = interval, burst
        self._paid_until = -math.inf  # when all so far would be over, at one in an interval

    def due(self) -> float:
        """From when on the next is allowed; -inf: at once."""
        return self._paid_until - (self._burst - 1) * self._interval

    def take(self, now: float) -> None:
        """Take a token, whether there is one or not."""
        self._paid_until = max(self._paid_until, now) + self._interval


class PriorityQueue(Generic[K]):
    """Keys that wait for a worker, each once: the urgent ones, and the others. Not thread-safe."""

    def __init__(self) -> None:
        # When each began to wait.
        self._urgent: OrderedDict[K, float] = OrderedDict()
        self._others: OrderedDict[K, float] = OrderedDict()
        self._in_a_row = 0  # urgent ones that were taken while others waited

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, key: K, since: float, *, urgent: bool) -> bool:
        """Have ``key`` wait, if it does not yet; whether that is new. One that has become urgent moves up."""
        if key in self._urgent:
            return False
        before = self._others.get(key)
        if before is not None and urgent:
            del self._others[key]
        if urgent:
            self._urgent[key] = since if before is None else before
        elif before is None:
            self._others[key] = since
        return before is None

    def take(self) -> tuple[K, float]:
        """The next one, and since when it has waited; KeyError if there is none."""
        if self._others and (not self._urgent or self._in_a_row >= _URGENT_PER_ROUTINE):
            self._in_a_row = 0
            return self._others.popitem(last=False)
        self._in_a_row += bool(self._others)
        return self._urgent.popitem(last=False)


class InProgress(Generic[K]):
    """The keys that workers are at, and which versions of objects were noticed and written meanwhile. Thread-safe.

    What a worker has written itself is no news to it, whether the answer or the watch shows it first. Versions are
    resourceVersions as numbers (``resource_version_of``); 0 is none.
    """

    def __init__(self) -> None:
        self._since: dict[K, float] = {}
        self._noticed: dict[K, set[int]] = {}
        self._written: dict[K, set[int]] = {}
        self._lock = threading.Lock()

    def begin(self, key: K, now: float) -> None:
        """A worker begins with ``key``."""
        with self._lock:
            self._since[key], self._noticed[key], self._written[key] = now, set(), set()

    def notice(self, key: K, version: int = 0) -> bool:
        """An object has this version now (0: it is gone, or something else is new); False: no worker is at the key."""
        with self._lock:
            if key in self._since:
                self._noticed[key].add(version)
            return key in self._since

    def wrote(self, key: K, version: int) -> None:
        """The worker has written an object, which has this version now."""
        with self._lock:
            if version and key in self._since:
                self._written[key].add(version)

    def end(self, key: K) -> bool:
        """The worker is done; whether something was noticed that it has not written."""
        with self._lock:
            del self._since[key]
            return bool(self._noticed.pop(key) - self._written.pop(key))

    def since(self) -> dict[K, float]:
        """When each key was begun with."""
        with self._lock:
            return dict(self._since)


# Parts of a period; the keys of one part are looked at together.
_SLOTS: Final = 1000


class ResyncSchedule(Generic[K]):
    """The keys there are, each in the part of the period that its name falls into. Thread-safe.

    ``period`` and all moments: seconds of a clock that only goes forward; ``now``: from when on it counts.
    """

    def __init__(self, period: float, now: float) -> None:
        self._length = period / _SLOTS
        self._parts: list[set[K]] = [set() for _ in range(_SLOTS)]
        self._next = self._part(now)  # the first part, counted from moment 0, that has not come yet
        self._lock = threading.Lock()

    def _part(self, now: float) -> int:
        return math.floor(now / self._length)

    def _of(self, ref: K) -> set[K]:
        return self._parts[crc32(str(ref).encode()) % _SLOTS]

    def add(self, ref: K) -> None:
        """A key is there."""
        with self._lock:
            self._of(ref).add(ref)

    def discard(self, ref: K) -> None:
        """A key is gone."""
        with self._lock:
            self._of(ref).discard(ref)

    def due(self, now: float) -> list[K]:
        """The keys whose time has come since this was asked last; each once, however long ago that was."""
        with self._lock:
            end = self._part(now)
            first, self._next = max(self._next, end - _SLOTS), max(self._next, end)
            return [ref for part in range(first, end) for ref in self._parts[part % _SLOTS]]

    def pause(self, now: float, longest: float) -> float:
        """Seconds until a key is due, ``longest`` at most; at least those of a part, so that few rounds see to all."""
        with self._lock:
            last = min(self._part(now + longest), self._next + _SLOTS)
            for part in range(self._next, last):
                if self._parts[part % _SLOTS]:
                    return min(longest, max(self._length, (part + 1) * self._length - now))
        return longest


_BASE_DELAY: Final = 0.1
_MAX_DELAY: Final = 30.0
# Outdated entries that are borne with before the heap is made anew.
_SLACK: Final = 64


class WorkQueue(Generic[K]):
    """A thread-safe, de-duplicating, delaying queue, with a back-off of its own for each key that fails.

    ``monotonic``: seconds that only go forward; no wall clock has a part in it. ``runtime``: what ``wait`` waits with.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, runtime: ThreadRuntime = SYSTEM_RUNTIME
    ) -> None:
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
        self.closed = False
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
        """Add ``key``, due in ``after`` seconds; of several times the earliest counts."""
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
        pause = min(_MAX_DELAY, _BASE_DELAY * 2.0 ** min(failures - 1, 30)) if after is None else after
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
            while not (keys := self._take()) and not self.closed and not self._woken:
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
        """End every wait, for good."""
        with self._changed:
            self.closed = True
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

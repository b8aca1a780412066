"""The work queue, the schedule of periodic checks, and token buckets."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Generic, TypeVar
from zlib import crc32

from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime

K = TypeVar("K", bound=Hashable)

# The number of other keys that are taken before a waiting routine key, so that a busy controller still handles every
# key.
_OTHERS_PER_ROUTINE: Final = 10
# The longest wait of a worker in seconds, because timeouts of threads are bounded.
_LONGEST_WAIT: Final = 3600.0


class TokenBucket:
    """Allows ``burst`` tokens at once, then one every ``interval`` seconds. Not thread-safe.

    All times are seconds of one monotonic clock.
    """

    def __init__(self, *, interval: float, burst: int) -> None:
        self._interval, self._burst = interval, burst
        self._paid_until = -math.inf  # when all taken tokens would be used up, at one token per interval

    def due(self) -> float:
        """The time at which the next token is available; -inf: at once."""
        return self._paid_until - (self._burst - 1) * self._interval

    def take(self, now: float) -> None:
        """Take a token, even if none is available."""
        self._paid_until = max(self._paid_until, now) + self._interval


# Parts of a period; the keys of a part are due together.
_SLOTS: Final = 1000


class ResyncSchedule(Generic[K]):
    """A set of keys, each due once in a period, at a time that depends on a hash of its name. Thread-safe.

    ``period`` and all times are seconds of a monotonic clock; ``now`` is the start.
    """

    def __init__(self, period: float, now: float) -> None:
        self._length = period / _SLOTS
        self._parts: list[set[K]] = [set() for _ in range(_SLOTS)]
        self._next = self._part(now)  # the first part, counted from time 0, that is not yet due
        self._lock = threading.Lock()

    def _part(self, now: float) -> int:
        return math.floor(now / self._length)

    def _of(self, ref: K) -> set[K]:
        return self._parts[crc32(str(ref).encode()) % _SLOTS]

    def add(self, ref: K) -> None:
        """Add a key."""
        with self._lock:
            self._of(ref).add(ref)

    def discard(self, ref: K) -> None:
        """Remove a key."""
        with self._lock:
            self._of(ref).discard(ref)

    def due(self, now: float) -> list[K]:
        """The keys that became due since the last call; each once, however long ago that was."""
        with self._lock:
            end = self._part(now)
            first, self._next = max(self._next, end - _SLOTS), max(self._next, end)
            return [ref for part in range(first, end) for ref in self._parts[part % _SLOTS]]

    def pause(self, now: float, longest: float) -> float:
        """Seconds until a key is due, at most ``longest``; at least the length of a part, so that few rounds handle all
        keys.
        """
        with self._lock:
            last = min(self._part(now + longest), self._next + _SLOTS)
            for part in range(self._next, last):
                if self._parts[part % _SLOTS]:
                    return min(longest, max(self._length, (part + 1) * self._length - now))
        return longest


_BASE_DELAY: Final = 0.1
_MAX_DELAY: Final = 30.0
# Outdated entries that are tolerated before the heap is rebuilt.
_SLACK: Final = 64


class Lane(IntEnum):
    """The order in which waiting keys are taken."""

    FIRST = 0  # a verdict of admission must be written
    NORMAL = 1  # something has changed
    ROUTINE = 2  # no known change; one routine key is taken after ten others


@dataclass(slots=True)
class _Pass:
    """One key that a worker is processing."""

    begun: float
    noticed: set[int] = field(default_factory=set)  # versions of objects that changed meanwhile (0: other changes)
    written: set[int] = field(default_factory=set)  # versions that the worker has written itself
    lane: Lane = Lane.ROUTINE  # of the next wait of the key
    cleared: bool = False  # whether the queue has been cleared since


class _FairLane(Generic[K]):
    """Waiting keys with the start of their wait. Groups take turns; within a group, the oldest key is next."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, OrderedDict[K, float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, group: Hashable, key: K, since: float) -> None:
        self._groups.setdefault(group, OrderedDict())[key] = since

    def remove(self, group: Hashable, key: K) -> float:
        keys = self._groups[group]
        since = keys.pop(key)
        if not keys:
            del self._groups[group]
        return since

    def take(self, may: Callable[[Hashable], bool]) -> tuple[K, float] | None:
        """The next key of the first group below its limit. The group then moves to the end."""
        for group in filter(may, self._groups):
            keys = self._groups.pop(group)
            found = keys.popitem(last=False)
            if keys:
                self._groups[group] = keys
            return found
        return None

    def clear(self) -> None:
        self._groups.clear()


class WorkQueue(Generic[K]):
    """A work queue like client-go's: each key waits once, and one worker at a time processes it. Thread-safe.

    A key that is added while a worker processes it waits again afterwards. In addition, the queue has lanes, delayed
    keys, and a back-off for each failing key. A worker's own writes do not queue a key again, whether the response or
    the watch shows them first; this saves two passes for each job. Versions are resourceVersions as numbers
    (``resource_version_of``). ``monotonic``: seconds of a monotonic clock. ``runtime``: provides the condition that
    ``get`` waits for. No group of keys delays the others, however large it is: groups take turns in each lane, and a
    group has at most ``most`` workers at a time (None: all). ``group`` returns the group of a key.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
        *,
        group: Callable[[K], Hashable] = lambda _: None,
        most: int | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._runtime = runtime
        self._group, self._most = group, math.inf if most is None else most
        # Keys that wait for a worker, by lane, with the start of their wait.
        self._lanes: dict[Lane, _FairLane[K]] = {lane: _FairLane() for lane in Lane}
        self._where: dict[K, Lane] = {}
        self._passes: dict[K, _Pass] = {}
        self._busy: Counter[Hashable] = Counter()  # workers, by the group of their key
        self._in_a_row = 0  # keys that were taken while routine keys waited
        # When a delayed key is due, and the serial number of its current heap entry.
        self._later: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0
        self._failures: dict[K, int] = {}
        self.adds = 0
        self.retries = 0
        self._changed = runtime.condition()
        self.closed = False

    def __len__(self) -> int:
        """The number of keys that wait or are due later."""
        return len(self._where) + len(self._later)

    # Adding

    def add(self, key: K, after: float = 0.0, *, lane: Lane = Lane.NORMAL) -> None:
        """Queue ``key`` in ``after`` seconds. Of several times, the earliest counts."""
        with self._changed:
            if after > 0:
                self._add_later(key, self._monotonic() + after)
            elif key in self._passes:
                self._note(key, 0, lane)
            else:
                self._add(key, self._monotonic(), lane)

    def notice(self, key: K, version: int) -> None:
        """An object of ``key`` has changed, and now has this version."""
        with self._changed:
            if key in self._passes:
                self._note(key, version, Lane.NORMAL)
            else:
                self._add(key, self._monotonic(), Lane.NORMAL)

    def noticed(self, key: K, version: int) -> bool:
        """Like ``notice``, for a caller that adds the key itself. Returns whether a worker is processing the key."""
        with self._changed:
            if key in self._passes:
                self._note(key, version, Lane.NORMAL)
            return key in self._passes

    def wrote(self, key: K, version: int) -> None:
        """The worker of ``key`` has written an object, which now has this version."""
        with self._changed:
            if version and key in self._passes:
                self._passes[key].written.add(version)

    def _note(self, key: K, version: int, lane: Lane) -> None:
        found = self._passes[key]
        found.noticed.add(version)
        if version not in found.written:
            found.lane = min(found.lane, lane)

    def _add(self, key: K, since: float, lane: Lane, *, wake: bool = True) -> None:
        self._later.pop(key, None)
        before = self._where.get(key)
        if before is not None:
            if lane >= before:
                return
            since = self._lanes[before].remove(self._group(key), key)
        else:
            self.adds += 1
        self._where[key] = lane
        self._lanes[lane].add(self._group(key), key, since)
        if wake:
            self._changed.notify()

    def _add_later(self, key: K, when: float) -> None:
        if key in self._where or (key in self._later and self._later[key][0] <= when):
            return
        self._serial += 1
        self._later[key] = when, self._serial
        heapq.heappush(self._heap, (when, self._serial, key))
        if len(self._heap) > _SLACK + 2 * len(self._later):
            self._heap = [entry for entry in self._heap if self._later.get(entry[2]) == entry[:2]]
            heapq.heapify(self._heap)
        if self._heap[0][1] == self._serial:  # workers wait for the earliest
            self._changed.notify()

    # Taking

    def get(self, longest: float = math.inf) -> tuple[K, float] | None:
        """The next key and the start of its wait; None after ``longest`` seconds without a key, or when closed.

        The caller processes it until it calls ``done``.
        """
        with self._changed:
            end = self._runtime.monotonic() + longest
            while not self.closed:
                self._take_in()
                if (found := self._take()) is not None:
                    return found
                rest = min(end - self._runtime.monotonic(), _LONGEST_WAIT)
                if rest <= 0:
                    return None
                next_ = self._heap[0][0] - self._monotonic() if self._heap else rest
                self._changed.wait(max(0.0, min(rest, next_)))
            return None

    def get_all(self, longest: float) -> list[K]:
        """All waiting keys, for a loop that is the only worker; empty after ``longest`` seconds, or when closed."""
        found = self.get(longest)
        if found is None:
            return []
        with self._changed:
            keys = [found[0], *self._where]
            for lane in self._lanes.values():
                lane.clear()
            self._where.clear()
        self.done(found[0])
        return keys

    def _take_in(self) -> None:
        """Move the keys that are due to the waiting keys."""
        now = self._monotonic()
        while self._heap and self._heap[0][0] <= now:
            when, serial, key = heapq.heappop(self._heap)
            if self._later.get(key) != (when, serial):
                continue  # the entry is outdated
            del self._later[key]
            if key in self._passes:
                self._note(key, 0, Lane.NORMAL)
            else:
                self._add(key, when, Lane.NORMAL)

    def _take(self) -> tuple[K, float] | None:
        routine = self._in_a_row >= _OTHERS_PER_ROUTINE
        for lane in (Lane.ROUTINE, Lane.FIRST, Lane.NORMAL) if routine else Lane:
            found = self._lanes[lane].take(lambda group: self._busy[group] < self._most)
            if found is not None:
                self._in_a_row = 0 if lane is Lane.ROUTINE else self._in_a_row + bool(self._lanes[Lane.ROUTINE])
                del self._where[found[0]]
                self._passes[found[0]] = _Pass(self._monotonic())
                self._busy[self._group(found[0])] += 1
                return found
        return None

    def done(self, key: K) -> None:
        """Mark ``key`` as processed. It waits again if there were changes other than the worker's own writes.

        The worker then calls ``get``, so another worker is woken only for keys that waited before.
        """
        with self._changed:
            found, group = self._passes.pop(key), self._group(key)
            self._busy[group] -= 1
            if not self._busy[group]:
                del self._busy[group]
            if self._where:  # the group may have been at its limit of workers
                self._changed.notify()
            if found.noticed - found.written:
                self._add(key, self._monotonic(), found.lane, wake=False)

    # Failures

    def retry(self, key: K, after: float | None = None) -> float:
        """Queue the key again after a failure. Returns the pause, which doubles with every consecutive failure."""
        with self._changed:
            self.retries += 1
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(_MAX_DELAY, _BASE_DELAY * 2.0 ** min(failures - 1, 30)) if after is None else after
        self.add(key, pause)
        return pause

    def failures(self, key: K) -> int:
        """The number of consecutive failures of ``key``."""
        with self._changed:
            return self._failures.get(key, 0)

    def succeeded(self, key: K) -> None:
        """Forget the failures of ``key``."""
        with self._changed:
            self._failures.pop(key, None)

    # State

    def waits(self, lane: Lane) -> bool:
        """Whether a key waits in a lane."""
        return bool(self._lanes[lane])

    def ready(self) -> int:
        """The number of keys that wait for a worker now."""
        with self._changed:
            now = self._monotonic()
            return len(self._where) + sum(when <= now for when, _ in self._later.values())

    def passes(self) -> dict[K, float]:
        """The keys that workers are processing, and the start of their processing."""
        with self._changed:
            return {key: found.begun for key, found in self._passes.items()}

    def clear(self) -> None:
        """Remove all waiting keys, because another process handles them now."""
        with self._changed:
            for lane in self._lanes.values():
                lane.clear()
            self._where.clear()
            self._later.clear()
            self._heap.clear()
            self._failures.clear()
            for found in self._passes.values():
                found.cleared = True

    def cleared(self, key: K) -> bool:
        """Whether the queue has been cleared since a worker took ``key``. Takes no lock, so that no time passes."""
        found = self._passes.get(key)
        return found is not None and found.cleared

    def close(self) -> None:
        """End every ``get`` permanently."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

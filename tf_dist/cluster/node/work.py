"""What is to be looked at, now or later: the agent's doorbell."""

from __future__ import annotations

import heapq
import threading
import time


class Bell:
    """Keys rung by any thread, each waiting once; one thread takes them until it is ``closed``."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._due: set[str] = set()
        self._later: list[tuple[float, str]] = []
        self._planned: dict[str, float] = {}
        self.closed = False

    def ring(self, key: str) -> None:
        """Look at ``key`` now."""
        with self._condition:
            self._due.add(key)
            self._condition.notify()

    def ring_in(self, key: str, seconds: float) -> None:
        """Look at ``key`` in a while, at the latest."""
        at = time.monotonic() + seconds
        with self._condition:
            if self._planned.get(key, float("inf")) > at:
                self._planned[key] = at
                heapq.heappush(self._later, (at, key))
                self._condition.notify()

    def wait(self) -> set[str] | None:
        """The keys that are due, as soon as there is one; None when closed."""
        with self._condition:
            while not self.closed:
                self._collect()
                if self._due:
                    due, self._due = self._due, set()
                    return due
                self._condition.wait(self._later[0][0] - time.monotonic() if self._later else None)
        return None

    def close(self) -> None:
        """End ``wait`` for good."""
        with self._condition:
            self.closed = True
            self._condition.notify_all()

    def _collect(self) -> None:
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            at, key = heapq.heappop(self._later)
            if self._planned.get(key) == at:
                del self._planned[key]
                self._due.add(key)

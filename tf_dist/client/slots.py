"""Work for a bounded number of threads: what comes while all are busy waits for one of them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger(__name__)


class Slots:
    """At most ``most`` pieces of work at a time, in the order in which they came. A thread without work ends."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = 0
        # Also those that are about to end: a thread that is forgotten before it is dead is waited for by nobody.
        self._threads: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        """How much work waits for a thread."""
        return len(self._waiting)

    def start(self, work: Callable[[], None]) -> None:
        """Have it done as soon as a thread is free; what it raises is its own affair."""
        with self._lock:
            self._waiting.append(work)
            if self._busy >= self._most:
                return
            self._busy += 1
            thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            thread.start()

    def close(self) -> None:
        """Forget what waits, and return when nothing is done any more: end what is under way first."""
        with self._lock:
            self._waiting.clear()
            threads = self._threads
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                _LOG.exception("a piece of work met a defect")

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._busy -= 1
            return None

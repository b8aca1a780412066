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
        self._threads: set[threading.Thread] = set()

    @property
    def waiting(self) -> int:
        """How much work waits for a thread."""
        return len(self._waiting)

    def start(self, work: Callable[[], None]) -> None:
        """Have it done as soon as a thread is free; what it raises is its own affair."""
        with self._lock:
            self._waiting.append(work)
            if len(self._threads) >= self._most:
                return
            thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        """Forget what waits, and return when nothing is done any more: end what is under way first."""
        with self._lock:
            self._waiting.clear()
            threads = tuple(self._threads)
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
            self._threads.discard(threading.current_thread())
            return None

"""Threads, locks, events and clock: the machine's own, or virtual ones in tests."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final


class ThreadRuntime:
    """``threading`` and ``time``. A subclass may run the same code on virtual time, one thread after the other.

    Code that waits, starts a thread, or may hold a lock during a request takes these from here.
    """

    def monotonic(self) -> float:
        """Seconds that only go forward, in which waits are counted."""
        return time.monotonic()

    def uniform(self, low: float, high: float) -> float:
        """A random number between two, for jitter."""
        return random.uniform(low, high)

    def thread(self, run: Callable[[], object], name: str) -> threading.Thread:
        """A thread that does not keep the process alive, still to be started."""
        return threading.Thread(target=run, name=name, daemon=True)

    def pool(self, workers: int, name: str) -> Executor:
        """So many threads for tasks."""
        return ThreadPoolExecutor(workers, thread_name_prefix=name)

    def event(self) -> threading.Event:
        """A flag to wait for."""
        return threading.Event()

    def condition(self) -> threading.Condition:
        """A condition variable."""
        return threading.Condition()

    def lock(self) -> AbstractContextManager[Any]:
        """A reentrant lock that may be held during a request."""
        return threading.RLock()


SYSTEM_RUNTIME: Final = ThreadRuntime()

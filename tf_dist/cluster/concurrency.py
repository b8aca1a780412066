"""Threads, locks, events and the clock: real ones, or virtual ones in tests."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from queue import Empty
from typing import Any, Final, Generic, Self, TypeVar

T = TypeVar("T")


class ThreadRuntime:
    """``threading`` and ``time``. A subclass may run the same code on virtual time, one thread after the other.

    Code that waits, starts threads, or holds a lock during a request must use this class.
    """

    def monotonic(self) -> float:
        """Seconds of the monotonic clock, for waits."""
        return time.monotonic()

    def uniform(self, low: float, high: float) -> float:
        """A random number between ``low`` and ``high``, for jitter."""
        return random.uniform(low, high)

    def thread(self, run: Callable[[], object], name: str) -> threading.Thread:
        """A thread that is not started, and does not keep the process alive."""
        return threading.Thread(target=run, name=name, daemon=True)

    def pool(self, workers: int, name: str) -> Executor:
        """A pool with this number of threads."""
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


class Service(ABC):
    """An object that is started and stopped; a ``with`` block does both."""

    @abstractmethod
    def start(self) -> object:
        """Begin."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and wait for the end."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class SignalSafeQueue(Generic[T]):
    """A queue with one reader. Signal handlers may call ``put``.

    ``queue.SimpleQueue`` of the standard library has the same purpose. Before Python 3.13, however, its ``get`` may
    wait forever: if a signal arrives a few microseconds before the timeout expires, ``get`` continues without a
    timeout.
    """

    def __init__(self) -> None:
        self._items = deque[T]()
        self._empty = threading.Lock()  # held: nothing was added since the reader's last check

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        with suppress(RuntimeError):  # the lock is not held
            self._empty.release()

    def empty(self) -> bool:
        """Whether the queue is empty."""
        return not self._items

    def get(self, timeout: float | None = None) -> T:
        """The oldest item, after waiting for it at most ``timeout`` seconds. Empty."""
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            with suppress(IndexError):
                return self._items.popleft()
            # A thread can wait for at most 292 years at once, and infinity is a valid timeout.
            left = -1 if ends is None else min(max(0.0, ends - time.monotonic()), threading.TIMEOUT_MAX)
            if not self._empty.acquire(timeout=left):
                raise Empty

    def get_nowait(self) -> T:
        """The oldest item, without waiting. Empty."""
        return self.get(timeout=0)


class SlowStart:
    """Runs tasks in parallel: one, then two, then four, and so on, at most ``most`` at a time.

    Kubernetes' controllers create pods in the same way, so that the server refuses one bad pod instead of a thousand.
    The caller's thread and those of ``pool`` take tasks until none is left, in the caller's context (the job of log
    lines, the retry policy of requests).
    """

    def __init__(self, runtime: ThreadRuntime, pool: Executor, most: int) -> None:
        self._runtime = runtime
        self._pool = pool
        self._most = most

    def run(self, tasks: Sequence[Callable[[], object]]) -> None:
        """Run all tasks. After an error, no further task starts, and the error is raised when the running tasks have
        ended.
        """
        begun, size = 0, 1
        while begun < len(tasks):
            self._batch(tasks[begun : begun + size])
            begun += size
            size = min(2 * size, self._most)

    def _batch(self, tasks: Sequence[Callable[[], object]]) -> None:
        errors: dict[int, Exception] = {}
        over = self._runtime.condition()
        begun, left = 0, len(tasks)

        def work() -> None:
            nonlocal begun, left
            while True:
                with over:
                    if begun == len(tasks):
                        return
                    at = begun
                    begun += 1
                try:
                    tasks[at]()
                except Exception as error:
                    errors[at] = error
                finally:
                    with over:
                        left -= 1
                        if not left:
                            over.notify_all()

        for _ in range(1, len(tasks)):
            self._pool.submit(copy_context().run, work)
        # If other work occupies all threads of the pool, the caller runs all tasks.
        work()
        with over:
            over.wait_for(lambda: left == 0)
        if errors:
            raise errors[min(errors)]

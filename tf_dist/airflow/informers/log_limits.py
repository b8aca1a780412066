"""Limits on the logs that a process reads at once, and on the requests that open them."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tf_dist.cluster.api import ALL_LINES, Cluster, LogOptions, Object, Resource, Stream

_AT_ONCE: Final = 8

_ON_THE_WIRE: Final = 0.1  # seconds after which a request only waits, and uses no CPU time until its response arrives


class LogRequestLimiter:
    """Limits the concurrent requests for logs and pods of a cluster.

    Responses cost CPU time: a hundred threads at once would block the event loop for most of a second. A request that
    takes longer than ``patience`` seconds does not count, so that slow nodes do not delay other requests.
    """

    def __init__(self, cluster: Cluster, at_once: int = _AT_ONCE, patience: float = _ON_THE_WIRE) -> None:
        self._cluster, self._at_once, self._patience = cluster, at_once, patience
        # One thread waits for a change, and the others wait for that thread. A change must not wake a hundred threads.
        self._next, self._changed = threading.Lock(), threading.Condition()
        self._begun: deque[float] = deque()  # start times of the requests that count, the oldest first
        self._closed = False

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Stream[bytes]:
        """See ``Cluster``."""
        with self._turn():
            return self._cluster.logs(namespace, pod, options)

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """See ``Cluster``."""
        with self._turn():
            return self._cluster.get(resource, namespace, name)

    def close(self) -> None:
        """Stop delaying requests, because the logs are being closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._next, self._changed:
            while len(self._begun) >= self._at_once and not self._closed:
                left = self._begun[0] + self._patience - time.monotonic()
                if left <= 0:
                    self._begun.popleft()
                else:
                    self._changed.wait(left)
            begun = time.monotonic()
            self._begun.append(begun)
        try:
            yield
        finally:
            with self._changed:
                with suppress(ValueError):  # the request no longer counts
                    self._begun.remove(begun)
                self._changed.notify()


_LOG: Final = logging.getLogger(__name__)


class BoundedThreads:
    """Runs functions in order, at most ``most`` at once. Threads without work end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._busy = 0
        # Includes threads that are about to end, so that ``close`` joins them.
        self._threads: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        """The number of functions that wait for a thread."""
        return len(self._waiting)

    def start(self, work: Callable[[], None]) -> None:
        """Run ``work`` when a thread is free. Work that already waits is not added again. Its errors are logged."""
        with self._lock:
            self._waiting[work] = None
            if self._busy >= self._most:
                return
            self._busy += 1
            thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            thread.start()

    def cancel(self, work: Callable[[], None]) -> None:
        """Remove ``work``, unless it runs."""
        with self._lock:
            self._waiting.pop(work, None)

    def close(self) -> None:
        """Remove waiting functions, and wait for the running functions. The caller must make these end first."""
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
                _LOG.exception("failed to run shared work")

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popitem(last=False)[0]
            self._busy -= 1
            return None

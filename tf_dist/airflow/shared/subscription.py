"""Subscription to one job: its changes and logs; limits on the logs that are read and opened at a time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from tf_dist.client.log_follower import ContainerInstance, LogEnded, LogFollower, LogLine, LogOpener
from tf_dist.client.monitor import JobEvent, JobInformer, ObjectsListed
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, Object, Stream
from tf_dist.controller.driver_settings import JobRef
from tf_dist.core.api.job import Job

_AT_ONCE: Final = 4
_PATIENCE: Final = 1.0  # seconds after which one goes ahead: logs of nodes that are away must not hold up the others


class LogOpenLimiter:
    """Lets a few open a log at a time, and the others after a while."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(_AT_ONCE)

    def through(self, open_log: LogOpener) -> LogOpener:
        """The same, a few at a time."""

        def opened(pod: Object, instance: ContainerInstance) -> Stream[bytes]:
            placed = self._places.acquire(timeout=_PATIENCE)
            try:
                return open_log(pod, instance)
            finally:
                if placed:
                    self._places.release()

        return opened


_LOG: Final = logging.getLogger(__name__)


class BoundedThreads:
    """At most ``most`` pieces of work at a time, in the order in which they came. A thread without work ends."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = 0
        # Also those that are about to end: a thread that is forgotten before it is dead would not be joined.
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
                _LOG.exception("failed to run shared work")

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._busy -= 1
            return None


_MOST_LINES: Final = 1_000  # of one job that may wait to be logged; then its logs are not read on
_BATCH: Final = 200

SeenJob = tuple[StoredJob | None, list[Object]]
"""A job (None: it is not there) and its pods, as they are at one moment."""


class Subscription(JobInformer):
    """Subscription to one job; ``last``: the job as it was seen last, also when it is gone.

    Only that something has changed is noted; what it is, is looked up when it is taken (``lookup``; None while the
    informers have not synced). So however often a job changes, ``on_change`` is called once, from any thread, until
    something is taken.
    """

    def __init__(
        self,
        ref: JobRef,
        stored: Object,
        on_change: Callable[[], None],
        lookup: Callable[[Subscription], SeenJob | None],
        *,
        driven: bool,
        roomy: threading.Condition | None = None,
    ) -> None:
        self.last = StoredJob(ref.resource, stored)
        super().__init__(self.last, most_lines=_MOST_LINES, batch=_BATCH, roomy=roomy)
        self.ref, self.driven = ref, driven
        self._on_change, self._lookup = on_change, lookup
        self._notified = self._changed = False

    def notify(self) -> None:
        """The job or one of its pods has changed."""
        self._changed = True
        self._notify()

    def mark_changed(self) -> None:
        """Look the job and its pods up when something is taken next, though nothing has changed."""
        self._changed = True

    def put(self, item: JobEvent) -> None:
        """Add something else, as a line; see ``JobInformer``."""
        super().put(item)
        self._notify()

    def _notify(self) -> None:
        if not self._notified:
            self._notified = True
            self._on_change()

    def learn(self, item: JobEvent) -> None:
        """Bring the state up to date, and keep the job as it was before it went."""
        super().learn(item)
        self.last = self.job or self.last

    def take(self, timeout: float | None = None) -> list[JobEvent]:
        """What has come; the rest, if that was too much for once, notifies again."""
        self._notified = False  # before anything is read: what comes from now on notifies anew
        seen = self._changes() if self._changed else []
        if seen and self._items.empty():
            return seen
        found = super().take(0 if seen else timeout)
        if len(found) >= _BATCH:
            self._notify()
        return [*seen, *found]

    def _changes(self) -> list[JobEvent]:
        """Look the job and its pods up, and take that in."""
        self._changed = False
        seen = self._lookup(self)
        if seen is None:
            return []
        job, pods = seen
        self.job = job if job is not None and job.uid == self.uid else None
        self.pods = {pod["metadata"]["uid"]: pod for pod in pods}
        self.last = self.job or self.last
        return [ObjectsListed(PODS, pods)]


class SubscriptionLogFollower(LogFollower):
    """Reads logs from when it has ``begun``; containers that start before are passed over until noticed again."""

    def __init__(
        self,
        job: Job,
        open_log: LogOpener,
        sink: Callable[[LogLine | LogEnded], None],
        *,
        start: Callable[[Callable[[], None]], None],
        begun: bool,
    ) -> None:
        super().__init__(job, open_log, sink, start=start)
        self.begun = begun

    def notice(self, pod: Object) -> bool:
        """See ``LogFollower``."""
        return self.begun and super().notice(pod)

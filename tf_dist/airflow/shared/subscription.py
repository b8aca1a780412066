"""Subscription to one job: its changes and logs; limits on the logs that are read and opened at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tf_dist.client.log_follower import LogFollower, LogOpener, LogSink
from tf_dist.client.monitor import JobEvent, JobInformer, ObjectsListed
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import ALL_LINES, PODS, Cluster, LogOptions, Object, Resource, Stream
from tf_dist.controller.settings import JobRef
from tf_dist.core.model.job import Job

_AT_ONCE: Final = 8
_ON_THE_WIRE: Final = 0.1  # seconds after which a request takes no processor time before its answer comes


class LogRequestLimiter:
    """A cluster of which logs and states of pods are asked for a few at a time.

    Answers cost processor time: those to a hundred threads at once would keep the event loop from its turn for most of
    a second. A request that is under way for longer than ``patience`` seconds does not count, so that nodes which are
    slow or away hold up no others for long.
    """

    def __init__(self, cluster: Cluster, at_once: int = _AT_ONCE, patience: float = _ON_THE_WIRE) -> None:
        self._cluster, self._at_once, self._patience = cluster, at_once, patience
        # The next one waits for a change, the others for that one: a change must not wake a hundred threads.
        self._next, self._changed = threading.Lock(), threading.Condition()
        self._begun: deque[float] = deque()  # of those that count, the oldest first
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
        """Hold up none any more: the logs are being closed."""
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
                with suppress(ValueError):  # it has not counted any more
                    self._begun.remove(begun)
                self._changed.notify()


_LOG: Final = logging.getLogger(__name__)


class BoundedThreads:
    """At most ``most`` pieces of work at a time, in the order in which they came. A thread without work ends."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._busy = 0
        # Also those that are about to end: a thread that is forgotten before it is dead would not be joined.
        self._threads: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        """How much work waits for a thread."""
        return len(self._waiting)

    def start(self, work: Callable[[], None]) -> None:
        """Have it done as soon as a thread is free, once if it waits already; what it raises is its own affair."""
        with self._lock:
            self._waiting[work] = None
            if self._busy >= self._most:
                return
            self._busy += 1
            thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            thread.start()

    def cancel(self, work: Callable[[], None]) -> None:
        """Forget it, unless a thread has begun."""
        with self._lock:
            self._waiting.pop(work, None)

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
                return self._waiting.popitem(last=False)[0]
            self._busy -= 1
            return None


_MOST_LINES: Final = 2_000  # of one job that may wait to be logged; then its logs are not read on
_BATCH: Final = 1_000

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
        roomy: threading.Condition | None = None,
    ) -> None:
        self.last = StoredJob(ref.resource, stored)
        super().__init__(self.last, most_lines=_MOST_LINES, batch=_BATCH, roomy=roomy)
        self.ref = ref
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
        if not self._items.empty():
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
        sink: LogSink,
        *,
        start: Callable[[Callable[[], None], bool], None],
        begun: bool,
        stamped: bool,
    ) -> None:
        super().__init__(job, open_log, sink, start=start, stamped=stamped)
        self.begun = begun

    def notice(self, pod: Object) -> bool:
        """See ``LogFollower``."""
        return self.begun and super().notice(pod)

"""Event recorder: Kubernetes Events on jobs, counted up, rate-limited, and written beside everything else.

An event's name is derived from its text, so that this controller or the next finds the event when it is repeated, and
increases its count. What a job may cause to be written is bounded by a budget of its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple

from tf_dist.cluster.api import EVENTS, Cluster, Object, Resource, new_event
from tf_dist.cluster.client.retries import fenced_by
from tf_dist.cluster.client.workqueue import TokenBucket
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.observability.metrics_interface import Metric, MetricsRecorder
from tf_dist.core.model.context import EmitEvent
from tf_dist.core.model.names import short_hash
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import AlreadyExists, ClusterError, NotFound, Throttled, Unavailable

_LOG = logging.getLogger(__name__)
_MAX_MESSAGE: Final = 1024
# The API's limit is 253; a dot and twelve characters come behind the job's name.
_MAX_NAME: Final = 240
_HOUR: Final = 3600.0
_REPEAT_EVERY: Final = 60.0
_MAX_SERIES: Final = 10_000
# Seconds to write what is left at a stop, those that the last request may take at least, and any one at most.
_STOP_WITHIN: Final = 2.0
_LAST_WRITE: Final = 1.0
_WRITE_WITHIN: Final = 10.0
# How often the write of an event is tried that the server does not take at present, with pauses of a second, of two, …
_TRIES: Final = 5
_RETRY_AFTER: Final = 1.0
_MAX_RETRY_AFTER: Final = 10.0
# In metrics.
_ACTION: Final = "EmitEvent"
_DROPPED: Final = "Dropped"


class EventRateLimiter:
    """A bucket of tokens per job: ``burst`` at once, then one every ``every`` seconds.

    ``monotonic``: seconds that only go forward. Of more than ``most`` jobs the longest silent ones are forgotten, and
    have a full bucket again. Not thread-safe.
    """

    def __init__(
        self, monotonic: Callable[[], float], *, burst: int = 10, every: float = 10.0, most: int = _MAX_SERIES
    ) -> None:
        self._monotonic = monotonic
        self._burst = burst
        self._every = every
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, job: str) -> bool:
        """Take a token of ``job`` (its uid); False when there is none left."""
        now = self._monotonic()
        tokens, since = self._buckets.pop(job, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - since) / self._every)
        allowed = tokens >= 1.0
        self._buckets[job] = (tokens - 1.0 if allowed else tokens, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return allowed


class _EventSeries(NamedTuple):
    """What was said: how often, when it was heard last, and when written last (None: not yet).

    ``acknowledged``: whether the server has taken it from us, so that the count there is ours.
    """

    times: int = 0
    seen_at: float = 0.0
    written: float | None = None
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    """An event to be written. How often it happened is said by its series when it is; the rest is as short as can be,
    its message included, for thousands may wait. ``not_before``: by the recorder's monotonic clock.
    """

    resource: Resource
    api_version: str
    namespace: str
    job: str
    uid: str
    name: str
    event: EmitEvent
    at: str
    tries: int = 0
    not_before: float = -math.inf

    @property
    def series(self) -> str:
        """The key of its series."""
        return f"{self.namespace}/{self.name}"


class EventRecorder:
    """Writes events on jobs. ``clock``: epoch seconds; ``monotonic``: seconds that only go forward; ``component``: who
    says so. Thread-safe.

    The same words about the same job within an hour count the event up that is there, once a minute at most; what is
    held back until then is in the next count. Beyond the budget nothing is written. Routine events (of the pods that
    were created, say) have a budget of their own for each reason, and take none from the others.

    Once it was started, a thread of its own writes them: ``burst`` at once and ``per_second`` after that, so that what
    jobs wait for goes first; routine events are written after the others. At most ``queue`` wait for it; more are
    dropped, routine ones first, which ``recorder`` counts. One that the server does not take at present waits at the
    end of the queue for its next try, and is dropped after the last one. Without a thread, they are written in the
    caller's. ``permission``: the seconds for which it surely may write; it raises a ClusterError when it may not.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        component: str,
        *,
        permission: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        budget: EventRateLimiter | None = None,
        most: int = _MAX_SERIES,
        recorder: MetricsRecorder | None = None,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
        queue: int = 4096,
        burst: int = 100,
        per_second: float = 20.0,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._component = component
        self._monotonic = monotonic
        self._budget = budget or EventRateLimiter(monotonic)
        self._most = most
        self._recorder = recorder or MetricsRecorder()
        self._runtime = runtime
        self._permission = permission
        self._queue = queue
        # As plain tuples of numbers, which no garbage collection walks: there are thousands, for an hour each.
        self._series: OrderedDict[str, tuple[int, float, float | None, bool]] = OrderedDict()
        self._lock = threading.Lock()
        self._important: deque[_PendingWrite] = deque()
        self._routine: deque[_PendingWrite] = deque()
        self._wakeup = runtime.condition()
        self._writes = TokenBucket(interval=1 / per_second, burst=burst)
        self._pacing = False  # the thread waits for its next turn to write, and not for an event
        self._closes_at = math.inf
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write in a thread of its own from now on."""
        self._thread = self._runtime.thread(self._run, "event-recorder")
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, as far as that takes a moment, and end the thread."""
        if self._thread is None:
            return
        with self._wakeup:
            self._closes_at = self._monotonic() + _STOP_WITHIN
            self._wakeup.notify_all()
        self._thread.join()

    def emit(self, resource: Resource, namespace: str, stored: Object, *events: EmitEvent) -> None:
        """Have events on the job ``stored`` written. An event must never stop a job: raises no ClusterError."""
        due = [one for event in events if (one := self._due(resource, namespace, stored, event)) is not None]
        if self._thread is None:
            for one in due:
                if isinstance(self._write(one), Unavailable | Throttled):
                    return  # the next one is not worth a try
        elif due:
            self._enqueue(due)

    def _due(self, resource: Resource, namespace: str, stored: Object, event: EmitEvent) -> _PendingWrite | None:
        """What there is to write for an event; None: nothing, now."""
        name = event_name(stored, event)
        with self._lock:
            key = f"{namespace}/{name}"
            series = self._count(key, event.count)
            lately = series.written is not None and self._monotonic() - series.written < _REPEAT_EVERY
            if lately or not self._budget.allow(
                stored["metadata"]["uid"] + (f"/{event.reason}" if event.routine else "")
            ):
                return None
            self._series[key] = series._replace(written=self._monotonic())[:]
        metadata, text = stored["metadata"], event.message
        return _PendingWrite(
            resource=resource,
            api_version=str(stored.get("apiVersion") or resource.api_version),
            namespace=namespace,
            job=metadata["name"],
            uid=metadata["uid"],
            name=name,
            event=replace(event, message=text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"),
            at=format_time(self._clock()),
        )

    # Its thread

    def _enqueue(self, due: list[_PendingWrite]) -> None:
        with self._wakeup:
            for one in due:
                (self._routine if one.event.routine else self._important).append(one)
                if len(self._important) + len(self._routine) > self._queue:
                    (self._routine or self._important).pop()
                    self._recorder.record(Metric.ACTIONS, _ACTION, _DROPPED)
            if not self._pacing:
                self._wakeup.notify_all()

    def _run(self) -> None:
        while (one := self._next()) is not None:
            try:
                error = self._write(one)
                if isinstance(error, Unavailable | Throttled):
                    self._retry_later(one, error)
            except Exception:
                # Without this thread no event would be written any more, and nothing would say so.
                _LOG.exception("failed to write event, continuing reason=%s", one.event.reason)

    def _next(self) -> _PendingWrite | None:
        """The next event to write, when there is one and its time has come; None: no more."""
        with self._wakeup:
            while True:
                now = self._monotonic()
                closing = self._closes_at < math.inf
                due = self._writes.due()
                self._pacing = due > now and not closing
                if not self._pacing:
                    due = self._earliest(now)
                if closing and self._closes_at <= max(due, now):
                    for _ in range(len(self._important) + len(self._routine)):
                        self._recorder.record(Metric.ACTIONS, _ACTION, _DROPPED)
                    return None
                if due <= now:
                    self._writes.take(now)
                    return _take(self._important, now) or _take(self._routine, now)
                self._wakeup.wait(due - now if due < math.inf else None)

    def _earliest(self, now: float) -> float:
        """When the first may be written: most may at once, so that not all that wait are looked at for each."""
        earliest = math.inf
        for one in chain(self._important, self._routine):
            earliest = min(earliest, one.not_before)
            if earliest <= now:
                break
        return earliest

    def _retry_later(self, one: _PendingWrite, error: ClusterError) -> None:
        """Put an event at the end of the queue, for the server takes it later if at all: others do not wait."""
        if one.tries + 1 == _TRIES:
            self._recorder.record(Metric.ACTIONS, _ACTION, _DROPPED)
            return
        asked = error.after if isinstance(error, Throttled) else None
        pause = min(asked or _RETRY_AFTER * 2**one.tries, _MAX_RETRY_AFTER)
        self._enqueue([replace(one, tries=one.tries + 1, not_before=self._monotonic() + pause)])

    def _may_write(self) -> float:
        """For how many seconds a request may take; asked before each of them."""
        left = self._closes_at - self._monotonic()
        if left <= 0:
            raise Unavailable("the event is not written: the controller is stopping")
        longest = math.inf if self._thread is None else _WRITE_WITHIN
        return min(self._permission(), max(_LAST_WRITE, left), longest)

    def _write(self, one: _PendingWrite) -> ClusterError | None:
        """Write an event; what was in the way."""
        try:
            self._may_write()  # a cluster in this process does not ask for it
            with fenced_by(self._may_write, retried=self._thread is None):
                (self._count_up if self._series_of(one).acknowledged else self._create)(one)
        except ClusterError as error:
            _LOG.info("cannot write event reason=%s: %s", one.event.reason, error)
            self._recorder.record(Metric.ACTIONS, _ACTION, type(error).__name__)
            return error
        self._learn(one, acknowledged=True)
        self._recorder.record(Metric.ACTIONS, _ACTION, "ok")
        return None

    def _create(self, one: _PendingWrite) -> None:
        body = new_event(
            one.resource,
            {"apiVersion": one.api_version, "metadata": {"name": one.job, "namespace": one.namespace, "uid": one.uid}},
            type=one.event.type,
            reason=one.event.reason,
            message=one.event.message,
            source={"component": self._component},
            now=one.at,
        )
        metadata = {"name": one.name, "namespace": one.namespace}
        try:
            times = self._series_of(one).times
            self._cluster.create(EVENTS, one.namespace, {**body, "metadata": metadata, "count": times})
        except AlreadyExists:
            # The controller before us said the same, or we did more than an hour ago: go on from its count, which the
            # answer tells (events may not be read). One that began at our moment is our own: its answer was lost.
            there = self._patch(one, {"lastTimestamp": one.at})
            if there.get("firstTimestamp") != one.at:
                self._learn(one, more=there.get("count") or 1)

    def _count_up(self, one: _PendingWrite) -> None:
        try:
            self._patch(one, {"count": self._series_of(one).times, "lastTimestamp": one.at})
        except NotFound:  # the API server forgets events after an hour
            self._create(one)

    def _patch(self, one: _PendingWrite, patch: Object) -> Object:
        return self._cluster.patch(EVENTS, one.namespace, one.name, patch)

    # Counts

    def _count(self, key: str, times: int) -> _EventSeries:
        now = self._monotonic()
        series = _EventSeries(*self._series.pop(key, ()))
        if now - series.seen_at >= _HOUR:
            series = _EventSeries()
        series = series._replace(times=series.times + times, seen_at=now)
        self._series[key] = series[:]
        if len(self._series) > self._most:
            self._series.popitem(last=False)
        return series

    def _series_of(self, one: _PendingWrite) -> _EventSeries:
        """The series of an event; where it was forgotten meanwhile, one that begins with it."""
        return _EventSeries(*self._series.get(one.series, (one.event.count,)))

    def _learn(self, one: _PendingWrite, *, more: int = 0, acknowledged: bool = False) -> None:
        """What a write has shown: so many times ``more`` it was said before; that the server has taken it from us."""
        with self._lock:
            if one.series in self._series:
                known = self._series_of(one)
                found = known._replace(times=known.times + more, acknowledged=known.acknowledged or acknowledged)
                self._series[one.series] = found[:]


def event_name(stored: Object, event: EmitEvent) -> str:
    """The name of the event that says this about the job ``stored``: the same words, the same name."""
    metadata = stored["metadata"]
    series = short_hash(metadata["uid"], event.type, event.reason, event.message, length=12)
    return f"{metadata['name'][:_MAX_NAME].rstrip('-.')}.{series}"


def _take(queue: deque[_PendingWrite], now: float) -> _PendingWrite | None:
    """The first one whose time has come, taken out of the queue."""
    for at, one in enumerate(queue):
        if one.not_before <= now:
            del queue[at]
            return one
    return None

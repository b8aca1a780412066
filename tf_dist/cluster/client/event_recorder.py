"""Event recorder: Kubernetes Events on jobs, counted, rate-limited, and written in the background.

An event's name is derived from its text, so that this controller or its successor finds a repeated event and increases
its count.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from tf_dist.cluster.api import EVENTS, Cluster, Object, Resource, new_event
from tf_dist.cluster.client.retries import fenced_by
from tf_dist.cluster.client.workqueue import TokenBucket
from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.core.model.context import EmitEvent
from tf_dist.core.model.names import short_hash
from tf_dist.core.model.timestamps import format_time
from tf_dist.errors import AlreadyExists, ClusterError, NotFound, Throttled, Unavailable

_LOG = logging.getLogger(__name__)
_MAX_MESSAGE: Final = 1024
# The API's limit is 253; a dot and twelve characters follow the job's name.
_MAX_NAME: Final = 240
_HOUR: Final = 3600.0
_REPEAT_EVERY: Final = 60.0
_MAX_SERIES: Final = 10_000
# Seconds: to write the remaining events at a stop; the shortest timeout of the last request; the longest timeout of any
# request.
_STOP_WITHIN: Final = 2.0
_LAST_WRITE: Final = 1.0
_WRITE_WITHIN: Final = 10.0
# The number of attempts to write an event while the server is unavailable, with pauses of one second, two seconds, …
_TRIES: Final = 5
_RETRY_AFTER: Final = 1.0
_MAX_RETRY_AFTER: Final = 10.0


class EventRateLimiter:
    """A token bucket for each job: ``burst`` events at once, then one every ``every`` seconds. Not thread-safe.

    With more than ``most`` jobs, the jobs that were silent for longest are forgotten, and have a full bucket again.
    """

    def __init__(
        self, monotonic: Callable[[], float], *, burst: int = 10, every: float = 10.0, most: int = _MAX_SERIES
    ) -> None:
        self._monotonic = monotonic
        self._burst = burst
        self._every = every
        self._most = most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def allow(self, job: str) -> bool:
        """Take a token of ``job`` (its uid); False when there is none left."""
        now = self._monotonic()
        bucket = self._buckets.pop(job, None) or TokenBucket(interval=self._every, burst=self._burst)
        self._buckets[job] = bucket
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        if bucket.due() > now:
            return False
        bucket.take(now)
        return True


@dataclass(slots=True)
class _Series:
    """The repetitions of an event. Times are seconds of the monotonic clock."""

    times: int = 0  # how often it happened
    seen_at: float = 0.0  # when it happened last
    written_at: float = -math.inf  # when it was last queued to be written
    acknowledged: bool = False  # whether this recorder has written it, so that the server has our count


@dataclass(frozen=True, slots=True, eq=False)
class _PendingWrite:
    """An event to be written."""

    body: Object  # without the count, which is the series' count at the time of the write
    series: _Series
    routine: bool
    tries: int = 0
    not_before: float = -math.inf  # by the monotonic clock


class EventRecorder:
    """Writes events on jobs as ``component``. ``clock``: epoch seconds. Thread-safe.

    Events with the same text on the same job within an hour increase the count of one event, at most once a minute. The
    next write contains the repetitions in between. Each job has a ``budget``, beyond which nothing is written. Routine
    events (about created pods, for example) have a separate budget for each reason.

    After ``start``, a thread writes the events: ``burst`` at once and ``per_second`` after that, so that writes that
    jobs wait for go first. Routine events are written after the others. At most ``queue`` events wait; further events
    are dropped, routine events first. An event that the server does not accept at present waits at the end of the queue
    for its next attempt, and is dropped after the last one. Without the thread, the caller's thread writes the events.

    ``permission`` returns the seconds for which the recorder certainly may write, or raises a ClusterError. ``tried``
    is called with the result of each attempt: ``ok``, ``Dropped``, or the name of the error.
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
        tried: Callable[[str], object] = lambda _: None,
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
        self._tried = tried
        self._runtime = runtime
        self._permission = permission
        self._most_waiting = queue
        self._series: OrderedDict[str, _Series] = OrderedDict()
        self._lock = threading.Lock()
        self._important: deque[_PendingWrite] = deque()
        self._routine: deque[_PendingWrite] = deque()
        self._wakeup = runtime.condition()
        self._writes = TokenBucket(interval=1 / per_second, burst=burst)
        self._pacing = False  # the thread waits for the rate limit, not for an event
        self._closes_at = math.inf
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write in a separate thread from now on."""
        self._thread = self._runtime.thread(self._run, "event-recorder")
        self._thread.start()

    def stop(self) -> None:
        """Write the remaining events for a short time, and end the thread."""
        if self._thread is None:
            return
        with self._wakeup:
            self._closes_at = self._monotonic() + _STOP_WITHIN
            self._wakeup.notify_all()
        self._thread.join()

    def emit(self, resource: Resource, namespace: str, stored: Object, *events: EmitEvent) -> None:
        """Write or queue events on the job ``stored``. Raises no ClusterError: an event must never stop a job."""
        due = [one for event in events if (one := self._due(resource, namespace, stored, event)) is not None]
        if self._thread is None:
            for one in due:
                if isinstance(self._write(one), Unavailable | Throttled):
                    return  # the next event would fail, too
        elif due:
            self._enqueue(due)

    def _due(self, resource: Resource, namespace: str, stored: Object, event: EmitEvent) -> _PendingWrite | None:
        """Count an event. Returns the write that is due now, if any."""
        name, now, uid = event_name(stored, event), self._monotonic(), stored["metadata"]["uid"]
        with self._lock:
            key = f"{namespace}/{name}"
            series = self._series.pop(key, None)
            if series is None or now - series.seen_at >= _HOUR:
                series = _Series()
            self._series[key] = series
            if len(self._series) > self._most:
                self._series.popitem(last=False)
            series.times += event.count
            series.seen_at = now
            if now - series.written_at < _REPEAT_EVERY:
                return None
            if not self._budget.allow(f"{uid}/{event.reason}" if event.routine else uid):
                return None
            series.written_at = now
        message = event.message
        body = new_event(
            resource,
            stored,
            type=event.type,
            reason=event.reason,
            message=message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…",
            source={"component": self._component},
            now=format_time(self._clock()),
        )
        return _PendingWrite({**body, "metadata": {"name": name, "namespace": namespace}}, series, event.routine)

    # The thread

    def _enqueue(self, due: list[_PendingWrite]) -> None:
        with self._wakeup:
            for one in due:
                (self._routine if one.routine else self._important).append(one)
                if len(self._important) + len(self._routine) > self._most_waiting:
                    (self._routine or self._important).pop()
                    self._tried("Dropped")
            if not self._pacing:
                self._wakeup.notify_all()

    def _run(self) -> None:
        while (one := self._next()) is not None:
            try:
                error = self._write(one)
                if isinstance(error, Unavailable | Throttled):
                    self._retry_later(one, error)
            except Exception:
                # If this thread ended, no event would be written any more, and no error would show it.
                _LOG.exception("failed to write event, continuing reason=%s", one.body["reason"])

    def _next(self) -> _PendingWrite | None:
        """Wait for the next event that may be written; None: the recorder ends."""
        with self._wakeup:
            while True:
                now = self._monotonic()
                closing = self._closes_at < math.inf
                due, ready = self._writes.due(), None
                self._pacing = due > now and not closing
                if not self._pacing:
                    ready = next((one for one in self._waiting() if one.not_before <= now), None)
                    due = now if ready else min((one.not_before for one in self._waiting()), default=math.inf)
                if closing and self._closes_at <= due:
                    for _ in self._waiting():
                        self._tried("Dropped")
                    return None
                if ready is not None:
                    (self._routine if ready.routine else self._important).remove(ready)
                    self._writes.take(now)
                    return ready
                self._wakeup.wait(due - now if due < math.inf else None)

    def _waiting(self) -> Iterator[_PendingWrite]:
        return chain(self._important, self._routine)

    def _retry_later(self, one: _PendingWrite, error: ClusterError) -> None:
        """Put an event at the end of the queue, so that other events do not wait for its next attempt."""
        if one.tries + 1 == _TRIES:
            self._tried("Dropped")
            return
        asked = error.after if isinstance(error, Throttled) else None
        pause = min(asked or _RETRY_AFTER * 2**one.tries, _MAX_RETRY_AFTER)
        self._enqueue([replace(one, tries=one.tries + 1, not_before=self._monotonic() + pause)])

    # Writing

    def _may_write(self) -> float:
        """The seconds that a request may take; called before each request."""
        left = self._closes_at - self._monotonic()
        if left <= 0:
            raise Unavailable("the event is not written: the controller is stopping")
        longest = math.inf if self._thread is None else _WRITE_WITHIN
        return min(self._permission(), max(_LAST_WRITE, left), longest)

    def _write(self, one: _PendingWrite) -> ClusterError | None:
        """Write an event. Returns the error, if any."""
        try:
            self._may_write()  # an embedded cluster in this process does not check it
            with fenced_by(self._may_write, retried=self._thread is None):
                self._send(one)
        except ClusterError as error:
            _LOG.info("cannot write event reason=%s: %s", one.body["reason"], error)
            self._tried(type(error).__name__)
            return error
        one.series.acknowledged = True
        self._tried("ok")
        return None

    def _send(self, one: _PendingWrite) -> None:
        """Increase the count of the event if this recorder has written it, else create it."""
        body, now = one.body, one.body["lastTimestamp"]
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        if one.series.acknowledged:
            with suppress(NotFound):  # the API server deletes events after an hour
                self._cluster.patch(EVENTS, namespace, name, {"count": one.series.times, "lastTimestamp": now})
                return
        try:
            self._cluster.create(EVENTS, namespace, {**body, "count": one.series.times})
        except AlreadyExists:
            # The previous controller, or this one more than an hour ago, wrote the same event. Continue with its count,
            # which is in the response (reading events may be forbidden). An event with our firstTimestamp is our own,
            # and the response was lost.
            there = self._cluster.patch(EVENTS, namespace, name, {"lastTimestamp": now})
            if there.get("firstTimestamp") != now:
                with self._lock:
                    one.series.times += there.get("count") or 1


def event_name(stored: Object, event: EmitEvent) -> str:
    """The name of an event on the job ``stored``. Events with the same text have the same name."""
    metadata = stored["metadata"]
    series = short_hash(metadata["uid"], event.type, event.reason, event.message, length=12)
    return f"{metadata['name'][:_MAX_NAME].rstrip('-.')}.{series}"

"""Event recorder: Kubernetes Events on jobs, counted up and rate-limited.

An event's name is derived from its text, so that this driver or the next one finds the event when it is repeated, and
increases its count. What a job may cause to be written is bounded by a budget of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tf_dist.cluster.api import EVENTS, Cluster, Object, Resource, new_event
from tf_dist.core.api.context import EmitEvent
from tf_dist.core.api.names import short_hash
from tf_dist.core.api.timestamps import format_time
from tf_dist.errors import AlreadyExists, ClusterError, NotFound, Throttled, Unavailable

_LOG = logging.getLogger(__name__)
_MAX_MESSAGE: Final = 1024
# The API's limit is 253; a dot and twelve characters come behind the job's name.
_MAX_NAME: Final = 240
_HOUR: Final = 3600.0
_REPEAT_EVERY: Final = 60.0
_MAX_SERIES: Final = 10_000


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


@dataclass(slots=True)
class _EventSeries:
    """What was said: how often, when it was heard last, and when written last (None: not yet)."""

    count: int = 0
    seen_at: float = 0.0
    written: float | None = None


class EventRecorder:
    """Writes events on jobs. ``clock``: epoch seconds; ``monotonic``: seconds that only go forward; ``component``: who
    says so. Thread-safe.

    The same words about the same job within an hour count the event up that is there, once a minute at most; what is
    held back until then is in the next count. Beyond the budget nothing is written. Routine events (of each
    pod that was created) have a budget of their own for each reason, and take none from the others.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        component: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        budget: EventRateLimiter | None = None,
        most: int = _MAX_SERIES,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._component = component
        self._monotonic = monotonic
        self._budget = budget or EventRateLimiter(monotonic)
        self._most = most
        self._series: OrderedDict[str, _EventSeries] = OrderedDict()
        self._lock = threading.Lock()

    def emit(self, resource: Resource, namespace: str, stored: Object, event: EmitEvent) -> bool:
        """Write an event on the job ``stored``. An event must never stop a job: raises no ClusterError.

        False: the server does not take any at present, so that the next one is not worth a try.
        """
        name = event_name(stored, event)
        series = self._count(f"{namespace}/{name}")
        body = new_event(
            resource,
            stored,
            type=event.type,
            reason=event.reason,
            message=_truncated(event.message),
            source={"component": self._component},
            now=format_time(self._clock()),
        )
        try:
            with self._lock:
                budget = stored["metadata"]["uid"] + (f"/{event.reason}" if event.routine else "")
                due, first = self._is_due(series, budget), series.written is None
                if due:
                    series.written = self._monotonic()
            if due and first:
                self._create(namespace, name, body, series)
            elif due:
                self._count_up(namespace, name, body, series)
        except ClusterError as error:
            _LOG.info("cannot write event reason=%s: %s", event.reason, error)
            return not isinstance(error, Unavailable | Throttled)
        return True

    def _count(self, key: str) -> _EventSeries:
        with self._lock:
            now = self._monotonic()
            series = self._series.pop(key, None)
            if series is None or now - series.seen_at >= _HOUR:
                series = _EventSeries()
            series.count, series.seen_at = series.count + 1, now
            self._series[key] = series
            if len(self._series) > self._most:
                self._series.popitem(last=False)
            return series

    def _is_due(self, series: _EventSeries, budget: str) -> bool:
        lately = series.written is not None and self._monotonic() - series.written < _REPEAT_EVERY
        return not lately and self._budget.allow(budget)

    def _create(self, namespace: str, name: str, body: Object, series: _EventSeries) -> None:
        named = {**body, "metadata": {"name": name, "namespace": namespace}, "count": series.count}
        try:
            self._cluster.create(EVENTS, namespace, named)
        except AlreadyExists:
            # The driver before us said the same, or we did more than an hour ago: go on from its count, which the
            # answer tells (a driver may not read events).
            there = self._cluster.patch(EVENTS, namespace, name, {"lastTimestamp": body["lastTimestamp"]})
            series.count += there.get("count") or 1

    def _count_up(self, namespace: str, name: str, body: Object, series: _EventSeries) -> None:
        try:
            self._patch(namespace, name, body, series)
        except NotFound:  # the API server forgets events after an hour
            self._create(namespace, name, body, series)

    def _patch(self, namespace: str, name: str, body: Object, series: _EventSeries) -> None:
        patch = {"count": series.count, "lastTimestamp": body["lastTimestamp"]}
        self._cluster.patch(EVENTS, namespace, name, patch)


def event_name(stored: Object, event: EmitEvent) -> str:
    """The name of the event that says this about the job ``stored``: the same words, the same name."""
    metadata = stored["metadata"]
    series = short_hash(metadata["uid"], event.type, event.reason, event.message, length=12)
    return f"{metadata['name'][:_MAX_NAME].rstrip('-.')}.{series}"


def _truncated(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"

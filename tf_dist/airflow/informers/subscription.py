"""Subscription to one job: its changes and its logs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tf_dist.client.log_follower import LogFollower, LogOpener, LogSink
from tf_dist.client.monitor import JobEvent, JobInformer, ObjectsListed
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, Object
from tf_dist.controller.settings import JobRef
from tf_dist.core.model.job import Job

_MOST_LINES: Final = 2_000  # maximum lines of a job that wait to be logged; at the limit, reading of its logs pauses
_BATCH: Final = 1_000

SeenJob = tuple[StoredJob | None, list[Object]]
"""A job (None if it does not exist) and its pods at one moment."""


class Subscription(JobInformer):
    """Subscription to one job.

    A change only sets a flag. ``take`` then calls ``lookup`` for the job and its pods (None until the informers have
    synced). ``on_change`` is called, from any thread, only once until the next ``take``.
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
        super().__init__(StoredJob(ref.resource, stored), most_lines=_MOST_LINES, batch=_BATCH, roomy=roomy)
        self.ref = ref
        self._on_change, self._lookup = on_change, lookup
        self._notified = self._changed = False

    def notify(self) -> None:
        """Record that the job or one of its pods changed."""
        self._changed = True
        self._notify()

    def mark_changed(self) -> None:
        """Look up the job and its pods at the next ``take``, even if nothing changed."""
        self._changed = True

    def put(self, item: JobEvent) -> None:
        """Add another event, see ``JobInformer``."""
        super().put(item)
        self._notify()

    def _notify(self) -> None:
        if not self._notified:
            self._notified = True
            self._on_change()

    def take(self, timeout: float | None = None) -> list[JobEvent]:
        """Take a batch of events. If more events are left, ``on_change`` is called again."""
        self._notified = False  # before the events are read, so that later changes notify again
        seen = self._changes() if self._changed else []
        if seen and self._items.empty():
            return seen
        found = super().take(0 if seen else timeout)
        if not self._items.empty():
            self._notify()
        return [*seen, *found]

    def _changes(self) -> list[JobEvent]:
        """Look up the job and its pods, and update the state."""
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
    """Reads logs once ``begun`` is set. Containers that start earlier are skipped until they are noticed again."""

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

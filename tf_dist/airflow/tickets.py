"""Tickets: what one who waits for a job holds, and the logs that are read for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tf_dist.client.following import Ended, Following, LogLine, Opener
from tf_dist.client.jobs import StoredJob
from tf_dist.client.watching import Item, Listed, Mailbox
from tf_dist.cluster.api import PODS, Object
from tf_dist.core.model import Job
from tf_dist.driver.refs import JobRef

_MOST_LINES: Final = 1_000  # of one job that may wait to be logged; then its logs are not read on
_BATCH: Final = 200

Seen = tuple[Object | None, list[Object]]
"""A job (None: it is not there) and its pods, as they are at one moment."""


class Ticket(Mailbox):
    """One job that somebody waits for; ``last``: how it was seen last, also when it is gone.

    That something has changed is rung for, and what it is, is looked up when it is taken (``look``; None while nothing
    can be seen yet): however often a job changes, whoever waits is told once. ``told`` is called, from any thread, when
    there is something to take.
    """

    def __init__(
        self, ref: JobRef, stored: Object, told: Callable[[], None], look: Callable[[], Seen | None], *, driven: bool
    ) -> None:
        self.last = StoredJob(ref.resource, stored)
        super().__init__(self.last, most_lines=_MOST_LINES, batch=_BATCH)
        self.ref, self.driven = ref, driven
        self._told, self._look = told, look
        self._rung = self._changed = False

    def ring(self) -> None:
        """The job or one of its pods has changed."""
        self._changed = True
        self._tell()

    def look_again(self) -> None:
        """Look the job and its pods up when something is taken next, though nothing has changed."""
        self._changed = True

    def put(self, item: Item) -> None:
        """Add something else, as a line; see ``Mailbox``."""
        super().put(item)
        self._tell()

    def _tell(self) -> None:
        if not self._rung:
            self._rung = True
            self._told()

    def learn(self, item: Item) -> None:
        """Bring the state up to date, and keep the job as it was before it went."""
        super().learn(item)
        self.last = self.job or self.last

    def take(self, timeout: float | None = None) -> list[Item]:
        """What has come; the rest, if that was too much for once, rings again."""
        self._rung = False  # before anything is read: what comes from now on rings anew
        seen = self._seen() if self._changed else []
        if seen and self._items.empty():
            return seen
        found = super().take(0 if seen else timeout)
        if len(found) >= _BATCH:
            self._tell()
        return [*seen, *found]

    def _seen(self) -> list[Item]:
        """Look the job and its pods up, and take that in."""
        self._changed = False
        seen = self._look()
        if seen is None:
            return []
        stored, pods = seen
        there = stored is not None and stored["metadata"]["uid"] == self.uid
        self.job = StoredJob(self.ref.resource, stored) if stored is not None and there else None
        self.pods = {pod["metadata"]["uid"]: pod for pod in pods}
        self.last = self.job or self.last
        return [Listed(PODS, pods)]


class Reading(Following):
    """Reads logs from when it has ``begun``; containers that start before are passed over until noticed again."""

    def __init__(
        self,
        job: Job,
        open_log: Opener,
        sink: Callable[[LogLine | Ended], None],
        *,
        start: Callable[[Callable[[], None]], None],
        begun: bool,
    ) -> None:
        super().__init__(job, open_log, sink, start=start)
        self.begun = begun

    def notice(self, pod: Object) -> bool:
        """See ``Following``."""
        return self.begun and super().notice(pod)

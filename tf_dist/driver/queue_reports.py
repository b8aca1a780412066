"""Says in the status of every queue how it stands: what waits in it, what was admitted, what it uses."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from tf_dist.cluster.api import QUEUES, Cluster, Object
from tf_dist.core.gang.queue_report import QueueFacts, queue_status
from tf_dist.core.queue_document import read_queue
from tf_dist.driver.caches import Caches
from tf_dist.errors import ClusterError, InvalidQueue, Unavailable

_LOG = logging.getLogger(__name__)
# Seconds between two looks: queues change with every job, and people read them at their leisure.
_EVERY: Final = 2.0


class QueueReports:
    """Writes them, where they have changed, and no more often than people can read. ``monotonic``: seconds."""

    def __init__(self, cluster: Cluster, caches: Caches, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._caches = caches
        self._monotonic = monotonic
        self._due = float("-inf")
        self._wanted = False

    def want(self) -> None:
        """Queues may stand otherwise than at the last report."""
        self._wanted = True

    def pause(self) -> float:
        """Seconds until it is to write (inf: until something changes)."""
        return max(0.0, self._due - self._monotonic()) if self._wanted else math.inf

    def write(self, facts: Callable[[], Mapping[str, QueueFacts]]) -> None:
        """Bring the statuses up to date, if it is time. What cannot be written now is written with the next change."""
        if self.pause() > 0:
            return
        self._wanted = False
        self._due = self._monotonic() + _EVERY
        stored = self._caches.rules(QUEUES)
        found = facts() if stored else {}
        for queue in stored:
            name = queue["metadata"]["name"]
            status = queue_status(found[name]) if name in found else {"message": _problem(queue)}
            try:
                self._report(queue, status)
            except Unavailable as error:
                # The others would wait for as long: the loop that calls this has more to do.
                _LOG.debug("the status of queue %s was not written: %s", name, error)
                self._wanted = True
                return

    def _report(self, queue: Object, status: Object) -> None:
        if queue.get("status") == status:
            return
        name = queue["metadata"]["name"]
        try:
            body = {**queue, "status": status}
            self._caches.wrote(QUEUES, self._cluster.replace(QUEUES, None, name, body, subresource="status"))
        except Unavailable:
            raise
        except ClusterError as error:
            _LOG.debug("the status of queue %s was not written: %s", name, error)


def _problem(queue: Object) -> str:
    try:
        read_queue(queue)
    except InvalidQueue as problem:
        return str(problem)
    return ""

"""Statuses of queues: usage, and waiting jobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

from tf_dist.cluster.api import QUEUES
from tf_dist.controller.informers.informer_set import InformerSet
from tf_dist.controller.settings import ControllerContext
from tf_dist.core.dialects.queue_resource import read_queue
from tf_dist.core.gang.quota import QueueUsage, queue_status
from tf_dist.errors import ClusterError, InvalidQueue, Unavailable

_LOG = logging.getLogger(__name__)
# Seconds between two writes: queues change with every job, but users do not need every change.
_WRITE_INTERVAL: Final = 2.0


class QueueStatusWriter:
    """Writes changed statuses, with a minimum interval."""

    def __init__(self, context: ControllerContext, informers: InformerSet) -> None:
        self._cluster, self._monotonic = context.cluster, context.monotonic
        self._informers = informers
        self._due = float("-inf")
        self._wanted = False

    def want(self) -> None:
        """Record that queues may have changed since the last report."""
        self._wanted = True

    def pause(self) -> float:
        """Seconds until the next write (inf: until something changes)."""
        return max(0.0, self._due - self._monotonic()) if self._wanted else math.inf

    def begin(self) -> None:
        """Start a report. The next report follows after the minimum interval."""
        self._wanted = False
        self._due = self._monotonic() + _WRITE_INTERVAL

    def write(self, usages: Mapping[str, QueueUsage]) -> None:
        """Update the statuses. A failed write is repeated with the next change."""
        self.begin()
        for queue in self._informers.rules(QUEUES):
            name = queue["metadata"]["name"]
            if name in usages:
                status = queue_status(usages[name])
            else:
                try:
                    read_queue(queue)
                    status = {"message": ""}
                except InvalidQueue as problem:
                    status = {"message": str(problem)}
            if queue.get("status") == status:
                continue
            try:
                body = {**queue, "status": status}
                self._informers.wrote(QUEUES, self._cluster.replace(QUEUES, None, name, body, subresource="status"))
            except ClusterError as error:
                _LOG.debug("failed to write queue status: queue=%s error=%s", name, error)
                if isinstance(error, Unavailable):
                    self._wanted = True  # writes for other queues would also wait for the timeout
                    return

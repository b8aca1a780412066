"""Opening logs a few at a time: when a thousand jobs end at once, their threads leave the event loop no time else."""

from __future__ import annotations

import threading
from typing import Final

from tf_dist.client.following import Instance, Opener
from tf_dist.cluster.api import Object, Stream

_AT_ONCE: Final = 4
_PATIENCE: Final = 1.0  # seconds after which one goes ahead: logs of nodes that are away must not hold up the others


class Gate:
    """Lets a few through at a time, and everybody after a while."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(_AT_ONCE)

    def through(self, open_log: Opener) -> Opener:
        """The same, a few at a time."""

        def opened(pod: Object, instance: Instance) -> Stream[bytes]:
            placed = self._places.acquire(timeout=_PATIENCE)
            try:
                return open_log(pod, instance)
            finally:
                if placed:
                    self._places.release()

        return opened

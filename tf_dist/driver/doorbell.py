"""Watches that only ring: a change says which key to look at, never what is true.

A lost event therefore delays and never corrupts: the driver lists again at every look, and looks at everything from
time to time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from tf_dist.cluster.api import Cluster, Object, Resource, Stream, WatchEvent
from tf_dist.errors import ClusterError, Gone, NotFound

_LOG = logging.getLogger(__name__)
_PAUSE: Final = 1.0
_PAUSE_UNKNOWN_KIND: Final = 30.0


class Doorbell:
    """A thread that watches one resource and calls ``ring`` with every object that changed."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        ring: Callable[[Object], None],
        *,
        namespace: str | None = None,
        labels: str = "",
    ) -> None:
        self._cluster = cluster
        self._resource = resource
        self._ring = ring
        self._namespace = namespace
        self._labels = labels
        self._stopped = threading.Event()
        self._stream: Stream[WatchEvent] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"watch-{resource.plural}", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch and its thread."""
        self._stopped.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        self._thread.join()

    def _run(self) -> None:
        since = ""
        while not self._stopped.is_set():
            try:
                since = self._watch(since)
            except Gone:
                since = ""
            except NotFound:
                self._stopped.wait(_PAUSE_UNKNOWN_KIND)
            except ClusterError as error:
                _LOG.warning("the watch of %s broke: %s", self._resource.plural, error)
                self._stopped.wait(_PAUSE)

    def _watch(self, since: str) -> str:
        stream = self._cluster.watch(self._resource, self._namespace, labels=self._labels, since=since)
        with self._lock:
            self._stream = stream
            if self._stopped.is_set():
                stream.close()
        with stream:
            for event in stream:
                since = event.object.get("metadata", {}).get("resourceVersion", since)
                if event.type != "BOOKMARK":
                    self._ring(event.object)
        return since

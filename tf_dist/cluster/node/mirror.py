"""A local copy of one kind of object, kept current by list and watch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

from tf_dist.cluster.api import Cluster, Object, Resource, Stream, WatchEvent
from tf_dist.errors import ClusterError, Forbidden, Gone, NotFound, Throttled

_LONGEST_WAIT = 30.0


class Mirror:
    """List, then watch, resume, and list again when the server has forgotten. ``changed`` rings after every change."""

    def __init__(
        self, cluster: Cluster, resource: Resource, changed: Callable[[str], None], *, fields: str = ""
    ) -> None:
        self._cluster = cluster
        self._resource = resource
        self._changed = changed
        self._fields = fields
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}
        self._stream: Stream[WatchEvent] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"node-{resource.plural}", daemon=True)
        self.synced = threading.Event()

    def start(self) -> None:
        """Begin; ``synced`` is set after the first list."""
        self._thread.start()

    def stop(self) -> None:
        """End and wait for it."""
        self._stop.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.close()
        if self._thread.ident is not None:
            self._thread.join()
        self.synced.set()  # nobody shall wait for a mirror that ended

    def all(self) -> list[Object]:
        """What is there."""
        with self._lock:
            return list(self._objects.values())

    def get(self, uid: str) -> Object | None:
        """One object by uid."""
        with self._lock:
            return self._objects.get(uid)

    def put(self, obj: Object) -> None:
        """An object that a write returned: it may be newer than the watch. Nothing if the watch knows more."""
        with self._lock:
            known = self._objects.get(obj["metadata"]["uid"])
            if known is not None and not _older(obj, known):
                self._objects[obj["metadata"]["uid"]] = obj

    def _run(self) -> None:
        wait = 0.5
        version = ""
        while not self._stop.is_set():
            try:
                version = version or self._list()
                version = self._watch(version)
                wait = 0.5
            except Gone:
                version = ""
            except ClusterError as error:
                version = ""
                self._stop.wait(_pause(error, wait))
                wait = min(wait * 2, _LONGEST_WAIT)

    def _list(self) -> str:
        found = self._cluster.list(self._resource, fields=self._fields)
        objects = {item["metadata"]["uid"]: item for item in found.items}
        with self._lock:
            touched = {*self._objects, *objects}
            self._objects = objects
        self.synced.set()
        self._ring(touched)
        return found.resource_version

    def _watch(self, version: str) -> str:
        stream = self._cluster.watch(self._resource, fields=self._fields, since=version)
        with self._lock:
            self._stream = stream
        if self._stop.is_set():
            stream.close()
        with stream:
            for event in stream:
                version = event.object["metadata"].get("resourceVersion", version)
                self._apply(event)
        return version

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        uid = event.object["metadata"]["uid"]
        with self._lock:
            if event.type == "DELETED":
                self._objects.pop(uid, None)
            elif not _older(event.object, self._objects.get(uid)):
                self._objects[uid] = event.object
        self._ring([uid])

    def _ring(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._changed(uid)


def _pause(error: ClusterError, wait: float) -> float:
    if isinstance(error, Throttled) and error.after is not None:
        return error.after
    return _LONGEST_WAIT if isinstance(error, Forbidden | NotFound) else wait


def _older(obj: Object, known: Object | None) -> bool:
    """Whether ``obj`` is the older version: versions are opaque, but numbers wherever order matters here."""
    with contextlib.suppress(ValueError, KeyError):
        return known is not None and int(obj["metadata"]["resourceVersion"]) < int(known["metadata"]["resourceVersion"])
    return False

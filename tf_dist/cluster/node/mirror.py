"""What the agent follows of the cluster, by uid: pods of one name are different pods."""

from __future__ import annotations

from collections.abc import Callable

from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.cluster.reflector import Reflector


class Mirror:
    """A local copy of one kind of object. ``changed(uid)`` rings after every change, from any thread."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource,
        changed: Callable[[str], None],
        *,
        fields: str = "",
        labels: str = "",
    ) -> None:
        self._ring = changed
        self._started = False
        self._reflector = Reflector(cluster, resource, changed=self._changed, fields=fields, labels=labels, index=_uid)
        self.synced = self._reflector.synced
        self.wait_synced = self._reflector.wait_synced
        self.all = self._reflector.items
        self.put = self._reflector.put

    def start(self) -> None:
        """Begin; ``synced`` holds after the first list."""
        self._started = True
        self._reflector.start()

    def stop(self) -> None:
        """End it, if it ever began, and wait for that."""
        if self._started:
            self._reflector.stop()

    def get(self, uid: str) -> Object | None:
        """One object by uid."""
        return next(iter(self._reflector.cache.group(uid)), None)

    def _changed(self, old: Object | None, new: Object | None) -> None:
        for uid in {_uid(obj) for obj in (old, new) if obj is not None}:
            self._ring(uid)


def _uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])

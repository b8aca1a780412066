"""The thread-safe store of an informer: the newest version of each object by key, and one index."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tf_dist.cluster.api import Object

ObjectKey = tuple[str, str]
_DIGITS = 20  # of a 64-bit number


class Change(NamedTuple):
    """A change of an object: ``old`` None: added; ``new`` None: deleted."""

    old: Object | None
    new: Object | None


def object_key(stored: Object) -> ObjectKey:
    """Namespace ("" for cluster-scoped kinds) and name."""
    metadata = stored["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def resource_version_of(stored: Object) -> int:
    """An object's resourceVersion as a number; 0 if it is not a number.

    Versions of one kind are ordered on every server that keeps its objects in etcd; Kubernetes guarantees it since
    1.35.
    """
    return parse_resource_version(stored["metadata"].get("resourceVersion"))


def parse_resource_version(version: object) -> int:
    """A resourceVersion as a number; 0 if it is not a number."""
    text = str(version or "")
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else 0


class Indexer:
    """Thread-safe. ``index`` names the group of an object ("": none). An older version never replaces a newer one.

    Reading takes no lock, because an event loop reads here and a writer may hold the lock while it waits for other
    threads. A reader gets a group as it was at one moment; a changed object is never missing from it. ``followed`` is
    the version up to which every change is applied.

    A response that is not newer than ``followed`` is ignored, because its object may already be deleted. ``answered``
    is the newest version in the response to a write. ``leaves`` is called, under the lock, with each object that is
    about to be removed or replaced by another object of the same name, while the object can still be read. A reader
    that first reads the objects, and then the records of ``leaves``, misses none.
    """

    def __init__(
        self, index: Callable[[Object], str] = lambda _: "", *, leaves: Callable[[Object], None] = lambda _: None
    ) -> None:
        self._index = index
        self._leaves = leaves
        self._objects: dict[ObjectKey, Object] = {}
        self._groups: dict[str, dict[ObjectKey, Object]] = {}  # in the order of insertion
        self._lock = threading.RLock()
        self.followed = self.answered = 0

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: ObjectKey) -> Object | None:
        """The object of that key."""
        return self._objects.get(key)

    def items(self) -> list[Object]:
        """Every object."""
        return list(self._objects.values())  # one step of the interpreter: no other thread writes meanwhile

    def group(self, name: str) -> list[Object]:
        """The objects of one group of the index."""
        members = self._groups.get(name)
        return [] if members is None else list(members.values())

    def put(self, stored: Object) -> Change | None:
        """Store an object; None when this version, or a newer one, is stored already."""
        key = object_key(stored)
        with self._lock:
            old = self._objects.get(key)
            if old is not None and not _newer(stored, old):
                return None
            self._set(key, old, stored)
            return Change(old, stored)

    def put_response(self, stored: Object) -> Change | None:
        """Store the response to a request, which may arrive late; None when it is not newer."""
        version = resource_version_of(stored)
        with self._lock:
            if 0 < version <= self.followed:
                return None
            self.answered = max(self.answered, version)
            return self.put(stored)

    def remove(self, stored: Object) -> Change | None:
        """Remove an object that was deleted at its version; None when it is not stored, or was replaced by a
        newer one.
        """
        with self._lock:
            old = self._objects.get(object_key(stored))
            if old is None or resource_version_of(old) > resource_version_of(stored) > 0:
                return None
            return self._drop(object_key(stored), old)

    def discard(self, key: ObjectKey, uid: str) -> Change | None:
        """Remove the object with this uid, which the server has reported as gone."""
        with self._lock:
            old = self._objects.get(key)
            if old is None or old["metadata"].get("uid") != uid:
                return None
            return self._drop(key, old)

    def mark_deleting(self, key: ObjectKey, uid: str, moment: str) -> Change | None:
        """Mark an object whose deletion the server has accepted, until a newer version arrives."""
        with self._lock:
            old = self._objects.get(key)
            if old is None or old["metadata"].get("uid") != uid or "deletionTimestamp" in old["metadata"]:
                return None
            metadata = {**old["metadata"], "deletionTimestamp": moment}
            new = type(old)({**old, "metadata": metadata})  # in the type of the cached objects
            self._set(key, old, new)
            return Change(old, new)

    def replace(
        self, listed: Iterable[Object], version: int, *, set_back: bool = False, doubted: bool = False
    ) -> list[Change]:
        """Apply a complete list, made at ``version``: objects that it lacks are removed, unless they are newer.

        ``set_back``: the server has lost its latest changes (a backup was restored), so newer objects never existed.
        The same applies to an object that a newer list shows in an older version than ours: since the restore, the
        server's versions have overtaken ours. ``doubted``: the server is known to be restored, so an object of the same
        version as ours may differ from ours.
        """
        with self._lock:
            present = {object_key(stored): stored for stored in listed}
            newest = math.inf if set_back else version
            changes = self._drop_lost(self._objects, present, newest)
            for key, stored in present.items():
                old = self._objects.get(key)
                if old is None:
                    continue
                before, after = resource_version_of(old), resource_version_of(stored)
                another = (set_back or doubted) and before == after and stored != old
                if another or 0 < after < before <= newest:
                    self._set(key, old, stored)
                    changes.append(Change(old, stored))
            changes += [change for stored in present.values() if (change := self.put(stored)) is not None]
            self.followed = version
            self.answered = 0 if set_back else self.answered
            return changes

    def _drop_lost(
        self, known: Mapping[ObjectKey, Object], present: Mapping[ObjectKey, Object], version: float
    ) -> list[Change]:
        lost = [(key, old) for key, old in known.items() if key not in present and resource_version_of(old) <= version]
        return [self._drop(key, old) for key, old in lost]

    def _set(self, key: ObjectKey, old: Object | None, new: Object) -> None:
        if old is not None and old["metadata"].get("uid") != new["metadata"].get("uid"):
            self._leaves(old)
        self._objects[key] = new
        group = self._index(new)
        if group:
            self._groups.setdefault(group, {})[key] = new
        if old is not None and (before := self._index(old)) != group:
            self._leave_group(before, key)

    def _drop(self, key: ObjectKey, old: Object) -> Change:
        self._leaves(old)
        del self._objects[key]
        self._leave_group(self._index(old), key)
        return Change(old, None)

    def _leave_group(self, group: str, key: ObjectKey) -> None:
        if members := self._groups.get(group):
            members.pop(key, None)
            if not members:
                del self._groups[group]


def _newer(one: Object, other: Object) -> bool:
    """Whether ``one`` is newer than ``other``, or has a different version if the versions cannot be compared."""
    before, after = resource_version_of(other), resource_version_of(one)
    if before and after:
        return after > before
    return bool(one["metadata"].get("resourceVersion") != other["metadata"].get("resourceVersion"))

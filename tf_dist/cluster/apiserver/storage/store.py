"""The versioned store: plain JSON objects by key, indexes, history of changes, and watchers.

The store reads only the ``metadata`` of objects. Every write gets the next version, is journalled, and then becomes
visible. Stored and returned objects must not be changed; a write replaces the object.
"""

from __future__ import annotations

import math
import sys
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from queue import Queue
from typing import Any, NamedTuple, Protocol

from tf_dist.cluster.api import Object
from tf_dist.errors import Gone

Clock = Callable[[], float]


def deep_copy_json(value: Any) -> Any:
    """A deep copy that shares nothing mutable with ``value``; TypeError for values that JSON cannot represent.

    Keys are interned: ten thousand pods then share one copy of every field name.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is dict:
        return {_own_key(key): deep_copy_json(item) for key, item in value.items()}
    if kind is list:
        return [deep_copy_json(item) for item in value]
    return _copy_unusual(value)


def _own_key(key: Any) -> str:
    if type(key) is not str:
        raise TypeError(f"a field name must be a string, not {key!r}")
    return sys.intern(key)


def _copy_unusual(value: Any) -> Any:
    """The rarer types: floats, subclasses such as StrEnum, other mappings and tuples."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} is not a JSON number")
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {_own_key(str(key)): deep_copy_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [deep_copy_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def with_metadata(obj: Object, **metadata: Any) -> Object:
    """A copy of ``obj`` with other metadata fields; None removes a field. The rest is shared."""
    merged = {**obj["metadata"], **metadata}
    return {**obj, "metadata": {key: value for key, value in merged.items() if value is not None}}


def owner_references(obj: Object) -> list[Object]:
    """The owner references of an object."""
    return obj["metadata"].get("ownerReferences") or []


class Key(NamedTuple):
    """The address of an object: the key of its kind, its namespace ("" for cluster-wide kinds), and its name."""

    kind: str
    namespace: str
    name: str


class Change(NamedTuple):
    """One write: ADDED, MODIFIED or DELETED; the object after it, and before it."""

    version: int
    type: str
    key: Key
    object: Object
    previous: Object | None


class Journal(Protocol):
    """Durable storage of writes: each call returns when the write survives a crash and a power cut."""

    def load(self) -> tuple[int, Iterable[tuple[Key, Object]]]:
        """The newest version, and every object as it was last written."""

    def write(self, key: Key, version: int, obj: Object | None) -> None:
        """Store the object at this version; None: the object was removed."""

    def close(self) -> None:
        """Close the file."""


@dataclass(slots=True, eq=False)
class Watcher:
    """One listener: changes of a kind, in one namespace or all (None). A None in the queue ends it."""

    namespace: str | None
    queue: Queue[Change | None] = field(default_factory=Queue)
    overflowed: bool = False


# A reader this far behind gets Gone instead of more memory.
_WATCHER_QUEUE_LIMIT = 100_000


class Store:
    """Objects and their versions. Every method expects ``lock`` to be held by a caller that reads and writes."""

    def __init__(self, journal: Journal | None = None, history: int = 10_000) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self._journal = journal
        self._history = history
        self._objects: dict[str, dict[str, dict[str, Object]]] = {}
        self._sorted: dict[tuple[str, str], list[str]] = {}
        self._by_uid: dict[str, Key] = {}
        self._dependents: dict[str, dict[Key, None]] = {}
        self._changes: dict[str, deque[Change]] = {}
        self._compacted: dict[str, int] = {}
        self._feeds: dict[str, list[Watcher]] = {}
        self._oldest = 0
        if journal:
            self._load(journal)

    def _load(self, journal: Journal) -> None:
        self.version, objects = journal.load()
        self._oldest = self.version
        for key, obj in objects:
            self._index(key, None, obj)

    # Reading

    def get(self, key: Key) -> Object | None:
        """The object at a key."""
        return self._objects.get(key.kind, {}).get(key.namespace, {}).get(key.name)

    def scan(
        self, kind: str, namespace: str | None, after: tuple[str, str] = ("", "")
    ) -> Iterator[tuple[str, str, Object]]:
        """The objects of a kind (in one namespace, or in all) in order of namespace and name, after a key."""
        spaces = self._objects.get(kind, {})
        for space in sorted(spaces) if namespace is None else [namespace]:
            if space < after[0] or space not in spaces:
                continue
            found, names = spaces[space], self._in_order(kind, space)
            for name in islice(names, bisect_right(names, after[1]) if space == after[0] else 0, None):
                yield space, name, found[name]

    def _in_order(self, kind: str, namespace: str) -> list[str]:
        """The names in a namespace, sorted. Cached until a name is added or removed: a paged list sorts once."""
        place = kind, namespace
        if place not in self._sorted:
            self._sorted[place] = sorted(self._objects[kind][namespace])
        return self._sorted[place]

    def by_age(self, kind: str, namespace: str) -> Mapping[str, Object]:
        """The objects of a kind in a namespace by name, in order of their creation."""
        return self._objects.get(kind, {}).get(namespace, {})

    def in_namespace(self, namespace: str) -> list[Key]:
        """The keys of all objects in a namespace."""
        return [
            Key(kind, namespace, name)
            for kind, spaces in self._objects.items()
            if namespace
            for name in spaces.get(namespace, ())
        ]

    def by_uid(self, uid: str) -> Key | None:
        """The key of the existing object with this uid."""
        return self._by_uid.get(uid)

    def dependents(self, uid: str) -> list[Key]:
        """The keys of the objects that name this uid as an owner."""
        return list(self._dependents.get(uid, ()))

    def owned(self) -> list[Key]:
        """The keys of all objects with an owner."""
        return list(dict.fromkeys(key for keys in self._dependents.values() for key in keys))

    def changes_since(self, kind: str, version: int) -> list[Change]:
        """The changes of a kind after a version, oldest first; Gone when the history no longer has all of them."""
        oldest = self._compacted.get(kind, self._oldest)
        if version < oldest or version > self.version:
            raise Gone(f"too old resource version: {version} ({oldest})", hint="list again, then watch from there")
        found: list[Change] = []
        for change in reversed(self._changes.get(kind, ())):
            if change.version <= version:
                break
            found.append(change)
        return found[::-1]

    # Writing

    def put(self, key: Key, obj: Object) -> Object:
        """Store the object with the next version, and return it."""
        old = self.get(key)
        stored = with_metadata(obj, resourceVersion=str(self.version + 1))
        self._write(key, stored)
        self._index(key, old, stored)
        self._publish(Change(self.version, "MODIFIED" if old else "ADDED", key, stored, old))
        return stored

    def remove(self, key: Key) -> Object:
        """Remove the object. Returns its last state, with the version of its removal."""
        old = self._objects[key.kind][key.namespace][key.name]
        last = with_metadata(old, resourceVersion=str(self.version + 1))
        self._write(key, None)
        self._index(key, old, None)
        self._publish(Change(self.version, "DELETED", key, last, old))
        return last

    def _write(self, key: Key, obj: Object | None) -> None:
        # The journal comes first: if it fails, nothing has changed.
        if self._journal:
            self._journal.write(key, self.version + 1, obj)
        self.version += 1

    def _index(self, key: Key, old: Object | None, new: Object | None) -> None:
        names = self._objects.setdefault(key.kind, {}).setdefault(key.namespace, {})
        if new is None:
            names.pop(key.name, None)
        else:
            names[key.name] = new
        before, after = (owner_references(one) if one else [] for one in (old, new))
        if before != after:
            for owner in before:
                keys = self._dependents.get(owner["uid"], {})
                keys.pop(key, None)
                if not keys:
                    self._dependents.pop(owner["uid"], None)
            for owner in after:
                self._dependents.setdefault(owner["uid"], {})[key] = None
        if old is None or new is None:
            self._sorted.pop((key.kind, key.namespace), None)
            if old is not None:
                self._by_uid.pop(old["metadata"]["uid"], None)
            if new is not None:
                self._by_uid[new["metadata"]["uid"]] = key

    # Listening

    def _publish(self, change: Change) -> None:
        changes = self._changes.setdefault(change.key.kind, deque())
        changes.append(change)
        if len(changes) > self._history:
            self._compacted[change.key.kind] = changes.popleft().version
        for feed in self._feeds.get(change.key.kind, ()):
            if feed.namespace not in (None, change.key.namespace) or feed.overflowed:
                continue
            feed.overflowed = feed.queue.qsize() >= _WATCHER_QUEUE_LIMIT
            feed.queue.put(None if feed.overflowed else change)

    def listen(self, kind: str, namespace: str | None) -> Watcher:
        """A watcher of every change from now on."""
        feed = Watcher(namespace)
        self._feeds.setdefault(kind, []).append(feed)
        return feed

    def ignore(self, kind: str, feed: Watcher) -> None:
        """Remove a watcher; removing it again has no effect."""
        feeds = self._feeds.get(kind, [])
        if feed in feeds:
            feeds.remove(feed)
        feed.queue.put(None)

    def hang_up(self, kind: str) -> None:
        """End every watcher of a kind."""
        for feed in tuple(self._feeds.get(kind, ())):
            self.ignore(kind, feed)

    def compact(self) -> None:
        """Forget all history, as etcd does from time to time: older versions are Gone."""
        self._changes.clear()
        self._compacted.clear()
        self._oldest = self.version

    def close(self) -> None:
        """End every watcher and close the journal."""
        for kind in self._feeds:
            self.hang_up(kind)
        if self._journal:
            self._journal.close()

"""Lists with pages, and watches with selectors and bookmarks."""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from heapq import merge
from itertools import islice
from queue import Empty

from tf_dist.cluster.api import Object, ObjectList, Stream, WatchEvent
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.cluster.apiserver.storage.selectors import Predicate
from tf_dist.cluster.apiserver.storage.store import Change, Store, Watcher, with_metadata
from tf_dist.errors import Gone

Bookmark = Callable[[str], Object]


class WatchStream(Stream[WatchEvent]):
    """A watch. One thread iterates; any thread may close. ``backlog``: the first events."""

    def __init__(
        self,
        store: Store,
        kind: str,
        feed: Watcher,
        *,
        backlog: Iterable[WatchEvent],
        match: Predicate | None,
        view: Callable[[Object], Object],
        bookmark: Bookmark,
        bookmark_every: float,
        timeout: float,
    ) -> None:
        self._store, self._kind, self._feed = store, kind, feed
        self._ready = deque(backlog)
        self._match, self._view, self._bookmark = match, view, bookmark
        self._every = bookmark_every
        now = time.monotonic()
        self._ends = now + timeout
        self._bookmark_at = now + bookmark_every
        self._taken = 0
        self._closed = False
        self._last = False

    def __next__(self) -> WatchEvent:
        while not self._closed:
            if self._ready:
                return self._ready.popleft()
            if self._last:
                self.close()
                break
            if event := self._wait():
                return event
        raise StopIteration

    def poll(self) -> WatchEvent | None:
        """The next event without waiting, or None. No bookmarks. Gone. StopIteration when the stream has ended."""
        while not self._closed:
            if self._ready:
                return self._ready.popleft()
            if self._feed.queue.empty():  # one thread reads the queue
                return None
            event = self._seen(self._feed.queue.get_nowait())
            if event is not None:
                return event
        raise StopIteration

    def _wait(self) -> WatchEvent | None:
        left = min(self._ends, self._bookmark_at) - time.monotonic()
        if left > 0:
            with suppress(Empty):
                return self._seen(self._feed.queue.get(timeout=left))
        self._bookmark_now()
        return None

    def _seen(self, change: Change | None) -> WatchEvent | None:
        if change is None:
            self._ended()
            return None
        self._taken = change.version
        return translate_change(change, self._match, self._view)

    def _ended(self) -> None:
        self.close()
        if self._feed.overflowed:
            raise Gone("this watch fell too far behind", hint="list again, then watch from there")

    def _bookmark_now(self) -> None:
        now = time.monotonic()
        self._last = now >= self._ends
        self._bookmark_at = now + self._every
        if self._last:
            self._take_rest()
        # Only if the queue is empty, all changes up to the store's version have been delivered.
        with self._store.lock:
            version = self._store.version if self._feed.queue.empty() else self._taken
        if version:
            self._ready.append(WatchEvent("BOOKMARK", self._bookmark(str(version))))

    def _take_rest(self) -> None:
        """Deliver events from before the timeout, even to a late reader."""
        for _ in range(self._feed.queue.qsize()):
            if event := self._seen(self._feed.queue.get_nowait()):
                self._ready.append(event)

    def close(self) -> None:
        """End the stream: a reader that waits in another thread wakes up at once."""
        self._closed = True
        with self._store.lock:
            self._store.ignore(self._kind, self._feed)


def translate_change(change: Change, match: Predicate | None, view: Callable[[Object], Object]) -> WatchEvent | None:
    """A change as seen through a selector: objects enter and leave the selection."""
    before = change.previous is not None and (match is None or match(change.previous))
    now = change.type != "DELETED" and (match is None or match(change.object))
    if now:
        return WatchEvent("MODIFIED" if before else "ADDED", view(change.object))
    if not before or change.previous is None:
        return None
    last = with_metadata(change.previous, resourceVersion=str(change.version))
    return WatchEvent("DELETED", view(last))


_Place = tuple[str, str]


def list_objects(
    store: Store, kind: str, namespace: str | None, match: Predicate | None, limit: int = 0, continue_: str = ""
) -> ObjectList:
    """The objects in order of namespace and name (``limit`` 0: all). Later pages show the state of the first page."""
    if continue_:
        version, start = _parse_continue_token(continue_)
        objects = _objects_at(store, kind, namespace, version, start)
    else:
        version = store.version
        objects = store.scan(kind, namespace)
    wanted = (entry for entry in objects if match is None or match(entry[2]))
    items = list(islice(wanted, limit)) if limit > 0 else list(wanted)
    more = limit > 0 and next(wanted, None) is not None
    token = base64.urlsafe_b64encode(json.dumps([version, *items[-1][:2]]).encode()).decode() if more else ""
    return ObjectList([obj for _, _, obj in items], str(version), token)


def _objects_at(
    store: Store, kind: str, namespace: str | None, version: int, start: _Place
) -> Iterator[tuple[str, str, Object]]:
    """The objects after a key as they were at a version: the current ones, with every later change undone."""
    try:
        changes = store.changes_since(kind, version)
    except Gone as error:
        raise Gone(
            "The provided continue parameter is too old to display a consistent list result", hint="start the list anew"
        ) from error
    before: dict[_Place, Object | None] = {}
    for change in changes:
        if namespace in (None, change.key.namespace):
            before.setdefault((change.key.namespace, change.key.name), change.previous)
    now = (entry for entry in store.scan(kind, namespace, start) if entry[:2] not in before)
    then = ((*place, obj) for place, obj in sorted(before.items()) if obj is not None and place > start)
    return merge(now, then, key=lambda entry: entry[:2])


def _parse_continue_token(token: str) -> tuple[int, _Place]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token.encode()))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError) as error:
        raise BadRequest(f"continue key is not valid: {token!r}") from error


def initial_events(
    store: Store,
    kind: str,
    namespace: str | None,
    match: Predicate | None,
    view: Callable[[Object], Object],
    since: str,
) -> list[WatchEvent]:
    """The first events of a watch: all objects ("" and "0"), or the changes after a version; Gone, BadRequest."""
    if since in ("", "0"):
        return [WatchEvent("ADDED", view(obj)) for obj in list_objects(store, kind, namespace, match).items]
    if not (since.isascii() and since.isdecimal()):
        raise BadRequest(f"invalid resource version: {since!r}")
    changes = store.changes_since(kind, int(since))
    seen = (translate_change(change, match, view) for change in changes if namespace in (None, change.key.namespace))
    return [event for event in seen if event is not None]

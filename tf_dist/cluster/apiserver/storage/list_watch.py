"""Lists with pages, and watches with selectors and bookmarks."""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from queue import Empty

from tf_dist.cluster.api import Object, ObjectList, Stream, WatchEvent
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.cluster.apiserver.storage.selectors import Predicate, object_predicate
from tf_dist.cluster.apiserver.storage.store import Change, Store, Watcher, with_metadata
from tf_dist.errors import Gone

__all__ = ["ListOptions", "initial_events", "list_objects", "object_predicate", "parse_version"]


Bookmark = Callable[[str], Object]


class WatchStream(Stream[WatchEvent]):
    """A watch: iterate it in one thread, close it from any. ``backlog``: its first events."""

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
        """The next event without waiting; None: there is none yet. No bookmarks. Gone.

        StopIteration once the stream has ended.
        """
        while not self._closed:
            if self._ready:
                return self._ready.popleft()
            try:
                event = self._seen(self._feed.queue.get_nowait())
            except Empty:
                return None
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
        # Only when nothing waits in the queue is everything up to the store's version delivered.
        with self._store.lock:
            version = self._store.version if self._feed.queue.empty() else self._taken
        if version:
            self._ready.append(WatchEvent("BOOKMARK", self._bookmark(str(version))))

    def _take_rest(self) -> None:
        """Events from before the timeout are delivered, also to a reader that comes late."""
        for _ in range(self._feed.queue.qsize()):
            if event := self._seen(self._feed.queue.get_nowait()):
                self._ready.append(event)

    def close(self) -> None:
        """End the stream: a reader that waits in another thread wakes up at once."""
        self._closed = True
        with self._store.lock:
            self._store.ignore(self._kind, self._feed)


def translate_change(change: Change, match: Predicate | None, view: Callable[[Object], Object]) -> WatchEvent | None:
    """A change as a watch with a selector sees it: objects enter its selection and leave it."""
    before = change.previous is not None and (match is None or match(change.previous))
    now = change.type != "DELETED" and (match is None or match(change.object))
    if now:
        return WatchEvent("MODIFIED" if before else "ADDED", view(change.object))
    if not before or change.previous is None:
        return None
    last = with_metadata(change.previous, resourceVersion=str(change.version))
    return WatchEvent("DELETED", view(last))


_Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What a list asks for; ``limit`` 0 is everything."""

    kind: str
    namespace: str | None
    match: Predicate | None
    limit: int = 0
    continue_: str = ""


def list_objects(store: Store, page: ListOptions) -> ObjectList:
    """The objects in order of namespace and name. A later page shows them as they were at the first."""
    if page.continue_:
        version, start = _parse_continue_token(page.continue_)
        objects = _objects_at(store, page, version, start)
    else:
        version = store.version
        objects = store.scan(page.kind, page.namespace)
    match = page.match
    wanted = (entry for entry in objects if match is None or match(entry[2]))
    items = list(islice(wanted, page.limit)) if page.limit > 0 else list(wanted)
    more = page.limit > 0 and next(wanted, None) is not None
    token = _continue_token(version, items[-1][0], items[-1][1]) if more else ""
    return ObjectList([obj for _, _, obj in items], str(version), token)


def _objects_at(store: Store, page: ListOptions, version: int, start: _Place) -> Iterator[tuple[str, str, Object]]:
    """The objects after a key as they were at a version: the current ones, with every later change undone."""
    try:
        changes = store.changes_since(page.kind, version)
    except Gone as error:
        raise Gone(
            "The provided continue parameter is too old to display a consistent list result", hint="start the list anew"
        ) from error
    before: dict[_Place, Object | None] = {}
    for change in changes:
        if page.namespace in (None, change.key.namespace):
            before.setdefault((change.key.namespace, change.key.name), change.previous)
    now = (entry for entry in store.scan(page.kind, page.namespace, start) if entry[:2] not in before)
    then = ((*place, obj) for place, obj in sorted(before.items()) if obj is not None and place > start)
    return merge(now, then, key=lambda entry: entry[:2])


def _continue_token(version: int, namespace: str, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, namespace, name]).encode()).decode()


def _parse_continue_token(token: str) -> tuple[int, _Place]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token.encode()))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError) as error:
        raise BadRequest(f"continue key is not valid: {token!r}") from error


def parse_version(text: str) -> int:
    """A resource version as a number; BadRequest."""
    if text.isascii() and text.isdecimal():
        return int(text)
    raise BadRequest(f"invalid resource version: {text!r}")


def initial_events(
    store: Store,
    kind: str,
    namespace: str | None,
    match: Predicate | None,
    view: Callable[[Object], Object],
    since: str,
) -> list[WatchEvent]:
    """What a watch begins with: all there is ("" and "0"), or the changes after a version; Gone."""
    if since in ("", "0"):
        found = list_objects(store, ListOptions(kind, namespace, match))
        return [WatchEvent("ADDED", view(obj)) for obj in found.items]
    changes = store.changes_since(kind, parse_version(since))
    mine = [change for change in changes if namespace in (None, change.key.namespace)]
    return list(_visible(translate_change(change, match, view) for change in mine))


def _visible(events: Iterable[WatchEvent | None]) -> Iterable[WatchEvent]:
    return (event for event in events if event is not None)

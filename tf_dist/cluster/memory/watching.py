"""A watch: the changes of a kind as one selector sees them, bookmarks in between, and an end at once on close."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty
from typing import Self

from tf_dist.cluster.api import Object, WatchEvent
from tf_dist.cluster.memory.objects import edited
from tf_dist.cluster.memory.selectors import Predicate
from tf_dist.cluster.memory.store import Change, Feed, Store
from tf_dist.errors import Gone

Bookmark = Callable[[str], Object]


class WatchStream:
    """Iterate it in one thread; close it from any. What a listener sees first is ``backlog``."""

    def __init__(
        self,
        store: Store,
        kind: str,
        feed: Feed,
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

    def __iter__(self) -> Self:
        return self

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
        """What has happened and was not told yet, without waiting for it; None: nothing. No bookmarks. Gone.

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
        return translate(change, self._match, self._view)

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
        """What had happened when the time was up is told, also to a reader who comes late."""
        for _ in range(self._feed.queue.qsize()):
            if event := self._seen(self._feed.queue.get_nowait()):
                self._ready.append(event)

    def close(self) -> None:
        """End the stream: a reader that waits in another thread wakes up at once."""
        self._closed = True
        with self._store.lock:
            self._store.ignore(self._kind, self._feed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def translate(change: Change, match: Predicate | None, view: Callable[[Object], Object]) -> WatchEvent | None:
    """What a listener with a selector sees of a change: objects come into its view and leave it."""
    before = change.previous is not None and (match is None or match(change.previous))
    now = change.type != "DELETED" and (match is None or match(change.object))
    if now:
        return WatchEvent("MODIFIED" if before else "ADDED", view(change.object))
    if not before or change.previous is None:
        return None
    last = edited(change.previous, resourceVersion=str(change.version))
    return WatchEvent("DELETED", view(last))

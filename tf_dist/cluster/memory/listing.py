"""Lists, pages, and what a watch sees first."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from tf_dist.cluster.api import Object, ObjectList, WatchEvent
from tf_dist.cluster.memory.selectors import Predicate, selector
from tf_dist.cluster.memory.store import Store
from tf_dist.cluster.memory.watching import translate
from tf_dist.cluster.refusals import BadRequest
from tf_dist.errors import Gone

__all__ = ["Page", "backlog", "read", "selector", "version_of"]

_Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """What a list asks for; ``limit`` 0 is everything."""

    kind: str
    namespace: str | None
    match: Predicate | None
    limit: int = 0
    continue_: str = ""


def read(store: Store, page: Page) -> ObjectList:
    """The objects in order of namespace and name. A later page shows them as they were at the first."""
    if page.continue_:
        version, start = _opened(page.continue_)
        objects = _at(store, page, version, start)
    else:
        version = store.version
        objects = store.scan(page.kind, page.namespace)
    match = page.match
    wanted = (entry for entry in objects if match is None or match(entry[2]))
    items = list(islice(wanted, page.limit)) if page.limit > 0 else list(wanted)
    more = page.limit > 0 and next(wanted, None) is not None
    token = _token(version, items[-1][0], items[-1][1]) if more else ""
    return ObjectList([obj for _, _, obj in items], str(version), token)


def _at(store: Store, page: Page, version: int, start: _Place) -> Iterator[tuple[str, str, Object]]:
    """The objects after a place as they were at a version: today's, with every later change undone."""
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


def _token(version: int, namespace: str, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, namespace, name]).encode()).decode()


def _opened(token: str) -> tuple[int, _Place]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token.encode()))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError) as error:
        raise BadRequest(f"continue key is not valid: {token!r}") from error


def version_of(text: str) -> int:
    """A resource version as a number; BadRequest."""
    if text.isascii() and text.isdecimal():
        return int(text)
    raise BadRequest(f"invalid resource version: {text!r}")


def backlog(
    store: Store,
    kind: str,
    namespace: str | None,
    match: Predicate | None,
    view: Callable[[Object], Object],
    since: str,
) -> list[WatchEvent]:
    """What a watch begins with: all there is ("" and "0"), or the changes after a version; Gone."""
    if since in ("", "0"):
        found = read(store, Page(kind, namespace, match))
        return [WatchEvent("ADDED", view(obj)) for obj in found.items]
    changes = store.changes_since(kind, version_of(since))
    mine = [change for change in changes if namespace in (None, change.key.namespace)]
    return list(_present(translate(change, match, view) for change in mine))


def _present(events: Iterable[WatchEvent | None]) -> Iterable[WatchEvent]:
    return (event for event in events if event is not None)

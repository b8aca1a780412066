"""What PyYAML passes over: keys that are there twice, and documents that unfold to far more than was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml

from tf_dist.core.paths import format_path
from tf_dist.core.yaml_types import TAG, Loader
from tf_dist.errors import Problem

_MOST_VALUES: Final = 1_000_000
_DEEPEST: Final = 100
_SAFE_DEPTH: Final = 2000

_NO_TEXT: Final = "a key must be text, not a list or a mapping"
_DEEP: Final = "is nested more than a hundred deep"
_BOMB: Final = "unfolds to more than a million values: its aliases (*name) repeat each other"


FATAL: Final = (_BOMB, _DEEP, _NO_TEXT)
"""With one of these messages there is no sense in reading on."""


class _Place(NamedTuple):
    """A path by its last part and the place above: shared, because a path a value would be too much to write."""

    above: _Place | None
    part: str | int
    depth: int

    def path(self) -> str:
        parts: list[str | int] = []
        place: _Place | None = self
        while place is not None:
            parts.append(place.part)
            place = place.above
        return format_path(tuple(reversed(parts)))


def inspect(root: Any) -> Iterator[tuple[int, Problem]]:
    """Keys that are there twice, and aliases that unfold without end; without recursion, for it may be deep."""
    pending: list[tuple[Any, _Place | None]] = [(root, None)]
    inspected: set[int] = set()
    seen = 0
    while pending:
        node, place = pending.pop()
        seen += 1
        if seen > _MOST_VALUES:
            yield root.start_mark.line + 1, Problem("", _BOMB, "write values out, or use fewer aliases")
            return
        depth = place.depth + 1 if place else 1
        if depth > _DEEPEST:
            yield node.start_mark.line + 1, Problem("", _DEEP, "an alias (*name) may contain itself")
            return
        if isinstance(node, yaml.MappingNode):
            if id(node) not in inspected:
                inspected.add(id(node))
                yield from _keys(node, place)
            pending += [(value, _Place(place, str(getattr(key, "value", "?")), depth)) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            pending += [(item, _Place(place, index, depth)) for index, item in enumerate(node.value)]


def _keys(node: yaml.MappingNode, place: _Place | None) -> Iterator[tuple[int, Problem]]:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            yield line, Problem(place.path() if place else "", _NO_TEXT)
            continue
        name = str(key.value)
        path = _Place(place, name, 0).path()
        if key.tag not in (f"{TAG}str", f"{TAG}merge"):
            yield line, Problem(path, f"the key {name} is not text", f'write "{name}"')
        elif name in lines:
            yield line, Problem(path, f"is there twice: on line {lines[name]} too", "keep one of them")
        lines[name] = line


def check_depth(text: str) -> None:
    """RecursionError for what would overflow the C stack of the parser, which asks nobody before it crashes."""
    if sum(map(text.count, ("[", "{", "- "))) <= _SAFE_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _SAFE_DEPTH:
            raise RecursionError

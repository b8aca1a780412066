"""Dotted paths into documents: ``spec.tasks[0].template.metadata.labels["app.io/name"]``, as problems show them.

A key with dots or brackets of its own is quoted, in brackets or not (``labels."app.io/name"``), or its dots are
escaped (``labels.app\\.io/name``).
"""

from __future__ import annotations

import re
from typing import Final

Path = tuple[str | int, ...]

_PART: Final = re.compile(
    r"""
      \[(?P<index>\d+)\]
    | \["(?P<key1>[^"]+)"\] | \['(?P<key2>[^']+)'\]
    | (?P<dot>^|\.)(?: "(?P<key3>[^"]+)" | '(?P<key4>[^']+)' | (?P<plain>(?:\\.|[^.\[\]"'\\])+) )
    """,
    re.VERBOSE,
)


def parse_path(text: str) -> Path:
    """The keys and indexes of a path; ValueError says from where it cannot be read."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match["dot"] == ("" if position else "."):
            raise ValueError(f"cannot read {text[position:]!r} in the path {text!r}")
        if match["index"]:
            parts.append(int(match["index"]))
        else:
            quoted = match["key1"] or match["key2"] or match["key3"] or match["key4"]
            parts.append(quoted or re.sub(r"\\(.)", r"\1", match["plain"]))
        position = match.end()
    if not parts:
        raise ValueError("the path is empty")
    return tuple(parts)


def format_path(path: Path) -> str:
    """The text that ``parse_path`` reads back."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.search(r"[.\[\]\"'\\]", part):
            text += f'["{part}"]'
        else:
            text += f".{part}" if text else part
    return text

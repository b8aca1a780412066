"""Documents kept as JSON text: a process that knows thousands of jobs looks at a few of them at a time.

A garbage collection walks every mapping and every list there is, and a document has dozens; a text it passes over.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final
from weakref import ref

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_DECODED: Final = 64  # of the documents that were read last, so many stay decoded


class PackedJson(Mapping[str, Any]):
    """A JSON object that nothing changes; a copy is a plain dict. Thread-safe."""

    __slots__ = ("__weakref__", "_content", "_text")

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content: Mapping[str, Any] | None = content
        self._text = ""  # until it is packed for the first time
        _keep_decoded(self)

    def _decoded(self) -> Mapping[str, Any]:
        content = self._content
        if content is None:
            self._content = content = json.loads(self._text)
            _keep_decoded(self)
        return content

    def pack(self) -> None:
        """Keep it as text until it is read."""
        content = self._content
        if content is not None:
            self._text = self._text or _encode(content)
            self._content = None  # not before there is the text: another thread may read it now

    def __getitem__(self, key: str) -> Any:
        return self._decoded()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


_recent: deque[ref[PackedJson]] = deque()


def _keep_decoded(packed: PackedJson) -> None:
    """Keep it decoded for now, in place of the one for which that was said the longest time ago."""
    _recent.append(ref(packed))
    if len(_recent) > _DECODED:
        oldest = _recent.popleft()()
        if oldest is not None:
            oldest.pack()

"""Documents and values: field paths, tolerant access to fields, documents kept as JSON text, suggestions for names.

A key that contains dots or brackets is quoted, with or without brackets around it (``labels."app.io/name"``), or its
dots are escaped (``labels.app\\.io/name``).
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty mapping."""
    if type(value) is dict:  # the type in files and responses; isinstance(value, Mapping) costs ten times as much
        return value
    return value if isinstance(value, Mapping) else {}


def value_at(value: object, *keys: str) -> Any:
    """The value under nested keys, or None."""
    for key in keys:
        value = value.get(key) if type(value) is dict else mapping(value).get(key)
    return value


def list_items(value: object) -> list[Any]:
    """The value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list."""
    return [one for one in list_items(value) if isinstance(one, Mapping)]


def text(value: object) -> str:
    """The value if it is text, else an empty text."""
    return value if isinstance(value, str) else ""


def texts(value: object) -> dict[str, str]:
    """The entries of a mapping whose keys and values are text, as in labels."""
    return {key: one for key, one in mapping(value).items() if isinstance(key, str) and isinstance(one, str)}


def number(value: object) -> int | None:
    """The value if it is a whole number, else None."""
    return value if type(value) is int else None


FieldPath = tuple[str | int, ...]

_PLAIN: Final = re.compile(r"[A-Za-z0-9_/-]+")
_PART: Final = re.compile(
    r"""
      \[(?P<index>\d+)\]
    | \["(?P<key1>[^"]+)"\] | \['(?P<key2>[^']+)'\]
    | (?P<dot>^|\.)(?: "(?P<key3>[^"]+)" | '(?P<key4>[^']+)' | (?P<plain>(?:\\.|[^.\[\]"'\\])+) )
    """,
    re.VERBOSE,
)


def parse_field_path(text: str) -> FieldPath:
    """The keys and indexes of a path; ValueError with the part that is not valid."""
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


def format_field_path(path: FieldPath) -> str:
    """The text of a path, as in ``spec.replicaSpecs[0].template``; ``parse_field_path`` reads it back."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def cut_deep_values(value: object, most: int) -> tuple[Any, list[FieldPath]]:
    """A copy without mappings and lists that are nested more than ``most`` deep, and their paths.

    A text takes the place of each. Anyone may store an object that is too deep for a recursive encoder.
    """
    cut: list[FieldPath] = []

    def copied(value: object, path: FieldPath) -> Any:
        if not isinstance(value, Mapping | list | tuple):
            return value
        if len(path) >= most:
            cut.append(path)
            return f"(nested more than {most} deep)"
        if isinstance(value, Mapping):
            return {key: copied(one, (*path, str(key))) for key, one in value.items()}
        return [copied(one, (*path, index)) for index, one in enumerate(value)]

    return copied(value, ()), cut


def nearest_word(word: str, known: Iterable[str], cutoff: float = 0.7) -> str:
    """The most similar known word, or "". Case is ignored: ``Comand`` is near ``command``."""
    import difflib  # only after a mistake: it is slow to import

    by_folded = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else ""


def suggestion(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The hint for an unknown word: the nearest known word, or ``otherwise``, by default all known words."""
    names = list(known)
    if near := nearest_word(word, names):
        return f"did you mean {near}?"
    return f"known: {', '.join(names)}" if otherwise is None else otherwise


_MAX_SHARED: Final = 10_000
_SHARED: dict[str, Any] = {}
T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")


def shared(value: T) -> T:
    """The first value with the same ``repr``, to save memory. Only for immutable values with a complete ``repr``."""
    if len(_SHARED) > _MAX_SHARED:
        _SHARED.clear()
    found: T = _SHARED.setdefault(repr(value), value)
    return found


def updated(value: D, **fields: Any) -> D:
    """A dataclass with these fields; the same object if nothing changes, as in most passes."""
    if all(getattr(value, name) == new for name, new in fields.items()):
        return value
    return replace(value, **fields)


class _Deferred(Mapping[str, Any]):
    """A mapping whose content is created on first access."""

    __slots__ = ()

    @abstractmethod
    def _decoded(self) -> Mapping[str, Any]: ...

    def __getitem__(self, key: str) -> Any:
        return self._decoded()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())


class LazyMapping(_Deferred):
    """A mapping that ``make`` creates on first access. An unused mapping is never created."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._made: Mapping[str, Any] | None = None

    def _decoded(self) -> Mapping[str, Any]:
        if self._made is None:
            self._made = self._make()
        return self._made


_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_DECODED: Final = 64  # number of documents that stay decoded


class PackedJson(_Deferred):
    """An immutable JSON object; a copy is a plain dict. Thread-safe.

    While nothing reads the object, it is stored as text: Python's garbage collection visits every mapping and list of
    thousands of documents, but not text.
    """

    __slots__ = ("__weakref__", "_content", "_text")

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content: Mapping[str, Any] | None = content
        self._text = ""  # until ``pack`` is called for the first time
        _keep_decoded(self)

    def _decoded(self) -> Mapping[str, Any]:
        content = self._content
        if content is None:
            self._content = content = json.loads(self._text)
            _keep_decoded(self)
        return content

    def pack(self) -> None:
        """Store the object as text until it is read; values that are not JSON stay unchanged."""
        content = self._content
        if content is not None:
            with suppress(TypeError, ValueError, RecursionError):  # the caller is reading another document
                self._text = self._text or _encode(content)
                self._content = None  # only after the text is stored: another thread may be reading

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


_recent: deque[ref[PackedJson]] = deque()


def _keep_decoded(packed: PackedJson) -> None:
    """Keep a document decoded, and pack the document that was decoded first."""
    _recent.append(ref(packed))
    if len(_recent) > _DECODED:
        oldest = _recent.popleft()()
        if oldest is not None:
            oldest.pack()

"""``--set PATH=VALUE``: changing a document before it is read as a job.

What is set is checked by the dialect afterwards like everything else; here only what cannot be followed is refused: a
path into a scalar, an index that is not there, and a key that looks like a slip of one that is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tf_dist.core.paths import Path, format_path, parse_path
from tf_dist.errors import InvalidJob, Problem

_HINT: Final = "write --set spec.tfReplicaSpecs.Worker.replicas=3"
_ALIKE: Final = 0.8
_MOST_ADDED: Final = 2  # `initContainers` is no slip of `containers`


@dataclass(frozen=True, slots=True)
class Override:
    """One value to put into a document."""

    path: Path
    value: Any


def parse_overrides(texts: Iterable[str]) -> tuple[Override, ...]:
    """``PATH=VALUE`` each, the value as YAML; InvalidJob with all that cannot be read."""
    overrides: list[Override] = []
    problems: list[Problem] = []
    for text in texts:
        path, equals, value = _split(text)
        try:
            if not equals:
                raise ValueError(f"there is no '=' in {text!r}")
            overrides.append(Override(parse_path(path), yaml.safe_load(value) if value.strip() else value))
        except (ValueError, yaml.YAMLError) as error:
            problems.append(Problem("--set", " ".join(str(error).split()), _HINT))
    if problems:
        raise InvalidJob(problems)
    return tuple(overrides)


def _split(text: str) -> tuple[str, str, str]:
    """At the first ``=`` outside quotes: a quoted key may have one of its own."""
    quote = ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "=":
            return text[:position], "=", text[position + 1 :]
    return text, "", ""


def override(document: Any, overrides: Iterable[Override]) -> Any:
    """A copy of ``document`` with every override in place; unchanged parts are shared. InvalidJob with all problems."""
    problems: list[Problem] = []
    for one in overrides:
        try:
            document = _put(document, one.path, one.value, ())
        except _Lost as lost:
            problems.append(Problem(format_path(one.path), f"--set cannot follow this path: {lost}", lost.hint))
    if problems:
        raise InvalidJob(problems)
    return document


class _Lost(Exception):
    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _put(place: Any, path: Path, value: Any, above: Path) -> Any:
    if not path:
        return value
    part, deeper = path[0], path[1:]
    here = (*above, part)
    if isinstance(part, int):
        return _put_item(place, part, deeper, value, here)
    if place is not None and not isinstance(place, Mapping):
        raise _Lost(f"{format_path(above) or 'the document'} is {_kind(place)}, it has no key {part!r}", _index(place))
    found: Mapping[Any, Any] = place or {}
    if part not in found and deeper and (near := _slip(part, found)):
        raise _Lost(f"{format_path(above) or 'the document'} has no {part!r}", f"did you mean {near}?")
    return {**found, part: _put(found.get(part), deeper, value, here)}


def _put_item(place: Any, index: int, deeper: Path, value: Any, here: Path) -> Any:
    above = format_path(here[:-1]) or "the document"
    place = [] if place is None else place
    if not isinstance(place, Sequence) or isinstance(place, str):
        keys = f"its keys: {', '.join(map(str, place))}" if isinstance(place, Mapping) else ""
        raise _Lost(f"{above} is {_kind(place)}, not a list", keys)
    if index > len(place):
        raise _Lost(f"{above} has {len(place)} entries", f"[{len(place)}] adds one" if place else "[0] adds one")
    before = place[index] if index < len(place) else None
    return [*place[:index], _put(before, deeper, value, here), *place[index + 1 :]]


def _slip(word: str, known: Iterable[Any]) -> str:
    """The key that was most likely meant, "" if the word looks like a key of its own."""
    folded = {str(key).casefold(): str(key) for key in known}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=_ALIKE)
    return folded[near[0]] if near and abs(len(near[0]) - len(word)) <= _MOST_ADDED else ""


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"the value {value!r}"


def _index(place: Any) -> str:
    return "an entry of a list is written [0]" if isinstance(place, list) else ""

"""``--set PATH=VALUE``: overrides of a document before it is parsed; scalars are YAML with the types of JSON.

Scalars are read as in kubectl, which follows YAML 1.1 more closely than PyYAML: ``y`` is true, and ``1_000`` and ``09``
are numbers. Dates and ``12:30`` stay text, and a value that JSON cannot express (``!!set``, ``!Ref``) is an error.

The dialect checks the result afterwards. This module rejects only paths that cannot be followed: into a scalar, to a
missing index, or to a key that looks like a misspelling of an existing key.
"""

from __future__ import annotations

import json as json_text
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from tf_dist.core.model.fieldpath import FieldPath, format_field_path, nearest_word, parse_field_path
from tf_dist.errors import InvalidJob, Problem

TAG: Final = "tag:yaml.org,2002:"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(_Base):  # type: ignore[misc]
    """A YAML loader that supports only the types of JSON."""


class _NumberPattern:
    """A pattern of numbers that ignores ``_``."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def match(self, text: str) -> object:
        return self._pattern.fullmatch(text.replace("_", ""))


_INT: Final = _NumberPattern(r"[-+]?(?:[0-9]+|0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+)")
_FLOAT: Final = _NumberPattern(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_OWN: Final = frozenset({f"{TAG}{name}" for name in ("int", "float", "timestamp", "value")})

Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OWN]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(f"{TAG}int", _INT, list("-+0123456789"))
Loader.add_implicit_resolver(f"{TAG}float", _FLOAT, list("-+0123456789."))
Loader.add_implicit_resolver(f"{TAG}bool", re.compile(r"[yYnN]\Z"), list("yYnN"))
Loader.bool_values = {**_Base.bool_values, "y": True, "n": False}
Loader.yaml_constructors = {
    tag: make
    for tag, make in _Base.yaml_constructors.items()
    if tag is None or tag.removeprefix(TAG) in ("null", "bool", "int", "float", "seq", "map", "str")
}


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(node.value).replace("_", "")
    if re.fullmatch(r"[-+]?0[0-7]+", text):
        return int(text, 8)
    return int(text, 10 if text.lstrip("-+").isdigit() else 0)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float:
    """ValueError for numbers beyond a float, because JSON has no infinity."""
    found = float(str(node.value).replace("_", ""))
    if math.isinf(found):
        raise ValueError(f"{node.value} is too large a number")
    return found


Loader.add_constructor(f"{TAG}int", _construct_int)
Loader.add_constructor(f"{TAG}float", _construct_float)


_EXAMPLES: Final = {
    "--set": "spec.tfReplicaSpecs.Worker.replicas=3",
    "--set-json": """'spec.runPolicy={"backoffLimit": 3}'""",
    "--set-string": "metadata.labels.team=42",
}
_ALIKE: Final = 0.8
_MOST_ADDED: Final = 2  # `initContainers` is not a misspelling of `containers`
_MOST_SHOWN: Final = 60
_BREAKS: Final = "\u2028\u2029"
_WAYS: Final = "--set-json PATH=JSON takes lists and mappings, --set-string PATH=TEXT any text without parsing"


@dataclass(frozen=True, slots=True)
class Override:
    """One value to set in a document."""

    path: FieldPath
    value: Any
    written: str = field(default="", compare=False)
    """The scalar of a ``--set`` as written, because YAML reads ``2.10`` as 2.1. Empty for all other values."""


def parse_overrides(
    scalars: Iterable[str] = (), *, json: Iterable[str] = (), strings: Iterable[str] = ()
) -> tuple[Override, ...]:
    """Overrides from ``PATH=VALUE`` texts. Raises InvalidJob with all invalid texts.

    ``scalars``: a YAML scalar such as a number, a word, ``true`` or ``null``, never a list or a mapping. ``json``: any
    JSON. ``strings``: text that is not parsed.
    """
    ways: tuple[tuple[str, Iterable[str], Callable[[str], Any]], ...] = (
        ("--set", scalars, _scalar),
        ("--set-json", json, _json),
        ("--set-string", strings, str),
    )
    overrides: list[Override] = []
    problems: list[Problem] = []
    for option, texts, value_of in ways:
        for text in texts:
            where = ""
            try:
                path, value = _split(text)
                parsed, where = parse_field_path(path), f"{path}: "
                overrides.append(Override(parsed, value_of(value), value if option == "--set" else ""))
            except _Structure as error:
                problems.append(Problem(option, f"{where}{error}", _WAYS))
            except ValueError as error:
                hint = f"write {option} {_EXAMPLES[option]}"
                problems.append(Problem(option, where + " ".join(str(error).split()), hint))
    if problems:
        raise InvalidJob(problems)
    return tuple(overrides)


class _Structure(ValueError):
    """A value that is not a single scalar."""


def named_overrides(values: Mapping[Any, Any]) -> tuple[Override, ...]:
    """Overrides from values by path, as in Python arguments. Raises InvalidJob with all invalid paths."""
    found, problems = [], []
    for path, value in values.items():
        if not isinstance(path, str):
            hint = 'write {"spec.tfReplicaSpecs.Worker.replicas": 4}'
            problems.append(Problem(f"overrides[{path!r}]", f"{path!r} is not a path", hint))
            continue
        try:
            found.append(Override(parse_field_path(path), value))
        except ValueError as error:
            hint = "write spec.tfReplicaSpecs.Worker.replicas"
            problems.append(Problem(f"overrides[{path!r}]", " ".join(str(error).split()), hint))
    if problems:
        raise InvalidJob(problems)
    return tuple(found)


def _scalar(text: str) -> Any:
    if not text.strip():
        return text
    if not is_single_line(text):
        raise _Structure(f"{shorten_text(text)} has a line break or a control character")
    try:
        events = list(yaml.parse(text))
    except yaml.YAMLError as error:
        raise _Structure(f"{shorten_text(text)} is not a value: {' '.join(str(error).split())}") from None
    match events:
        case [_, yaml.DocumentStartEvent(explicit=False), yaml.ScalarEvent() as only, yaml.DocumentEndEvent(), _]:
            plain = not only.style and only.value == text.strip()
            if (plain or only.style in ("'", '"')) and only.tag is None and only.anchor is None:
                return yaml.load(text, Loader=Loader)
    raise _Structure(f"{shorten_text(text)} is more than one number, word or quoted text")


def _json(text: str) -> Any:
    try:
        return json_text.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{shorten_text(text)} is not JSON: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not one of its values")


def is_single_line(text: str) -> bool:
    """Whether a text has no line break and no control character, in YAML, Python or a terminal."""
    return not any(character < " " or "\x7f" <= character <= "\x9f" or character in _BREAKS for character in text)


def shorten_text(text: str) -> str:
    """A text for messages, with unprintable characters escaped."""
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


def _split(text: str) -> tuple[str, str]:
    """The parts around the first ``=`` outside quotes (a quoted key may contain ``=``); ValueError without ``=``."""
    quote = ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "=":
            return text[:position], text[position + 1 :]
    raise ValueError(f"there is no '=' in {shorten_text(text)}")


def refuse_unknown_keys(overrides: Iterable[Override], warnings: Iterable[Problem]) -> None:
    """Raise InvalidJob if an override sets an unknown key. In a document, an unknown key is only a warning."""
    places = tuple(format_field_path(one.path) for one in overrides)
    if wrong := [one for one in warnings if one.message == "unknown key" and one.path.startswith(places)]:
        raise InvalidJob(wrong)


def apply_overrides(document: Any, overrides: Iterable[Override]) -> Any:
    """A copy of ``document`` with all overrides; unchanged parts are shared. Raises InvalidJob with all problems."""
    problems: list[Problem] = []
    for one in overrides:
        try:
            document = _put(document, one.path, one.value, ())
        except _NoSuchField as lost:
            problems.append(Problem(format_field_path(one.path), f"--set cannot follow this path: {lost}", lost.hint))
    if problems:
        raise InvalidJob(problems)
    return document


class _NoSuchField(Exception):
    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _put(place: Any, path: FieldPath, value: Any, above: FieldPath) -> Any:
    if not path:
        return value
    part, deeper = path[0], path[1:]
    here = (*above, part)
    if isinstance(part, int):
        return _put_item(place, part, deeper, value, here)
    if place is not None and not isinstance(place, Mapping):
        raise _NoSuchField(
            f"{format_field_path(above) or 'the document'} is {_kind(place)}, it has no key {part!r}",
            "an entry of a list is written [0]" if isinstance(place, list) else "",
        )
    found: Mapping[Any, Any] = place or {}
    if part not in found and deeper:
        near = nearest_word(part, map(str, found), _ALIKE)
        if near and abs(len(near) - len(part)) <= _MOST_ADDED:
            raise _NoSuchField(f"{format_field_path(above) or 'the document'} has no {part!r}", f"did you mean {near}?")
    return {**found, part: _put(found.get(part), deeper, value, here)}


def _put_item(place: Any, index: int, deeper: FieldPath, value: Any, here: FieldPath) -> Any:
    above = format_field_path(here[:-1]) or "the document"
    place = [] if place is None else place
    if not isinstance(place, Sequence) or isinstance(place, str):
        keys = f"its keys: {', '.join(map(str, place))}" if isinstance(place, Mapping) else ""
        raise _NoSuchField(f"{above} is {_kind(place)}, not a list", keys)
    if index > len(place):
        raise _NoSuchField(f"{above} has {len(place)} entries", f"[{len(place)}] adds one" if place else "[0] adds one")
    before = place[index] if index < len(place) else None
    return [*place[:index], _put(before, deeper, value, here), *place[index + 1 :]]


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"the value {value!r}"

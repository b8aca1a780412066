"""Collecting everything that is wrong with a document, each with a path and a way out.

Checks write into one :class:`Findings`, so a document is read to its end however early it went wrong. What pydantic
finds is put into the same words: its own messages speak of Python types, which mean nothing to somebody who wrote YAML.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tf_dist.errors import InvalidJob, Problem

Loc = tuple[str | int, ...]

MISSING: Final = "is required and missing"

_PLAIN: Final = re.compile(r"[A-Za-z0-9_/-]+")


def dotted(loc: Loc) -> str:
    """A location as people write it: ``spec.replicaSpecs[0].template``; keys with dots of their own are quoted."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word most like this one, "" if none is: case does not count, ``Comand`` is near ``command``."""
    by_folded = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), by_folded, cutoff=0.7)
    return by_folded[found[0]] if found else ""


def suggest(word: str, known: Iterable[str]) -> str:
    """The hint for a word that is not known: the one that was meant if that can be told, else all of them."""
    names = list(known)
    near = nearest(word, names)
    return f"did you mean {near}?" if near else f"known: {', '.join(names)}"


def described(value: object) -> str:
    """What was found, in words of YAML: ``the text '2'``, ``a list``, ``nothing``."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {_short(value)}"
        case str():
            return f"the text {_short(value)}"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def in_quotes(value: object) -> str:
    """The hint for a scalar that YAML read as something else than text."""
    if isinstance(value, bool):
        return f'write it in quotes: "{str(value).lower()}"'
    if isinstance(value, (int, float)):
        return f'write it in quotes: "{_short(value)}"'
    return "" if value is None or isinstance(value, (list, Mapping)) else "write it in quotes"


def _short(value: object) -> str:
    """A scalar's text, cut off: a problem is one line. (An int of thousands of digits has no text in Python.)"""
    if isinstance(value, int) and value.bit_length() > 256:
        return "too large to print"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(slots=True)
class Findings:
    """The problems of one document, in the order they are found: errors stop it, warnings are told.

    ``partial``: some keys could not be read, so that what they would have said is unknown; checks that relate several
    keys keep silent then, instead of reporting the same mistake a second time in a misleading place.
    ``advice``: whether anybody will read warnings; checks that only give some may be left out if not.
    """

    partial: bool = False
    advice: bool = True
    _errors: dict[Problem, None] = field(default_factory=dict)
    _warnings: dict[Problem, None] = field(default_factory=dict)
    _wrong: set[str] = field(default_factory=set)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Why the document cannot become a job."""
        return tuple(self._errors)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What works, but most likely not as meant."""
        return tuple(self._warnings)

    def error(self, loc: Loc, message: str, hint: str = "") -> None:
        """Note a reason why the document cannot become a job. (What is there and wrong is not missing as well.)"""
        path = dotted(loc)
        if message != MISSING or path not in self._wrong:
            self._errors[Problem(path, message, hint)] = None
            self._wrong.add(path)

    def warn(self, loc: Loc, message: str, hint: str = "") -> None:
        """Note something that works, but most likely not as meant."""
        if self.advice:
            self._warnings[Problem(dotted(loc), message, hint)] = None

    def raise_errors(self) -> None:
        """Raise InvalidJob with all errors, if there are any."""
        if self._errors:
            raise InvalidJob(self._errors)


def report(error: ValidationError, model: type[BaseModel], out: Findings) -> list[Loc]:
    """Put pydantic's findings into words; returns where the values are that could not be read."""
    out.partial = True
    places: list[Loc] = []
    for detail in error.errors(include_url=False):
        loc: Loc = tuple(detail["loc"])
        if loc and loc[-1] == "[key]":
            loc = loc[:-1]
            detail["type"] = "invalid_key"
        out.error(loc, *_worded(detail["type"], detail["input"], detail.get("ctx", {}), loc, model))
        places.append(loc)
    return places


_WANTED: Final = {
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "list_type": "a list (- item)",
    "int_type": "a whole number",
}


def _worded(kind: str, found: object, context: Mapping[str, Any], loc: Loc, model: type[BaseModel]) -> tuple[str, str]:
    """Message and hint for one of pydantic's error types."""
    match kind:
        case "missing":
            return MISSING, ""
        case "extra_forbidden":
            return "unknown key", suggest(str(loc[-1]), keys_at(model, loc[:-1]))
        case "invalid_key":
            return f"a key must be text, not {described(loc[-1])}", in_quotes(loc[-1])
        case "literal_error":
            known = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            return f"unknown value {described(found)}", _value_hint(found, known)
        case "greater_than_equal":
            least = context["ge"]
            message = "must not be negative" if least == 0 else f"must be at least {least}"
            return f"{message}, not {_short(found)}", ""
        case "less_than_equal":
            return f"must be at most {context['le']}, not {_short(found)}", ""
        case _ if kind in _WANTED:
            return f"must be {_WANTED[kind]}, not {described(found)}", _type_hint(kind, found)
        case _:
            return f"cannot be read: {described(found)}", ""


def _type_hint(kind: str, found: object) -> str:
    if kind == "string_type":
        return in_quotes(found)
    if kind == "int_type" and isinstance(found, str):
        return f"write {found} without quotes" if re.fullmatch(r"-?[0-9]{1,20}", found) else "write a number"
    if kind == "bool_type" and isinstance(found, str):
        return f"write {found.lower()} without quotes" if found.lower() in ("true", "false") else "write true or false"
    return ""


def _value_hint(found: object, known: Sequence[str]) -> str:
    words = [word for word in known if word]
    return suggest(found, words) if isinstance(found, str) else f"known: {', '.join(words)}"


def keys_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys a mapping at this place of the document may have, as they are written there."""
    here: Any = model
    for part in loc:
        here = _inside(here, part)
    here = _bare(here)
    return [info.alias or name for name, info in here.model_fields.items()] if _is_model(here) else []


def _inside(kind: Any, part: str | int) -> Any:
    """The type of what is at a key (or index) of a value of this type."""
    kind = _bare(kind)
    if _is_model(kind):
        return next((info.annotation for info in kind.model_fields.values() if info.alias == part), None)
    return get_args(kind)[-1] if get_origin(kind) in (dict, list) else None


def _bare(kind: Any) -> Any:
    """A type without its ``| None``."""
    if get_origin(kind) in (dict, list):
        return kind
    return next((one for one in get_args(kind) if one is not type(None)), kind)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)

"""Inputs of a step: values from the user of a run, each with a declared type and a path in the document.

A value is never read as YAML. It becomes a number, a boolean or a text, or it is rejected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tf_dist.core.model.fieldpath import FieldPath, parse_field_path
from tf_dist.core.model.overrides import Override, is_single_line, shorten_text
from tf_dist.errors import InvalidJob, Problem

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?")
_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_BOOLEANS: Final = {"true": True, "false": False}
_LONGEST: Final = 1024
_PLACEHOLDER: Final = "{}"


class InputType(StrEnum):
    """The type of a value, in the words of JSON Schema."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"


_FIELDS: Final[Mapping[str, tuple[type, ...]]] = {
    "name": (str,),
    "path": (str,),
    "type": (str,),
    "minimum": (int, float),
    "maximum": (int, float),
    "pattern": (str,),
    "enum": (list,),
    "maxLength": (int,),
    "text": (str,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """An input of a step, and the path of its value.

    ``path``: a dotted path into the document. ``minimum``, ``maximum``: inclusive bounds of numbers. ``pattern``: a
    regular expression for the whole text. ``enum``: the allowed values. ``text``: a text in which the value replaces
    ``{}``; "": the value alone.
    """

    name: str
    path: str
    type: InputType = InputType.STRING
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""
    enum: tuple[Any, ...] = ()
    max_length: int = _LONGEST
    text: str = ""

    def problems(self) -> Iterator[Problem]:
        """Errors of the declaration."""
        here = f"input {self.name}" if self.name else "input"
        if not self.name:
            yield Problem(here, "has no name")
        try:
            parse_field_path(self.path)
        except ValueError as error:
            yield Problem(here, str(error), "write spec.tfReplicaSpecs.Worker.replicas")
        if self.text and self.text.count(_PLACEHOLDER) != 1:
            yield Problem(here, f"{self.text!r} has no single place for the value", "write --steps={}")
        try:
            re.compile(self.pattern)
        except re.error as error:
            yield Problem(here, f"{self.pattern!r} is not a regular expression: {error}")

    def document(self) -> dict[str, Any]:
        """The declaration as JSON; ``read_inputs`` reads it."""
        given = {
            "minimum": self.minimum,
            "maximum": self.maximum,
            "pattern": self.pattern or None,
            "enum": list(self.enum) or None,
            "maxLength": None if self.max_length == _LONGEST else self.max_length,
            "text": self.text or None,
        }
        own = {"name": self.name, "path": self.path, "type": self.type.value}
        return {**own, **{key: value for key, value in given.items() if value is not None}}

    def value(self, text: str) -> Any:
        """The value of a text; ValueError if it does not match the declaration."""
        found = _READERS[self.type](text)
        if self.enum and found not in self.enum:
            raise ValueError(f"is not one of {', '.join(map(str, self.enum))}")
        if isinstance(found, str):
            if len(found) > self.max_length:
                raise ValueError(f"is longer than {self.max_length} characters")
            if not is_single_line(found):
                raise ValueError("has a line break or a control character")
            if "{{" in found:
                raise ValueError("contains {{…}}, which the workflow did not fill in")
            if self.pattern and not re.fullmatch(self.pattern, found):
                raise ValueError(f"does not match {self.pattern}")
        else:
            if self.minimum is not None and found < self.minimum:
                raise ValueError(f"is less than {self.minimum:g}")
            if self.maximum is not None and found > self.maximum:
                raise ValueError(f"is more than {self.maximum:g}")
        return found


def _integer(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError("is not a whole number: write 4000")
    return int(text)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text) or math.isinf(float(text)):
        raise ValueError("is not a number: write 0.05")
    return float(text)


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError("is neither true nor false")
    return _BOOLEANS[text]


_READERS: Final[Mapping[InputType, Callable[[str], str | float]]] = {
    InputType.STRING: str,
    InputType.INTEGER: _integer,
    InputType.NUMBER: _number,
    InputType.BOOLEAN: _boolean,
}


def read_inputs(content: Any) -> tuple[JobInput, ...]:
    """Read declarations from parsed JSON: an object, or a list of objects. Raises InvalidJob with all errors."""
    problems: list[Problem] = []
    found: list[JobInput] = []
    for one in content if isinstance(content, list) else [content]:
        mistakes = list(_mistakes(one))
        problems += mistakes
        if not mistakes:
            found.append(_declared(one))
            problems += found[-1].problems()
    if problems:
        raise InvalidJob(problems)
    return tuple(found)


_EXAMPLE: Final = 'write {"name": "steps", "path": "spec.…args[1]", "type": "integer", "text": "--steps={}"}'


def _mistakes(content: Any) -> Iterator[Problem]:
    if not isinstance(content, Mapping):
        yield Problem("input", f"{shorten_text(str(content))} is not a declaration", _EXAMPLE)
        return
    name = content.get("name")
    here = f"input {shorten_text(name)[1:-1]}" if isinstance(name, str) else "input"
    for key, value in content.items():
        if key not in _FIELDS:
            yield Problem(here, f"has no {shorten_text(key)}", f"known: {', '.join(_FIELDS)}")
        elif not isinstance(value, _FIELDS[key]) or isinstance(value, bool):
            yield Problem(here, f"{key} cannot be {shorten_text(str(value))}", _EXAMPLE)
    for key in ("name", "path"):
        if key not in content:
            yield Problem(here, f"has no {key}", _EXAMPLE)
    if content.get("type", InputType.STRING) not in [*InputType]:
        yield Problem(here, f"type {shorten_text(str(content['type']))} is not one of {', '.join(InputType)}")


def _declared(content: Mapping[str, Any]) -> JobInput:
    more = {key: value for key, value in content.items() if key not in ("type", "enum", "maxLength")}
    return JobInput(
        **more,
        type=InputType(content.get("type", InputType.STRING)),
        enum=tuple(content.get("enum", ())),
        max_length=content.get("maxLength", _LONGEST),
    )


def listed_values(content: Any, names: Collection[str]) -> dict[str, str]:
    """The values of these names in a list of parameters in Argo's form (``{{workflow.parameters.json}}``)."""
    try:
        given = {one["name"]: one.get("value") for one in content or ()}
    except (TypeError, KeyError, AttributeError):
        example = 'write parameters={{workflow.parameters.json}}, or [{"name": "steps", "value": "4000"}]'
        told = f"{shorten_text(str(content))} is not a list of parameters"
        raise InvalidJob([Problem("parameters", told, example)]) from None
    return {name: str(value) for name, value in given.items() if name in names and value is not None}


def input_overrides(inputs: Iterable[JobInput], values: Mapping[str, str]) -> tuple[Override, ...]:
    """The overrides of the values. Raises InvalidJob with all errors. A missing or empty value changes nothing."""
    inputs = tuple(inputs)
    found: list[Override] = []
    problems = [
        Problem(f"input {shorten_text(name)[1:-1]}", "is not declared", "declare it in inputs")
        for name in values.keys() - {one.name for one in inputs}
    ]
    for one in inputs:
        text = values.get(one.name, "")
        if text == "":
            continue
        try:
            value = one.value(text)
        except ValueError as error:
            problems.append(Problem(f"input {one.name}", f"{shorten_text(text)} {error}"))
            continue
        path = parse_field_path(one.path)
        found.append(Override(path, _placed(one, path, text, value)))
    if problems:
        raise InvalidJob(problems)
    return tuple(found)


def _placed(one: JobInput, path: FieldPath, text: str, value: Any) -> Any:
    """The value with the text around it, escaped because Kubernetes expands ``$(NAME)``."""
    if not one.text and not isinstance(value, str):
        return value
    literal = text.replace("$", "$$") if _is_expanded(path) else text
    return one.text.replace(_PLACEHOLDER, literal) if one.text else literal


def _is_expanded(path: FieldPath) -> bool:
    match path[-3:]:
        case (_, "command" | "args", int()) | ("env", int(), "value"):
            return True
    return False

"""Field errors: all problems of a document, each with its path and a hint, and checks of single values.

All checks add their problems to the same :class:`FieldErrors`, so every document is read to its end. Pydantic's
messages are reworded, because they name Python types, which the author of a YAML file does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tf_dist.core.model.fieldpath import FieldPath, format_field_path, suggestion
from tf_dist.core.model.names import is_dns_label
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.openapi.kubernetes_types import fields_of
from tf_dist.errors import InvalidJob, Problem

MISSING: Final = "is required and missing"
PROBLEM_LIMIT: Final = 100
"""The maximum number of problems that are collected for a stored job. Without a limit, a document with tens of
thousands of problems would block the controller for minutes.
"""
_QUANTITY_HINT: Final = "write a number and a suffix, of at most 2^63: 500m, 2, 64Gi"


def describe_value(value: object) -> str:
    """A value in the words of YAML: ``the text '2'``, ``a list``, ``nothing``."""
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


def unknown_value(value: object) -> str:
    """The message about an unknown value: ``unknown value 'Sometimes'``, ``unknown value: a list``."""
    return f"unknown value {_short(value)}" if isinstance(value, str) else f"unknown value: {describe_value(value)}"


def quote_hint(value: object) -> str:
    """The hint for a scalar that YAML read as another type than text."""
    if value is None:
        return "write a text, or leave it out"
    if isinstance(value, bool):
        return f'write it in quotes: "{str(value).lower()}"'
    if isinstance(value, (int, float)):
        return f'write it in quotes: "{_short(value)}"'
    return "" if isinstance(value, (list, Mapping)) else "write it in quotes"


def in_source_words(problem: Problem, value: object, written: str) -> Problem:
    """The problem of a scalar, with the scalar as written in the file, because YAML reads ``2.10`` as 2.1.

    ``written``: the text of a scalar without quotes; "" for other values.
    """
    described = describe_value(value)
    if isinstance(value, str) or not written or described not in problem.message:
        return problem
    message = problem.message
    if described not in (f"the number {written}", f"the boolean {written}", f"nothing ({written})"):
        message = message.replace(described, f"{written}, which YAML reads as {described}")
    hint = f'write it in quotes: "{written}"' if problem.hint == quote_hint(value) else problem.hint
    return replace(problem, message=message, hint=hint)


def _short(value: object) -> str:
    """A scalar's text, shortened to one line. (Python cannot print an int of thousands of digits.)"""
    if isinstance(value, int) and value.bit_length() > 256:
        return "too large to print"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(slots=True)
class FieldErrors:
    """The errors and warnings of a document, in the order in which the checks report them.

    ``partial``: some keys could not be read. Checks that relate several keys then report nothing, because they would
    report the same mistake again at a misleading path. ``advice``: whether warnings are collected. If not, checks that
    only warn may be skipped. ``strict``: whether unknown keys are errors; otherwise they are warnings, as in an API
    server. ``limit``: the number of errors at which InvalidJob is raised, and the number of warnings after which
    ``full`` is true (None: no limit).
    """

    partial: bool = False
    advice: bool = True
    strict: bool = True
    limit: int | None = None
    _errors: dict[Problem, None] = field(default_factory=dict)
    _warnings: dict[Problem, None] = field(default_factory=dict)
    _wrong: set[str] = field(default_factory=set)
    _unreadable: set[str] = field(default_factory=set)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The reasons why the document cannot become a job."""
        return tuple(self._errors)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Settings that work, but probably not as intended."""
        return tuple(self._warnings)

    @property
    def full(self) -> bool:
        """Whether the limit of warnings is reached."""
        return self.limit is not None and len(self._warnings) >= self.limit

    def error(self, loc: FieldPath, message: str, hint: str = "") -> None:
        """Add an error: the document cannot become a job.

        A value with another error is not reported as missing. Errors inside a missing or unreadable value are not
        reported.
        """
        path = format_field_path(loc)
        if any(path.startswith((f"{one}.", f"{one}[")) for one in self._unreadable):
            return
        if message != MISSING or path not in self._wrong:
            self._errors[Problem(path, message, hint)] = None
            self._wrong.add(path)
            if self.limit is not None and len(self._errors) >= self.limit:
                self.raise_errors()

    def contradiction(self, loc: FieldPath, message: str, hint: str) -> None:
        """Add an error about a value as a whole: it cannot be read, or its parts contradict each other.

        Errors inside it are not reported.
        """
        self.error(loc, message, hint)
        path = format_field_path(loc)
        self._errors = {one: None for one in self._errors if not one.path.startswith((f"{path}.", f"{path}["))}
        self._unreadable.add(path)

    def doubtful(self, loc: FieldPath, message: str, hint: str = "") -> None:
        """Add a problem about a setting that an API server accepts, but with which no pod can run.

        The problem is an error if ``strict`` is set, and otherwise a warning.
        """
        (self.error if self.strict else self.warn)(loc, message, hint)

    def has_error_in(self, loc: FieldPath) -> bool:
        """Whether an error about a part of this value was added."""
        path = format_field_path(loc)
        return any(wrong.startswith((f"{path}.", f"{path}[")) for wrong in self._wrong)

    def warn(self, loc: FieldPath, message: str, hint: str = "") -> None:
        """Add a warning about a setting that works, but probably not as intended."""
        if self.advice:
            self._warnings[Problem(format_field_path(loc), message, hint)] = None

    def is_wrong(self, loc: FieldPath) -> bool:
        """Whether an error was added about this value, so that its default must not be used."""
        return format_field_path(loc) in self._wrong

    def unknown_key(self, loc: FieldPath, hint: str) -> None:
        """Add a problem about an unknown key: an error if ``strict`` is set, and otherwise a warning."""
        (self.error if self.strict else self.warn)(loc, "unknown key", hint)

    def raise_errors(self) -> None:
        """Raise InvalidJob with all errors, unless the document has no errors."""
        if self._errors:
            raise InvalidJob(self._errors)


def report_schema_errors(
    error: ValidationError, model: type[BaseModel], out: FieldErrors, within: FieldPath = ()
) -> list[FieldPath]:
    """Add pydantic's errors about the value at ``within``. Returns the paths of the values that could not be read."""
    places: list[FieldPath] = []
    for detail in error.errors(include_url=False):
        if out.full:
            break
        loc: FieldPath = tuple(detail["loc"])
        if loc and loc[-1] == "[key]":
            loc = loc[:-1]
            detail["type"] = "invalid_key"
        if detail["type"] == "extra_forbidden":
            out.unknown_key((*within, *loc), suggestion(str(loc[-1]), _keys_at(model, loc[:-1])))
            out.partial |= out.strict
            continue
        out.partial |= not within  # an error in a template does not affect other keys
        out.contradiction((*within, *loc), *_translated(detail["type"], detail["input"], detail.get("ctx", {}), loc))
        places.append(loc)
    return places


_SCHEMA_TYPES: Final = {
    "string_type": "string",
    "bool_type": "boolean",
    "dict_type": "{}",
    "model_type": "{}",
    "list_type": "[]",
    "int_type": "int32",
}
"""The types in Kubernetes' table, by pydantic's type errors."""


def _translated(kind: str, found: object, context: Mapping[str, Any], loc: FieldPath) -> tuple[str, str]:
    """Message and hint for one of pydantic's error types."""
    match kind:
        case "missing" | "string_too_short":
            return MISSING, ""
        case "string_too_long":
            return f"is longer than the {context['max_length']} characters that a name may have", ""
        case "too_long":
            return f"more than {context['max_length']} {loc[-1]}", ""
        case "value_error":
            message, hint, _ = context["error"].args
            return message, hint
        case "invalid_key":
            return f"a key must be text, not {describe_value(loc[-1])}", quote_hint(loc[-1])
        case "literal_error":
            known = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            words = [word for word in known if word]
            hint = suggestion(found, words) if isinstance(found, str) else f"known: {', '.join(words)}"
            return unknown_value(found), hint
        case "greater_than_equal":
            least = context["ge"]
            message = "must not be negative" if least == 0 else f"must be at least {least}"
            return f"{message}, not {_short(found)}", ""
        case "less_than_equal":
            return f"must be at most {context['le']}, not {_short(found)}", ""
        case _ if kind in _SCHEMA_TYPES:
            return wrong_type(_SCHEMA_TYPES[kind], found)
        case _:
            return f"cannot be read: {describe_value(found)}", ""


_WANTED: Final = {
    "string": "text",
    "boolean": "true or false",
    "int32": "a whole number",
    "int64": "a whole number",
    "number": "a number",
    "intOrString": "a whole number or text",
    "time": "a time, as 2026-01-31T10:00:00Z",
    "bytes": "text in base64",
}


def wrong_type(wanted: str, value: object) -> tuple[str, str]:
    """Message and hint for a value of a wrong type. ``wanted``: the name of the right type in Kubernetes' table."""
    what = describe_value(value)
    match wanted:
        case "quantity":
            return f"is not a quantity: {what}", _QUANTITY_HINT
        case "[]string" if isinstance(value, str):
            return "must be a list of texts, not one text", "put each word on a line of its own: - word"
        case "string":
            return f"must be text, not {what}", quote_hint(value)
        case "boolean":
            plain = str(value).lower()
            hint = f"write {plain} without quotes" if plain in ("true", "false") else "write true or false"
            return f"must be true or false, not {what}", hint
        case "int32" | "int64":
            if type(value) is int:
                return f"is too large: {what}", f"numbers here have {wanted.removeprefix('int')} bits"
            digits = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value)
            hint = f"write {value} without quotes" if digits else "write a number"
            return f"must be a whole number, not {what}", hint
        case _ if wanted in _WANTED:
            return f"must be {_WANTED[wanted]}, not {what}", ""
        case _ if wanted.startswith("[]"):
            return f"must be a list (- item), not {what}", "begin each item with -" if isinstance(value, dict) else ""
        case _:
            named = isinstance(value, str) and is_dns_label(value) and not wanted.startswith("{}")
            hint = f"write name: {value}" if named and "name" in fields_of(wanted) else ""
            return f"must be a mapping (key: value), not {what}", hint


def _keys_at(model: type[BaseModel], loc: FieldPath) -> list[str]:
    """The keys that a mapping at this path of the document may have, as documents spell them."""
    here: Any = model
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            here = next((info.annotation for info in here.model_fields.values() if info.alias == part), None)
        else:  # items of a list or a mapping
            here = next(reversed(get_args(here)), None)
        if get_origin(here) not in (dict, list):  # remove ``| None`` from a type
            here = next((one for one in get_args(here) if one is not type(None)), here)
    fields = here.model_fields if isinstance(here, type) and issubclass(here, BaseModel) else {}
    return [info.alias or name for name, info in fields.items()]


def read_quantity(value: object) -> Decimal:
    """The amount of a resource; ValueError with a message, a hint, and the amount if it is negative (else None)."""
    try:
        amount = parse_quantity(value)
    except ValueError:
        raise ValueError(f"is not a quantity: {describe_value(value)}", _QUANTITY_HINT, None) from None
    if amount < 0:
        raise ValueError(f"must not be negative, not {describe_value(value)}", "write 0 or more", amount)
    return amount


def check_quantity(value: object, loc: FieldPath, out: FieldErrors) -> Decimal | None:
    """The amount of a resource, or None if it cannot be read. Adds an error if it is negative or cannot be read."""
    try:
        return read_quantity(value)
    except ValueError as error:
        message, hint, negative = error.args
        out.error(loc, message, hint)
        return negative if isinstance(negative, Decimal) else None

"""Checks of values against the types of Kubernetes and their rules, with a path and a hint for each mistake."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tf_dist.core.dialects.field_errors import MISSING, FieldErrors, describe_value, quote_hint
from tf_dist.core.dialects.pod_rules.object_rules import REQUIRED, check_object
from tf_dist.core.model.fieldpath import FieldPath, nearest_word
from tf_dist.core.model.names import is_dns_label
from tf_dist.core.openapi.kubernetes_types import (
    NOT_THERE,
    UNKNOWN,
    TypeMistake,
    fields_of,
    type_mistakes,
    typed_objects,
)

NEWER: Final[Mapping[str, frozenset[str]]] = {
    "ObjectMeta": frozenset({"clusterName"}),
    "PodSpec": frozenset({"evictionResponders", "schedulingGroup"}),
    "VolumeMount": frozenset({"bindMountOptions"}),
}
"""Fields of Kubernetes versions other than that of the table."""


def known_fields(type_: str) -> frozenset[str]:
    """The fields that an object of a type may have."""
    return NEWER.get(type_, frozenset()) | fields_of(type_).keys()


def check_typed(value: object, type_: str, loc: FieldPath, out: FieldErrors) -> None:
    """Check a value against a type of Kubernetes and the rules of all objects in it."""
    mistakes = type_mistakes(value, type_, loc)
    wrong: dict[FieldPath, set[str | int]] = {}
    for mistake in mistakes:
        _report(mistake, out)
        wrong.setdefault(mistake.loc[:-1], set()).add(mistake.loc[-1])
    check_rules(value, type_, loc, out, wrong)


def check_rules(
    value: object,
    type_: str,
    loc: FieldPath,
    out: FieldErrors,
    wrong: Mapping[FieldPath, set[str | int]] = MappingProxyType({}),
) -> None:
    """Check a value against the rules of all objects in it; ``wrong``: fields of a wrong type, by object."""
    for found in typed_objects(value, type_, loc):
        bad = wrong.get(found.loc, ())
        inner = {key: item for key, item in found.value.items() if key not in bad} if bad else found.value
        check_object(found.type, inner, found.loc, out)


def _report(mistake: TypeMistake, out: FieldErrors) -> None:
    loc, wanted, value, owner = mistake
    if wanted == UNKNOWN:
        known = known_fields(owner)
        if value in known:
            return
        if near := nearest_word(value, known):
            out.unknown_key(loc, f"did you mean {near}?")
        else:
            out.warn(loc, "unknown key: the API server will drop it")
    elif wanted == NOT_THERE:
        if (owner, loc[-1]) != ("PodSpec", "containers"):  # require_container's
            out.error(loc, MISSING, REQUIRED.get(owner, {}).get(str(loc[-1]), ""))
    elif wanted == "key":
        out.error(loc[:-1], f"a key must be text, not {describe_value(value)}", quote_hint(value))
    else:
        out.error(loc, *_wrong_type(wanted, value))


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


def _wrong_type(wanted: str, value: object) -> tuple[str, str]:
    """Message and hint for a value that is not of its type."""
    what = describe_value(value)
    match wanted:
        case "quantity":
            return f"is not a quantity: {what}", "write a number and a suffix, of at most 2^63: 500m, 2, 64Gi"
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
            hint = f"write {value} without quotes" if isinstance(value, str) and value.isdecimal() else "write a number"
            return f"must be a whole number, not {what}", hint
        case _ if wanted in _WANTED:
            return f"must be {_WANTED[wanted]}, not {what}", ""
        case _ if wanted.startswith("[]"):
            return f"must be a list (- item), not {what}", "begin each item with -" if isinstance(value, dict) else ""
        case _:
            named = isinstance(value, str) and is_dns_label(value) and not wanted.startswith("{}")
            hint = f"write name: {value}" if named and "name" in fields_of(wanted) else ""
            return f"must be a mapping (key: value), not {what}", hint

"""The types of Kubernetes' own kinds, field by field, and what in a value is not of its type.

``kubernetes_types.json`` is made from Kubernetes' OpenAPI document by ``tools/kubernetes_types.py``. A type is a scalar
(``string``, ``boolean``, ``int32``, ``int64``, ``number``, ``quantity``, ``intOrString``, ``time``, ``bytes``,
``any``), the name of an object's type, or a list ``[]T`` or mapping ``{}T`` of another. ``!`` ends the type of a
required field.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final, NamedTuple

from tf_dist.core.model.fieldpath import FieldPath
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.model.timestamps import parse_time

NOT_THERE: Final = "missing"
UNKNOWN: Final = "unknown"


class TypeMistake(NamedTuple):
    """A value that is not what the type of its parent says."""

    loc: FieldPath
    wanted: str  # the type of the value; NOT_THERE: a required field is not there; UNKNOWN: the field has no type
    value: Any
    owner: str = ""  # the type of the object that has the field, "" for a part of a list or mapping


class TypedObject(NamedTuple):
    """An object inside a value, with its type."""

    loc: FieldPath
    type: str
    value: Mapping[str, Any]


class _Tables(NamedTuple):
    kinds: Mapping[str, str]
    types: Mapping[str, Mapping[str, str]]
    required: Mapping[str, tuple[str, ...]]


@functools.cache
def _tables() -> _Tables:
    # Read when it is needed first: most commands need it for one document, or for none.
    document = json.loads((resources.files(__package__) / "kubernetes_types.json").read_text(encoding="utf-8"))
    types: dict[str, dict[str, str]] = document["types"]
    required = {
        name: tuple(field for field, kind in fields.items() if kind.endswith("!")) for name, fields in types.items()
    }
    plain = {name: {field: kind.rstrip("!") for field, kind in fields.items()} for name, fields in types.items()}
    return _Tables(document["kinds"], plain, required)


def type_of_kind(api_version: str, kind: str) -> str:
    """The type of a kind, ``v1`` and ``Pod``; "" for one that is not Kubernetes' own, or not in the table."""
    return _tables().kinds.get(f"{api_version}/{kind}", "")


def fields_of(type_: str) -> Mapping[str, str]:
    """The fields of an object's type, with their types."""
    return _tables().types[type_]


def type_mistakes(value: object, type_: str, loc: FieldPath = ()) -> list[TypeMistake]:
    """Everything in a value that is not of its type. Nothing (null) is of every type, except in a list or mapping."""
    found: list[TypeMistake] = []
    _check(value, type_, loc, "", found)
    return found


def _check(value: Any, type_: str, loc: FieldPath, owner: str, found: list[TypeMistake]) -> None:
    is_valid = _SCALARS.get(type_)
    if is_valid is not None:
        if not is_valid(value):
            found.append(TypeMistake(loc, type_, value, owner))
    elif type_.startswith("[]"):
        if not isinstance(value, list):
            found.append(TypeMistake(loc, type_, value, owner))
            return
        inner = type_[2:]
        for index, item in enumerate(value):
            _check(item, inner, (*loc, index), "", found)
    elif not isinstance(value, Mapping):
        found.append(TypeMistake(loc, type_, value, owner))
    elif type_.startswith("{}"):
        inner = type_[2:]
        for key, item in value.items():
            if not isinstance(key, str):
                found.append(TypeMistake((*loc, str(key)), "key", key, owner))
            else:
                _check(item, inner, (*loc, key), "", found)
    else:
        _check_object(value, type_, loc, found)


def _check_object(value: Mapping[Any, Any], type_: str, loc: FieldPath, found: list[TypeMistake]) -> None:
    fields = _tables().types[type_]
    for key, item in value.items():
        kind = fields.get(key)
        if kind is None:
            found.append(TypeMistake((*loc, str(key)), UNKNOWN if isinstance(key, str) else "key", key, type_))
        elif item is not None:
            _check(item, kind, (*loc, key), type_, found)
    for key in _tables().required[type_]:
        if value.get(key) is None or value[key] == "":
            found.append(TypeMistake((*loc, key), NOT_THERE, value.get(key), type_))


def typed_objects(value: object, type_: str, loc: FieldPath = ()) -> Iterator[TypedObject]:
    """The objects in a value, itself included, that have a type; what is not of its type is passed over."""
    if type_ in _SCALARS:
        return
    if type_.startswith("[]"):
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from typed_objects(item, type_[2:], (*loc, index))
    elif not isinstance(value, Mapping):
        return
    elif type_.startswith("{}"):
        if type_[2:] not in _SCALARS:
            for key, item in value.items():
                yield from typed_objects(item, type_[2:], (*loc, key))
    else:
        yield TypedObject(loc, type_, value)
        fields = _tables().types[type_]
        for key, item in value.items():
            if isinstance(item, (Mapping, list)) and key in fields:
                yield from typed_objects(item, fields[key], (*loc, key))


def _is_number(value: object, bits: int) -> bool:
    return type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1


def _is_quantity(value: object) -> bool:
    try:
        parse_quantity(value)
    except ValueError:
        return False
    return True


_NO_BREAKS: Final = str.maketrans("", "", "\r\n")


def _is_bytes(value: object) -> bool:
    # Go's decoder skips line breaks.
    try:
        return isinstance(value, str) and base64.b64decode(value.translate(_NO_BREAKS), validate=True) is not None
    except (binascii.Error, ValueError):
        return False


_SCALARS: Final = {
    "any": lambda value: True,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "int32": lambda value: _is_number(value, 32),
    "int64": lambda value: _is_number(value, 64),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "quantity": _is_quantity,
    "intOrString": lambda value: isinstance(value, str) or _is_number(value, 32),
    "time": lambda value: isinstance(value, str) and parse_time(value) is not None,
    "bytes": _is_bytes,
}

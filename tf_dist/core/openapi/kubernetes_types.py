"""The types of Kubernetes' built-in kinds, field by field, and the type mistakes in a value.

``tools/kubernetes_types.py`` generates ``kubernetes_types.json`` from Kubernetes' OpenAPI document. A type is a scalar
(``string``, ``boolean``, ``int32``, ``int64``, ``number``, ``quantity``, ``intOrString``, ``time``, ``bytes``,
``any``), the name of an object's type, or a list ``[]T`` or mapping ``{}T`` of another type. The type of a required
field ends in ``!``.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final, NamedTuple

from tf_dist.core.model.fieldpath import FieldPath
from tf_dist.core.model.quantity import parse_quantity
from tf_dist.core.model.timestamps import parse_time

NOT_THERE: Final = "missing"
UNKNOWN: Final = "unknown"


class TypeMistake(NamedTuple):
    """A value that does not match the type of its parent."""

    loc: FieldPath
    wanted: str  # the required type; NOT_THERE: a required field is missing; UNKNOWN: the type has no such field
    value: Any
    owner: str = ""  # the type of the object that has the field; "" for an item of a list or mapping


class TypedObject(NamedTuple):
    """An object inside a value, with its type."""

    loc: FieldPath
    type: str
    value: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class _Type:
    """A type with its parts resolved, because every created pod is checked against about thirty types."""

    name: str
    is_valid: Callable[[Any], bool] | None = None  # of a scalar
    certain: tuple[type, ...] = ()  # of a scalar: types of Python whose values are all valid
    items: _Type | None = None  # of a list
    values: _Type | None = None  # of a mapping
    fields: dict[str, _Type] = field(default_factory=dict)  # of an object
    required: tuple[str, ...] = ()  # of an object


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    # Read on first use, because most commands need the table for one document, or not at all.
    text = (resources.files(__package__) / "kubernetes_types.json").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = json.loads(text)
    return tables


_resolved: Final[dict[str, _Type]] = {}


def _type(name: str) -> _Type:
    if (known := _resolved.get(name)) is None:
        made: dict[str, _Type] = {}
        known = _resolve(name, made)
        _resolved.update(made)  # only after all are complete, because other threads read them
    return known


def _resolve(name: str, made: dict[str, _Type]) -> _Type:
    if (known := _resolved.get(name) or made.get(name)) is not None:
        return known
    one = made[name] = _Type(name)  # before its parts, because a type may be a part of itself
    if name in _SCALARS:
        one.is_valid, one.certain = _SCALARS[name], _CERTAIN.get(name, ())
    elif name.startswith("[]"):
        one.items = _resolve(name[2:], made)
    elif name.startswith("{}"):
        one.values = _resolve(name[2:], made)
    else:
        fields: dict[str, str] = _tables()["types"][name]
        one.required = tuple(key for key, kind in fields.items() if kind.endswith("!"))
        one.fields = {key: _resolve(kind.rstrip("!"), made) for key, kind in fields.items()}
    return one


def type_of_kind(api_version: str, kind: str) -> str:
    """The type of a kind such as ``v1`` and ``Pod``; "" for kinds that are not built in, or not in the table."""
    return str(_tables()["kinds"].get(f"{api_version}/{kind}", ""))


@functools.cache
def fields_of(type_: str) -> Mapping[str, str]:
    """The fields of an object's type, with their types."""
    return {name: part.name for name, part in _type(type_).fields.items()}


def type_mistakes(
    value: object, type_: str, loc: FieldPath = (), objects: list[TypedObject] | None = None
) -> list[TypeMistake]:
    """All type mistakes in a value. Optional fields may be null; items of lists and mappings may not.

    ``objects``: the function appends the typed objects in the value, including the value itself.
    """
    found: list[TypeMistake] = []
    _check(value, _type(type_), loc, "", found, objects)
    return found


def _check(
    value: Any, kind: _Type, loc: FieldPath, owner: str, found: list[TypeMistake], objects: list[TypedObject] | None
) -> None:
    if kind.is_valid is not None:
        if not kind.is_valid(value):
            found.append(TypeMistake(loc, kind.name, value, owner))
    elif kind.items is not None:
        if not isinstance(value, list):
            found.append(TypeMistake(loc, kind.name, value, owner))
            return
        for index, item in enumerate(value):
            if type(item) not in kind.items.certain:
                _check(item, kind.items, (*loc, index), "", found, objects)
    elif type(value) is not dict and not isinstance(value, Mapping):
        found.append(TypeMistake(loc, kind.name, value, owner))
    elif kind.values is not None:
        for key, item in value.items():
            if not isinstance(key, str):
                found.append(TypeMistake((*loc, str(key)), "key", key, owner))
            elif type(item) not in kind.values.certain:
                _check(item, kind.values, (*loc, key), "", found, objects)
    else:
        if objects is not None:
            objects.append(TypedObject(loc, kind.name, value))
        for key, item in value.items():
            wanted = kind.fields.get(key)
            if wanted is None:
                mistake = UNKNOWN if isinstance(key, str) else "key"
                found.append(TypeMistake((*loc, str(key)), mistake, key, kind.name))
            elif item is not None and type(item) not in wanted.certain:
                _check(item, wanted, (*loc, key), kind.name, found, objects)
        for key in kind.required:
            if value.get(key) is None or value[key] == "":
                found.append(TypeMistake((*loc, key), NOT_THERE, value.get(key), kind.name))


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
_CERTAIN: Final = {"string": (str,), "intOrString": (str,), "boolean": (bool,)}

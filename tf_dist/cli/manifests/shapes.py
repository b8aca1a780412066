"""The words of structural schemas: small builders, so that a definition reads like the document it describes.

Every mapping keeps keys that it does not know. A TFJob in the wild has fields of other releases and other operators,
and what tf-dist itself refuses it must have seen: it names the key and the nearest known one, a pruned one is silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = dict[str, Any]

_INT32_MAX: Final = 2**31 - 1
# Kubernetes' quantities, as far as an amount can be one: nothing negative.
_AMOUNT: Final = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$"


def mapping(about: str, keys: Mapping[str, Schema] | None = None, *, required: Sequence[str] = ()) -> Schema:
    """A mapping with these known keys, and room for others."""
    schema: Schema = {"description": about, "type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if keys:
        schema["properties"] = dict(keys)
    if required:
        schema["required"] = list(required)
    return schema


def mapping_of(about: str, value: Schema) -> Schema:
    """A mapping with keys of the user's choice, all values alike."""
    return {"description": about, "type": "object", "additionalProperties": value}


def list_of(about: str, item: Schema) -> Schema:
    """A list of things alike."""
    return {"description": about, "type": "array", "items": item}


def text(about: str) -> Schema:
    """Any text."""
    return {"description": about, "type": "string"}


def choice(about: str, *words: str) -> Schema:
    """One of a few words."""
    return {"description": about, "type": "string", "enum": list(words)}


def flag(about: str) -> Schema:
    """True or false."""
    return {"description": about, "type": "boolean"}


def number(about: str, *, least: int | None = 0, most: int = _INT32_MAX) -> Schema:
    """A whole number (int32)."""
    schema: Schema = {"description": about, "type": "integer", "format": "int32"}
    bounds = {"minimum": least, "maximum": most if most != _INT32_MAX else None}
    return {**schema, **{key: bound for key, bound in bounds.items() if bound is not None}}


def seconds(about: str) -> Schema:
    """A length of time in whole seconds."""
    return {"description": about, "type": "integer", "format": "int64", "minimum": 0}


def amount(about: str) -> Schema:
    """A quantity of a resource: 4, 500m, 16Gi."""
    either = [{"type": "integer"}, {"type": "string"}]
    return {"description": about, "x-kubernetes-int-or-string": True, "anyOf": either, "pattern": _AMOUNT}


def anything(about: str) -> Schema:
    """Whatever is written there is kept."""
    return {"description": about, "x-kubernetes-preserve-unknown-fields": True}


def root(about: str, spec: Schema, status: Schema) -> Schema:
    """A whole object."""
    keys = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
        "status": status,
    }
    return mapping(about, keys, required=["spec"])

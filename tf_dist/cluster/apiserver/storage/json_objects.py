"""Plain JSON objects: copies, metadata, owner references."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tf_dist.cluster.api import Object

Clock = Callable[[], float]


def deep_copy_json(value: Any) -> Any:
    """A deep copy that shares nothing mutable with ``value``; TypeError for what JSON cannot hold.

    Keys are interned: ten thousand pods then share one copy of every field name.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is dict:
        return {_own_key(key): deep_copy_json(item) for key, item in value.items()}
    if kind is list:
        return [deep_copy_json(item) for item in value]
    return _copy_unusual(value)


def _own_key(key: Any) -> str:
    if type(key) is not str:
        raise TypeError(f"a field name must be a string, not {key!r}")
    return sys.intern(key)


def _copy_unusual(value: Any) -> Any:
    """The rarer types: floats, subclasses such as StrEnum, other mappings and tuples."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} is not a JSON number")
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {_own_key(str(key)): deep_copy_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [deep_copy_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def with_metadata(obj: Object, **metadata: Any) -> Object:
    """A copy of ``obj`` with other metadata fields; None removes one. Everything else is shared."""
    merged = {**obj["metadata"], **metadata}
    return {**obj, "metadata": {key: value for key, value in merged.items() if value is not None}}


def owner_references(obj: Object) -> list[Object]:
    """The owner references of an object."""
    return obj["metadata"].get("ownerReferences") or []

"""Plain JSON objects: copies, nested fields, owner references, timestamps."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
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


def nested_field(value: Any, path: str) -> Any:
    """The value at a dotted path through mappings, or None."""
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def with_metadata(obj: Object, **metadata: Any) -> Object:
    """A copy of ``obj`` with other metadata fields; None removes one. Everything else is shared."""
    merged = {**obj["metadata"], **metadata}
    return {**obj, "metadata": {key: value for key, value in merged.items() if value is not None}}


def owner_references(obj: Object) -> list[Object]:
    """The owner references of an object."""
    return obj["metadata"].get("ownerReferences") or []


@lru_cache(maxsize=4)
def _rfc3339(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_timestamp(seconds: float) -> str:
    """Seconds since 1970 as Kubernetes writes them: UTC, whole seconds."""
    return _rfc3339(int(seconds))


def parse_timestamp(text: str) -> float:
    """The reverse of ``format_timestamp``; ValueError."""
    return datetime.fromisoformat(text).timestamp()

"""Safe steps into documents of which nothing is known: what has not the type that it should have counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    if type(value) is dict:  # what comes from a file or a cluster: asking for Mapping costs ten times as much
        return value
    return value if isinstance(value, Mapping) else {}


def at(value: object, *keys: str) -> Any:
    """The value under nested keys, None where the way ends."""
    for key in keys:
        value = value.get(key) if type(value) is dict else mapping(value).get(key)
    return value


def items(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list."""
    return [one for one in items(value) if isinstance(one, Mapping)]


def text(value: object) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def texts(value: object) -> dict[str, str]:
    """The texts in a mapping, as labels are."""
    return {key: one for key, one in mapping(value).items() if isinstance(key, str) and isinstance(one, str)}


def number(value: object) -> int | None:
    """The value if it is a whole number, else None."""
    return value if type(value) is int else None

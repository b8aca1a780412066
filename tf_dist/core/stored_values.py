"""Values of a stored status: each has the type and the bounds with which it was written, or InvalidStatus says where.

Every client with that right may write a status, as large as an object can be: nothing here raises anything else, and
no value costs more time than its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core.model import MOST_REPLICAS
from tf_dist.errors import TFDistError

_MOST: Final = 2**31 - 1
_DIGITS: Final = len(str(MOST_REPLICAS))


class InvalidStatus(TFDistError):
    """A stored status holds something that no release of tf-dist wrote."""

    def __init__(self, path: str, wanted: str) -> None:
        hint = "unless it was written by hand, this is a defect; the job is left as it is until its status is mended"
        super().__init__(f"status.tfDist.{path} is no {wanted}", hint=hint)


def mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under a key, an empty one if there is none; its keys are texts."""
    found = raw.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InvalidStatus(key, "mapping of texts")
    return found


def text(raw: Mapping[str, Any], key: str) -> str:
    """The text under a key, "" if there is none."""
    found = raw.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise InvalidStatus(key, "text")
    return found


def number(raw: Mapping[str, Any], key: str, default: int = 0, most: int = _MOST) -> int:
    """The whole number under a key, ``default`` if there is none; never negative."""
    found = raw.get(key)
    if found is None:
        return default
    if type(found) is not int or not 0 <= found <= most:
        raise InvalidStatus(key, f"number from 0 to {most}")
    return found


def numbers(raw: Mapping[str, Any], key: str, most: int = _MOST) -> dict[str, int]:
    """The numbers under a key, by name."""
    found = mapping(raw, key)
    return {name: number(found, name, most=most) for name in found}


def index(written: str) -> int:
    """The number of a replica; ValueError."""
    if not (written.isascii() and written.isdecimal() and len(written) <= _DIGITS) or int(written) >= MOST_REPLICAS:
        raise ValueError(f"{written[:_DIGITS]!r} is no index of a replica")
    return int(written)


def parse_ranges(written: str) -> Iterator[int]:
    """The numbers of ``0-2,5``, which only rise, each below the most that a job may have; ValueError."""
    least = 0
    for part in written.split(","):
        low, dash, high = part.partition("-")
        first, last = index(low), index(high if dash else low)
        if not least <= first <= last:
            raise ValueError(f"{part!r} does not come after what is before it")
        yield from range(first, last + 1)
        least = last + 1

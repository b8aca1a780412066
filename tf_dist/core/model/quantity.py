"""Kubernetes quantities: ``500m`` CPUs, ``64Gi`` bytes, ``4`` GPUs.

The grammar is that of the API (resource.Quantity): a signed decimal number and one suffix. Other forms that Python's
Decimal reads (``NaN``, ``1_000``, Arabic digits) are not accepted, because the API server rejects them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_DOWN, Decimal, localcontext
from functools import lru_cache
from typing import Final

_GRAMMAR: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?P<suffix>n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,3})?"
)
_SUFFIX: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    **{suffix: Decimal(10) ** power for suffix, power in zip("num", (-9, -6, -3), strict=True)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}

# The largest quantity: the API's quantities are 64-bit numbers, and the API caps larger values.
MAX_QUANTITY: Final = Decimal(2**63)
_LONGEST: Final = 64
_DIGITS: Final = 40


def parse_quantity(text: object) -> Decimal:
    """The exact value in base units (CPUs, bytes, pieces); ValueError if it is not a quantity, or is too large."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise ValueError(f"a {type(text).__name__} is not a quantity")
    if isinstance(text, int) and abs(text) > MAX_QUANTITY:
        raise ValueError("is too large")
    written = str(text)
    if len(written) > _LONGEST:
        raise ValueError(f"{written[:_LONGEST]!r} is not a quantity")
    return _parse(written)


@lru_cache(4096)  # pods request few distinct amounts
def _parse(written: str) -> Decimal:
    match = _GRAMMAR.fullmatch(written)
    if match is None:
        raise ValueError(f"{written!r} is not a quantity")
    suffix = match["suffix"] or ""
    factor = _SUFFIX[suffix] if suffix in _SUFFIX else Decimal(f"1{suffix}")
    value = Decimal(match["number"]) * factor
    if abs(value) > MAX_QUANTITY:
        raise ValueError(f"{written!r} is too large")
    return value


def format_quantity(value: Decimal, resource: str = "") -> str:
    """A short text for display, such as ``500m`` CPUs or ``23.5Gi`` of memory. It may be rounded: do not parse it."""
    with localcontext(prec=_DIGITS):
        if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
            for power, suffix in reversed(list(enumerate(("Ki", "Mi", "Gi", "Ti"), start=1))):
                scaled = value / Decimal(1024) ** power
                if scaled >= 1:
                    shown = scaled.quantize(Decimal("0.1"), rounding=ROUND_DOWN).normalize()
                    return f"{shown:f}{suffix}"
        if value != value.to_integral_value():
            return f"{(value * 1000).to_integral_value(rounding=ROUND_CEILING):f}m"
        return f"{value.to_integral_value():f}"

"""Timestamps and durations, as Kubernetes and Go write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

# The first and the last second that have a date: what lies beyond is shown as these.
_FIRST: Final = -62_135_596_800.0
_LAST: Final = 253_402_300_799.0
_LONGEST_TIMESTAMP: Final = 64


def parse_time(text: str | None) -> float | None:
    """RFC 3339, with or without a fraction, to epoch seconds; None for nothing or for what is not a time.

    One that names no zone is taken for UTC, wherever this runs. Never raises.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_TIMESTAMP:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def utc_datetime(seconds: float) -> datetime:
    """A time in UTC; the nearest that has a date where there is none. Never raises."""
    return datetime.fromtimestamp(max(_FIRST, min(_LAST, seconds)), UTC)


def format_time(seconds: float) -> str:
    """The API's ``Time``: whole seconds."""
    return f"{utc_datetime(seconds).replace(microsecond=0, tzinfo=None).isoformat()}Z"


def format_micro_time(seconds: float) -> str:
    """The API's ``MicroTime``: exact enough to read back what was written."""
    return f"{utc_datetime(seconds).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def round_time(seconds: float) -> float:
    """The value that ``format_micro_time`` and back gives."""
    return round(seconds, 6)


_EXPECTED_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|s))+", re.ASCII)


_DURATION_PART: Final = re.compile(r"([0-9.]+)(h|ms|m|s)", re.ASCII)


_LONGEST_DURATION: Final = 64


_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_expected_duration(text: str) -> float | None:
    """``5400``, ``90m`` or ``1h30m`` as seconds; None if it is none of these, or nothing."""
    text = text.strip() if len(text) <= _LONGEST_DURATION else ""
    if text.isascii() and text.isdecimal():
        return float(text) or None
    if not _EXPECTED_DURATION.fullmatch(text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text)) or None

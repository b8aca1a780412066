"""Kubernetes timestamps <-> seconds since the epoch. No clock here: times come in as arguments."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

# The first and the last second that have a date: what lies beyond is shown as these.
_FIRST: Final = -62_135_596_800.0
_LAST: Final = 253_402_300_799.0
_LONGEST: Final = 64


def parse_time(text: str | None) -> float | None:
    """RFC 3339, with or without a fraction, to epoch seconds; None for nothing or for what is not a time.

    One that names no zone is taken for UTC, wherever this runs. Never raises.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def moment(seconds: float) -> datetime:
    """A time in UTC; the nearest that has a date where there is none. Never raises."""
    return datetime.fromtimestamp(max(_FIRST, min(_LAST, seconds)), UTC)


def format_time(seconds: float) -> str:
    """The API's ``Time``: whole seconds."""
    return f"{moment(seconds).replace(microsecond=0, tzinfo=None).isoformat()}Z"


def format_micro_time(seconds: float) -> str:
    """The API's ``MicroTime``: exact enough to read back what was written."""
    return f"{moment(seconds).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def round_time(seconds: float) -> float:
    """The value that ``format_micro_time`` and back gives."""
    return round(seconds, 6)

"""Timestamps and durations, as Kubernetes and Go write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

# The first and the last second that a date can represent. Times outside this range are limited to it.
_FIRST: Final = -62_135_596_800.0
_LAST: Final = 253_402_300_799.0
_LONGEST_TIMESTAMP: Final = 64


def parse_time(text: str | None) -> float | None:
    """RFC 3339, with or without a fraction, to epoch seconds; None for other values.

    A time without a zone is read as UTC. Never raises.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_TIMESTAMP:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def utc_datetime(seconds: float) -> datetime:
    """A time in UTC, limited to the range of dates. Never raises."""
    return datetime.fromtimestamp(max(_FIRST, min(_LAST, seconds)), UTC)


def format_time(seconds: float) -> str:
    """The API's ``Time``: whole seconds."""
    return f"{utc_datetime(seconds).replace(microsecond=0, tzinfo=None).isoformat()}Z"


def format_dragon_time(seconds: float) -> str:
    """A time as in DRAGON's status of a job: ``2018.05.09-15:19:36``."""
    return utc_datetime(seconds).strftime("%Y.%m.%d-%H:%M:%S")


def format_micro_time(seconds: float) -> str:
    """The API's ``MicroTime``: reading the text returns the written time (see ``round_time``)."""
    return f"{utc_datetime(seconds).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def end_of_second(seconds: float | None) -> float | None:
    """The latest time that rounds down to a Kubernetes time, which has whole seconds."""
    return seconds + 1 if seconds is not None and seconds == int(seconds) else seconds


def round_time(seconds: float) -> float:
    """The time after a round trip through ``format_micro_time`` and ``parse_time``."""
    return round(seconds, 6)


DURATION: Final = r"^([0-9]+|([0-9]+(\.[0-9]+)?(h|ms|m|s))+)$"
"""The pattern of durations in tf-dist's annotations and queues, for their definitions: seconds, or ``1h30m``."""
MAX_DURATION_LENGTH: Final = 64

_MAX_SECONDS: Final = 2.0**31 - 1
_MAX_GO_SECONDS: Final = 2.0**63 / 1e9  # a Go duration is an int64 of nanoseconds
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS_OF_ARGUMENTS: Final = {**_UNITS, "d": 86400.0}
_PART_OF_ARGUMENT: Final = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,9})?)(ms|[smhd])")
_ARGUMENT: Final = re.compile(rf"(?:{_PART_OF_ARGUMENT.pattern})+|[0-9]{{1,10}}(?:\.[0-9]{{1,9}})?")
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def parse_duration(text: str) -> float | None:
    """Seconds of ``90``, ``10m`` or ``1h30m``, up to 68 years; None for other values."""
    if len(text) > MAX_DURATION_LENGTH or not re.fullmatch(DURATION, text):
        return None
    seconds = float(text) if text.isdecimal() else _total(text)
    return min(seconds, _MAX_SECONDS)


def seconds_of(given: Any) -> Any:
    """Seconds of an argument: ``90``, ``90s``, ``1h30m``, ``2d`` or a number. Other values are returned unchanged."""
    if not isinstance(given, str) or not _ARGUMENT.fullmatch(given.strip()):
        return given
    parts = _PART_OF_ARGUMENT.findall(given)
    return sum(float(number) * _UNITS_OF_ARGUMENTS[unit] for number, unit in parts) if parts else float(given)


def duration_text(given: object) -> str | None:
    """A duration that ``seconds_of`` reads, in the form that ``parse_duration`` reads; None for other values."""
    if isinstance(given, str) and parse_duration(given) is not None:
        return given
    seconds = seconds_of(given)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    text = f"{f'{seconds:.9f}'.rstrip('0').rstrip('.')}s"
    return text if parse_duration(text) is not None else None


def parse_go_duration(text: str) -> float | None:
    """Seconds of a Go duration such as ``1h30m`` or ``1.5s``; None if it is invalid, negative or too large."""
    if len(text) > MAX_DURATION_LENGTH:
        return None
    unsigned = text.removeprefix("+")
    if unsigned == "0":
        return 0.0
    if not unsigned or _PART.sub("", unsigned):
        return None
    seconds = _total(unsigned)
    return seconds if seconds < _MAX_GO_SECONDS else None


def format_go_duration(seconds: float) -> str:
    """A Go duration in whole seconds: ``1h0m5s``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"


def _total(text: str) -> float:
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))

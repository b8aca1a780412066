"""Kubernetes timestamps <-> seconds since the epoch. No clock here: times come in as arguments."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str | None) -> float | None:
    """RFC 3339, with or without a fraction, to epoch seconds; None for nothing or for what is not a time.

    One that names no zone is taken for UTC, wherever this runs.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def format_time(seconds: float) -> str:
    """The API's ``Time``: whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    """The API's ``MicroTime``: exact enough to read back what was written."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def round_time(seconds: float) -> float:
    """The value that ``format_micro_time`` and back gives."""
    return round(seconds, 6)

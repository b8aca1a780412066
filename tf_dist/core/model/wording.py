"""Numbers, verbs and lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 worker``, ``2 workers``. ``plural``: an irregular plural."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def are(count: int, singular: str = "is", plural: str = "are") -> str:
    """The verb for this number."""
    return singular if count == 1 else plural


def share_text(part: int, total: int) -> str:
    """``1 of 1 replica is``, ``2 of 3 replicas are``."""
    return f"{part} of {counted(total, 'replica')} {are(1 if total == 1 else part)}"


def times_text(count: int) -> str:
    """``once``, ``2 times``."""
    return "once" if count == 1 else f"{count} times"


MAX_LISTED: Final = 3


def join_names(things: Sequence[object], total: int | None = None) -> str:
    """The first few things by name, and the number of others. ``total``: their number, if ``things`` is incomplete."""
    more = (len(things) if total is None else total) - MAX_LISTED
    return ", ".join(map(str, things[:MAX_LISTED])) + (f" and {more} more" if more > 0 else "")

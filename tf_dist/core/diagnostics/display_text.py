"""Text for people: lines without control characters, durations, ages, numbers, tables as HTML."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tf_dist.core.model.usage import Usage

# All control characters and control sequences, also unfinished ones, but colours (\x1b[31m), and characters that change
# the direction of text. A terminal executes some of the characters from \x80 on like \x1b and the character after it.
_CONTROLS: Final = re.compile(
    r"\x1b(?!\[[0-9;:]*m)(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)"
    r"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def without_controls(text: str) -> str:
    """The text without characters that change a terminal. Colour sequences, tabs and line breaks are kept."""
    return _CONTROLS.sub("", text)


def visible_text(text: str) -> str:
    """The visible text of a line, without text that a progress bar overwrote, and without control sequences.

    Colour sequences are kept.
    """
    shown = next((part for part in reversed(text.split("\r")) if part), "")
    return without_controls(shown)


def format_duration(seconds: float) -> str:
    """``4.2s``, ``1m05s``, ``3h12m``, ``5d3h``."""
    if seconds < 0:
        return "0s"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def format_age(since: float | None, now: float) -> str:
    """The time since then; ``-``: unknown."""
    return "-" if since is None else format_duration(max(0.0, float(int(now - since)))).replace(".0s", "s")


def format_number(value: float | None) -> str:
    """A metric: whole numbers unchanged, others with four decimals or, if very small or large, four digits."""
    if value is None:
        return ""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4f}"


_LEAST_HOURS: Final = 36.0  # seconds


def format_hours(seconds: float) -> str:
    """``0.25``, ``12.5``, ``1250``: seconds as hours."""
    hours = seconds / 3600
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 10 else f"{hours:.2f}"


def usage_text(usage: Usage) -> str:
    """``12.5 GPU hours, 2.1 lost``, or replica hours of a job without GPUs; "" for less than 0.01 hours."""
    of_gpus = usage.gpus.held > 0
    spent = usage.gpus if of_gpus else usage.replicas
    if spent.held < _LEAST_HOURS:
        return ""
    return f"{format_hours(spent.held)} {'GPU' if of_gpus else 'replica'} hours, {format_hours(spent.lost)} lost"


def table_html(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as HTML. Its content is untrusted, and is escaped."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(visible_text(cell))}</td>' for cell in row)}</tr>" for row in rows)
    above = f"<caption>{html.escape(visible_text(caption))}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

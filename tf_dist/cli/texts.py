"""How times and numbers are shown."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
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


def age(since: float | None, now: float) -> str:
    """How long ago, ``-`` if nobody knows."""
    return "-" if since is None else duration(max(0.0, float(int(now - since)))).replace(".0s", "s")


def number(value: float | None) -> str:
    """A metric: whole numbers as such, others with four digits that say something."""
    if value is None:
        return ""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4f}"

"""Ages as kubectl prints them: one or two units, coarser with time."""

from __future__ import annotations

from tf_dist.cluster.memory.objects import seconds_of

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY
# Below so many seconds: the unit, its letter, and the smaller unit that is shown beside it (0: none).
_STEPS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    (float("inf"), _YEAR, "y", 0, ""),
)


def human(seconds: float) -> str:
    """``90s``, ``5m3s``, ``2d``."""
    whole = max(0, int(seconds))
    _, unit, letter, smaller, small = next(step for step in _STEPS if whole < step[0])
    count, rest = divmod(whole, unit)
    beside = rest // smaller if smaller else 0
    return f"{count}{letter}{beside}{small}" if beside else f"{count}{letter}"


def age(timestamp: object, now: float) -> str:
    """How long ago a timestamp is; ``<unknown>`` for what is none."""
    try:
        return human(now - seconds_of(str(timestamp)))
    except ValueError:
        return "<unknown>"

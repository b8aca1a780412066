"""Detects that the wall clock was set: its progress then differs from that of the monotonic clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_LOG = logging.getLogger(__name__)
# Seconds: what a clock is slewed by, and a process is held up between two readings, stays below that.
_TOLERANCE: Final = 1.0


class ClockSteps:
    """Compares ``clock`` (epoch seconds) with ``monotonic`` whenever it is asked. A suspended machine is a step, too.

    Slow corrections add up: they are noticed once they amount to a step.
    """

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._offset = self._read()

    def _read(self) -> float:
        return self._clock() - self._monotonic()

    def noticed(self) -> bool:
        """Whether the clock was set since it was last noticed."""
        offset = self._read()
        step = offset - self._offset
        if abs(step) < _TOLERANCE:
            return False
        self._offset = offset
        _LOG.warning("the wall clock was set by %+.1f s: every job is looked at again", step)
        return True

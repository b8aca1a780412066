"""Bearing with a cluster that is away for a moment: what watches it goes on, unless that lasts too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tf_dist.cluster import reflector
from tf_dist.errors import ClusterError, Throttled, Unavailable

PASSING: Final = (Unavailable, Throttled)
"""Errors that pass by themselves."""
_FIRST: Final = 0.2
_LONGEST: Final = 5.0


def backoff(failures: int) -> float:
    """Seconds that people wait after so many failures in a row."""
    return reflector.backoff(failures, first=_FIRST, longest=_LONGEST)


class Patience:
    """Pauses after failures in a row, doubling to a few seconds; ``limit``: seconds of them that are borne in all."""

    def __init__(self, limit: float = 120.0, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._limit = limit
        self._sleep = sleep
        self._since: float | None = None
        self._failures = 0

    def failed(self, error: ClusterError) -> None:
        """Return after a pause; raise ``error`` when it has gone on for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > self._limit:
            raise error
        wish = error.after if isinstance(error, Throttled) and error.after else 0.0
        self._pause(min(wish, self._limit))

    def _pause(self, least: float) -> None:
        pause = backoff(self._failures)
        self._failures = min(self._failures + 1, 16)
        self._sleep(max(pause, least))

    def unfruitful(self) -> None:
        """Return after a pause: it answers, and what was asked for ended at once. No time of that is counted."""
        self._since = None
        self._pause(0.0)

    def answered(self) -> None:
        """It is there, whether or not it will stay: the time counts anew, the next pause is no shorter."""
        self._since = None

    def succeeded(self) -> None:
        """It is there, and does what was asked."""
        self._since, self._failures = None, 0

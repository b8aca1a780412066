"""The pulse of a loop: when it came round last, for whoever has to know whether it still runs."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pulse:
    """``beat`` it at every round of a loop. It is alive while the last beat is less than ``limit`` seconds old.

    A loop has as long for its first round. Thread-safe. ``monotonic``: seconds that only go forward.
    """

    def __init__(self, limit: float = 300.0, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._monotonic = monotonic
        self._last = monotonic()

    def beat(self) -> None:
        """The loop has come round."""
        self._last = self._monotonic()

    def age(self) -> float:
        """Seconds since the last beat."""
        return self._monotonic() - self._last

    def alive(self) -> bool:
        """Whether the loop has been round lately."""
        return self.age() < self.limit

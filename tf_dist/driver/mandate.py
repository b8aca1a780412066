"""What a driver may drive, and until when. Leases stand behind it (``tf_dist.driver.lease``), or nothing does."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Protocol

from tf_dist.errors import ClusterError


class NotDriving(ClusterError):
    """The driver's mandate has ended: whatever it was about to do is for another driver now."""


class Mandate(Protocol):
    """A right to drive."""

    @property
    def ref(self) -> str:
        """What jobs name as their driver; "": nothing is written."""

    @property
    def takes_over(self) -> bool:
        """Whether it drives jobs that nobody drives, or whose driver is dead."""

    @property
    def epoch(self) -> int:
        """Grows whenever the mandate was won anew: what was seen before that may be out of date."""

    def valid(self) -> bool:
        """Whether it surely holds at this moment."""

    def remaining(self) -> float:
        """For how many seconds it surely still holds (0: it does not)."""

    def stale(self) -> Collection[str]:
        """Drivers among ``watch_refs`` that are dead."""

    def watch_refs(self, refs: Collection[str]) -> None:
        """These other drivers have jobs: find out whether they live."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, from any thread, when an answer has changed."""


class Always:
    """The mandate of a driver that is alone with its cluster."""

    takes_over = True
    epoch = 0

    def __init__(self, ref: str = "") -> None:
        self.ref = ref

    def valid(self) -> bool:
        """Always."""
        return True

    def remaining(self) -> float:
        """For ever."""
        return math.inf

    def stale(self) -> Collection[str]:
        """None: nobody looks."""
        return ()

    def watch_refs(self, refs: Collection[str]) -> None:
        """Nobody looks."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Nothing ever changes."""

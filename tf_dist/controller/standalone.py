"""Leadership, admission leader and pending admissions of a standalone driver.

It shares its jobs with no other driver: it always leads, decides about the gangs of its own jobs, and has no successor
that would have to know what it was about to admit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from tf_dist.controller.driver_settings import JobRef


class Standalone:
    """A ``Leadership``, an ``AdmissionLeader`` and ``PendingAdmissions``. ``ref``: what jobs name as their driver."""

    takes_over = True
    epoch = 0

    def __init__(self, ref: str = "") -> None:
        self.ref = ref

    def listen(self, listener: Callable[[], None]) -> None:
        """Nothing ever changes."""

    # Leadership

    def valid(self) -> bool:
        """Always."""
        return True

    def remaining(self) -> float:
        """For ever."""
        return math.inf

    def stale(self) -> Collection[str]:
        """None: other drivers are not monitored."""
        return ()

    def watch_drivers(self, refs: Collection[str]) -> None:
        """Other drivers are not monitored."""

    # Admission leader

    def start(self, *, sees_all: bool) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""

    def decides(self) -> bool:
        """Always."""
        return True

    def for_all(self) -> bool:
        """Only for its own jobs."""
        return False

    def pause(self) -> float:
        """It always decides."""
        return math.inf

    # Pending admissions

    def open(self, epoch: object) -> bool:
        """Nothing to do."""
        return False

    def record_pending(self, jobs: Mapping[str, JobRef]) -> frozenset[str]:
        """All of them may be admitted."""
        return frozenset(jobs)

    def settle(self, uids: Iterable[str]) -> None:
        """Nothing to do."""

    def declared(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def forget_settled(self, *, stopping: bool = False) -> None:
        """Nothing to do."""

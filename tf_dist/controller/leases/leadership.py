"""Leadership: the right of a driver to write, and the drivers it may take over from."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.lease_monitor import LEASE_POLL_INTERVAL, LeaseMonitor
from tf_dist.errors import ClusterError


class LeadershipLost(ClusterError):
    """The driver's leadership has ended: what it was about to do is for another driver now."""


_LOG = logging.getLogger(__name__)
_HOUSEKEEPING_INTERVAL: Final = 3600.0


class LeaseLeadership:
    """Leadership of one driver by a Lease; several may share ``elector``, which is started and stopped by itself.

    ``start`` and ``stop`` run and end the watch over other drivers. ``takes_over``: whether it takes jobs that
    have no driver, or whose driver is dead. ``housekeeping`` is called once an hour while the Lease is ours.
    """

    def __init__(
        self,
        elector: LeaderElector,
        lease_monitor: LeaseMonitor,
        *,
        takes_over: bool = True,
        housekeeping: Callable[[], object] = lambda: None,
        runtime: ThreadRuntime = SYSTEM_RUNTIME,
    ) -> None:
        self.takes_over = takes_over
        self._elector = elector
        self._lease_monitor = lease_monitor
        self._housekeeping = housekeeping
        self._housekeeping_due = 0.0
        self._stale: frozenset[str] = frozenset()
        self._refs: frozenset[str] = frozenset()
        self._listener: Callable[[], None] = lambda: None
        self._runtime = runtime
        self._wake = runtime.event()
        self._stopped = False
        self._thread = runtime.thread(self._run, "lease-monitor")
        elector.listen(lambda _: self._listener())

    # What a driver asks

    @property
    def ref(self) -> str:
        """What jobs name as their driver."""
        return str(self._elector.ref)

    @property
    def epoch(self) -> int:
        """Grows whenever the Lease was won anew: what was seen before may be out of date, others may have driven."""
        return self._elector.epoch

    def valid(self) -> bool:
        """Whether we may act at this moment."""
        return self._elector.valid()

    def remaining(self) -> float:
        """For how many seconds we may surely act (0: not at all)."""
        return self._elector.remaining()

    def stale(self) -> frozenset[str]:
        """The drivers among ``watch_drivers`` that are dead for sure at this moment."""
        return self._lease_monitor.stale()

    def watch_drivers(self, refs: Collection[str]) -> None:
        """The other drivers that have jobs: find out from now on whether they live."""
        wanted = frozenset(refs) - {self.ref}
        if wanted != self._refs:
            self._refs = wanted
            self._lease_monitor.watch_drivers(wanted)
            self._wake.set()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, from any thread, when the answer of ``valid`` or ``stale`` has changed."""
        self._listener = listener

    # Its life

    def start(self) -> None:
        """Begin to watch the Leases of others."""
        self._thread.start()

    def stop(self) -> None:
        """End that, and wait for its thread."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            pause = LEASE_POLL_INTERVAL
            try:
                pause = self._poll()
            except Exception:
                _LOG.exception("failed to check leases")
            if not self._stopped:
                self._wake.wait(pause)

    def _poll(self) -> float:
        pause = self._lease_monitor.poll()
        stale = self._lease_monitor.stale()
        if stale != self._stale:
            self._stale = stale
            self._listener()
        now = self._runtime.monotonic()
        if now >= self._housekeeping_due and self.valid():
            self._housekeeping_due = now + _HOUSEKEEPING_INTERVAL
            try:
                self._housekeeping()
            except ClusterError as error:
                _LOG.debug("failed to clean up leases: error=%s", error)
        return pause


class Standalone:
    """Leadership, admission leader and pending admissions of a driver that shares its jobs with no other.

    It always leads, decides about the gangs of its own jobs, and has no successor that would have to know what it was
    about to admit. ``ref``: what jobs name as their driver.
    """

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

    def room(self, waiting: int) -> int:
        """For all of them."""
        return waiting

    def record_pending(self, jobs: Mapping[str, object]) -> frozenset[str]:
        """All of them may be admitted."""
        return frozenset(jobs)

    def settle(self, uids: Iterable[str]) -> None:
        """Nothing to do."""

    def declared(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def forget_settled(self, *, stopping: bool = False) -> None:
        """Nothing to do."""


Leadership = LeaseLeadership | Standalone
"""The right of a driver to write."""

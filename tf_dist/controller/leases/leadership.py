"""Leadership: the right of a driver to write, and the drivers it may take over from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, ThreadRuntime
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.lease_monitor import LEASE_POLL_INTERVAL, LeaseMonitor
from tf_dist.errors import ClusterError


class LeadershipLost(ClusterError):
    """The driver's leadership has ended: what it was about to do is for another driver now."""


class Leadership(Protocol):
    """A right to drive."""

    @property
    def ref(self) -> str:
        """What jobs name as their driver; "": nothing is written."""

    @property
    def takes_over(self) -> bool:
        """Whether it drives jobs that have no driver, or whose driver is dead."""

    @property
    def epoch(self) -> int:
        """Grows whenever leadership was won anew: what was seen before that may be out of date."""

    def valid(self) -> bool:
        """Whether it surely holds at this moment."""

    def remaining(self) -> float:
        """For how many seconds it surely still holds (0: it does not)."""

    def stale(self) -> Collection[str]:
        """Drivers among ``watch_drivers`` that are dead."""

    def watch_drivers(self, refs: Collection[str]) -> None:
        """These other drivers have jobs: find out whether they live."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, from any thread, when an answer has changed."""


_LOG = logging.getLogger(__name__)
_HOUSEKEEPING_INTERVAL: Final = 3600.0


class LeaseLeadership:
    """``Leadership`` of one driver by a Lease; several may share ``elector``, which is started and stopped by itself.

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
        """Grows whenever the Lease was won anew: others may have driven in between."""
        return self._elector.epoch

    def valid(self) -> bool:
        """Whether we may act at this moment."""
        return self._elector.valid()

    def remaining(self) -> float:
        """For how many seconds we may surely act."""
        return self._elector.remaining()

    def stale(self) -> frozenset[str]:
        """The drivers that are dead for sure at this moment."""
        return self._lease_monitor.stale()

    def watch_drivers(self, refs: Collection[str]) -> None:
        """The drivers whose state matters from now on."""
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

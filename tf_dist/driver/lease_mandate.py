"""The right to drive that comes from a Lease: our own tenure, and what is known of the other drivers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from tf_dist.cluster.runtime import MACHINE, Runtime
from tf_dist.driver.leasebook import LOOK_EVERY, LeaseBook
from tf_dist.driver.tenure import Tenure
from tf_dist.errors import ClusterError

_LOG = logging.getLogger(__name__)
_CHORES_EVERY: Final = 3600.0


class LeaseMandate:
    """One driver's ``Mandate``, under a tenure that several may share and that is started and stopped beside them.

    ``start`` and ``stop`` run and end the watch over other drivers. ``takes_over``: whether it takes jobs that nobody
    drives, or whose driver is dead. ``chores`` is called once an hour while the Lease is ours.
    """

    def __init__(
        self,
        tenure: Tenure,
        book: LeaseBook,
        *,
        takes_over: bool = True,
        chores: Callable[[], object] = lambda: None,
        runtime: Runtime = MACHINE,
    ) -> None:
        self.takes_over = takes_over
        self._tenure = tenure
        self._book = book
        self._chores = chores
        self._chores_due = 0.0
        self._stale: frozenset[str] = frozenset()
        self._refs: frozenset[str] = frozenset()
        self._listener: Callable[[], None] = lambda: None
        self._runtime = runtime
        self._stirred = runtime.event()
        self._stopped = False
        self._thread = runtime.thread(self._run, "leasebook")
        tenure.listen(lambda _: self._listener())

    # What a driver asks

    @property
    def ref(self) -> str:
        """What jobs name as their driver."""
        return str(self._tenure.ref)

    @property
    def epoch(self) -> int:
        """Grows whenever the Lease was won anew: others may have driven in between."""
        return self._tenure.epoch

    def valid(self) -> bool:
        """Whether we may act at this moment."""
        return self._tenure.valid()

    def remaining(self) -> float:
        """For how many seconds we may surely act."""
        return self._tenure.remaining()

    def stale(self) -> frozenset[str]:
        """The drivers that are dead for sure at this moment."""
        return self._book.stale()

    def watch_refs(self, refs: Collection[str]) -> None:
        """The drivers whose state matters from now on."""
        wanted = frozenset(refs) - {self.ref}
        if wanted != self._refs:
            self._refs = wanted
            self._book.watch_refs(wanted)
            self._stirred.set()

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
        self._stirred.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._stirred.clear()
            pause = LOOK_EVERY
            try:
                pause = self._round()
            except Exception:
                _LOG.exception("the watch over other drivers met a defect and goes on")
            if not self._stopped:
                self._stirred.wait(pause)

    def _round(self) -> float:
        pause = self._book.look()
        stale = self._book.stale()
        if stale != self._stale:
            self._stale = stale
            self._listener()
        now = self._runtime.monotonic()
        if now >= self._chores_due and self.valid():
            self._chores_due = now + _CHORES_EVERY
            try:
                self._chores()
            except ClusterError as error:
                _LOG.debug("a chore was not done: %s", error)
        return pause

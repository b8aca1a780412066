"""Lease holders on machines with clocks of their own, over a network that delays and loses, in simulated time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tf_dist.controller.leases.lease_monitor import LeaseMonitor

from tf_dist.cluster.api import LEASES
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.lease import LeaseRef
from tf_dist.errors import NotFound, Unavailable

SHARED = LeaseRef("default", "tf-dist-controller")
_TICK = 1.0


@dataclass(frozen=True)
class Fault:
    """What happens to one request: seconds until it arrives and until its answer does, and what is lost."""

    there: float = 0.0
    back: float = 0.0
    lost: str = ""  # "request", "answer" or nothing


class Machine:
    """Runs one process. Its clock has its own zero and its own speed."""

    def __init__(self, sim: Sim, offset: float = 0.0, speed: float = 1.0) -> None:
        self.sim = sim
        self._offset = offset
        self._speed = speed
        self.faults: deque[Fault] = deque()
        self.step: Callable[[], float] = lambda: float("inf")
        self.due = 0.0
        self.busy = False
        self.dead = False

    def monotonic(self) -> float:
        return self._offset + self._speed * self.sim.now

    def wall(self) -> float:
        """As wrong as a clock can be."""
        return 1_800_000_000.0 + 1000 * self._offset + self.sim.now

    def run(self) -> None:
        self.busy = True
        try:
            self.due = self.sim.now + max(self.step() / self._speed, 0.01)
        finally:
            self.busy = False


class Wire:
    """A machine's network: every request meets the next fault of its machine, while the others go on."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._machine.sim.memory, verb)

        def sent(*args: Any, **kwargs: Any) -> Any:
            sim, faults = self._machine.sim, self._machine.faults
            fault = faults.popleft() if faults else Fault()
            sim.run(fault.there)
            if fault.lost == "request":
                raise Unavailable("no answer")
            try:
                return call(*args, **kwargs)
            finally:
                sim.run(fault.back)
                if fault.lost == "answer":
                    raise Unavailable("the answer was lost")

        return sent


class Sim:
    """Machines, and the time that passes on all of them. ``check`` runs at every moment."""

    def __init__(self) -> None:
        self.now = 0.0
        self.memory = MemoryCluster(clock=lambda: 1_800_000_000.0 + self.now)
        self.machines: list[Machine] = []
        self.tenures: dict[LeaderElector, Machine] = {}
        self.books: dict[LeaseMonitor, Machine] = {}

    def hold(
        self, ref: LeaseRef, identity: str, *, shared: bool, offset: float = 0.0, speed: float = 1.0
    ) -> LeaderElector:
        """A process that holds, or waits for, a Lease."""
        machine = self._machine(offset, speed)
        elector = LeaderElector(
            Wire(machine), ref, identity, shared=shared, clock=machine.wall, monotonic=machine.monotonic
        )  # a Wire has every verb
        machine.step = elector.step
        self.tenures[elector] = machine
        return elector

    def watch(self, *refs: LeaseRef, offset: float = 0.0, speed: float = 1.0) -> LeaseMonitor:
        """A process that looks at the Leases of others."""
        machine = self._machine(offset, speed)
        book = LeaseMonitor(Wire(machine), "watcher", monotonic=machine.monotonic)
        book.watch_drivers([str(ref) for ref in refs])
        machine.step = book.poll
        self.books[book] = machine
        return book

    def _machine(self, offset: float, speed: float) -> Machine:
        machine = Machine(self, offset, speed)
        machine.due = self.now
        self.machines.append(machine)
        return machine

    def delete(self, ref: LeaseRef) -> None:
        """Another client deletes a Lease under its holder."""
        with suppress(NotFound):
            self.memory.delete(LEASES, *ref)

    def spec(self, ref: LeaseRef = SHARED) -> dict[str, Any]:
        return dict(self.memory.get(LEASES, *ref)["spec"])

    def run(self, seconds: float) -> None:
        """Let time pass; a machine that waits for an answer does nothing else."""
        end = self.now + seconds
        while True:
            self.check()
            ready = min(self._ready(), key=lambda machine: machine.due, default=None)
            if ready is not None and ready.due <= min(self.now, end):
                ready.run()
                continue
            if self.now >= end:
                return
            self.now = min([end, self.now + _TICK, *([max(ready.due, self.now)] if ready else [])])

    def _ready(self) -> Iterator[Machine]:
        return (machine for machine in self.machines if not machine.busy and not machine.dead)

    def valid(self) -> list[LeaderElector]:
        return [elector for elector, machine in self.tenures.items() if not machine.dead and elector.valid()]

    def check(self) -> None:
        """Never two that are sure of one Lease; never one sure of it that another thinks dead."""
        valid = self.valid()
        refs = [str(elector.ref) for elector in valid]
        assert len(refs) == len(set(refs)), f"{self.now}: {[t.identity for t in valid]} at once"
        for book, machine in self.books.items():
            wrong = book.stale() & set(refs)
            assert machine.dead or not wrong, f"{self.now}: {wrong} is alive and thought dead"

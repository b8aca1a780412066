"""Lease candidates on machines with their own clocks and a lossy network, in simulated time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster.api import LEASES, NAMESPACES, TFJOBS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.lease import LEASE_DURATION, LeaseRef, leader_lease
from tf_dist.controller.leader_election import LeaderElector
from tf_dist.errors import NotFound, Unavailable

CLUSTER = leader_lease(TFJOBS, None)
TEAM = leader_lease(TFJOBS, "team")
_START = 1_800_000_000.0
_TICK = 1.0


@dataclass(frozen=True)
class Fault:
    """The fault of a request: the delays in seconds of the request and of the answer, and what is lost."""

    there: float = 0.0
    back: float = 0.0
    lost: str = ""  # "request", "answer" or nothing


class Machine:
    """Runs a candidate. Its clock has its own offset and speed. Its wall clock is ``wrong`` by some seconds."""

    def __init__(self, sim: Sim, offset: float, speed: float, wrong: float) -> None:
        self.sim = sim
        self._offset, self._speed, self._wrong = offset, speed, wrong
        self.faults: deque[Fault] = deque()
        self.step: Callable[[], float] = lambda: float("inf")
        self.due = sim.now
        self.busy = False
        self.dead = False

    def monotonic(self) -> float:
        return self._offset + self._speed * self.sim.now

    def wall(self) -> float:
        return _START + self._wrong + self.sim.now

    def run(self) -> None:
        self.busy = True
        try:
            self.due = self.sim.now + max(self.step() / self._speed, 0.01)
        finally:
            self.busy = False


class Wire:
    """The network of a machine. Every request gets the next fault of the machine, while other machines run."""

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
    """Machines with a common simulated time. ``check`` runs at every moment."""

    def __init__(self) -> None:
        self.now = 0.0
        self.memory = MemoryCluster(clock=lambda: _START + self.now)
        self.memory.create(NAMESPACES, None, {"metadata": {"name": TEAM.namespace}})
        self.machines: dict[LeaderElector, Machine] = {}
        self._deleted = float("-inf")

    def candidate(
        self,
        ref: LeaseRef,
        identity: str,
        *,
        offset: float = 0.0,
        speed: float = 1.0,
        wrong: float = 0.0,
        busy: Callable[[], bool] = lambda: False,
    ) -> LeaderElector:
        """A leader or candidate of a Lease."""
        machine = Machine(self, offset, speed, wrong)
        elector = LeaderElector(
            Wire(machine),  # type: ignore[arg-type]  # it has every verb
            ref,
            identity,
            wider=CLUSTER if ref == TEAM else None,
            busy=busy,
            clock=machine.wall,
            monotonic=machine.monotonic,
        )
        machine.step = elector.step
        self.machines[elector] = machine
        return elector

    def delete(self, ref: LeaseRef) -> None:
        """A user deletes a Lease. Its holder still considers itself the leader until the Lease would expire."""
        with suppress(NotFound):
            self.memory.delete(LEASES, *ref)
            self._deleted = self.now

    def run(self, seconds: float) -> None:
        """Let time pass. A machine that waits for an answer does nothing else."""
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
        return (machine for machine in self.machines.values() if not machine.busy and not machine.dead)

    def leaders(self) -> list[LeaderElector]:
        """The electors that now consider themselves leaders."""
        return [elector for elector, machine in self.machines.items() if not machine.dead and elector.valid()]

    def check(self) -> None:
        """There are never two leaders, of one Lease or of a namespace and the cluster."""
        leaders = [elector.identity for elector in self.leaders()]
        assert len(leaders) < 2 or self.now < self._deleted + LEASE_DURATION, f"{self.now}: {leaders} at once"

"""Two processes that decide about places, each of which may sleep before any of its writes while the other acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.controller.harness import Hands, World, tfjob
from tf_dist.cluster.api import TFJOBS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.driver import Driver
from tf_dist.controller.driver_settings import DriverSettings
from tf_dist.controller.leases.lease import LeaseRef
from tf_dist.errors import ClusterError

PLACE = LeaseRef("default", "tf-dist-controller-admissions")


WRITES = ("create", "replace", "patch", "delete")


class Sleepy:
    """A cluster in front of which a process falls asleep, once, just before one of its writes gets there."""

    def __init__(self, inner: MemoryCluster) -> None:
        self._inner = inner
        self.sleep: tuple[int, Callable[[], None]] | None = None

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._inner, verb)
        if verb not in WRITES:
            return call

        def awake(*args: Any, **kwargs: Any) -> Any:
            if self.sleep is not None:
                left, meanwhile = self.sleep
                self.sleep = (left - 1, meanwhile) if left else None
                if not left:
                    meanwhile()
            return call(*args, **kwargs)

        return awake


class Process:
    """A controller that always believes in its mandate: no clock and no Lease keeps it back."""

    def __init__(self, world: World) -> None:
        self.wire = Sleepy(world.memory)
        self.leadership = Hands()
        self.driver = Driver(
            self.wire,  # type: ignore[arg-type]
            clock=world.clock,
            monotonic=world.clock,
            leadership=self.leadership,
            settings=DriverSettings(admissions=PLACE),
        )

    def step(self) -> None:
        try:
            self.driver.step()
        except ClusterError:
            self.leadership.epoch += 1


@dataclass(frozen=True)
class Turn:
    """Process ``who`` acts, and before its ``write``-th write it sleeps while the other one takes ``steps``.

    A job leaves before that if ``leaves``; one that comes before every other comes while it sleeps if ``comes``.
    """

    who: int
    write: int
    steps: int
    leaves: bool
    comes: bool


TURNS = st.lists(
    st.builds(Turn, st.integers(0, 1), st.integers(0, 6), st.integers(1, 3), st.booleans(), st.booleans()),
    min_size=1,
    max_size=12,
)


def admitted(world: World) -> list[str]:
    jobs = world.memory.list(TFJOBS).items
    return [job["metadata"]["name"] for job in jobs if ((job.get("status") or {}).get("tfDist") or {}).get("admission")]


def leave(world: World) -> None:
    """The first job that has a place goes, and with it its pods."""
    for name in admitted(world)[:1]:
        world.memory.delete(TFJOBS, "default", name)
        for pod in list(world.pods()):
            if pod.startswith(f"{name}-"):
                world.evict(pod)


def play(world: World, processes: Sequence[Process], turns: list[Turn]) -> None:
    """Take the turns, in a world with room for one job at a time; in the end the first process puts things straight."""
    for count, turn in enumerate(turns):
        other = processes[1 - turn.who]

        def meanwhile(count: int = count, turn: Turn = turn, other: Process = other) -> None:
            if turn.comes:
                world.submit(tfjob(f"{chr(ord('l') - count)}-{count}"))
            for _ in range(turn.steps):
                other.step()
            assert len(admitted(world)) <= 1

        if turn.leaves:
            leave(world)
        processes[turn.who].wire.sleep = (turn.write, meanwhile)
        processes[turn.who].step()
        assert len(admitted(world)) <= 1
    for process in processes:
        process.wire.sleep = None
    for _ in range(4):
        processes[0].step()
    assert len(admitted(world)) == min(1, len(world.memory.list(TFJOBS).items))

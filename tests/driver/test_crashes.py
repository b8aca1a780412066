"""A driver that dies after any single write: the next one comes to the same end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver.harness import Crash, CrashingCluster, World, tfjob
from tf_dist.driver.loop import Driver


class Fragile(World):
    """A world whose driver dies after its n-th write, and is replaced by a new one with an empty memory."""

    def __init__(self, crash_after: int | None) -> None:
        super().__init__()
        self.wire = CrashingCluster(self.memory)
        self.wire.after = crash_after
        self.deaths = 0
        self._replace_driver()

    def _replace_driver(self) -> None:
        self.driver = Driver(self.wire, clock=self.clock, monotonic=self.clock)

    def settle(self, most: int = 50) -> int:
        try:
            return super().settle(most)
        except Crash:
            self.deaths += 1
            self._replace_driver()
            return super().settle(most)


def _life(world: World) -> dict[str, Any]:
    """Start, a worker killed, an eviction, success, clean-up."""
    world.submit(tfjob(backoffLimit=5))
    world.settle()
    world.run_pods()
    world.settle()
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    world.run_pods()
    world.settle()
    world.evict("mnist-ps-0")
    world.settle()
    world.run_pods()
    world.settle()
    world.end_pod("mnist-worker-0", 0)
    world.settle()
    world.bury()
    world.settle()
    status = world.status()
    return {"phases": world.phases(), **{key: status.get(key) for key in ("phase", "restarts", "attempts", "reason")}}


def _writes_of_a_life() -> int:
    world = Fragile(None)
    _life(world)
    return world.wire.writes


@pytest.mark.parametrize("write", range(1, _writes_of_a_life() + 1))
def test_a_crash_after_any_write_changes_nothing_in_the_end(write: int) -> None:
    world = Fragile(write)
    assert _life(world) == _life(World())
    assert world.deaths == 1

"""Two leaders with different clocks, while the old leader does not yet know that it lost its Lease."""

from __future__ import annotations

import pytest

from tests.controller.harness import Clock, World, tfjob
from tf_dist.cluster.api import PODS
from tf_dist.controller.controller import Controller


@pytest.mark.parametrize("ahead", [-400.0, 20.0])
def test_two_controllers_with_different_clocks_settle(ahead: float) -> None:
    world, clock = World(), Clock()
    clock.now += ahead
    other = Controller(world.memory, clock=clock, monotonic=clock)
    world.submit(tfjob(workers=3))
    world.settle()
    world.run_pods("mnist-worker-0")
    world.memory.delete(PODS, "default", "mnist-worker-2")
    rounds = 0
    while world.controller.step() + other.step():
        rounds += 1
        assert rounds < 20, world.describe()

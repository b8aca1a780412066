"""Two leaders at once, while one does not know yet that it lost its Lease, with clocks that differ."""

from __future__ import annotations

import pytest

from tests.controller.harness import Clock, World, tfjob
from tf_dist.cluster.api import PODS
from tf_dist.controller.controller import Controller


@pytest.mark.parametrize("ahead", [-400.0, 20.0])
def test_two_controllers_whose_clocks_differ_do_not_write_in_turn(ahead: float) -> None:
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

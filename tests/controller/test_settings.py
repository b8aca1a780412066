"""The defaults of a driver, and what it reads in its environment."""

from __future__ import annotations

import pytest

from tests.controller.harness import World, tfjob
from tf_dist.cluster.api import EVENTS
from tf_dist.controller.settings import cluster_domain


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, ""), ({"CUSTOM_CLUSTER_DOMAIN": "cluster.local"}, "cluster.local"), ({"CUSTOM_CLUSTER_DOMAIN": ".X."}, "X")],
)
def test_the_domain_is_that_of_the_training_operators_variable(environ: dict[str, str], expected: str) -> None:
    assert cluster_domain(environ) == expected


def test_events_of_a_driver_in_a_program_come_from_tf_dist() -> None:
    world = World()
    world.submit(tfjob())
    world.settle()
    assert {event["source"]["component"] for event in world.memory.list(EVENTS, "default").items} == {"tf-dist"}

"""The defaults of a controller, and settings from its environment."""

from __future__ import annotations

import pytest

from tests.controller.harness import World, tfjob
from tf_dist.cluster.api import EVENTS
from tf_dist.controller.settings import cluster_domain
from tf_dist.errors import ClusterError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, ""), ({"CUSTOM_CLUSTER_DOMAIN": "cluster.local"}, "cluster.local"), ({"CUSTOM_CLUSTER_DOMAIN": ".X."}, "X")],
)
def test_cluster_domain_is_read_from_variable_of_training_operator(environ: dict[str, str], expected: str) -> None:
    assert cluster_domain(environ) == expected


def test_events_have_source_tf_dist_by_default() -> None:
    world = World()
    world.submit(tfjob())
    world.settle()
    assert {event["source"]["component"] for event in world.memory.list(EVENTS, "default").items} == {"tf-dist"}


@pytest.mark.parametrize("value", ["a b", " ", "a..b", "x" * 254, "\n", "\udc80", "-a"])
def test_variable_without_domain_is_reported(value: str) -> None:
    with pytest.raises(ClusterError, match="CUSTOM_CLUSTER_DOMAIN is not a domain"):
        cluster_domain({"CUSTOM_CLUSTER_DOMAIN": value})


def test_dots_around_domain_are_removed() -> None:
    assert [cluster_domain({"CUSTOM_CLUSTER_DOMAIN": one}) for one in ("", ".", ".b-1.local.")] == ["", "", "b-1.local"]

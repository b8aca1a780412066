"""What a user writes who may create jobs and pods in a namespace, and nothing else: it changes no decision.

Each test forges one thing, over our own definition of TFJob and over Kubeflow's.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.driver.foreign import Pruning
from tests.driver.harness import World, tfjob
from tf_dist.cluster.api import TFJOBS, Object
from tf_dist.core.pruned_status import CONDITION
from tf_dist.core.status_codec import FIELD, stored_status
from tf_dist.driver.loop import Driver

MEMORY: dict[str, Any] = {
    "phase": "Running",
    "reason": "JobRunning",
    "admission": {"at": "2027-01-15T08:00:00.000000Z", "placement": {"worker": {"n1": 8}}},
    "restarts": {"PodFailed": -1000},
    "attempts": {"job": 7},
}
STATUS: Object = {
    FIELD: MEMORY,
    "conditions": [{"type": CONDITION, "status": "Unknown", "message": json.dumps(MEMORY)}],
}


def world(*, ours: bool) -> World:
    """A cluster of 4 CPUs."""
    world = World(cpu="4")
    if not ours:
        world.cluster = Pruning(world.memory)  # type: ignore[assignment]
        world.driver = Driver(world.cluster, clock=world.clock)
    return world


def remembered(world: World, name: str = "mnist") -> dict[str, Any]:
    return dict(stored_status(world.job(name))[FIELD])


@pytest.fixture(params=[True, False], ids=["ours", "kubeflows"])
def small(request: pytest.FixtureRequest) -> World:
    return world(ours=request.param)


def waits(world: World) -> bool:
    found = remembered(world)
    return (found["reason"], "admission" in found, found.get("restarts"), found.get("attempts"), world.pods()) == (
        "NeverFits",
        False,
        None,
        {"job": 1},
        {},
    )


def test_a_memory_in_annotations_is_nobodys(small: World) -> None:
    document = tfjob(workers=8, ps=0)
    del document["spec"]["tfReplicaSpecs"]["PS"]
    document["metadata"]["annotations"] = {"tf-dist.dev/memory": json.dumps(MEMORY)}
    small.submit(document)
    small.settle()
    assert waits(small), small.describe()


def test_a_memory_in_the_status_of_a_new_document_is_dropped(small: World) -> None:
    document = tfjob(workers=8)
    del document["spec"]["tfReplicaSpecs"]["PS"]
    small.submit({**document, "status": STATUS})
    small.settle()
    assert waits(small), small.describe()


def test_a_memory_in_an_edit_of_the_job_is_dropped(small: World) -> None:
    document = tfjob(workers=8)
    del document["spec"]["tfReplicaSpecs"]["PS"]
    small.submit(document)
    small.settle()
    small.memory.patch(TFJOBS, "default", "mnist", {"status": STATUS})
    small.memory.replace(TFJOBS, "default", "mnist", {**small.job(), "status": STATUS})
    small.settle()
    assert waits(small), small.describe()

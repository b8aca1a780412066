"""Queues of Volcano's that the cluster serves, as a driver sees them: they decide, and are not written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import World, disturbed, queue, replica
from tf_dist.cluster.api import QUEUES, VOLCANO_JOBS, VOLCANO_QUEUES, Object
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings


def volcano_queue(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec, "status": {"state": "Open"}}


def job(name: str, *, workers: int = 2) -> Object:
    task = {"name": "worker", "replicas": workers, "template": replica(1)["template"]}
    return {"metadata": {"name": name}, "spec": {"queue": "lab", "tasks": [task]}}


def close(world: World, state: str) -> None:
    stored = world.memory.get(VOLCANO_QUEUES, None, "lab")
    status = {**(stored.get("status") or {}), "state": state}
    world.memory.replace(VOLCANO_QUEUES, None, "lab", {**stored, "status": status}, subresource="status")


def reasons(world: World, *names: str) -> list[str]:
    return [world.status(name, VOLCANO_JOBS)["reason"] for name in names]


def test_its_capability_is_a_limit_and_its_object_is_not_written() -> None:
    world = World(cpu="8")
    made = world.memory.create(VOLCANO_QUEUES, None, volcano_queue("lab", capability={"cpu": 2}))
    for name in ("first", "second"):
        world.submit(job(name), VOLCANO_JOBS)
    world.settle()
    assert reasons(world, "first", "second") == ["Admitted", "QuotaExceeded"]
    world.memory.patch(VOLCANO_QUEUES, None, "lab", {"spec": {"capability": {"cpu": 4}}})
    world.settle()
    assert reasons(world, "second") == ["Admitted"]
    assert world.memory.get(VOLCANO_QUEUES, None, "lab").get("status") == made.get("status")


@pytest.mark.parametrize("state", ["Closing", "Closed"])
def test_a_closed_queue_takes_no_more_jobs_and_keeps_those_that_run(state: str) -> None:
    world = World(cpu="8")
    world.memory.create(VOLCANO_QUEUES, None, volcano_queue("lab"))
    world.run_job(job("first"), VOLCANO_JOBS)
    close(world, state)
    world.submit(job("second"), VOLCANO_JOBS)
    world.settle()
    assert reasons(world, "second") == ["NamespaceMismatch"]
    assert world.status("second", VOLCANO_JOBS)["message"].startswith('queue "lab" is closed')
    assert set(world.phases().values()) == {"Running"}
    close(world, "Open")
    world.settle()
    assert reasons(world, "second") == ["Admitted"]


def test_a_queue_of_ours_stands_in_its_place() -> None:
    world = World(cpu="8")
    world.memory.create(VOLCANO_QUEUES, None, volcano_queue("lab", capability={"cpu": 1}))
    world.submit(job("first"), VOLCANO_JOBS)
    world.settle()
    assert reasons(world, "first") == ["NeverFits"]
    world.memory.create(QUEUES, None, queue("lab", "4"))
    world.settle()
    assert reasons(world, "first") == ["Admitted"]


def test_a_queue_that_is_deleted_is_none() -> None:
    world = World(cpu="8")
    for name in ("lab", "other"):
        world.memory.create(VOLCANO_QUEUES, None, volcano_queue(name))
    world.memory.delete(VOLCANO_QUEUES, None, "lab")
    world.submit(job("first"), VOLCANO_JOBS)
    world.settle()
    assert reasons(world, "first") == ["QueueNotFound"]


def test_a_cluster_without_them_has_no_such_queues() -> None:
    world = World(cpu="8", lacks=[VOLCANO_QUEUES])
    world.submit(job("first"), VOLCANO_JOBS)
    world.settle()
    assert reasons(world, "first") == ["Admitted"]


def test_a_driver_of_tfjobs_alone_does_not_ask_for_them() -> None:
    asked = []

    def before(verb: str, resource: Any, *_: Any, **__: Any) -> None:
        asked.append(resource)

    world = World(cpu="8")
    settings = ControllerSettings(volcano_jobs=False)
    Controller(disturbed(world.memory, before), clock=world.clock, monotonic=world.clock, settings=settings).step()
    assert QUEUES in asked
    assert VOLCANO_QUEUES not in asked

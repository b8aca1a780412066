"""Volcano's queues in a controller: they limit jobs, and the controller does not write them."""

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


def test_queue_capability_is_limit_and_queue_is_not_written() -> None:
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
def test_closed_queue_accepts_no_new_jobs_and_keeps_running_jobs(state: str) -> None:
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


def test_tf_dist_queue_overrides_volcano_queue_of_same_name() -> None:
    world = World(cpu="8")
    world.memory.create(VOLCANO_QUEUES, None, volcano_queue("lab", capability={"cpu": 1}))
    world.submit(job("first"), VOLCANO_JOBS)
    world.settle()
    assert reasons(world, "first") == ["NeverFits"]
    world.memory.create(QUEUES, None, queue("lab", "4"))
    world.settle()
    assert reasons(world, "first") == ["Admitted"]


def test_job_of_deleted_volcano_queue_waits() -> None:
    world = World(cpu="8")
    for name in ("lab", "other"):
        world.memory.create(VOLCANO_QUEUES, None, volcano_queue(name))
    world.memory.delete(VOLCANO_QUEUES, None, "lab")
    world.submit(job("first"), VOLCANO_JOBS)
    world.settle()
    assert reasons(world, "first") == ["QueueNotFound"]


def test_queue_name_is_ignored_when_volcano_queues_are_not_served() -> None:
    world = World(cpu="8", lacks=[VOLCANO_QUEUES])
    world.submit(job("first"), VOLCANO_JOBS)
    world.settle()
    assert reasons(world, "first") == ["Admitted"]


def test_controller_without_volcano_jobs_does_not_list_volcano_queues() -> None:
    asked = []

    def before(verb: str, resource: Any, *_: Any, **__: Any) -> None:
        asked.append(resource)

    world = World(cpu="8")
    settings = ControllerSettings(volcano_jobs=False)
    Controller(disturbed(world.memory, before), clock=world.clock, monotonic=world.clock, settings=settings).step()
    assert QUEUES in asked
    assert VOLCANO_QUEUES not in asked

"""Queues that are open to some namespaces only, as a driver sees them: the labels of namespaces decide."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver.harness import World, disturbed, queue, queued
from tests.waiting import until
from tf_dist.cluster.api import NAMESPACES, QUEUES, Resource
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.driver.loop import Driver
from tf_dist.errors import Forbidden

VISION = {"matchLabels": {"team": "vision"}}


def label(memory: MemoryCluster, team: str | None, namespace: str = "default") -> None:
    memory.patch(NAMESPACES, None, namespace, {"metadata": {"labels": {"team": team}}})


def waiting(**spec: Any) -> World:
    """A job of the namespace ``default`` has named the queue of another team."""
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("vision", "8", **spec))
    world.submit(queued("mine", "vision"))
    world.settle()
    return world


def test_a_job_of_another_team_waits_until_its_namespace_is_let_in() -> None:
    world = waiting(namespaceSelector=VISION)
    status = world.status("mine")
    assert status["reason"] == "NamespaceMismatch"
    assert status["message"].startswith('queue "vision" is not open to namespace "default": ')
    assert (status.get("admission"), world.pods()) == (None, {})
    assert world.memory.get(QUEUES, None, "vision")["status"]["pending"] == 1
    label(world.memory, "speech")
    world.settle()
    assert world.status("mine")["reason"] == "NamespaceMismatch"
    label(world.memory, "vision")
    world.settle()
    assert world.status("mine")["reason"] == "Admitted"


@pytest.mark.parametrize("selector", [None, {}, {"matchLabels": {"kubernetes.io/metadata.name": "default"}}])
def test_it_starts_when_the_queue_is_opened(selector: Any) -> None:
    world = waiting(namespaceSelector=VISION)
    assert world.status("mine")["reason"] == "NamespaceMismatch"
    stored = world.memory.get(QUEUES, None, "vision")
    spec = {key: value for key, value in stored["spec"].items() if key != "namespaceSelector"}
    spec |= {"namespaceSelector": selector} if selector is not None else {}
    world.memory.replace(QUEUES, None, "vision", {**stored, "spec": spec})
    world.settle()
    assert world.status("mine")["reason"] == "Admitted"


def test_who_runs_keeps_its_place_when_its_namespace_no_longer_matches() -> None:
    world = World(cpu="8")
    label(world.memory, "vision")
    world.memory.create(QUEUES, None, queue("vision", "8", namespaceSelector=VISION))
    world.submit(queued("mine", "vision"))
    world.settle()
    world.run_pods()
    world.settle()
    label(world.memory, None)
    world.submit(queued("next", "vision"))
    world.settle()
    assert world.status("mine").get("admission") is not None
    assert set(world.phases().values()) == {"Running"}
    assert world.status("next")["reason"] == "NamespaceMismatch"


def test_a_selector_that_cannot_be_read_opens_nothing() -> None:
    world = waiting(namespaceSelector={"matchLabls": {"team": "vision"}})
    assert world.status("mine")["reason"] == "QueueNotFound"
    assert "matchLabls" in world.memory.get(QUEUES, None, "vision")["status"]["message"]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        (VISION, "NamespaceMismatch"),
        ({"matchExpressions": [{"key": "restricted", "operator": "DoesNotExist"}]}, "NamespaceMismatch"),
        ({"matchLabels": {"kubernetes.io/metadata.name": "default"}}, "Admitted"),
        ({}, "Admitted"),
        (None, "Admitted"),
    ],
)
def test_without_the_right_to_see_namespaces_only_their_names_are_known(selector: Any, found: str) -> None:
    def blind(verb: str, kind: Any = None, *_: Any, **__: Any) -> None:
        if kind == NAMESPACES and verb in ("list", "watch"):
            raise Forbidden("namespaces is forbidden")

    world = World(cpu="8")
    world.driver = Driver(disturbed(world.memory, blind), clock=world.clock, monotonic=world.clock)
    label(world.memory, "vision")
    spec = {} if selector is None else {"namespaceSelector": selector}
    world.memory.create(QUEUES, None, queue("vision", "8", **spec))
    world.submit(queued("mine", "vision"))
    world.settle()
    assert world.status("mine")["reason"] == found
    if found != "Admitted":
        assert "list and watch namespaces" in world.status("mine")["message"]


def test_a_driver_that_follows_the_cluster_starts_the_job_for_the_label_alone() -> None:
    world = waiting(namespaceSelector=VISION)
    watched: list[Resource] = []

    def seen(verb: str, kind: Any = None, *_: Any, **__: Any) -> None:
        if verb == "watch":
            watched.append(kind)

    driver = Driver(disturbed(world.memory, seen), clock=world.clock)
    driver.start()
    try:
        until(lambda: NAMESPACES in watched, seconds=60)
        label(world.memory, "vision")
        until(lambda: world.status("mine")["reason"] == "Admitted", seconds=60)
    finally:
        driver.stop()

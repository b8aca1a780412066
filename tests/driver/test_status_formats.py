"""Drivers of two releases and one job: the newer goes on where the older was, the older leaves the newer alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.driver.harness import World, tfjob
from tf_dist.cluster.api import EVENTS, TFJOBS, Object
from tf_dist.core.status_codec import VERSION
from tf_dist.driver.loop import Driver


@pytest.fixture
def world() -> World:
    return World()


def runs(world: World) -> None:
    world.submit(tfjob())
    world.settle()
    world.run_pods()
    world.settle()


def rewrite(world: World, **memory: Any) -> Object:
    """The job as a driver of another release has left it (None: without the field)."""
    stored = world.job()
    found = {key: value for key, value in {**stored["status"]["tfDist"], **memory}.items() if value is not None}
    status = {**stored["status"], "tfDist": found}
    return world.memory.replace(TFJOBS, "default", "mnist", {**stored, "status": status}, subresource="status")


def test_a_status_says_in_which_form_it_is(world: World) -> None:
    runs(world)
    assert world.status()["version"] == VERSION


def test_a_job_of_the_release_before_goes_on(world: World) -> None:
    runs(world)
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    world.run_pods()
    world.settle()
    rewrite(world, version=None, acceptedSpec=None)
    before = world.pods()
    world.driver = Driver(world.cluster, clock=world.clock)
    world.settle()
    assert world.pods() == before
    assert world.status()["version"] == VERSION
    assert world.status()["restarts"] == {"PodFailed": 1}


def test_a_job_of_a_newer_release_is_left_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    runs(world)
    stored = rewrite(world, version=VERSION + 1, phase="Dreaming", admission=["new"])
    world.driver = Driver(world.cluster, clock=world.clock)
    world.end_pod("mnist-worker-1", 137)
    before = world.pods()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            world.settle()
            world.clock.now += 400
    assert world.job() == stored
    assert world.pods() == before
    (event,) = (one for one in world.memory.list(EVENTS).items if one["reason"] == "NewerStatusFormat")
    assert event["count"] == 1
    assert "upgrade this tf-dist" in event["message"]
    assert len([record for record in caplog.records if "is left alone" in record.getMessage()]) == 1
    assert [one["reason"] for one in world.memory.list(EVENTS).items] == ["NewerStatusFormat"]
    patch = {"spec": {"runPolicy": {"suspend": True, "ttlSecondsAfterFinished": 0}}}
    edited = world.memory.patch(TFJOBS, "default", "mnist", patch)
    world.settle()
    assert world.job() == edited
    assert world.pods() == before


def test_room_of_a_job_of_a_newer_release_is_not_given_away(world: World) -> None:
    world.submit(tfjob(workers=6))
    world.settle()
    world.run_pods()
    world.settle()
    rewrite(world, version=VERSION + 1)
    world.driver = Driver(world.cluster, clock=world.clock)
    world.submit(tfjob("other", workers=6))
    world.settle()
    assert world.status("other")["reason"] == "WaitingForCapacity"
    assert len(world.phases()) == 7


def test_a_job_of_a_newer_release_is_driven_again_once_its_form_is_known(world: World) -> None:
    runs(world)
    rewrite(world, version=VERSION + 1)
    world.driver = Driver(world.cluster, clock=world.clock)
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    rewrite(world, version=VERSION)
    world.settle()
    assert world.status()["restarts"] == {"PodFailed": 1}


def test_jobs_of_a_newer_release_that_are_gone_are_not_kept_in_mind(world: World) -> None:
    """A driver lives for months."""
    world.submit(tfjob())
    rewritten(world)
    for _ in range(20):
        world.settle()
        world.memory.delete(TFJOBS, "default", "mnist")
        world.settle()
        world.submit(tfjob())
        rewritten(world)
    world.settle()
    steward = world.driver._steward
    assert steward.left_alone == {world.job()["metadata"]["uid"]}
    told = [one for one in world.memory.list(EVENTS).items if one["reason"] == "NewerStatusFormat"]
    assert {one["involvedObject"]["uid"] for one in told} >= steward.left_alone


def rewritten(world: World) -> None:
    """A newer release has begun to drive the job."""
    status = {"tfDist": {"phase": "Pending", "version": VERSION + 1}}
    world.memory.patch(TFJOBS, "default", "mnist", {"status": status}, subresource="status")

"""A gang whose pods the API server refuses, as it would refuse them tomorrow, keeps no place from others."""

from __future__ import annotations

import logging
from typing import Any, Final

import pytest

from tests.controller.harness import World, tfjob
from tf_dist.cluster.api import PRIORITY_CLASSES, TFJOBS, Object
from tf_dist.core.api.status_codec import load_status
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.dialects.parsing import parse

# What no reader of jobs knows, but the API server does of pods.
REFUSED: Final[dict[str, dict[str, Any]]] = {
    "as invalid": {"tolerations": [{"operator": "Exists"}, 3]},
    "by a rule": {"priorityClassName": "late"},
}


@pytest.fixture
def world() -> World:
    return World(cpu="3")


def broken(name: str, spec: dict[str, Any]) -> Object:
    document = tfjob(name)
    for one in document["spec"]["tfReplicaSpecs"].values():
        one["template"]["spec"].update(spec)
    return document


def mended(world: World, name: str, priority: str | None = None) -> None:
    document = tfjob(name)
    for one in document["spec"]["tfReplicaSpecs"].values():
        one["template"]["spec"].update(tolerations=None, priorityClassName=priority)
    world.memory.patch(TFJOBS, "default", name, {"spec": document["spec"]})


def passes(world: World, seconds: float) -> None:
    """So much time, in steps in which the driver looks."""
    until = world.clock.now + seconds
    while world.clock.now < until:
        world.driver.step()
        world.clock.now += 0.5


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_it_gives_its_place_to_a_job_that_waits(world: World, spec: dict[str, Any]) -> None:
    for number in range(5):
        world.submit(broken(f"broken-{number}", spec))
        world.clock.now += 1
    world.submit(tfjob("sound"))
    passes(world, 30)
    assert world.status("sound").get("admission"), world.describe()
    assert len(world.phases()) == 3


def test_a_job_whose_pods_are_invalid_fails_within_seconds_and_says_why(world: World) -> None:
    document = broken("mnist", {})
    document["spec"]["runPolicy"]["cleanPodPolicy"] = "None"
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"].update(REFUSED["as invalid"])
    world.submit(document)
    passes(world, 5)
    world.bury()
    world.settle()
    status, stored = world.status(), world.job()
    assert (status["phase"], status["reason"]) == ("Failed", "PodsRejected"), world.describe()
    failed = next(one for one in stored["status"]["conditions"] if one["type"] == "Failed")
    assert "tolerations" in failed["message"]
    assert ("TFJobFailed", failed["message"]) in world.events()
    assert any(reason == "FailedCreatePod" and "tolerations" in text for reason, text in world.events())
    assert not world.pods(), "the parameter server could be made, and has nobody to serve"
    told = diagnose(parse(stored).job, load_status(stored["status"]), (), world.clock.now)
    assert any("tolerations" in one.summary for one in told), told
    assert not any("got no node" in one.summary + one.resolution for one in told), told


def test_a_rule_that_refuses_pods_is_waited_for(world: World) -> None:
    spec = REFUSED["by a rule"]
    world.submit(broken("mnist", spec))
    passes(world, 5)
    status = world.status()
    assert "admission" not in status
    assert status["notBefore"]
    stored = world.job()
    told = diagnose(parse(stored).job, load_status(stored["status"]), (), world.clock.now)
    assert any("PriorityClass" in one.summary for one in told), told
    assert not any("got no node" in one.summary + one.resolution for one in told), told
    world.memory.create(PRIORITY_CLASSES, None, {"metadata": {"name": "late"}, "value": 5})
    passes(world, 60)
    assert len(world.phases()) == 3


def test_a_job_that_is_mended_waits_for_no_pause(world: World) -> None:
    world.submit(broken("mnist", REFUSED["by a rule"]))
    passes(world, 120)
    assert "admission" not in world.status()
    mended(world, "mnist")
    world.settle()
    assert len(world.phases()) == 3
    assert "notBefore" not in world.status()


def test_why_a_pass_fails_is_logged_when_that_changes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Not once for each attempt: there may be thousands of jobs whose pods are refused."""
    world.submit(broken("mnist", REFUSED["by a rule"]))
    with caplog.at_level(logging.WARNING, logger="tf_dist.controller.worker_pool"):
        passes(world, 120)
        assert len(logged(caplog, "name late ")) == 1
        mended(world, "mnist", "later")
        passes(world, 120)
        assert len(logged(caplog, "name later ")) == 1
        mended(world, "mnist")
        world.settle()
        assert len(world.phases()) == 3
        world.memory.delete(TFJOBS, "default", "mnist")
        world.settle()
        world.submit(broken("mnist", REFUSED["by a rule"]))
        passes(world, 120)
        assert len(logged(caplog, "name late ")) == 2, "it is another job"


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """The warnings with that text."""
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING and text in one.getMessage()]

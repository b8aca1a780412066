"""Events about created, deleted and refused pods and Services, in the form of the training operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controller.harness import World, disturbed, replica, tfjob
from tf_dist.cluster.api import EVENTS, PODS, VOLCANO_JOBS
from tf_dist.controller.controller import Controller
from tf_dist.errors import ClusterError, Forbidden, Unavailable


@pytest.fixture
def world() -> Iterator[World]:
    made = World(cpu="64")
    yield made
    made.controller.stop()


def said(world: World, reason: str) -> list[str]:
    return sorted(message for found, message in world.events() if found == reason)


def test_events_report_created_and_deleted_pods_and_services(world: World) -> None:
    names = "mnist-ps-0, mnist-worker-0, mnist-worker-1"
    world.submit(tfjob())
    world.settle()
    assert said(world, "SuccessfulCreatePod") == [f"Created pod: {names}"]
    assert said(world, "SuccessfulCreateService") == [f"Created service: {names}"]
    counts = {event["reason"]: event["count"] for event in world.memory.list(EVENTS, "default").items}
    assert counts["SuccessfulCreatePod"] == 3
    world.run_pods()
    world.settle()
    world.end_pod("mnist-worker-0", 0)
    world.settle()
    assert said(world, "SuccessfulDeletePod") == ["Deleted pod: mnist-ps-0, mnist-worker-1"]
    assert said(world, "SuccessfulDeleteService")


def test_events_of_many_pods_do_not_displace_failure_events(world: World) -> None:
    world.submit(tfjob(workers=30, ps=0))
    world.settle()
    (created,) = said(world, "SuccessfulCreatePod")
    assert created.count("mnist-worker-") == 30
    world.run_pods()
    world.settle()
    world.end_pod("mnist-worker-7", 1)
    world.settle()
    assert said(world, "TFJobFailed") == ['job "mnist" is failing because "Worker" replica(s) failed.']
    assert said(world, "PodFailed")


def test_event_reports_pod_that_cannot_be_created(world: World) -> None:
    def refuse(verb: str, resource: Any = None, *args: Any, **_: Any) -> None:
        if verb == "create" and resource == PODS:
            raise Forbidden("pods is forbidden: exceeded quota")

    world.controller.stop()
    world.controller = Controller(disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    world.step_until(lambda: bool(said(world, "FailedCreatePod")))
    assert said(world, "FailedCreatePod") == ["Error creating: pods is forbidden: exceeded quota"]
    assert not said(world, "SuccessfulCreatePod")


@pytest.mark.parametrize("error", [Forbidden("pods is forbidden: exceeded quota"), Unavailable("no answer")])
def test_event_reports_restart_when_new_pod_cannot_be_created(world: World, error: ClusterError) -> None:
    """The status already contains the restart, so no later pass would report it."""
    refusing = [False]

    def refuse(verb: str, resource: Any = None, *args: Any, **_: Any) -> None:
        if refusing[0] and (verb, resource) == ("create", PODS):
            raise error

    world.controller.stop()
    world.controller = Controller(disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock)
    world.run_job(tfjob())
    refusing[0] = True
    world.evict("mnist-worker-0")
    world.step_until(lambda: bool(said(world, "FailedCreatePod")))
    [restarting] = said(world, "TFJobRestarting")
    assert restarting.startswith("TFJob mnist is restarting: worker-0 was ")


def test_volcano_job_has_no_events_of_training_operator(world: World) -> None:
    task = {"name": "worker", "replicas": 1, "template": replica(1)["template"]}
    spec = {"minAvailable": 1, "tasks": [task]}
    world.submit(
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "mnist", "namespace": "default"},
            "spec": spec,
        },
        VOLCANO_JOBS,
    )
    world.settle()
    assert world.pods()
    assert not said(world, "SuccessfulCreatePod")

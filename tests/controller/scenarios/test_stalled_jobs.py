"""Passes that fail repeatedly: the job reports the error as long as it lasts."""

from __future__ import annotations

from dataclasses import replace
from itertools import count as counter
from typing import Any

import pytest

from tests.controller.harness import World, disturbed, tfjob
from tests.controller.scenarios.test_drained_nodes import cordon, gang_on_n1
from tests.core.builders import v1alpha1_job, written_status
from tf_dist.cluster.api import NODES, PODS, TFJOBS, VOLCANO_JOBS, Resource
from tf_dist.controller.controller import Controller
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.dialects.parsing import parse
from tf_dist.core.model.reasons import Category, Level
from tf_dist.core.model.status import Phase, Status
from tf_dist.core.model.status_codec import load_status
from tf_dist.errors import ClusterError, Forbidden, Throttled, Unavailable

FOREIGN = {"metadata": {"name": "mnist-ps-0"}, "spec": {"containers": [{"name": "x", "image": "y"}]}}
REFUSED = "Pod default/mnist-ps-0 exists already"


@pytest.fixture
def world() -> World:
    return World()


def tried(world: World, times: int) -> None:
    """Run this number of passes, each after the retry delay."""
    for _ in range(times):
        world.controller.step()
        world.clock.now += 20


def last_error(world: World) -> str:
    told: str = world.status().get("lastError", "")
    return told


def condition(world: World, type_: str) -> dict[str, Any] | None:
    listed = world.job()["status"]["conditions"]
    return next((one for one in listed if one["type"] == type_), None)


def test_stalled_job_reports_repeated_error(world: World) -> None:
    world.memory.create(PODS, "default", FOREIGN)
    world.submit(tfjob())
    tried(world, 5)
    assert REFUSED in last_error(world)
    assert "rename the job, or ask the owner of Pod mnist-ps-0 to remove it" in last_error(world)
    stalled = condition(world, "Stalled")
    assert stalled is not None
    assert (stalled["status"], stalled["reason"]) == ("True", "ReconcileFailed")
    assert REFUSED in stalled["message"]
    # Printers show the last condition as the state.
    assert world.job()["status"]["conditions"][-1]["type"] != "Stalled"


@pytest.mark.parametrize("error", [Throttled("busy", after=1.0), Unavailable("busy")], ids=["busy", "away"])
def test_server_error_of_all_jobs_is_logged_once_without_events(
    world: World, error: ClusterError, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two", "three"):
        world.submit(tfjob(name))

    def busy(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", PODS):
            raise error

    world.controller = Controller(disturbed(world.memory, busy), clock=world.clock, monotonic=world.clock)
    tried(world, 5)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([line for line in lines if "busy" in line]) == 1, lines
    assert "ReconcileFailed" not in {reason for reason, _ in world.events()}
    assert "busy" in world.status("one")["lastError"]


def test_error_that_recurs_after_success_is_logged_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    refuses = True

    def refuse(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if refuses and (verb, resource) == ("create", PODS):
            raise Forbidden("no pods for you")

    world.controller = Controller(disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    for expected in (1, 2):
        refuses = True
        tried(world, 5)
        assert len([one for one in caplog.messages if "no pods for you" in one]) == expected
        refuses = False
        tried(world, 5)
        assert len(world.pods()) == 3
        world.evict("mnist-worker-0")


def test_diagnosis_of_stalled_job_starts_with_error(world: World) -> None:
    world.memory.create(PODS, "default", FOREIGN)
    world.submit(tfjob())
    tried(world, 5)
    stored = world.job()
    first = diagnose(parse(stored).job, load_status(stored["status"]), (), world.clock.now)[0]
    assert (first.level, first.category) == (Level.ERROR, Category.REFUSED)
    assert REFUSED in first.summary


def test_stalled_condition_is_removed_after_successful_pass(world: World) -> None:
    world.memory.create(PODS, "default", FOREIGN)
    world.submit(tfjob())
    tried(world, 5)
    assert last_error(world)
    world.memory.delete(PODS, "default", "mnist-ps-0")
    world.clock.now += 20
    world.settle()
    assert last_error(world) == ""
    assert condition(world, "Stalled") is None
    assert len(world.phases()) == 3


def test_success_before_third_failure_reports_no_error(world: World) -> None:
    """A successful pass writes nothing about earlier failures."""
    world.memory.create(PODS, "default", FOREIGN)
    world.submit(tfjob())
    tried(world, 2)
    world.memory.delete(PODS, "default", "mnist-ps-0")
    tried(world, 1)
    assert "lastError" not in world.status()
    assert len(world.phases()) == 3


def test_stalled_job_being_deleted_keeps_last_error(world: World) -> None:
    world.memory.create(PODS, "default", FOREIGN)
    document = tfjob()
    document["metadata"]["finalizers"] = ["example.com/keep"]
    world.submit(document)
    tried(world, 5)
    world.memory.delete(TFJOBS, "default", "mnist")
    tried(world, 1)
    assert world.settle() == 0
    assert last_error(world)


def test_single_failure_is_not_reported(world: World) -> None:
    world.memory.create(PODS, "default", FOREIGN)
    world.submit(tfjob())
    world.controller.step()
    world.memory.delete(PODS, "default", "mnist-ps-0")
    tried(world, 1)
    world.settle()
    assert "lastError" not in world.status()
    assert len(world.phases()) == 3


def test_volcano_job_reports_error_in_state(world: World) -> None:
    task = {"name": "worker", "replicas": 1, "template": tfjob()["spec"]["tfReplicaSpecs"]["Worker"]["template"]}
    document = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "mnist", "namespace": "default"},
        "spec": {"minAvailable": 1, "tasks": [task]},
    }
    world.memory.create(PODS, "default", {**FOREIGN, "metadata": {"name": "mnist-worker-0"}})
    world.submit(document, VOLCANO_JOBS)
    tried(world, 5)
    assert "mnist-worker-0 exists already" in world.job(resource=VOLCANO_JOBS)["status"]["state"]["message"]


def test_new_controller_clears_error_of_previous_controller(world: World) -> None:
    world.memory.create(PODS, "default", FOREIGN)
    world.submit(tfjob())
    tried(world, 5)
    world.memory.delete(PODS, "default", "mnist-ps-0")
    world.controller = Controller(world.memory, clock=world.clock, monotonic=world.clock)
    world.settle()
    assert last_error(world) == ""


def test_stalled_job_has_reason_reconcile_failed(world: World) -> None:
    world.memory.create(PODS, "default", FOREIGN)
    world.submit(tfjob())
    tried(world, 5)
    assert world.status()["why"] == "ReconcileFailed"


def test_finished_job_shows_outcome_despite_last_error() -> None:
    ended = Status(phase=Phase.COMPLETED, reason="JobSucceeded", message="worker-0 succeeded", last_error="no right")
    assert (ended.display_message, ended.display_reason) == ("worker-0 succeeded", "JobSucceeded")
    cleaning = replace(ended, phase=Phase.COMPLETING)
    assert (cleaning.display_message, cleaning.display_reason) == ("cannot continue: no right", "ReconcileFailed")


def test_varying_error_text_causes_few_status_writes() -> None:
    world = World()
    refused = counter(1)

    def refuse(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", PODS):
            raise Unavailable(f"failed calling webhook: read tcp 10.0.0.1:{next(refused)}: connection reset")

    world.controller = Controller(disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    tried(world, 3)
    versions = []
    for _ in range(30):
        world.clock.now += 1
        world.controller.step()
        versions.append(world.job()["metadata"]["resourceVersion"])
    assert next(refused) > 3
    assert len(set(versions)) <= 4
    assert "failed calling webhook" in last_error(world)


def test_running_v1alpha1_job_reports_error_in_reason() -> None:
    job = v1alpha1_job()
    status = Status(phase=Phase.RUNNING, reason="JobRunning", message="2 of 2 replicas are running")
    assert written_status(job, status, 0.0)["reason"] == ""
    assert written_status(job, replace(status, last_error="no right"), 0.0)["reason"] == "cannot continue: no right"


def test_admitted_job_whose_status_cannot_be_written_keeps_its_capacity() -> None:
    world, refuses = gang_on_n1(), True

    def refuse(verb: str, resource: Resource, *named: Any, **_: Any) -> None:
        if refuses and (verb, resource, *named[:2]) == ("replace", TFJOBS, "default", "mnist"):
            raise Forbidden("no status for you")

    world.controller = Controller(disturbed(world.memory, refuse), clock=world.clock, monotonic=world.clock)
    cordon(world, "n1")
    world.memory.delete(PODS, "default", "mnist-worker-1", grace_period=0)
    tried(world, 5)
    assert list(world.pods()) == ["mnist-worker-0"]
    world.memory.patch(NODES, None, "n1", {"spec": {"unschedulable": None}})
    world.submit(tfjob("waiting", workers=1, ps=0))
    tried(world, 2)
    assert world.status("waiting")["reason"] == "WaitingForCapacity"
    refuses = False
    tried(world, 2)
    assert {*world.pods()} == {"mnist-worker-0", "mnist-worker-1"}

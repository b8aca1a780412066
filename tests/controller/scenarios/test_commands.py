"""Commands of Volcano (``bus.volcano.sh``) through the API: they act exactly once, and are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import Crash, CrashingCluster, World, container
from tf_dist.cluster.api import VOLCANO_COMMANDS, VOLCANO_JOBS, Object
from tf_dist.controller.controller import Controller


def job(name: str = "mnist") -> Object:
    task = {"name": "worker", "replicas": 2, "template": {"spec": {"containers": [container()]}}}
    return {
        "apiVersion": VOLCANO_JOBS.api_version,
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"minAvailable": 2, "maxRetry": 5, "tasks": [task]},
    }


def command(world: World, action: str, **target: Any) -> None:
    """Create a Command as ``vcctl`` does. ``target`` overrides fields of its target."""
    uid = world.job(resource=VOLCANO_JOBS)["metadata"]["uid"]
    owner = {"apiVersion": VOLCANO_JOBS.api_version, "kind": "Job", "name": "mnist", "uid": uid}
    body = {
        "metadata": {"generateName": f"mnist-{action.lower()}-"},
        "action": action,
        "target": {**owner, "controller": True, **target},
    }
    world.memory.create(VOLCANO_COMMANDS, "default", body)


def left(world: World) -> int:
    return len(world.memory.list(VOLCANO_COMMANDS).items)


def phase(world: World, name: str = "mnist") -> str:
    return str(world.job(name, VOLCANO_JOBS)["status"]["state"]["phase"])


@pytest.fixture
def running() -> World:
    world = World()
    world.submit(job(), VOLCANO_JOBS)
    world.start_pods()
    assert phase(world) == "Running"
    return world


def test_commands_abort_resume_and_restart_job(running: World) -> None:
    command(running, "AbortJob")
    running.remove_pods()
    assert (phase(running), left(running)) == ("Aborted", 0)
    said = "Start to execute command AbortJob, and clean it up to make sure executed not more than once."
    assert ("CommandIssued", said) in running.events()
    command(running, "ResumeJob")
    running.start_pods()
    assert (phase(running), left(running)) == ("Running", 0)
    before = {pod["metadata"]["uid"] for pod in running.pods().values()}
    command(running, "RestartJob")
    go_on(running)
    running.start_pods()
    assert (phase(running), left(running)) == ("Running", 0)
    assert running.job(resource=VOLCANO_JOBS)["status"]["retryCount"] == 1
    assert not before & {pod["metadata"]["uid"] for pod in running.pods().values()}


def test_command_without_uid_acts_on_job_of_that_name(running: World) -> None:
    command(running, "TerminateJob", uid="")
    running.settle()
    assert (phase(running), left(running)) == ("Terminating", 0)


@pytest.mark.parametrize(
    "target",
    [{"uid": "of-an-earlier-job"}, {"kind": "Queue"}, {"apiVersion": "batch/v1"}, {"name": "other"}],
    ids=["an earlier job", "a queue", "a job of Kubernetes", "another job"],
)
def test_command_with_other_target_is_ignored(running: World, target: dict[str, Any]) -> None:
    command(running, "AbortJob", **target)
    running.settle()
    assert (phase(running), left(running)) == ("Running", 1)


def go_on(world: World) -> None:
    """Remove pods that are being deleted, and let the controller create new pods."""
    for _ in range(3):
        world.settle()
        world.bury()


@pytest.mark.parametrize("after", range(1, 7))
def test_restart_command_acts_once_wherever_controller_crashes(running: World, after: int) -> None:
    command(running, "RestartJob")
    crashing = CrashingCluster(running.memory)
    crashing.after = after
    running.controller = Controller(crashing, clock=running.clock, monotonic=running.clock)
    with pytest.raises(Crash):
        go_on(running)
    running.controller = Controller(running.memory, clock=running.clock, monotonic=running.clock)
    go_on(running)
    running.start_pods()
    assert (phase(running), left(running)) == ("Running", 0)
    assert running.job(resource=VOLCANO_JOBS)["status"]["retryCount"] == 1

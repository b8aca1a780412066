"""Commands (``bus.volcano.sh``): the effect of each action in each phase of a Volcano Job.

Sources (volcano-sh/volcano at ed72c7c8): ``pkg/controllers/job/state/*.go`` with ``state/job_state_test.go`` (the next
phase after each action, and whether the action counts as a retry), ``processNextCommand`` (the event; the command is
consumed), ``pkg/cli/util/util.go`` (the commands of ``vcctl``). Rows name deliberate differences of tf-dist; see
docs/differences-volcano.md.
"""

from __future__ import annotations

import pytest

from tests.conformance.test_volcano_lifecycle import end, job, phase, run, started, task
from tests.core.world import World
from tf_dist.core.dialects import read
from tf_dist.core.model.context import Delete, EmitEvent

STARTED = "Start to execute command {}, and clean it up to make sure executed not more than once."
ACTIONS = (
    "AbortJob",
    "CompleteJob",
    "TerminateJob",
    "RestartJob",
    "ResumeJob",
    "SyncJob",
    "RestartTask",
    "NoSuchThing",
)
# The phase, the action, and the next phase. Other combinations change nothing.
LEADS: dict[tuple[str, str], str] = {
    **{(found, "AbortJob"): "Aborting" for found in ("Pending", "Running", "Restarting")},
    **{(found, "CompleteJob"): "Completing" for found in ("Pending", "Running", "Restarting")},
    **{(found, "TerminateJob"): "Terminating" for found in ("Pending", "Running", "Restarting")},
    **{(found, "RestartJob"): "Restarting" for found in ("Pending", "Running")},
    ("Aborting", "ResumeJob"): "Pending",
    ("Aborted", "ResumeJob"): "Pending",
}


def command(world: World, action: str, name: str = "job1-x", uid: str = "c-1", at: str = "") -> None:
    """A command as ``vcctl`` creates it."""
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "job1", "uid": "uid-1"}
    world.objects["Command", name] = {
        "metadata": {"name": name, "uid": uid, "creationTimestamp": at},
        "action": action,
        "target": target,
    }


def in_phase(name: str) -> World:
    world = started(job(task("worker", 2), maxRetry=5))
    match name:
        case "Pending":
            world = World(read(job(task("worker", 2), maxRetry=5)))
            world.settle()
        case "Restarting":
            command(world, "RestartJob", uid="c-0")
            world.step()
        case "Aborting" | "Completing" | "Terminating":
            command(world, {"Aborting": "AbortJob", "Completing": "CompleteJob"}.get(name, "TerminateJob"), uid="c-0")
            world.step()
        case "Aborted":
            command(world, "AbortJob", uid="c-0")
            world.settle()
        case "Completed":
            end(world, "worker-0", "worker-1", code=0)
        case "Failed":
            end(world, "worker-0", "worker-1", code=1)
    assert phase(world) == name
    return world


FOUND = ("Pending", "Running", "Restarting", "Aborting", "Aborted", "Completing", "Terminating", "Completed", "Failed")


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("found", FOUND)
def test_action_of_command_in_each_phase(found: str, action: str) -> None:
    world = in_phase(found)
    before = world.memory
    command(world, action)
    plan = world.look()
    leads = LEADS.get((found, action))
    (deleted,) = (one for one in plan.actions if isinstance(one, Delete) and one.kind == "Command")
    assert (deleted.name, deleted.uid) == ("job1-x", "c-1")
    (event,) = (one for one in plan.actions if isinstance(one, EmitEvent) and one.reason == "CommandIssued")
    changed = leads is not None or (found, action) == ("Restarting", "RestartJob")
    assert (event.type == "Normal") is changed
    assert not changed or event.message == STARTED.format(action)
    assert plan.status.phase.value == (leads or found)
    # A restart counts as one retry. A resume does not (in Volcano, it does).
    assert plan.status.retries == before.retries + (leads == "Restarting")
    world.settle()
    assert ("Command", "job1-x") not in world.objects


def test_command_acts_once_if_controller_may_not_delete_it() -> None:
    world = started(job(task("worker", 2), maxRetry=5))
    before = {pod["metadata"]["uid"] for pod in world.pods.values()}
    command(world, "RestartJob")
    for _ in range(10):
        actions = world.look().actions
        assert isinstance(actions[-1], Delete), "what is refused comes last"
        assert actions[-1].kind == "Command"
        if len(actions) == 1:
            break
        world.step(most=len(actions) - 1)
        for pod in [pod for pod in world.pods.values() if "deletionTimestamp" in pod["metadata"]]:
            world.remove(pod)
    assert not before & {pod["metadata"]["uid"] for pod in world.pods.values()}
    assert (len(world.pods), world.memory.retries) == (2, 1)


def test_restart_command_also_replaces_succeeded_pods() -> None:
    world = started(job(task("worker", 2), maxRetry=5))
    end(world, "worker-0", code=0)
    before = {pod["metadata"]["uid"] for pod in world.pods.values()}
    command(world, "RestartJob")
    world.settle()
    run(world)
    assert not before & {pod["metadata"]["uid"] for pod in world.pods.values()}
    assert len(world.pods) == 2
    assert (phase(world), world.status["retryCount"]) == ("Running", 1)


def test_restart_command_beyond_max_retry_fails_job() -> None:
    world = started(job(task("worker", 1), maxRetry=3))
    for index in range(3):
        assert phase(world) == "Running"
        command(world, "RestartJob", uid=f"c-{index}")
        world.settle()
        run(world)
    assert (phase(world), world.memory.reason, world.status["retryCount"]) == ("Failed", "BackoffLimitExceeded", 3)


def test_resumed_job_keeps_succeeded_replicas() -> None:
    world = started(job(task("worker", 2)))
    end(world, "worker-0", code=0)
    command(world, "AbortJob", uid="c-1")
    world.settle()
    assert phase(world) == "Aborted"
    command(world, "ResumeJob", uid="c-2")
    world.settle()
    run(world)
    assert (phase(world), world.memory.retries) == ("Running", 0)
    assert [str(one) for one in world.memory.succeeded] == ["worker-0"]


@pytest.mark.parametrize("most", range(6))
def test_command_acts_exactly_once_wherever_the_controller_dies(most: int) -> None:
    world = started(job(task("worker", 2), maxRetry=5))
    command(world, "RestartJob")
    world.step(most)
    assert (("Command", "job1-x") in world.objects) is (most < 5)
    world.settle()
    run(world)
    assert world.status["retryCount"] == 1
    assert ("Command", "job1-x") not in world.objects


def test_oldest_command_acts_first() -> None:
    world = started(job(task("worker", 2)))
    command(world, "ResumeJob", "a", "c-2", at="2026-01-01T00:00:01Z")
    command(world, "AbortJob", "b", "c-1", at="2026-01-01T00:00:00Z")
    world.step()
    assert set(world.objects) & {("Command", "a"), ("Command", "b")} == {("Command", "a")}
    assert phase(world) == "Aborting"
    world.settle()
    assert phase(world) == "Pending"


def test_command_does_not_resume_suspended_job() -> None:
    world = started(job(task("worker", 2)))
    world.suspend(True)
    world.settle()
    before = world.memory.attempts
    command(world, "ResumeJob")
    world.settle()
    assert (phase(world), world.memory.attempts) == ("Aborted", before)

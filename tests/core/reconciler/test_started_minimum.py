"""A job that started with its minimum: its size, pods, completion, and waiting replicas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.builders import replicas, v1_job, volcano_job
from tests.core.world import World, pinned_to
from tf_dist.core.diagnostics.replicas import replica_states
from tf_dist.core.model.assignment import Admit, Resize
from tf_dist.core.model.job import Action, Event, Job, Rule, Scheduling
from tf_dist.core.model.pods import pod_view
from tf_dist.core.model.status import Phase


def of_four(least: int = 1, **fields: Any) -> Job:
    return volcano_job(replicas("worker", 4, rules=(), min_available=4), min_available=least, **fields)


def started(job: Job, count: int = 2, *, schedules: bool = True, **verdict: Any) -> World:
    world = World(job)
    world.schedules = schedules
    world.verdict = Admit(sizes={"worker": count}, **verdict)
    world.settle()
    return world


def run(world: World) -> None:
    for pod in world.pods.values():
        if pod["status"].get("phase") in (None, "Pending"):
            world.run(pod)
    world.settle()


def end(world: World, *indexes: int, code: int = 0) -> None:
    for index in indexes:
        pod = world.pod(f"worker-{index}")
        world.end(pod, code)
    world.settle()


def more(world: World, count: int, **placement: int) -> None:
    nodes = {"worker": placement} if placement else {}
    world.verdict = Resize(sizes={"worker": count}, placement=nodes, message="there is room")
    world.settle()


def test_status_reports_waiting_replicas() -> None:
    world = started(of_four())
    assert len(world.pods) == 2
    assert world.memory.message.startswith("2 of 4 replicas are admitted; 2 more wait for capacity")
    run(world)
    assert (world.memory.phase, world.memory.message) == (
        Phase.RUNNING,
        "2 of 4 replicas are running; 2 more wait for capacity",
    )
    assert world.status["minAvailable"] == 1
    views = tuple(view for pod in world.pods.values() if (view := pod_view(pod, "tensorflow")))
    states = [one.state for one in replica_states(world.job, world.memory, views)]
    assert states == ["Running", "Running", "Waiting", "Waiting"]
    more(world, 3)
    run(world)
    assert world.memory.message == "3 of 4 replicas are running; 1 more waits for capacity"
    more(world, 4)
    run(world)
    assert world.memory.message == "4 of 4 replicas are running"


def test_rest_joins_on_assigned_nodes_without_restarts() -> None:
    world = started(of_four(), placement={"worker": {"n1": 2}})
    run(world)
    before = {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}
    more(world, 4, n1=2, n2=2)
    assert [pinned_to(world.pods[f"tf-dist-mnist-worker-{index}"]) for index in (2, 3)] == ["n2", "n2"]
    assert {name: world.pods[name]["metadata"]["uid"] for name in before} == before
    assert world.memory.charged_restarts == 0


def test_tf_config_names_all_replicas_and_does_not_change() -> None:
    job = v1_job(replicas("PS", 1), replicas("Worker", 3), scheduling=Scheduling(min_available=2))
    world = World(job)
    world.verdict = Admit(sizes={"ps": 1, "worker": 1})
    world.settle()
    assert set(world.pods) == {"mnist-ps-0", "mnist-worker-0"}
    assert ("Service", "mnist-worker-2") in world.objects
    variables = world.pods["mnist-worker-0"]["spec"]["containers"][0]["env"]
    config = json.loads(next(one["value"] for one in variables if one["name"] == "TF_CONFIG"))
    assert len(config["cluster"]["worker"]) == 3
    uid = world.pods["mnist-worker-0"]["metadata"]["uid"]
    run(world)
    world.verdict = Resize(sizes={"worker": 3}, placement={}, message="there is room")
    world.settle()
    assert len(world.pods) == 4
    assert world.pods["mnist-worker-0"]["metadata"]["uid"] == uid


def test_completes_when_all_requested_replicas_have_ended() -> None:
    world = started(of_four())
    run(world)
    end(world, 0, 1)
    assert world.memory.phase is Phase.RUNNING
    more(world, 4)
    run(world)
    end(world, 2)
    assert world.memory.phase is Phase.RUNNING
    end(world, 3)
    assert world.memory.phase is Phase.COMPLETED


@pytest.mark.parametrize(("least", "failed", "expected"), [(1, 3, Phase.COMPLETED), (2, 3, Phase.FAILED)])
def test_minimum_number_of_replicas_must_succeed(least: int, failed: int, expected: Phase) -> None:
    ignore = Rule(events=frozenset({Event.POD_FAILED}), action=Action.IGNORE)
    world = started(of_four(least, rules=(ignore,)), 4)
    run(world)
    end(world, 0)
    end(world, *range(1, 1 + failed), code=1)
    assert world.memory.phase is expected


UNKNOWN = Rule(events=frozenset({Event.UNKNOWN}), action=Action.ABORT_JOB)


@pytest.mark.parametrize(("least", "aborted"), [(2, False), (3, True), (4, True)])
def test_unknown_event_occurs_when_fewer_than_minimum_run(least: int, aborted: bool) -> None:
    world = started(of_four(least, rules=(UNKNOWN,)), 4)
    for index in (0, 1):
        pod = world.pod(f"worker-{index}")
        world.run(pod)
    for index in (2, 3):
        pod = world.pod(f"worker-{index}")
        world.hold_back(pod)
    world.settle()
    assert (world.memory.phase in (Phase.ABORTING, Phase.ABORTED)) is aborted


def test_replicas_beyond_minimum_have_no_schedule_timeout() -> None:
    world = started(of_four(2), 4, schedules=False)
    for index in (0, 1):
        pod = world.pod(f"worker-{index}")
        world.bind(pod, "n1")
        world.run(pod)
    world.settle()
    world.now += 100_000
    world.settle()
    assert (world.memory.phase, world.memory.requeues, len(world.pods)) == (Phase.RUNNING, 0, 4)


def test_gang_below_minimum_releases_admission_at_schedule_timeout() -> None:
    world = started(of_four(3), 4, schedules=False)
    for index in (0, 1):
        pod = world.pod(f"worker-{index}")
        world.bind(pod, "n1")
    world.verdict = None
    world.settle()
    world.now += 301
    world.settle()
    assert (world.memory.reason, world.memory.requeues) == ("ScheduleTimeout", 1)


def test_restart_does_not_wait_for_replicas_beyond_minimum() -> None:
    again = Rule(events=frozenset({Event.POD_FAILED}), action=Action.RESTART_JOB)
    world = started(of_four(rules=(again,)))
    run(world)
    end(world, 1, code=1)
    assert (world.memory.attempts.job, len(world.pods)) == (2, 2)
    run(world)
    assert world.memory.phase is Phase.RUNNING


def test_lowering_replicas_to_started_size_ends_waiting() -> None:
    world = started(of_four())
    run(world)
    world.scale("worker", 2)
    world.settle()
    assert (world.admission.sizes, world.admission.started) == ({"worker": 2}, {})
    end(world, 0, 1)
    assert world.memory.phase is Phase.COMPLETED

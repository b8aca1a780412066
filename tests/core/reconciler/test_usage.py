"""The resources that a job used and lost, through restarts, evictions, preemptions and its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import ON_FAILURE, START, replicas, template, v1_job
from tests.core.reconciler.scenarios import end, lose, started
from tests.core.world import WAIT, World
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit, Preempt
from tf_dist.core.model.job import Job, ReplicaSpec
from tf_dist.core.model.status import Phase
from tf_dist.core.model.timestamps import format_micro_time, format_time
from tf_dist.core.model.usage import Spent, Usage

WORKERS = {"rules": ON_FAILURE, "template": template()}


def with_gpus(count: int, name: str = "Worker", number: int = 2) -> ReplicaSpec:
    container = {"name": "tensorflow", "image": "tf", "resources": {"limits": {"nvidia.com/gpu": count}}}
    return replicas(name, number, rules=ON_FAILURE, template={"spec": {"containers": [container]}})


def mirrored() -> Job:
    """Two workers with 4 GPUs each, which train together."""
    return v1_job(with_gpus(4))


def train(world: World, seconds: float) -> Usage:
    world.now += seconds
    world.settle()
    return world.memory.usage


def checkpoint(world: World, at: float) -> None:
    world.job = replace(world.job, annotations={names.CHECKPOINT_AT: format_time(at)})


def resume(world: World) -> None:
    """The restarted pods run immediately."""
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()


def test_counts_waiting_before_and_holding_after_admission() -> None:
    world = World(mirrored())
    world.verdict = WAIT
    world.settle()
    world.now += 100
    world.verdict = Admit()
    world.settle()
    held = world.memory.usage
    assert (held.waited, held.replicas_held, held.gpus_held) == (100, 2, 8)
    later = held.until(world.now + 60)
    assert (later.waited, later.gpus.held, later.replicas.held) == (100, 480, 120)


def test_successful_job_loses_nothing() -> None:
    world = started(v1_job(with_gpus(4), replicas("PS", 1)))
    world.now += 100
    end(world, "worker-0")
    usage = world.memory.usage
    assert world.memory.phase in (Phase.COMPLETING, Phase.COMPLETED)
    assert (usage.gpus.trained, usage.gpus.lost, usage.replicas.lost) == (pytest.approx(800, abs=8), 0, 0)
    assert usage.since is None
    assert usage.goodput == pytest.approx(1, abs=0.02)


def test_evicted_replica_loses_work_since_start() -> None:
    world = started(mirrored())
    world.now += 100
    lose(world, "worker-1")
    # The controller did not observe the removal of the pod, so its end is unknown.
    assert world.memory.usage.gpus.lost == 0
    world = started(mirrored())
    world.now += 100
    pod = world.pod("worker-1")
    assert pod is not None
    world.vanish(pod)
    world.settle()
    assert world.memory.usage.gpus == Spent(trained=400, lost=400)


def test_only_work_since_last_checkpoint_is_lost() -> None:
    world = started(mirrored())
    checkpoint(world, world.now + 70)
    world.now += 100
    end(world, "worker-1", code=143)
    assert world.memory.usage.gpus.lost == pytest.approx(4 * 30, abs=8)
    assert world.memory.usage.gpus.trained == pytest.approx(400, abs=8)


def test_counts_lost_work_of_pod_evicted_by_kubelet() -> None:
    world = started(mirrored())
    world.now += 100
    pod: Any = world.pod("worker-1")
    pod["status"] = {"phase": "Failed", "reason": "Evicted", "startTime": pod["status"]["startTime"]}
    world.settle()
    assert world.memory.usage.gpus == Spent(trained=400, lost=400)


def test_lost_work_is_not_counted_twice() -> None:
    world = started(mirrored())
    world.now += 100
    end(world, "worker-1", code=1)
    lost = world.memory.usage.gpus.lost
    for _ in range(3):
        world.now += 1000
        world.settle()
    resume(world)
    assert world.memory.usage.gpus.lost == lost
    world.now += 50
    end(world, "worker-1", code=1)
    assert world.memory.usage.gpus.lost == pytest.approx(lost + 200, abs=8)


def test_checkpoint_of_earlier_attempt_saves_no_later_work() -> None:
    world = started(mirrored())
    checkpoint(world, world.now + 10)
    world.now += 100
    end(world, "worker-1", code=1)
    world.now += 1000
    resume(world)
    before = world.memory.usage.gpus.lost
    world.now += 20
    end(world, "worker-1", code=1)
    assert world.memory.usage.gpus.lost == pytest.approx(before + 80, abs=8)


def test_counts_lost_work_of_preempted_gang() -> None:
    world = started(mirrored())
    world.now += 100
    world.verdict = Preempt(by=None, message="for a job of a higher priority")
    world.settle(most=1)
    usage = world.memory.usage
    assert (usage.gpus.held, usage.gpus.lost) == (pytest.approx(800), pytest.approx(800, abs=8))
    assert (usage.replicas_held, usage.waited) == (0, 0)
    assert usage.until(world.now + 30).waited == 30


def test_counts_lost_work_of_kubelet_restarts() -> None:
    world = started(mirrored())
    pod: Any = world.pod("worker-0")
    begun = world.now
    for number in (1, 2):
        world.now += 100
        ran = {"startedAt": format_micro_time(world.now - 100), "finishedAt": format_micro_time(world.now)}
        pod["status"]["containerStatuses"] = [
            {
                "name": "tensorflow",
                "restartCount": number,
                "state": {"running": {"startedAt": format_micro_time(world.now)}},
                "lastState": {"terminated": {"exitCode": 1, **ran}},
            }
        ]
        world.settle()
        world.settle()
        assert world.memory.usage.gpus.lost == 400 * number
    assert set(world.memory.usage.runs) == {"worker-0"}
    world.now += 50
    end(world, "worker-0")
    usage = world.memory.usage
    assert usage.runs == {}
    assert usage.gpus.lost == 800
    assert usage.gpus.trained == pytest.approx(8 * (world.now - begun), abs=8)


def test_counts_failed_run_observed_after_job_succeeded() -> None:
    world = started(mirrored())
    pod: Any = world.pod("worker-0")
    ran = {"startedAt": format_micro_time(world.now), "finishedAt": format_micro_time(world.now + 100)}
    again = {"startedAt": format_micro_time(world.now + 110), "finishedAt": format_micro_time(world.now + 160)}
    world.now += 170
    pod["status"] |= {
        "phase": "Succeeded",
        "containerStatuses": [
            {
                "name": "tensorflow",
                "restartCount": 1,
                "state": {"terminated": {"exitCode": 0, **again}},
                "lastState": {"terminated": {"exitCode": 1, **ran}},
            }
        ],
    }
    world.settle()
    usage = world.memory.usage
    assert world.memory.phase in (Phase.COMPLETING, Phase.COMPLETED)
    assert (usage.gpus.lost, usage.gpus.trained) == (400, pytest.approx(4 * (100 + 50 + 170)))


def test_failed_worker_with_parameter_servers_loses_nothing() -> None:
    world = started(v1_job(replicas("PS", 1, rules=ON_FAILURE), with_gpus(4)))
    world.now += 100
    end(world, "worker-1", code=1)
    assert world.memory.usage.gpus == Spent(trained=pytest.approx(400, abs=8), lost=0)
    world.now += 1000
    resume(world)
    world.now += 100
    end(world, "ps-0", code=1)
    assert world.memory.usage.replicas.lost == pytest.approx(1200, abs=8)


def test_suspended_job_holds_nothing_and_loses_its_work() -> None:
    world = started(mirrored())
    world.now += 100
    world.suspend(True)
    world.settle()
    usage = world.memory.usage
    assert world.memory.phase is Phase.ABORTED
    assert (usage.since, usage.gpus.held, usage.gpus.lost) == (None, 800, 800)
    assert train(world, 1000) == usage
    world.suspend(False)
    world.verdict = WAIT
    world.settle()
    assert train(world, 10).until(world.now).waited == pytest.approx(10)


def test_scaled_down_replicas_lose_nothing() -> None:
    world = started(v1_job(replicas("PS", 1), replace(with_gpus(4, number=3), min_replicas=1)))
    world.now += 100
    world.scale("worker", 2)
    world.settle()
    assert world.memory.usage.gpus.lost == 0


def test_clock_set_back_does_not_make_usage_negative() -> None:
    usage = Usage(since=START + 100, replicas_held=1, gpus_held=8)
    assert usage.until(START) == usage

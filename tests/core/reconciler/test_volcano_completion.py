"""How Volcano Jobs succeed and fail: minimums, tasks, dependencies."""

from __future__ import annotations

import pytest

from tests.core.builders import (
    replicas,
    volcano_job,
)
from tests.core.reconciler.scenarios import end, ended, lose, started
from tests.core.world import World
from tf_dist.core.model.job import (
    Action,
    CompletionByCounts,
    Dependency,
    Rule,
)
from tf_dist.core.model.status import Phase


def test_failed_worker_fails_job_when_other_workers_end() -> None:
    world = started(volcano_job())
    end(world, "worker-0", 1)
    assert world.memory.phase is Phase.RUNNING, "the other worker may still be of use"
    end(world, "worker-1")
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "worker-0" in world.memory.message


def test_job_without_policy_completes_when_all_workers_succeed() -> None:
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=())))
    end(world, "worker-0")
    end(world, "worker-1")
    assert ended(world) == (Phase.COMPLETED, "JobSucceeded")


@pytest.mark.parametrize(
    ("min_available", "task_minimum", "codes", "phase"),
    [
        (3, 3, (0, 0, 0), Phase.COMPLETED),
        (3, 3, (0, 0, 1), Phase.FAILED),
        (2, 3, (0, 0, 1), Phase.COMPLETED),
        (2, 3, (0, 1, 1), Phase.FAILED),
        (2, 2, (0, 0, 1), Phase.COMPLETED),
        (2, 2, (0, 1, 1), Phase.FAILED),
        (0, 0, (1, 1, 1), Phase.COMPLETED),
    ],
)
def test_required_number_of_succeeded_replicas(
    min_available: int, task_minimum: int, codes: tuple[int, ...], phase: Phase
) -> None:
    job = volcano_job(replicas("worker", 3, rules=(), min_replicas=task_minimum), min_available=min_available)
    world = started(job)
    for index, code in enumerate(codes):
        world.end(world.pods[f"tf-dist-mnist-worker-{index}"], code)
    world.settle()
    assert world.memory.phase is phase


def test_min_success_completes_immediately_and_fails_when_unreachable() -> None:
    job = volcano_job(replicas("worker", 3, rules=()), counting=CompletionByCounts(min_success=2))
    enough, short = started(job), started(job)
    end(enough, "worker-0")
    end(enough, "worker-2")
    assert ended(enough) == (Phase.COMPLETED, "MinSuccess")
    for index, code in enumerate((0, 1, 1)):
        short.end(short.pods[f"tf-dist-mnist-worker-{index}"], code)
    short.settle()
    assert ended(short) == (Phase.FAILED, "PodFailed")


@pytest.mark.parametrize(("any_", "pods"), [(False, 1), (True, 2)])
def test_dependents_wait_until_dependencies_are_ready(any_: bool, pods: int) -> None:
    specs = (
        replicas("ps", 1, rules=()),
        replicas("cache", 1, rules=(), depends=Dependency(on=("ps",))),
        replicas("worker", 1, rules=(), depends=Dependency(on=("ps", "cache"), any=any_)),
    )
    world = World(volcano_job(*specs))
    world.settle()
    assert set(world.pods) == {"tf-dist-mnist-ps-0"}
    world.run(world.pods["tf-dist-mnist-ps-0"], ready=False)
    world.settle()
    assert len(world.pods) == 1, "running is not ready"
    world.pods["tf-dist-mnist-ps-0"]["status"]["conditions"][0]["status"] = "True"
    world.settle()
    assert len(world.pods) == pods + 1


def test_job_fails_if_min_success_exceeds_replicas_that_end() -> None:
    counting = CompletionByCounts(min_success=3)
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=()), counting=counting))
    end(world, "worker-0")
    end(world, "worker-1")
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert world.memory.message == "every replica that ends has ended, and too few have succeeded"


def test_chain_of_dependents_on_permanently_failed_task_fails_job() -> None:
    specs = (
        replicas("ps", 1, rules=()),
        replicas("cache", 1, rules=(), depends=Dependency(on=("ps", "unknown"))),
        replicas("worker", 1, rules=(), depends=Dependency(on=("cache",))),
    )
    world = World(volcano_job(*specs))
    world.settle()
    world.run(world.pods["tf-dist-mnist-ps-0"], ready=False)
    end(world, "ps-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")


def test_dependents_on_permanently_failed_parameter_server_fail_job() -> None:
    specs = (replicas("ps", 1, rules=()), replicas("worker", 1, rules=(), depends=Dependency(on=("ps",))))
    world = World(volcano_job(*specs))
    world.settle()
    world.run(world.pods["tf-dist-mnist-ps-0"], ready=False)
    end(world, "ps-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "ps-0" in world.memory.message


def test_volcano_job_is_pending_when_too_few_pods_run() -> None:
    world = started(volcano_job(rules=(Rule(events=frozenset(), action=Action.ABORT_JOB),)))
    lose(world, "worker-1")
    assert world.memory.phase is Phase.PENDING

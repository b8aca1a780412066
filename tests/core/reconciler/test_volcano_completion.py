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


def test_a_worker_that_failed_beside_an_endless_parameter_server_ends_the_job_as_failed() -> None:
    world = started(volcano_job())
    end(world, "worker-0", 1)
    assert world.memory.phase is Phase.RUNNING, "the other worker may still be of use"
    end(world, "worker-1")
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "worker-0" in world.memory.message


def test_all_workers_done_complete_the_job_though_nobody_said_so() -> None:
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
def test_number_of_replicas_that_have_to_succeed(
    min_available: int, task_minimum: int, codes: tuple[int, ...], phase: Phase
) -> None:
    job = volcano_job(replicas("worker", 3, rules=(), min_replicas=task_minimum), min_available=min_available)
    world = started(job)
    for index, code in enumerate(codes):
        world.end(world.pods[f"tf-dist-mnist-worker-{index}"], code)
    world.settle()
    assert world.memory.phase is phase


def test_min_success_completes_at_once_and_fails_when_out_of_reach() -> None:
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
def test_dependents_wait_until_what_they_depend_on_is_ready(any_: bool, pods: int) -> None:
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


def test_min_success_beyond_what_ends_by_itself_fails_the_job_and_says_so() -> None:
    counting = CompletionByCounts(min_success=3)
    world = started(volcano_job(replicas("ps", 1, rules=()), replicas("worker", 2, rules=()), counting=counting))
    end(world, "worker-0")
    end(world, "worker-1")
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert world.memory.message == "every replica that ends has ended, and too few have succeeded"


def test_tasks_that_wait_in_a_row_for_one_that_failed_for_good_end_the_job() -> None:
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


def test_workers_that_wait_for_a_parameter_server_that_failed_for_good_end_the_job() -> None:
    specs = (replicas("ps", 1, rules=()), replicas("worker", 1, rules=(), depends=Dependency(on=("ps",))))
    world = World(volcano_job(*specs))
    world.settle()
    world.run(world.pods["tf-dist-mnist-ps-0"], ready=False)
    end(world, "ps-0", 1)
    assert ended(world) == (Phase.FAILED, "PodFailed")
    assert "ps-0" in world.memory.message


def test_a_volcano_job_is_pending_again_when_too_many_of_its_pods_are() -> None:
    world = started(volcano_job(rules=(Rule(events=frozenset(), action=Action.ABORT_JOB),)))
    lose(world, "worker-1")
    assert world.memory.phase is Phase.PENDING

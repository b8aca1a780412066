"""Passes of single jobs: failures, usage, and what queues a job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import World, disturbed, running, tfjob
from tests.waiting import until
from tf_dist.cluster.api import PODS, Resource
from tf_dist.controller.controller import Controller
from tf_dist.controller.observability.metrics_interface import Metric, MetricsRecorder
from tf_dist.core.model.usage import Usage
from tf_dist.errors import Conflict, Forbidden, NotFound, Unavailable


class Failures(MetricsRecorder):
    def __init__(self) -> None:
        self.counted: list[str] = []

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        self.counted += labels if metric is Metric.RECONCILE_ERRORS else ()


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (Conflict("another client was faster"), "Conflict"),
        (NotFound("the namespace is gone"), "NotFound"),
        (Unavailable("no answer"), "Unavailable"),
        (Forbidden("may not create pods"), "Forbidden"),
        (ZeroDivisionError("a defect"), "defect"),
    ],
)
def test_failed_passes_are_counted_by_error(error: Exception, counted: str) -> None:
    world, failures, left = World(), Failures(), [2]

    def fail(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", PODS) and left[0]:
            left[0] -= 1
            raise error

    world.controller = Controller(
        disturbed(world.memory, fail), clock=world.clock, monotonic=world.clock, recorder=failures
    )
    world.submit(tfjob())
    world.settle()
    assert failures.counted == [counted] * 2
    assert len(world.pods()) == 3


class Used(MetricsRecorder):
    def __init__(self) -> None:
        self.held = 0.0

    def used(self, queue: str, before: Usage, after: Usage) -> None:
        self.held += after.replicas.held - before.replicas.held


def test_usage_is_counted_once_when_status_is_written_later() -> None:
    """The status reports a succeeded replica up to ten seconds later. Other passes can come before."""
    world, used = World(), Used()
    world.controller = Controller(world.memory, clock=world.clock, monotonic=world.clock, recorder=used)
    world.run_job(tfjob(workers=3))
    for worker in ("mnist-worker-1", "mnist-worker-2"):
        world.clock.now += 100 if worker == "mnist-worker-1" else 3
        world.end_pod(worker, 0)
        world.settle()
    for ready in ("False", "True", "False"):
        world.set_status("mnist-ps-0", {**running(), "conditions": [{"type": "Ready", "status": ready}]})
        world.settle()
    world.clock.now += 100
    world.end_pod("mnist-worker-0", 0)
    world.settle()
    usage = world.status()["usage"]
    assert usage["replicas"]["held"] > 500
    assert used.held == pytest.approx(usage["replicas"]["held"])


class Passes(MetricsRecorder):
    def __init__(self) -> None:
        self.count = 0

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        self.count += metric is Metric.RECONCILE_SECONDS


def test_own_writes_of_pass_do_not_queue_job() -> None:
    """The pass writes the status, nine pods and their Services. Changes by others do queue the job."""
    world, passes = World(cpu="20"), Passes()
    driver = Controller(world.memory, recorder=passes)

    def at_rest() -> bool:
        work = driver.readings().work
        return work.depth == 0 and not work.running

    driver.start()
    try:
        world.submit(tfjob(workers=8))
        until(lambda: len(world.pods()) == 9 and at_rest(), 30)
        assert passes.count == 1
        before = passes.count
        world.run_pods(*world.pods())
        until(lambda: world.status()["phase"] == "Running", 30)
        assert passes.count > before
    finally:
        driver.stop()


def test_pods_created_by_pass_do_not_queue_job() -> None:
    """The job is also not queued when all pods exist."""
    world, adds = World(cpu="20"), list[int]()

    def at_rest() -> bool:
        return driver.readings().work.depth == 0

    def count(verb: str, resource: Resource | None = None, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", PODS):
            until(at_rest, 30)
            adds.append(driver.readings().work.adds)

    driver = Controller(disturbed(world.memory, count))
    driver.start()
    try:
        world.submit(tfjob(workers=8))
        until(lambda: len(world.pods()) == 9, 30)
        until(lambda: not driver.readings().work.running, 30)
        adds.append(driver.readings().work.adds)
    finally:
        driver.stop()
    # The status written before the first pod may be read late.
    assert max(adds) - adds[0] <= 1

"""The requests of a job to an API server: all writes of its life, and no requests while it is idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.controller.harness import World, tfjob
from tests.faults import recorder
from tests.faults.recorder import RecordingApp
from tests.waiting import until
from tf_dist.cluster.api import PODS, SERVICES, TFJOBS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.core.dialects.common_schema import SERVICES_ANNOTATION
from tf_dist.core.model.job import ServiceStyle

SECONDS = 60


class Recorded(World):
    """A world whose controller follows the cluster over HTTP, where its requests are recorded."""

    def __init__(self, client: RestCluster, world: World, app: RecordingApp) -> None:
        self.clock, self.memory, self.cluster, self.app = world.clock, world.memory, client, app
        self.controller = Controller(client, clock=self.clock, monotonic=self.clock)
        self.controller.informers.start()
        self.controller.step()  # the first term starts with a list of everything
        # A controller is synced after its lists, but its start is over only when everything is also watched.
        until(lambda: self.controller.synced() and app.asked("watch") == app.asked("list"), SECONDS)
        self.started = len(app.calls)

    def settle(self, most: int = 50) -> int:
        """Run passes until the controller has seen everything and has nothing left to do."""
        for count in range(most):
            until(self._caught_up, SECONDS, every=0.002)
            if self.controller.step() == 0 and self._caught_up():
                return count
        raise AssertionError(self.describe())

    def _caught_up(self) -> bool:
        informers = self.controller.informers
        seen = {
            TFJOBS: [stored for _, stored in informers.jobs()],
            PODS: informers._informers[PODS].items(),
            SERVICES: [
                one
                for ref, job in informers.jobs()
                for one in informers.objects(ref.namespace, job["metadata"]["uid"]).values()
            ],
        }
        return all(_versions(self.memory.list(kind).items) == _versions(known) for kind, known in seen.items())

    def later(self, seconds: float = 60.0) -> None:
        """Let time pass, and run passes for everything that is due."""
        self.clock.now += seconds
        self.settle()


def _versions(objects: list[Object]) -> set[tuple[str, str, bool]]:
    return {
        (o["metadata"]["uid"], o["metadata"]["resourceVersion"], "deletionTimestamp" in o["metadata"]) for o in objects
    }


@contextmanager
def recorded(**fields: Any) -> Iterator[Recorded]:
    world = World(**fields)
    with (
        recorder.recording(world.memory) as (server, app),
        RestCluster(server.app.url, token=server.token) as client,
    ):
        made = Recorded(client, world, app)
        try:
            yield made
        finally:
            made.controller.stop()


@pytest.fixture
def world() -> Iterator[Recorded]:
    with recorded() as world:
        yield world


def one_service(document: Object) -> Object:
    """The job with one headless Service, instead of a Service for each replica."""
    document["metadata"]["annotations"] = {SERVICES_ANNOTATION: str(ServiceStyle.PER_JOB)}
    return document


def begin(world: Recorded, **fields: Any) -> dict[str, list[str]]:
    world.submit(one_service(tfjob(workers=3, **fields)))
    world.settle()
    chapters = {"submitted": world.app.take()}
    world.run_pods()
    world.settle()
    return {**chapters, "all pods run": world.app.take()}


def test_writes_of_successful_job_match_golden_file(world: Recorded) -> None:
    chapters = begin(world)
    for name in ("mnist-worker-1", "mnist-worker-2", "mnist-worker-0"):
        world.end_pod(name, 0)
    world.settle()
    chapters["the workers succeed"] = world.app.take()
    world.bury()
    world.settle()
    chapters["the parameter server has stopped"] = world.app.take()
    recorder.compare("success", chapters)


def test_writes_of_failed_job_match_golden_file(world: Recorded) -> None:
    chapters = begin(world, backoffLimit=1)
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    world.bury()
    world.later()
    chapters["worker 1 is killed"] = world.app.take()
    world.run_pods()
    world.later()
    chapters["its new pod runs"] = world.app.take()
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    world.bury()
    world.later()
    chapters["it is killed again, and no restart is left"] = world.app.take()
    recorder.compare("failure", chapters)


def scale(world: Recorded, count: int) -> None:
    world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": count}}}})
    world.settle()
    world.bury()
    world.settle()
    world.run_pods()
    world.later()


def test_writes_of_scaled_job_match_golden_file(world: Recorded) -> None:
    document = one_service(tfjob(workers=3))
    document["spec"]["enableDynamicWorker"] = True
    world.submit(document)
    world.settle()
    world.run_pods()
    world.later()
    chapters = {"three workers run": world.app.take()}
    scale(world, 5)
    chapters["five workers"] = world.app.take()
    scale(world, 2)
    chapters["two workers"] = world.app.take()
    assert sorted(world.pods()) == ["mnist-ps-0", "mnist-worker-0", "mnist-worker-1"]
    recorder.compare("scaling", chapters)


def test_writes_of_suspended_job_match_golden_file(world: Recorded) -> None:
    chapters = begin(world)
    world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"suspend": True}}})
    world.settle()
    chapters["suspended"] = world.app.take()
    world.bury()
    world.later()
    chapters["its pods have stopped"] = world.app.take()
    world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"suspend": False}}})
    world.settle()
    world.run_pods()
    world.later()
    chapters["resumed"] = world.app.take()
    recorder.compare("suspension", chapters)


def test_deleted_job_causes_no_writes(world: Recorded) -> None:
    begin(world)
    world.app.take()
    world.memory.delete(TFJOBS, "default", "mnist")
    world.settle()
    world.bury()
    world.later()
    assert world.app.take() == []
    assert world.pods() == {}
    assert world.memory.list(SERVICES).items == []


def test_controller_reads_nothing_after_start(world: Recorded) -> None:
    begin(world)
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    world.bury()
    world.later()
    world.run_pods()
    world.later()
    world.evict("mnist-worker-2")
    world.later()
    world.run_pods()
    world.end_pod("mnist-worker-0", 0)
    world.settle()
    world.bury()
    world.settle()
    assert world.status()["phase"] == "Completed"
    reads = [call for call in world.app.calls[world.started :] if call.verb in ("get", "list")]
    assert reads == []


def test_controller_lists_each_kind_once_at_start() -> None:
    world = World()
    with (
        recorder.recording(world.memory) as (server, app),
        RestCluster(server.app.url, token=server.token) as client,
    ):
        controller = Controller(client)
        controller.start()
        until(lambda: controller.synced() and app.asked("watch") >= {"pods", "tfjobs", "services"}, SECONDS)
        controller.stop()
    listed = Counter(call.resource for call in app.calls if call.verb == "list")
    # Nodes and pods are listed once more, to check the permission to list them.
    assert (listed["tfjobs"], listed["services"], listed["nodes"], listed["pods"]) == (1, 1, 2, 2)


def test_idle_job_causes_no_requests(world: Recorded) -> None:
    begin(world)
    world.later()
    world.app.calls.clear()
    for _ in range(100):
        world.clock.now += 300  # the time between two routine checks
        assert world.controller.step() == 0
    assert world.app.calls == []


def test_number_of_writes_and_events_of_job_with_eight_pods_is_limited() -> None:
    with recorded(cpu="16") as world:
        world.cluster.create(TFJOBS, "default", one_service(tfjob(workers=7, cleanPodPolicy="None")))
        world.settle()
        # The kubelets start and end the pods one by one, with passes of the controller in between.
        for name in sorted(world.pods()):
            world.clock.now += 0.1
            world.run_pods(name)
            world.settle()
        world.clock.now += 3600
        for name in sorted((pod for pod in world.pods() if "worker" in pod), reverse=True):
            world.clock.now += 0.1
            world.end_pod(name, 0)
            world.settle()
        world.bury()
        world.settle()
        assert world.status()["phase"] == "Completed"
        writes = world.app.take()
        told = [line for line in writes if line.startswith("create events ")]
        assert len([line for line in told if "SuccessfulCreate" in line]) == 1 + 1, "\n".join(writes)
        assert len([line for line in told if line.endswith("ExitedWithCode")]) == 7, "\n".join(writes)
        assert len(writes) - len(told) <= 8 + 7, "\n".join(writes)
        recorder.compare("eight_pods", {"from submit to success": writes})

"""The memory of jobs on clusters whose CRDs prune ``status.tfDist``.

A controller continues jobs of older releases, and does not change jobs of newer releases.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.controller.foreign_api import Pruning
from tests.controller.harness import Crash, CrashingCluster, World, container, tfjob
from tf_dist.cluster.api import EVENTS, TFJOBS, VOLCANO_JOBS, Object, Resource
from tf_dist.controller.controller import Controller
from tf_dist.core.model.status_codec import FIELD, MEMORY_CONDITION, MEMORY_RESOURCE, VERSION, stored_status


def volcano_job() -> Object:
    spec = {"template": {"spec": {"containers": [container()]}}}
    tasks = [{"name": "ps", "replicas": 1, **spec}, {"name": "worker", "replicas": 2, **spec}]
    policies = [{"event": "PodFailed", "action": "RestartTask"}, {"event": "TaskCompleted", "action": "CompleteJob"}]
    document = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "mnist"}}
    return {**document, "spec": {"minAvailable": 3, "policies": policies, "tasks": tasks}}


KINDS = pytest.mark.parametrize(
    ("resource", "document"), [(TFJOBS, tfjob()), (VOLCANO_JOBS, volcano_job())], ids=["tfjob", "volcano"]
)


def pruned() -> tuple[World, Pruning]:
    world = World()
    cluster = Pruning(world.memory)
    world.cluster = cluster  # type: ignore[assignment]
    world.controller = Controller(world.cluster, clock=world.clock, monotonic=world.clock)
    return world, cluster


def memory(world: World, resource: Resource) -> dict[str, Any]:
    job = world.job(resource=resource)
    assert FIELD not in job["status"], "the definition keeps it, so this tests nothing"
    return dict(stored_status(job)[FIELD])


@KINDS
def test_job_completes_with_memory_in_unpruned_field(resource: Resource, document: Object) -> None:
    world, _ = pruned()
    world.run_job(document, resource)
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    world.bury()
    world.controller = Controller(
        world.cluster, clock=world.clock, monotonic=world.clock
    )  # a new controller, which has to read the memory
    world.start_pods()
    assert sum(memory(world, resource)["restarts"].values()) == 1
    for name in ("mnist-worker-0", "mnist-worker-1"):
        world.end_pod(name, 0)
    world.remove_pods()
    assert memory(world, resource)["phase"] == "Completed"
    assert "annotations" not in world.job(resource=resource)["metadata"]


@KINDS
def test_status_costs_one_write_once_pruning_is_known(resource: Resource, document: Object) -> None:
    world, cluster = pruned()
    for name in ("first", "second"):
        cluster.writes = 0
        world.submit({**document, "metadata": {"name": name}}, resource)
        world.settle()
        assert stored_status(world.job(name, resource))[FIELD]["reason"] == "Admitted"
    assert cluster.writes == 1


@KINDS
def test_crash_after_first_write_keeps_memory(resource: Resource, document: Object) -> None:
    """The first write of another controller must not drop the memory of the previous controller."""
    world, cluster = pruned()
    world.run_job(document, resource)
    dying = CrashingCluster(cluster)  # type: ignore[arg-type]
    dying.after = 1
    world.end_pod("mnist-worker-1", 137)
    with pytest.raises(Crash):
        Controller(dying, clock=world.clock).step()  # type: ignore[arg-type]
    found = memory(world, resource)
    assert (sum(found["restarts"].values()), "admission" in found) == (1, True)


def test_memory_condition_comes_first_and_exists_once() -> None:
    world, _ = pruned()
    world.run_job(tfjob())
    types = [condition["type"] for condition in world.job()["status"]["conditions"]]
    assert types == [MEMORY_CONDITION, "SpecAccepted", "Admitted", "Created", "Running"]
    job = world.job()
    assert [c["type"] for c in stored_status(job)["conditions"]] == types[1:]


def test_memory_is_separate_from_controlled_resources_of_volcano() -> None:
    world, _ = pruned()
    world.submit(volcano_job(), VOLCANO_JOBS)
    world.settle()
    job = world.job(resource=VOLCANO_JOBS)
    assert set(job["status"]["controlledResources"]) == {"tf-dist.dev/memory"}  # the key that other versions read
    assert stored_status(job)["controlledResources"] == {}


@KINDS
def test_memory_moves_to_own_field_when_crd_stops_pruning(resource: Resource, document: Object) -> None:
    world, cluster = pruned()
    world.submit(document, resource)
    world.settle()
    cluster._keeps = {}
    world.run_pods()
    world.settle()
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    status = world.job(resource=resource)["status"]
    assert sum(status[FIELD]["restarts"].values()) == 1
    assert MEMORY_RESOURCE not in str(status)
    assert MEMORY_CONDITION not in str(status)


def test_job_does_not_start_when_crd_prunes_whole_status() -> None:
    world = World()
    world.cluster = Pruning(world.memory, keeps=lambda _: {})  # type: ignore[assignment]
    world.controller = Controller(world.cluster, clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    for _ in range(5):
        world.controller.step()
        world.clock.now += 60
    assert world.pods() == {}
    assert any(
        "tfjobs.kubeflow.org does not store what tf-dist writes into the status" in text for _, text in world.events()
    )


@pytest.fixture
def world() -> World:
    return World()


def rewrite(world: World, **memory: Any) -> Object:
    """Change the memory as a controller of another release does. None removes a field."""
    stored = world.job()
    found = {key: value for key, value in {**stored["status"]["tfDist"], **memory}.items() if value is not None}
    status = {**stored["status"], "tfDist": found}
    return world.memory.replace(TFJOBS, "default", "mnist", {**stored, "status": status}, subresource="status")


def test_memory_contains_format_version(world: World) -> None:
    world.run_job(tfjob())
    assert world.status()["version"] == VERSION


def test_job_of_previous_release_continues(world: World) -> None:
    world.run_job(tfjob())
    world.end_pod("mnist-worker-1", 137)
    world.start_pods()
    rewrite(world, version=None, acceptedSpec=None)
    before = world.pods()
    world.controller = Controller(world.cluster, clock=world.clock)
    world.settle()
    assert world.pods() == before
    assert world.status()["version"] == VERSION
    assert world.status()["restarts"] == {"PodFailed": 1}


def test_job_of_newer_release_is_not_changed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.run_job(tfjob())
    stored = rewrite(world, version=VERSION + 1, phase="Dreaming", admission=["new"])
    world.controller = Controller(world.cluster, clock=world.clock)
    world.end_pod("mnist-worker-1", 137)
    before, told = world.pods(), [one["reason"] for one in world.memory.list(EVENTS).items]
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            world.settle()
            world.clock.now += 400
    assert world.job() == stored
    assert world.pods() == before
    (event,) = (one for one in world.memory.list(EVENTS).items if one["reason"] == "NewerStatusFormat")
    assert event["count"] == 1
    assert "upgrade this tf-dist" in event["message"]
    assert len([record for record in caplog.records if "skipping job=" in record.getMessage()]) == 1
    assert sorted(one["reason"] for one in world.memory.list(EVENTS).items) == sorted([*told, "NewerStatusFormat"])
    patch = {"spec": {"runPolicy": {"suspend": True, "ttlSecondsAfterFinished": 0}}}
    edited = world.memory.patch(TFJOBS, "default", "mnist", patch)
    world.settle()
    assert world.job() == edited
    assert world.pods() == before


def test_capacity_of_job_of_newer_release_stays_in_use(world: World) -> None:
    world.run_job(tfjob(workers=6))
    rewrite(world, version=VERSION + 1)
    world.controller = Controller(world.cluster, clock=world.clock)
    world.submit(tfjob("other", workers=6))
    world.settle()
    assert world.status("other")["reason"] == "WaitingForCapacity"
    assert len(world.phases()) == 7


def test_job_is_reconciled_again_when_its_format_becomes_known(world: World) -> None:
    world.run_job(tfjob())
    rewrite(world, version=VERSION + 1)
    world.controller = Controller(world.cluster, clock=world.clock)
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    rewrite(world, version=VERSION)
    world.settle()
    assert world.status()["restarts"] == {"PodFailed": 1}


def test_controller_forgets_deleted_jobs_of_newer_release(world: World) -> None:
    """A controller runs for months."""
    world.submit(tfjob())
    rewritten(world)
    for _ in range(20):
        world.settle()
        world.memory.delete(TFJOBS, "default", "mnist")
        world.settle()
        world.submit(tfjob())
        rewritten(world)
    world.settle()
    assert [uid for uid, _ in world.controller._workers._logged.values()] == [world.job()["metadata"]["uid"]]
    told = [one for one in world.memory.list(EVENTS).items if one["reason"] == "NewerStatusFormat"]
    assert world.job()["metadata"]["uid"] in {one["involvedObject"]["uid"] for one in told}


def rewritten(world: World) -> None:
    """A newer release has started to reconcile the job."""
    status = {"tfDist": {"phase": "Pending", "version": VERSION + 1}}
    world.memory.patch(TFJOBS, "default", "mnist", {"status": status}, subresource="status")

"""What a job remembers, on clusters whose definitions of jobs prune ``status.tfDist``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.driver.foreign import Pruning
from tests.driver.harness import Crash, CrashingCluster, World, container, tfjob
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Object, Resource
from tf_dist.core.pruned_status import CONDITION, RESOURCE
from tf_dist.core.status_codec import FIELD, stored_status
from tf_dist.driver.loop import Driver


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
    world.driver = Driver(world.cluster, clock=world.clock, monotonic=world.clock)
    return world, cluster


def memory(world: World, resource: Resource) -> dict[str, Any]:
    job = world.job(resource=resource)
    assert FIELD not in job["status"], "the definition keeps it, so this tests nothing"
    return dict(stored_status(job)[FIELD])


@KINDS
def test_a_job_lives_on_what_it_remembers_in_a_field_that_is_kept(resource: Resource, document: Object) -> None:
    world, _ = pruned()
    world.submit(document, resource)
    world.settle()
    world.run_pods()
    world.settle()
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    world.bury()
    world.driver = Driver(
        world.cluster, clock=world.clock, monotonic=world.clock
    )  # another one, that has to find the memory again
    world.settle()
    world.run_pods()
    world.settle()
    assert sum(memory(world, resource)["restarts"].values()) == 1
    for name in ("mnist-worker-0", "mnist-worker-1"):
        world.end_pod(name, 0)
    world.settle()
    world.bury()
    world.settle()
    assert memory(world, resource)["phase"] == "Completed"
    assert "annotations" not in world.job(resource=resource)["metadata"]


@KINDS
def test_once_it_is_known_that_a_definition_prunes_a_status_costs_one_write(
    resource: Resource, document: Object
) -> None:
    world, cluster = pruned()
    for name in ("first", "second"):
        cluster.writes = 0
        world.submit({**document, "metadata": {"name": name}}, resource)
        world.settle()
        assert stored_status(world.job(name, resource))[FIELD]["reason"] == "Admitted"
    assert cluster.writes == 1


@KINDS
def test_a_driver_that_dies_at_any_write_leaves_the_memory_to_the_next(resource: Resource, document: Object) -> None:
    """The first write of another driver must not drop what the last one wrote."""
    world, cluster = pruned()
    world.submit(document, resource)
    world.settle()
    world.run_pods()
    world.settle()
    dying = CrashingCluster(cluster)  # type: ignore[arg-type]
    dying.after = 1
    world.end_pod("mnist-worker-1", 137)
    with pytest.raises(Crash):
        Driver(dying, clock=world.clock).step()  # type: ignore[arg-type]
    found = memory(world, resource)
    assert (sum(found["restarts"].values()), "admission" in found) == (1, True)


def test_the_condition_does_not_hide_the_state_and_is_there_once() -> None:
    world, _ = pruned()
    world.submit(tfjob())
    world.settle()
    world.run_pods()
    world.settle()
    types = [condition["type"] for condition in world.job()["status"]["conditions"]]
    assert types == [CONDITION, "SpecAccepted", "Admitted", "Created", "Running"]
    job = world.job()
    assert [c["type"] for c in stored_status(job)["conditions"]] == types[1:]


def test_volcanos_own_controlled_resources_stay_apart() -> None:
    world, _ = pruned()
    world.submit(volcano_job(), VOLCANO_JOBS)
    world.settle()
    job = world.job(resource=VOLCANO_JOBS)
    assert set(job["status"]["controlledResources"]) == {"tf-dist.dev/memory"}  # as other versions find it
    assert stored_status(job)["controlledResources"] == {}


@KINDS
def test_where_the_definition_becomes_ours_the_memory_goes_where_it_belongs(
    resource: Resource, document: Object
) -> None:
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
    assert RESOURCE not in str(status)
    assert CONDITION not in str(status)


def test_where_nothing_is_kept_nothing_is_done_and_an_event_says_why() -> None:
    world = World()
    world.cluster = Pruning(world.memory, keeps=lambda _: {})  # type: ignore[assignment]
    world.driver = Driver(world.cluster, clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    for _ in range(5):
        world.driver.step()
        world.clock.now += 60
    assert world.pods() == {}
    assert any("tfjobs.kubeflow.org keeps nothing of what tf-dist remembers" in text for _, text in world.events())

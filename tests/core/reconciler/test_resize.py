"""Resizing a running job: which pods are deleted, created and restarted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import NEVER, ON_FAILURE, START, observed, replicas, v1_job, volcano_job
from tests.core.world import World, pinned_to
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit, Resize
from tf_dist.core.model.context import EmitEvent
from tf_dist.core.model.job import Action, Event, Job, Rule, Scheduling, TFConfigStyle
from tf_dist.core.model.status import Phase
from tf_dist.core.reconciler.reconcile import reconcile


def elastic(
    style: TFConfigStyle = TFConfigStyle.SPARSE, *, ps: int = 1, rules: tuple[Rule, ...] = NEVER, **fields: Any
) -> Job:
    worker = replicas("Worker", 3, rules=rules, min_replicas=1, max_replicas=6)
    servers = [replicas("PS", ps)] if ps else []
    return v1_job(*servers, worker, tf_config=style, scheduling=Scheduling(min_available=1 + ps), **fields)


def admitted(job: Job, **sizes: int) -> World:
    """A world in which the job runs with these sizes."""
    world = World(job)
    world.verdict = Admit(sizes=sizes)
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    assert world.memory.phase is Phase.RUNNING
    return world


def resize(world: World, message: str = "no gang waits", placement: Any = None, **sizes: int) -> None:
    world.verdict = Resize(sizes=sizes, placement=placement or {}, message=message)
    world.settle()


def uids(world: World) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}


def attempts(world: World) -> set[str]:
    return {pod["metadata"]["labels"][names.ATTEMPT] for pod in world.pods.values()}


def test_starts_with_admitted_number_of_workers() -> None:
    world = World(elastic())
    world.verdict = Admit(sizes={"ps": 1, "worker": 2})
    world.settle()
    assert set(world.pods) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    assert ("Service", "mnist-worker-2") not in world.objects
    alone = ", by quota alone; the scheduler may still hold pods back"
    assert (world.memory.reason, world.memory.message) == ("Admitted", f"begins with 2 worker instead of 3{alone}")
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    assert world.status["tfDist"]["ready"] == "3/3"


def held_back(placement: dict[str, int], **sizes: int) -> World:
    """A world in which worker 0 is pinned to n2 but not bound, and its job is resized to this placement."""
    world = World(elastic(ps=0))
    world.verdict = Admit(sizes={"worker": 1}, placement={"worker": {"n2": 1}})
    world.settle()
    world.hold_back(world.pods["mnist-worker-0"])
    resize(world, placement={"worker": placement}, **sizes)
    world.verdict = None
    return world


def test_new_worker_does_not_take_node_of_unbound_worker() -> None:
    world = held_back({"n1": 1, "n2": 1}, worker=2)
    assert {name: pinned_to(pod) for name, pod in world.pods.items()} == {
        "mnist-worker-0": "n2",
        "mnist-worker-1": "n1",
    }


def test_worker_is_unpinned_from_node_in_its_affinity() -> None:
    world = held_back({"n1": 1, "n2": 1}, worker=2)
    world.now += 31
    world.settle()
    assert (world.memory.reason, list(world.memory.refused_nodes)) == ("Unpinned", ["n2"])
    assert world.memory.message.startswith("may now go to any node: worker-0 from n2 (")
    assert world.admission.placement == {"worker": {"n1": 1}}


def test_worker_is_unpinned_from_node_that_is_no_longer_assigned() -> None:
    world = held_back({"n1": 1}, worker=1)
    world.now += 31
    world.settle()
    assert list(world.memory.refused_nodes) == ["n2"]
    assert {name: pinned_to(pod) for name, pod in world.pods.items()} == {"mnist-worker-0": ""}


def test_resizing_sparse_workers_restarts_nothing() -> None:
    world = admitted(elastic(), ps=1, worker=2)
    before = uids(world)
    resize(world, ps=1, worker=5)
    assert len(world.pods) == 6
    assert {name: uids(world)[name] for name in before} == before
    assert ("Service", "mnist-worker-4") in world.objects
    assert world.memory.reason == "Resized"
    assert world.memory.message == "no gang waits"
    assert world.admission.resized == world.now
    world.now += 100
    resize(world, "default/other waits", ps=1, worker=1)
    assert uids(world) == {name: before[name] for name in ("mnist-ps-0", "mnist-worker-0")}
    assert ("Service", "mnist-worker-1") not in world.objects
    assert (world.memory.phase, dict(world.memory.restarts)) == (Phase.RUNNING, {})
    assert world.memory.failure is None


def test_resize_emits_one_event() -> None:
    job = elastic()
    world = admitted(job, ps=1, worker=2)
    world.verdict = Resize(sizes={"ps": 1, "worker": 4}, placement={}, message="no gang waits")
    plan = world.look()
    told = [action for action in plan.actions if isinstance(action, EmitEvent)]
    assert told == [EmitEvent("Normal", "Resized", "no gang waits")]
    world.settle()
    world.now += 1000
    assert not world.look().actions
    resize(world, "a gang waits", ps=1, worker=3)
    world.verdict = Resize(sizes={"ps": 1, "worker": 4}, placement={}, message="no gang waits")
    assert EmitEvent("Normal", "Resized", "no gang waits") in world.look().actions


def test_growing_with_dense_tf_config_restarts_without_charge() -> None:
    world = admitted(elastic(TFConfigStyle.V1), ps=1, worker=2)
    resize(world, ps=1, worker=4)
    assert (len(world.pods), attempts(world)) == (5, {"2.0.0"})
    assert dict(world.memory.restarts) == {"Resized": 1}
    assert world.memory.charged_restarts == 0
    config = world.pods["mnist-worker-0"]["spec"]["containers"][0]["env"][-1]["value"]
    assert config.count("worker-") == 4


def test_restart_for_growing_has_event_and_restarting_phase() -> None:
    world = admitted(elastic(TFConfigStyle.V1), ps=1, worker=2)
    world.verdict = Resize(sizes={"ps": 1, "worker": 4}, placement={}, message="no gang waits")
    plan = world.look()
    told = next(action for action in plan.actions if isinstance(action, EmitEvent))
    assert (told.type, told.reason) == ("Normal", "Resized")
    assert told.message.endswith("no gang waits; all replicas start again, because TF_CONFIG names every one of them")
    assert plan.status.phase is Phase.RESTARTING


def test_shrinking_with_parameter_servers_restarts_nothing() -> None:
    world = admitted(elastic(TFConfigStyle.V1), ps=1, worker=3)
    before = uids(world)
    resize(world, ps=1, worker=2)
    assert uids(world) == {name: uid for name, uid in before.items() if name != "mnist-worker-2"}


def test_shrinking_without_parameter_servers_restarts_all_workers() -> None:
    world = admitted(elastic(TFConfigStyle.V1, ps=0), worker=3)
    resize(world, worker=2)
    assert (len(world.pods), attempts(world)) == (2, {"2.0.0"})


def test_resize_before_first_pod_restarts_nothing() -> None:
    job = elastic(TFConfigStyle.V1)
    first = reconcile(job, observed(job, verdict=Admit(sizes={"ps": 1, "worker": 2})))
    verdict = Resize(sizes={"ps": 1, "worker": 4}, placement={}, message="no gang waits")
    again = reconcile(job, observed(job, verdict=verdict), first.status)
    assert (again.status.attempts.job, dict(again.status.restarts)) == (1, {})
    assert again.status.admission is not None
    assert dict(again.status.admission.sizes) == {"ps": 1, "worker": 4}


def test_removed_workers_are_not_disruptions_and_can_return() -> None:
    world = admitted(elastic(), ps=1, worker=3)
    resize(world, ps=1, worker=1)
    assert not {str(replica) for replica in world.memory.observed_replicas} & {"worker-1", "worker-2"}
    resize(world, ps=1, worker=3)
    assert len(world.pods) == 4
    assert (dict(world.memory.restarts), world.memory.failure) == ({}, None)


def test_counts_container_restarts_of_removed_workers() -> None:
    world = admitted(elastic(rules=ON_FAILURE), ps=1, worker=3)
    leaving = world.pod("worker-2")
    world.restart_container(leaving, 1)
    world.settle()
    resize(world, ps=1, worker=2)
    assert world.memory.container_restarts == 1


def test_lowering_replicas_shrinks_job_immediately() -> None:
    job = v1_job(replicas("PS", 1), replicas("Worker", 4), tf_config=TFConfigStyle.SPARSE)
    world = admitted(job, ps=1, worker=4)
    world.verdict = None
    world.scale("worker", 2)
    world.settle()
    assert set(world.pods) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    assert dict(world.admission.sizes) == {"ps": 1, "worker": 2}
    assert world.memory.message == "goes from 4 to 2 worker, as the job now requests"


def test_assigned_nodes_of_removed_workers_are_released() -> None:
    world = World(v1_job(replicas("PS", 1), replicas("Worker", 4), tf_config=TFConfigStyle.SPARSE))
    placement = {"ps": {"n2": 1}, "worker": {"n1": 2, "n2": 1, "n3": 1}}
    world.verdict = Admit(sizes={"ps": 1, "worker": 4}, placement=placement)
    world.settle()
    world.verdict = None
    world.scale("worker", 2)
    world.settle()
    assert world.admission.placement == {"ps": {"n2": 1}, "worker": {"n1": 1, "n2": 1}}
    assert {name: pinned_to(pod) for name, pod in world.pods.items()} == {
        "mnist-ps-0": "n2",
        "mnist-worker-0": "n2",
        "mnist-worker-1": "n1",
    }


def test_raising_replicas_waits_for_admission() -> None:
    job = v1_job(replicas("PS", 1), replicas("Worker", 2), tf_config=TFConfigStyle.SPARSE)
    world = admitted(job, ps=1, worker=2)
    world.verdict = Admit()
    world.scale("worker", 4)
    world.settle()
    assert len(world.pods) == 3
    resize(world, ps=1, worker=4)
    assert len(world.pods) == 5


def test_resize_is_limited_to_max_replicas() -> None:
    world = admitted(elastic(), ps=1, worker=2)
    resize(world, ps=1, worker=9)
    assert len(world.pods) == 7


def test_volcano_host_files_follow_resize() -> None:
    worker = replicas("worker", 4, min_replicas=1)
    job = volcano_job(replicas("ps", 1), worker, min_available=2)
    world = admitted(job, ps=1, worker=2)
    before = uids(world)
    resize(world, ps=1, worker=4)
    hosts = world.objects["ConfigMap", "tf-dist-mnist-svc"]["data"]["worker.host"]
    assert len(hosts.split()) == 4
    assert {name: uids(world)[name] for name in before} == before
    assert world.memory.charged_restarts == 0


def test_smaller_volcano_job_completes_when_existing_replicas_succeed() -> None:
    worker = replicas("worker", 4, rules=(), min_replicas=2)
    job = volcano_job(replicas("ps", 1, rules=()), worker, min_available=3)
    world = admitted(job, ps=1, worker=2)
    for name in ("tf-dist-mnist-worker-0", "tf-dist-mnist-worker-1"):
        world.end(world.pods[name], 0)
    world.settle()
    assert world.memory.phase is Phase.COMPLETED


def test_restart_of_finished_replicas_comes_before_growth() -> None:
    """The verdict was computed with one replica fewer than exist after the restart."""
    worker = replicas("worker", 3, rules=(), min_replicas=1, max_replicas=5)
    rule = Rule(events=frozenset({Event.POD_FAILED}), action=Action.RESTART_JOB)
    world = admitted(volcano_job(worker, min_available=3, rules=(rule,)), worker=3)
    world.end(world.pods["tf-dist-mnist-worker-0"], 0)
    world.settle()
    world.end(world.pods["tf-dist-mnist-worker-2"], 1)
    world.verdict = Resize(sizes={"worker": 4}, placement={}, message="no gang waits")
    world.step()
    assert world.memory.attempts.job == 2
    assert dict(world.admission.sizes) == {"worker": 3}
    world.settle()
    assert dict(world.admission.sizes) == {"worker": 4}


def test_finished_job_keeps_last_sizes_and_counts() -> None:
    world = admitted(elastic(), ps=1, worker=2)
    resize(world, ps=1, worker=5)
    for pod in world.pods.values():
        world.run(pod)
    last = world.pod("worker-4")
    world.end(last, 0)
    world.settle()
    first = world.pod("worker-0")
    world.end(first, 0)
    world.settle()
    assert world.memory.phase is Phase.COMPLETED
    assert dict(world.memory.last_sizes) == {"ps": 1, "worker": 5}
    assert world.memory.counts["worker"].succeeded == 2


def test_pods_are_pinned_to_assigned_nodes() -> None:
    placement = {"ps": {"n2": 1}, "worker": {"n1": 2}}
    world = World(elastic())
    world.verdict = Admit(sizes={"ps": 1, "worker": 2}, placement=placement)
    world.settle()
    assert {name: pinned_to(pod) for name, pod in world.pods.items()} == {
        "mnist-ps-0": "n2",
        "mnist-worker-0": "n1",
        "mnist-worker-1": "n1",
    }
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    resize(world, placement={"ps": {"n2": 1}, "worker": {"n1": 2, "n3": 1}}, ps=1, worker=3)
    assert pinned_to(world.pods["mnist-worker-2"]) == "n3"
    lost = world.pods["mnist-worker-1"]
    world.remove(lost)
    world.settle()
    world.now += 60
    world.settle()
    assert pinned_to(world.pods["mnist-worker-1"]) == "n1"


def test_pods_have_no_affinity_without_placement() -> None:
    world = World(elastic())
    world.verdict = Admit(sizes={"ps": 1, "worker": 2})
    world.settle()
    assert all("affinity" not in pod["spec"] for pod in world.pods.values())


def test_changed_placement_is_stored_without_event() -> None:
    world = admitted(elastic(), ps=1, worker=2)
    moved = {"ps": {"n1": 1}, "worker": {"n2": 2}}
    world.verdict = Resize(sizes={"ps": 1, "worker": 2}, placement=moved, message="")
    plan = world.look()
    assert not any(isinstance(action, EmitEvent) for action in plan.actions)
    world.settle()
    assert (world.admission.placement, world.admission.resized) == (moved, None)


def test_admission_without_sizes_means_all_replicas() -> None:
    job = elastic()
    world = World(job)
    world.settle()
    del world.status["tfDist"]["admission"]
    world.status["tfDist"]["admission"] = {"at": "2027-01-15T08:00:00.000000Z"}
    world.settle()
    assert len(world.pods) == 4
    assert world.admission.at == START


def test_replica_of_removed_type_is_not_missing() -> None:
    world = admitted(elastic(), ps=1, worker=2)
    world.job = elastic(ps=0)
    world.settle()
    assert {replica.type for replica in world.memory.observed_replicas} == {"worker"}


def test_resize_applies_even_if_assigned_node_has_closed() -> None:
    """The replica assigned to the closed node has no pod until the next verdict."""
    world = World(elastic(ps=0))
    world.verdict = Admit(sizes={"worker": 2}, placement={"worker": {"n1": 2}})
    world.settle()
    for pod in world.pods.values():
        world.run(pod)
    world.settle()
    world.closed_nodes = frozenset({"n2"})
    world.verdict = Resize(sizes={"worker": 3}, placement={"worker": {"n1": 2, "n2": 1}}, message="no gang waits")
    world.settle()
    place = world.admission
    assert place.sizes == {"worker": 3}
    assert len(world.pods) == 2
    world.verdict = Resize(sizes={"worker": 3}, placement={"worker": {"n1": 2, "n3": 1}}, message="other nodes")
    world.settle()
    assert sorted(pinned_to(pod) for pod in world.pods.values()) == ["n1", "n1", "n3"]


@pytest.mark.parametrize(("count", "left"), [(3, {"n1": 2, "n2": 1}), (2, {"n1": 1, "n2": 1}), (1, {"n2": 1})])
def test_job_scaled_down_by_user_keeps_nodes_of_remaining_pods(count: int, left: dict[str, int]) -> None:
    """Worker 0 started alone on n2, which is the last node by index since the growth."""
    world = World(elastic(ps=0))
    world.verdict = Admit(sizes={"worker": 1}, placement={"worker": {"n2": 1}})
    world.settle()
    world.run(world.pod("worker-0"))
    resize(world, placement={"worker": {"n1": 2, "n2": 1}}, worker=3)
    world.verdict = None
    for name in ("worker-1", "worker-2"):
        world.run(world.pod(name))
    world.settle()
    specs = tuple(replace(spec, replicas=count, max_replicas=count) for spec in world.job.replica_specs)
    world.job = replace(world.job, replica_specs=specs)
    world.settle()
    assert world.admission.placement == {"worker": left}
    world.remove(world.pod("worker-0"))
    world.settle()
    assert pinned_to(world.pods["mnist-worker-0"]) == "n2"

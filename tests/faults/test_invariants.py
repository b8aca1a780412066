"""Each invariant reports a write that violates it, and does not report the writes of correct controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.controller.harness import Clock, World, replica, running, tfjob
from tests.faults.invariants import Invariants
from tests.faults.record import HANDS, Author
from tests.faults.rest import Rest
from tf_dist.cluster.api import (
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    SERVICES,
    TFJOBS,
    VOLCANO_JOBS,
    Object,
)
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.lease import LeaseRef, leader_lease, new_lease
from tf_dist.controller.controller import Controller
from tf_dist.core.model import names

ME = Author("me", sees_nodes=True)
LEADER = ME._replace(leases=True)
CLUSTER, NAMESPACE = leader_lease(TFJOBS, None), leader_lease(TFJOBS, "default")


class Judged(World):
    """A world in which invariants check every write. Writes in ``by`` have the given author."""

    def __init__(self, cpu: str = "8") -> None:
        self.clock = Clock()
        self._by = HANDS
        self.invariants = Invariants(self.clock, lambda: self._by)
        self.invariants.strict = True
        self.memory = self.cluster = MemoryCluster(clock=self.clock, journal=self.invariants)
        node = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}}
        self.memory.create(NODES, None, node)
        self.memory.replace(NODES, None, "n1", {**self.memory.get(NODES, None, "n1"), **node}, subresource="status")
        self.controller = Controller(self.cluster, clock=self.clock, monotonic=self.clock)

    def settle(self, most: int = 50) -> int:
        return self.by(ME, lambda: World.settle(self, most))

    def by(self, author: Author, act: Callable[[], Any]) -> Any:
        self._by = author
        try:
            return act()
        finally:
            self._by = HANDS

    def begun(self, **fields: Any) -> Object:
        """Run a job, and return its document."""
        self.submit(tfjob("a", **fields))
        self.settle()
        self.run_pods()
        self.settle()
        return self.job("a")

    def remember(self, author: Author = ME, called: str = "a", **memory: Any) -> None:
        """Write fields into the memory of a job as a controller."""
        stored = self.job(called)
        status = {**(stored.get("status") or {})}
        status["tfDist"] = {**status.get("tfDist", {}), **memory}
        body = {**stored, "status": status}
        self.by(author, lambda: self.memory.replace(TFJOBS, "default", called, body, subresource="status"))

    @property
    def broken(self) -> str:
        return " | ".join(self.invariants.broken)

    @property
    def unrest(self) -> str:
        return " | ".join(map(str, Rest(self.invariants).unrest()))


@pytest.fixture
def world() -> Judged:
    return Judged()


def copied(pod: Object, **labels: str) -> Object:
    metadata = {key: pod["metadata"][key] for key in ("namespace", "ownerReferences")}
    named = {**metadata, "name": "another", "labels": {**pod["metadata"]["labels"], **labels}}
    return {"metadata": named, "spec": {"containers": pod["spec"]["containers"]}}


def test_complete_life_of_job_violates_no_invariant(world: Judged) -> None:
    world.begun(backoffLimit=3)
    assert world.unrest == ""
    world.end_pod("a-worker-1", 137)
    world.settle()
    world.bury()
    world.settle()
    world.run_pods()
    world.end_pod("a-worker-0", 0)
    world.settle()
    world.bury()
    world.settle()
    assert world.status("a")["phase"] == "Completed"
    assert (world.broken, world.unrest) == ("", "")


def test_overlapping_attempts_are_reported(world: Judged) -> None:
    world.begun()
    pod = copied(world.pods()["a-ps-0"], **{names.ATTEMPT: "2.0.0"})
    world.by(ME, lambda: world.memory.create(PODS, "default", pod))
    assert "comes while" in world.broken


def test_write_to_object_without_job_is_reported(world: Judged) -> None:
    service = {"metadata": {"name": "mine", "labels": {names.JOB_UID: "x"}}, "spec": {"ports": [{"port": 80}]}}
    world.memory.create(SERVICES, "default", service)
    world.by(ME, lambda: world.memory.delete(SERVICES, "default", "mine"))
    assert "not a job's" in world.broken


def lead(world: Judged, ref: LeaseRef, holder: str = "me") -> None:
    world.memory.create(LEASES, ref.namespace, new_lease(ref, holder, 15.0, world.clock.now))


@pytest.mark.parametrize(
    ("ref", "holder", "silent", "told"),
    [
        (CLUSTER, "me", 14.0, False),
        (NAMESPACE, "me", 14.0, False),
        (NAMESPACE, "me", 16.0, True),
        (NAMESPACE, "other", 1.0, True),
        (leader_lease(TFJOBS, "another"), "me", 1.0, True),
        (leader_lease(VOLCANO_JOBS, "default"), "me", 1.0, True),
    ],
)
def test_only_writes_without_leadership_are_reported(
    world: Judged, ref: LeaseRef, holder: str, silent: float, told: bool
) -> None:
    world.begun()
    if ref.namespace == "another":
        world.memory.create(NAMESPACES, None, {"metadata": {"name": "another"}})
    lead(world, ref, holder)
    world.clock.now += silent
    world.remember(LEADER, seen={"worker": "0"})
    world.by(LEADER, lambda: world.memory.delete(PODS, "default", "a-worker-1"))
    assert ("pods a-worker-1" in world.broken) is told
    assert ("tfjobs.kubeflow.org a" in world.broken) is told


@pytest.mark.parametrize(("since", "told"), [(14.0, False), (16.0, True)])
def test_writes_after_deletion_of_lease_are_excused_for_its_duration(world: Judged, since: float, told: bool) -> None:
    world.begun()
    lead(world, NAMESPACE)
    world.memory.delete(LEASES, *NAMESPACE)
    world.clock.now += since
    world.remember(LEADER, seen={"worker": "0"})
    assert ("me wrote, and [] lead" in world.broken) is told


def test_restore_does_not_change_age_of_lease(world: Judged) -> None:
    world.begun()
    lead(world, CLUSTER)
    invariants = world.invariants
    objects, saved = dict(invariants.objects), invariants.saved()
    world.clock.now += 16.0
    invariants.restore(objects, saved)
    world.remember(LEADER, seen={"worker": "0"})
    assert "me wrote" in world.broken


def test_pod_lost_in_restore_counts_as_taken(world: Judged) -> None:
    world.begun(backoffLimit=0)
    invariants = world.invariants
    objects = {key: obj for key, obj in invariants.objects.items() if key.name != "a-worker-1"}
    invariants.restore(objects, invariants.saved())
    world.remember(disruptions={"PodEvicted": 1})
    assert world.broken == ""
    world.remember(disruptions={"PodEvicted": 2})
    assert "2 disruptions for 0" in world.broken


def test_restarts_without_failed_pods_are_reported(world: Judged) -> None:
    world.begun(backoffLimit=0)
    world.remember(restarts={"PodFailed": 1})
    assert "1 restarts for 0 pods" in world.broken


def test_disruptions_without_taken_pods_are_reported(world: Judged) -> None:
    world.begun()
    world.remember(disruptions={"Deleted": 1})
    assert "1 disruptions for 0" in world.broken


@pytest.mark.parametrize(
    ("phase", "reason", "told"),
    [
        ("Completed", "JobSucceeded", "succeeded with []"),
        ("Failed", "BackoffLimitExceeded", "within the limit"),
        ("Failed", "PodFailed", "no pod of it has failed"),
        ("Failed", "DeadlineExceeded", "no deadline"),
        ("Completed", "TaskCompleted", "no replica of it has succeeded"),
        ("Failed", "BadWeather", "nothing explains"),
    ],
)
def test_unjustified_end_of_job_is_reported(world: Judged, phase: str, reason: str, told: str) -> None:
    world.begun(backoffLimit=2)
    world.remember(phase=phase, reason=reason)
    assert told in world.broken


def test_reverted_end_of_job_is_reported(world: Judged) -> None:
    world.begun()
    world.end_pod("a-worker-0", 0)
    world.settle()
    world.bury()
    world.settle()
    world.remember(phase="Running")
    assert "was the end" in world.broken


def test_decreased_attempt_is_reported(world: Judged) -> None:
    world.begun()
    world.remember(attempts={"job": 2})
    assert world.broken == ""
    world.remember(attempts={"job": 1})
    assert "attempt 2 became 1" in world.broken


def test_admission_beyond_capacity_is_reported(world: Judged) -> None:
    place = world.begun(workers=5)["status"]["tfDist"]["admission"]
    world.submit(tfjob("b", workers=2))
    world.settle()
    assert world.broken == ""
    world.remember(called="b", admission=place)
    assert "9 CPUs" not in world.broken
    assert "places for" in world.broken


def test_assignment_beyond_capacity_of_node_is_reported(world: Judged) -> None:
    node = {"metadata": {"name": "n2"}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}}
    world.memory.create(NODES, None, node)
    world.memory.replace(NODES, None, "n2", {**world.memory.get(NODES, None, "n2"), **node}, subresource="status")
    place = world.begun(workers=5)["status"]["tfDist"]["admission"]
    world.submit(tfjob("b", workers=5))
    world.remember(called="b", phase="Pending", admission={**place, "placement": {"worker": {"n2": 5}}})
    assert world.broken == ""
    world.remember(called="b", admission={**place, "placement": {"worker": {"n1": 3, "n2": 2}}})
    assert "CPUs of n1 were given away, and it has 8" in world.broken


def test_success_lost_in_restore_still_counts(world: Judged) -> None:
    world.begun()
    there, before = dict(world.invariants.objects), world.invariants.saved()
    world.end_pod("a-worker-0", 0)
    world.invariants.restore(there, before)
    world.remember(phase="Completed", reason="JobSucceeded")
    assert world.broken == ""


@pytest.mark.parametrize(
    "blind",
    [
        pytest.param(ME._replace(unserved=frozenset({"tfjobs.kubeflow.org"})), id="not served"),
        pytest.param(ME._replace(kinds=frozenset({"jobs.batch.volcano.sh"})), id="led by another"),
    ],
)
def test_jobs_that_controller_cannot_know_do_not_count(world: Judged, blind: Author) -> None:
    world.begun()
    world.submit(tfjob("b", workers=7))
    place = {
        "at": "2027-01-15T08:00:00Z",
        "sizes": {"ps": 1, "worker": 7},
        "placement": {"ps": {"n1": 1}, "worker": {"n1": 7}},
    }
    status = {"tfDist": {"phase": "Pending", "admission": place}}
    world.invariants.strict = False
    world.by(blind, lambda: world.memory.patch(TFJOBS, "default", "b", {"status": status}, subresource="status"))
    assert world.broken == ""
    world.memory.patch(TFJOBS, "default", "b", {"status": {"tfDist": {"admission": None}}}, subresource="status")
    world.by(ME, lambda: world.memory.patch(TFJOBS, "default", "b", {"status": status}, subresource="status"))
    assert "were given away" in world.broken


def test_admission_beyond_pods_of_another_leader_is_reported(world: Judged) -> None:
    place = world.begun(workers=5)["status"]["tfDist"]["admission"]
    world.submit(tfjob("b", workers=5))
    world.settle()
    world.clock.now += 60
    other = ME._replace(kinds=frozenset({"jobs.batch.volcano.sh"}))
    world.remember(other, called="b", phase="Pending", admission=place)
    assert "with b 12 CPUs are taken of 8" in world.broken


def test_permanently_failed_replica_uses_no_capacity(world: Judged) -> None:
    job = tfjob("a", workers=7, ps=1)
    job["spec"]["enableDynamicWorker"] = True
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    world.submit(job)
    world.settle()
    world.run_pods()
    world.settle()
    world.end_pod("a-worker-3", 1)
    before = world.invariants.holds(world.job("a"))
    world.clock.now += 20  # the number of failed replicas is written with a delay
    world.settle()
    assert world.status("a")["phase"] == "Running"
    assert before - world.invariants.holds(world.job("a")) == 1


def test_gang_that_waits_for_lower_priority_is_reported(world: Judged) -> None:
    high = {"metadata": {"name": "high"}, "value": 10}
    world.memory.create(PRIORITY_CLASSES, None, high)
    world.begun(workers=5)
    urgent = tfjob("b", workers=5, schedulingPolicy={"priorityClass": "high"})
    world.submit(urgent)
    assert "b waits" in world.unrest
    assert "a of lower priority" in world.unrest
    world.settle()
    world.bury()
    world.settle()
    world.run_pods()
    world.settle()
    assert world.unrest == ""


def test_gang_that_waits_despite_free_capacity_is_reported(world: Judged) -> None:
    world.submit(tfjob("a", workers=5))
    world.submit(tfjob("b", workers=5))
    world.settle()
    world.run_pods()
    world.settle()
    assert world.unrest == ""
    world.memory.delete(TFJOBS, "default", "a")
    world.bury()
    assert "b waits" in world.unrest


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"suspend": True}, "is suspended, and Running"),
        ({"activeDeadlineSeconds": 10}, "over its deadline"),
    ],
)
def test_job_not_suspended_or_ended_in_time_is_reported(world: Judged, spec: Object, told: str) -> None:
    world.begun()
    world.memory.patch(TFJOBS, "default", "a", {"spec": {"runPolicy": spec}})
    world.clock.now += 60
    assert told in world.unrest


def test_delayed_end_and_deletion_of_job_are_reported(world: Judged) -> None:
    world.begun(ttlSecondsAfterFinished=100)
    world.end_pod("a-worker-0", 0)
    world.by(ME, lambda: world.controller.step())
    assert "is Completing" in world.unrest
    world.settle()
    world.bury()
    world.settle()
    assert world.unrest == ""
    world.clock.now += 200
    assert "to be deleted" in world.unrest


def test_stalled_job_and_missing_pods_are_reported(world: Judged) -> None:
    world.begun()
    world.remember(lastError="nothing")
    world.evict("a-worker-1")
    assert "stalled: nothing" in world.unrest
    assert "has worker [0] of [0, 1]" in world.unrest


def test_task_started_before_dependency_is_reported(world: Judged) -> None:
    def task(name: str, **fields: Any) -> Object:
        return {"name": name, "replicas": 1, "template": replica(1)["template"], **fields}

    tasks = [task("first"), task("second", dependsOn={"name": ["first"]})]
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "v", "namespace": "default"},
        "spec": {"minAvailable": 2, "tasks": tasks},
    }
    world.submit(job, VOLCANO_JOBS)
    world.settle()
    (first,) = world.pods().values()
    early = copied(first, **{names.REPLICA_TYPE: "second"})
    world.by(ME, lambda: world.memory.create(PODS, "default", early))
    assert "comes before" in world.broken
    world.invariants.broken.clear()
    world.set_status(first["metadata"]["name"], running())
    world.settle()
    assert world.broken == ""

"""Each invariant is broken by a write that breaks it, and by no pass of a driver: a rule that cannot fail is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.controller.harness import Clock, World, replica, running, tfjob
from tests.faults.invariants import Invariants
from tests.faults.record import HANDS, Author
from tests.faults.rest import Rest
from tf_dist.cluster.api import LEASES, NODES, PODS, PRIORITY_CLASSES, SERVICES, TFJOBS, VOLCANO_JOBS, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.controller import Controller
from tf_dist.core.api import names

ME = Author("", sees_nodes=True)
OTHER = "default/other"


class Judged(World):
    """A world whose every write is judged: those under ``by`` are a driver's."""

    def __init__(self, cpu: str = "8") -> None:
        self.clock = Clock()
        self._by = HANDS
        self.invariants = Invariants(self.clock, lambda: self._by)
        self.invariants.strict = True
        self.memory = self.cluster = MemoryCluster(clock=self.clock, journal=self.invariants)
        node = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}}
        self.memory.create(NODES, None, node)
        self.memory.replace(NODES, None, "n1", {**self.memory.get(NODES, None, "n1"), **node}, subresource="status")
        self.driver = Controller(self.cluster, clock=self.clock, monotonic=self.clock)

    def settle(self, most: int = 50) -> int:
        return self.by(ME, lambda: World.settle(self, most))

    def by(self, author: Author, act: Callable[[], Any]) -> Any:
        self._by = author
        try:
            return act()
        finally:
            self._by = HANDS

    def begun(self, **fields: Any) -> Object:
        """A job that runs."""
        self.submit(tfjob("a", **fields))
        self.settle()
        self.run_pods()
        self.settle()
        return self.job("a")

    def remember(self, author: Author = ME, called: str = "a", **memory: Any) -> None:
        """A driver writes this into a job's memory."""
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


def test_a_job_from_its_beginning_to_its_end_breaks_nothing(world: Judged) -> None:
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


def test_an_old_and_a_new_attempt(world: Judged) -> None:
    world.begun()
    pod = copied(world.pods()["a-ps-0"], **{names.ATTEMPT: "2.0.0"})
    world.by(ME, lambda: world.memory.create(PODS, "default", pod))
    assert "comes while" in world.broken


def test_a_driver_writes_what_is_nobodys(world: Judged) -> None:
    service = {"metadata": {"name": "mine", "labels": {names.JOB_UID: "x"}}, "spec": {"ports": [{"port": 80}]}}
    world.memory.create(SERVICES, "default", service)
    world.by(ME, lambda: world.memory.delete(SERVICES, "default", "mine"))
    assert "no job's" in world.broken


def test_a_driver_acts_for_the_job_of_another(world: Judged) -> None:
    world.begun()
    world.remember(driver=OTHER)
    world.by(ME, lambda: world.memory.delete(PODS, "default", "a-worker-1"))
    assert f"which {OTHER} drives" in world.broken


@pytest.mark.parametrize(("silent", "told"), [(3.0, True), (14.0, False)])
def test_a_job_is_taken_from_a_driver(world: Judged, silent: float, told: bool) -> None:
    lease: Object = {"metadata": {"name": "other", "labels": {names.DRIVER: "inline"}}, "spec": {"holderIdentity": "x"}}
    world.memory.create(LEASES, "default", lease)
    world.begun()
    world.remember(driver=OTHER)
    world.clock.now += silent
    world.remember(Author("default/me"), driver="default/me")
    assert ("took over from" in world.broken) == told


@pytest.mark.parametrize(("silent", "since", "told"), [(14.0, 5.0, False), (14.0, 7.0, True), (11.0, 5.0, True)])
def test_a_job_is_taken_from_a_driver_that_has_come_back(
    world: Judged, silent: float, since: float, told: bool
) -> None:
    """It waits before it acts, so that what was decided while it was dead may still come."""
    lease: Object = {"metadata": {"name": "other", "labels": {names.DRIVER: "inline"}}, "spec": {"holderIdentity": "x"}}
    world.memory.create(LEASES, "default", lease)
    world.begun()
    world.remember(driver=OTHER)
    world.clock.now += silent
    world.memory.patch(LEASES, "default", "other", {"spec": {"renewTime": "2027-01-15T08:01:07.821860Z"}})
    world.clock.now += since
    world.remember(Author("default/me"), driver="default/me")
    assert ("took over from" in world.broken) == told


@pytest.mark.parametrize("renewed", [True, False])
def test_a_lease_is_as_old_as_it_is_whatever_a_restored_store_says(world: Judged, renewed: bool) -> None:
    lease: Object = {"metadata": {"name": "other", "labels": {names.DRIVER: "inline"}}, "spec": {"holderIdentity": "x"}}
    world.memory.create(LEASES, "default", lease)
    world.begun()
    world.remember(driver=OTHER)
    invariants = world.invariants
    objects, saved = dict(invariants.objects), invariants.saved()
    world.clock.now += 14.0
    if renewed:
        world.memory.patch(LEASES, "default", "other", {"spec": {"renewTime": "2027-01-15T08:01:07.821860Z"}})
        world.clock.now += 7.0
    invariants.restore(objects, saved)
    world.remember(Author("default/me"), driver="default/me")
    assert ("took over from" in world.broken) is renewed


def test_a_pod_that_a_restored_store_has_forgotten_was_taken(world: Judged) -> None:
    world.begun(backoffLimit=0)
    invariants = world.invariants
    objects = {key: obj for key, obj in invariants.objects.items() if key.name != "a-worker-1"}
    invariants.restore(objects, invariants.saved())
    world.remember(disruptions={"PodEvicted": 1})
    assert world.broken == ""
    world.remember(disruptions={"PodEvicted": 2})
    assert "2 disruptions for 0" in world.broken


def test_budgets(world: Judged) -> None:
    world.begun(backoffLimit=0)
    world.remember(restarts={"PodFailed": 1})
    assert "1 restarts for 0 pods" in world.broken


def test_disruptions_that_never_were(world: Judged) -> None:
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
def test_an_end_that_is_not_true(world: Judged, phase: str, reason: str, told: str) -> None:
    world.begun(backoffLimit=2)
    world.remember(phase=phase, reason=reason)
    assert told in world.broken


def test_an_end_that_is_taken_back(world: Judged) -> None:
    world.begun()
    world.end_pod("a-worker-0", 0)
    world.settle()
    world.bury()
    world.settle()
    world.remember(phase="Running")
    assert "was the end" in world.broken


def test_an_attempt_goes_back(world: Judged) -> None:
    world.begun()
    world.remember(attempts={"job": 2})
    assert world.broken == ""
    world.remember(attempts={"job": 1})
    assert "attempt 2 became 1" in world.broken


def test_more_is_given_than_there_is(world: Judged) -> None:
    place = world.begun(workers=5)["status"]["tfDist"]["admission"]
    world.submit(tfjob("b", workers=2))
    world.settle()
    assert world.broken == ""
    world.remember(called="b", admission=place)
    assert "9 CPUs" not in world.broken
    assert "places for" in world.broken


def test_more_of_a_node_is_given_than_it_has(world: Judged) -> None:
    node = {"metadata": {"name": "n2"}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}}
    world.memory.create(NODES, None, node)
    world.memory.replace(NODES, None, "n2", {**world.memory.get(NODES, None, "n2"), **node}, subresource="status")
    place = world.begun(workers=5)["status"]["tfDist"]["admission"]
    world.submit(tfjob("b", workers=5))
    world.remember(called="b", phase="Pending", admission={**place, "placement": {"worker": {"n2": 5}}})
    assert world.broken == ""
    world.remember(called="b", admission={**place, "placement": {"worker": {"n1": 3, "n2": 2}}})
    assert "CPUs of n1 were given away, and it has 8" in world.broken


def test_a_success_that_a_restored_store_has_forgotten(world: Judged) -> None:
    world.begun()
    there, before = dict(world.invariants.objects), world.invariants.saved()
    world.end_pod("a-worker-0", 0)
    world.invariants.restore(there, before)
    world.remember(phase="Completed", reason="JobSucceeded")
    assert world.broken == ""


def test_a_place_that_was_not_written_down(world: Judged) -> None:
    world.submit(tfjob("b"))
    sharing = Author("", shares=True, sees_nodes=True)
    world.by(sharing, lambda: World.settle(world))
    assert "not among the intended" in world.broken


@pytest.mark.parametrize("touched", [True, False])
def test_a_list_of_intentions_that_is_emptied(world: Judged, touched: bool) -> None:
    job = world.begun()
    row = ["tfjobs", "default", "a", job["metadata"]["uid"]]

    def lease(arbiter: str, *rows: list[str]) -> Object:
        return {
            "metadata": {
                "name": "l",
                "annotations": {LEADER_ANNOTATION: arbiter, ADMITTING_ANNOTATION: json.dumps(rows)},
            },
            "spec": {},
        }

    def write(arbiter: str, *rows: list[str]) -> None:
        before = world.memory.get(LEASES, "default", "l")
        annotations = lease(arbiter, *rows)["metadata"]["annotations"]
        metadata = {**before["metadata"], "annotations": annotations}
        world.by(ME, lambda: world.memory.replace(LEASES, "default", "l", {**before, "metadata": metadata}))

    world.memory.create(LEASES, "default", lease("one", row))
    write("two", row)
    if touched:
        world.memory.patch(TFJOBS, "default", "a", {"metadata": {"annotations": {"x": "y"}}})
    write("two")
    assert ("no longer intended" in world.broken) is not touched


def test_a_driver_writes_while_another_process_holds_its_lease(world: Judged) -> None:
    lease: Object = {"metadata": {"name": "both"}, "spec": {"holderIdentity": "one"}}
    world.memory.create(LEASES, "default", lease)
    world.begun()
    world.remember(Author("default/both", process="one"), seen={})
    assert world.broken == ""
    world.remember(Author("default/both", process="two"), seen={"worker": "0"})
    assert "two wrote, and one holds" in world.broken


def test_a_driver_is_dead_and_its_job_is_left_to_it(world: Judged) -> None:
    world.memory.create(LEASES, "default", {"metadata": {"name": "other"}, "spec": {"holderIdentity": "one"}})
    world.begun()
    world.remember(driver=OTHER)
    assert world.unrest == ""
    world.clock.now += 100
    assert f"has driver {OTHER}, which is dead" in world.unrest


def test_what_was_given_long_ago_is_still_intended(world: Judged) -> None:
    job = world.begun()
    row = ["tfjobs", "default", "a", job["metadata"]["uid"]]
    annotations = {ADMITTING_ANNOTATION: json.dumps([row])}
    world.memory.create(LEASES, "default", {"metadata": {"name": "l", "annotations": annotations}, "spec": {}})
    world.clock.now += 100
    world.memory.patch(LEASES, "default", "l", {"metadata": {"labels": {"x": "y"}}})
    assert world.broken == "", "it may be named anew"
    world.clock.now += 100
    world.memory.patch(LEASES, "default", "l", {"metadata": {"labels": {"x": "z"}}})
    assert "still intended" in world.broken


def test_a_place_is_no_wrong_beside_jobs_of_a_kind_that_the_server_says_is_not_there(world: Judged) -> None:
    world.begun()
    world.submit(tfjob("b", workers=7))
    place = {
        "at": "2027-01-15T08:00:00Z",
        "sizes": {"ps": 1, "worker": 7},
        "placement": {"ps": {"n1": 1}, "worker": {"n1": 7}},
    }
    status = {"tfDist": {"phase": "Pending", "admission": place}}
    blind = ME._replace(unserved=frozenset({"tfjobs.kubeflow.org"}))
    world.by(blind, lambda: world.memory.patch(TFJOBS, "default", "b", {"status": status}, subresource="status"))
    assert world.broken == ""
    world.memory.patch(TFJOBS, "default", "b", {"status": {"tfDist": {"admission": None}}}, subresource="status")
    world.by(ME, lambda: world.memory.patch(TFJOBS, "default", "b", {"status": status}, subresource="status"))
    assert "were given away" in world.broken


def test_what_was_given_long_ago_is_intended_anew(world: Judged) -> None:
    job = world.begun()
    world.memory.create(LEASES, "default", {"metadata": {"name": "l"}, "spec": {}})
    world.clock.now += 100
    row = ["tfjobs", "default", "a", job["metadata"]["uid"]]
    world.memory.patch(LEASES, "default", "l", {"metadata": {"annotations": {ADMITTING_ANNOTATION: json.dumps([row])}}})
    assert world.broken == ""


def test_a_replica_that_has_failed_for_good_gives_its_room_to_others(world: Judged) -> None:
    job = tfjob("a", workers=7, ps=1)
    job["spec"]["enableDynamicWorker"] = True
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    world.submit(job)
    world.settle()
    world.run_pods()
    world.settle()
    world.end_pod("a-worker-3", 1)
    before = world.invariants.holds(world.job("a"))
    world.clock.now += 20  # how many have failed is not written at once
    world.settle()
    assert world.status("a")["phase"] == "Running"
    assert before - world.invariants.holds(world.job("a")) == 1


def test_a_place_for_a_job_that_nobody_drives(world: Judged) -> None:
    world.begun()
    runner, place = Author(OTHER, sees_nodes=True), {"at": "2027-01-15T08:00:00Z", "sizes": {"ps": 1, "worker": 2}}
    world.remember(admission=None, driver="default/me")
    world.remember(runner, admission=place)
    assert world.broken == ""
    world.remember(HANDS, admission=None, driver="")
    world.remember(runner, admission=place)
    assert "a has a place and no driver" in world.broken


def test_a_pod_of_a_stranger_under_the_name_of_a_jobs(world: Judged) -> None:
    world.begun()
    pod = world.pods()["a-worker-1"]
    world.memory.delete(PODS, "default", "a-worker-1", grace_period=0)
    labelled = {"metadata": {"name": "a-worker-1", "labels": pod["metadata"]["labels"]}, "spec": {"containers": []}}
    world.memory.create(PODS, "default", {**labelled, "spec": pod["spec"]})
    assert "does not say that ['a-worker-1'] are not its own" in world.unrest
    world.remember(obstacle="Pod a-worker-1 exists already")
    assert "does not say" not in world.unrest
    assert "calls itself stalled" not in world.unrest


def test_who_waits_for_one_of_lower_priority(world: Judged) -> None:
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


def test_two_believe_to_hold_a_lease() -> None:
    invariants = Invariants(Clock(), lambda: HANDS)
    invariants.check_rights([("one", "l"), ("two", "m")], ["n"])
    with pytest.raises(AssertionError, match="at once"):
        invariants.check_rights([("one", "l"), ("two", "l")], [])
    with pytest.raises(AssertionError, match="believe them dead"):
        invariants.check_rights([("one", "l")], ["l"])


def test_who_waits_beside_free_room(world: Judged) -> None:
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
def test_what_a_job_has_still_to_do(world: Judged, spec: Object, told: str) -> None:
    world.begun()
    world.memory.patch(TFJOBS, "default", "a", {"spec": {"runPolicy": spec}})
    world.clock.now += 60
    assert told in world.unrest


def test_what_is_left_of_a_job_that_is_over(world: Judged) -> None:
    world.begun(ttlSecondsAfterFinished=100)
    world.end_pod("a-worker-0", 0)
    world.by(ME, lambda: world.driver.step())
    assert "is Completing" in world.unrest
    world.settle()
    world.bury()
    world.settle()
    assert world.unrest == ""
    world.clock.now += 200
    assert "to be deleted" in world.unrest


def test_a_job_that_calls_itself_stalled_or_lacks_pods(world: Judged) -> None:
    world.begun()
    world.remember(obstacle="nothing")
    world.evict("a-worker-1")
    assert "stalled: nothing" in world.unrest
    assert "has worker [0] of [0, 1]" in world.unrest


def test_a_task_that_comes_before_what_it_depends_on(world: Judged) -> None:
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

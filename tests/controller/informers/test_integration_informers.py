"""Jobs with other gang schedulers. The test acts as the scheduler, only through the API."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.controller.harness import Crash, CrashingCluster, World, disturbed, tfjob
from tests.controller.informers.gang_apis import (
    COSCHEDULING_GROUPS,
    FLAVORS,
    NATIVE_GROUPS,
    VOLCANO_GROUPS,
    WORKLOAD_PRIORITIES,
    WORKLOADS,
    define,
    gang_object,
    tell,
)
from tests.waiting import until
from tf_dist.cluster.api import PODS, PRIORITY_CLASSES, TFJOBS, Object, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.controller.controller import Controller
from tf_dist.controller.informers.integration_informers import IntegrationInformers
from tf_dist.controller.job_index import JobIndex
from tf_dist.controller.settings import ControllerContext, ControllerSettings, JobRef
from tf_dist.core.integrations.kueue import KUEUE
from tf_dist.core.integrations.volcano_pod_group import VOLCANO
from tf_dist.core.integrations.workload_api import WORKLOAD_API
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.names import GANG_SCHEDULER
from tf_dist.core.reconciler.reconcile import SHOWN_WITHIN
from tf_dist.errors import Forbidden

SECONDS = 60.0
PODS_OF_MNIST = ["mnist-ps-0", "mnist-worker-0", "mnist-worker-1"]
BINDING = [
    pytest.param(GangScheduler.VOLCANO, VOLCANO_GROUPS, id="volcano"),
    pytest.param(GangScheduler.COSCHEDULING, COSCHEDULING_GROUPS, id="coscheduling"),
    pytest.param(GangScheduler.WORKLOAD, NATIVE_GROUPS, id="workload"),
]


def asking(gang: GangScheduler, name: str = "mnist", **fields: Any) -> Object:
    job = tfjob(name, **fields)
    job["metadata"]["annotations"] = {GANG_SCHEDULER: gang.value}
    return job


def world_of(*resources: Resource, cpu: str = "8") -> World:
    """A cluster that serves these kinds in addition to Volcano's kinds."""
    world = World(cpu=cpu)
    define(world.memory, *(resource for resource in resources if resource != VOLCANO_GROUPS))
    return world


def admit_by_kueue(world: World, **counts: int) -> None:
    conditions = [_condition("QuotaReserved", True), _condition("Admitted", True), _condition("Evicted", False)]
    assignments = [{"name": name, "count": count, "flavors": {"cpu": "spot"}} for name, count in counts.items()]
    admission = {"clusterQueue": "all", "podSetAssignments": assignments}
    tell(world.memory, WORKLOADS, conditions=conditions, admission=admission)


def _condition(type_: str, value: bool, reason: str = "Because", message: str = "") -> dict[str, Any]:
    status, at = "True" if value else "False", "2027-01-15T08:00:00Z"
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def kueue_world() -> World:
    world = world_of(WORKLOADS, FLAVORS)
    flavor = {"metadata": {"name": "spot"}, "spec": {"nodeLabels": {"pool": "spot"}}}
    world.memory.create(FLAVORS, None, flavor)
    return world


@pytest.mark.parametrize(("gang", "kind"), BINDING)
def test_job_with_other_gang_scheduler_runs_to_completion(gang: GangScheduler, kind: Resource) -> None:
    world = world_of(kind)
    job = world.submit(asking(gang))
    world.settle()
    tell(world.memory, kind, phase="Inqueue")
    world.settle()
    [owner] = gang_object(world.memory, kind)["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)
    assert (list(world.pods()), world.status()["state"], "admission" in world.status()) == (
        PODS_OF_MNIST,
        "Waiting",
        False,
    )
    world.run_pods()
    world.settle()
    assert (world.status()["state"], world.status()["admission"]["by"]) == ("Running", gang.value)
    world.end_pod("mnist-worker-0", 0)
    world.settle()
    assert len(world.memory.list(kind, "default").items) == 1
    world.bury()
    world.settle()
    assert (world.status()["phase"], world.memory.list(kind, "default").items) == ("Completed", [])


@pytest.mark.parametrize(("gang", "kind"), [*BINDING, pytest.param(GangScheduler.KUEUE, WORKLOADS, id="kueue")])
def test_deleted_job_leaves_no_object_of_its_gang_scheduler(gang: GangScheduler, kind: Resource) -> None:
    world = world_of(kind, FLAVORS)
    world.submit(asking(gang))
    world.settle()
    assert gang_object(world.memory, kind)
    world.memory.delete(TFJOBS, "default", "mnist")
    world.settle()
    until(lambda: not world.memory.list(kind, "default").items, 60)
    assert world.settle() == 0


def test_kueue_admits_evicts_and_admits_job_again() -> None:
    world = kueue_world()
    world.memory.create(PRIORITY_CLASSES, None, {"metadata": {"name": "high"}, "value": 1000})
    world.submit(asking(GangScheduler.KUEUE, schedulingPolicy={"queue": "team", "priorityClass": "high"}))
    world.settle()
    workload = gang_object(world.memory, WORKLOADS)
    assert (workload["spec"]["queueName"], workload["spec"]["priority"]) == ("team", 1000)
    tell(world.memory, WORKLOADS, conditions=[_condition("QuotaReserved", False, message="no quota for cpu")])
    world.clock.now += SHOWN_WITHIN
    world.settle()
    assert (world.pods(), world.status()["message"]) == ({}, "waits in Kueue's queue team: no quota for cpu")
    admit_by_kueue(world, ps=1, worker=2)
    world.settle()
    assert {pod["spec"]["nodeSelector"]["pool"] for pod in world.pods().values()} == {"spot"}
    world.run_pods()
    world.settle()
    said = {one["type"]: one for one in gang_object(world.memory, WORKLOADS)["status"]["conditions"]}
    assert said["PodsReady"]["status"] == "True"
    evicted = _condition("Evicted", True, "Preempted", "a workload of higher priority")
    tell(world.memory, WORKLOADS, conditions=[*(said | {"Evicted": evicted}).values()])
    world.settle()
    assert world.status()["message"] == "gave up its admission: Kueue evicted it: a workload of higher priority"
    world.bury()
    world.settle()
    freed = gang_object(world.memory, WORKLOADS)
    assert (freed["metadata"]["uid"], "admission" in freed["status"]) == (workload["metadata"]["uid"], False)
    assert {c["status"] for c in freed["status"]["conditions"] if c["type"] in ("QuotaReserved", "Admitted")} == {
        "False"
    }
    admit_by_kueue(world, ps=1, worker=2)
    world.settle()
    assert [pod["metadata"]["labels"]["tf-dist.dev/attempt"] for pod in world.pods().values()] == ["2.0.0"] * 3
    assert world.status().get("restarts") == {"Preempted": 1}


def test_status_report_never_overwrites_later_status_of_kueue() -> None:
    world = kueue_world()
    world.submit(asking(GangScheduler.KUEUE))
    world.settle()
    admit_by_kueue(world, ps=1, worker=2)
    world.settle()
    world.run_pods()
    informers = world.controller.informers
    informers.start()
    informers.wait_synced(60)
    informers.stop()  # the informers no longer receive changes
    evicted = _condition("Evicted", True, "Preempted")
    tell(world.memory, WORKLOADS, conditions=[_condition("QuotaReserved", True), _condition("Admitted", True), evicted])
    for _ in range(3):
        world.controller.step()
    assert evicted in gang_object(world.memory, WORKLOADS)["status"]["conditions"]


def test_job_waits_until_gang_scheduler_kinds_are_served() -> None:
    world = World()
    world.submit(asking(GangScheduler.KUEUE))
    world.settle()
    assert (world.status()["reason"], world.pods()) == ("GangSchedulerMissing", {})
    assert "the cluster does not serve workloads of kueue.x-k8s.io (v1beta2, v1beta1)" in world.status()["message"]
    define(world.memory, WORKLOADS, FLAVORS)
    world.controller = Controller(world.memory, clock=world.clock, monotonic=world.clock)
    world.settle()
    assert gang_object(world.memory, WORKLOADS)


def test_job_creates_workload_when_its_priority_class_exists() -> None:
    world = world_of(WORKLOADS, FLAVORS, WORKLOAD_PRIORITIES)
    document = asking(GangScheduler.KUEUE)
    document["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": "quick"}
    world.submit(document)
    world.settle()
    assert "its WorkloadPriorityClass quick does not exist" in world.status()["message"]
    world.memory.create(WORKLOAD_PRIORITIES, None, {"metadata": {"name": "quick"}, "value": 7})
    world.clock.now += 31
    world.settle()
    assert gang_object(world.memory, WORKLOADS)["spec"]["priority"] == 7


@pytest.mark.parametrize("version", ["v1beta1", ""])
def test_job_keeps_running_when_gang_scheduler_is_removed_or_changes_version(version: str) -> None:
    """The Workload is then not visible, but this does not mean that Kueue has evicted the job."""
    world = kueue_world()
    world.submit(asking(GangScheduler.KUEUE))
    world.settle()
    admit_by_kueue(world, ps=1, worker=2)
    world.start_pods()
    kept = gang_object(world.memory, WORKLOADS)
    for kind in (WORKLOADS, FLAVORS):
        world.memory.delete(CRDS, None, f"{kind.plural}.{kind.group}")
        if version:
            define(world.memory, replace(kind, version=version))
    if version:
        older = {**kept, "apiVersion": f"kueue.x-k8s.io/{version}"}
        older["metadata"] = {k: v for k, v in kept["metadata"].items() if k != "resourceVersion"}
        workloads = replace(WORKLOADS, version=version)
        created = world.memory.create(workloads, "default", older)
        told = {**created, "status": kept["status"]}
        world.memory.replace(workloads, "default", kept["metadata"]["name"], told, subresource="status")
    world.clock.now += 60.0
    world.settle()
    assert (world.status()["state"], list(world.pods())) == ("Running", PODS_OF_MNIST)
    assert world.status().get("restarts") is None


def test_stop_ends_threads_of_removed_gang_scheduler() -> None:
    world, before = kueue_world(), threading.active_count()
    driver = Controller(world.memory, clock=world.clock, monotonic=world.clock)

    def missing() -> bool:
        # A pass can notice that the kind is gone before its informer does. It is retried after a delay.
        world.clock.now += 1.0
        driver.wake()
        return world.status().get("reason") == "GangSchedulerMissing"

    driver.start()
    try:
        until(driver.synced, 60)
        world.submit(asking(GangScheduler.KUEUE))
        until(lambda: bool(world.memory.list(WORKLOADS).items), 60)
        world.memory.delete(CRDS, None, "workloads.kueue.x-k8s.io")
        for informer in driver.informers.schedulers.informers():
            informer.relist()  # a real server closes the watches of a kind that is removed
        until(missing, 60)
    finally:
        driver.stop()
    assert threading.active_count() == before


def test_end_waits_for_thread_of_removed_gang_scheduler() -> None:
    world, hangs, asked, answered = world_of(NATIVE_GROUPS), [False], threading.Event(), threading.Event()

    def hang(verb: str, *_: Any, **__: Any) -> None:
        if hangs[0] and verb == "list" and threading.current_thread() is informer._thread:
            asked.set()
            answered.wait(SECONDS)

    found = schedulers(disturbed(world.memory, hang), lambda: 0.0)
    found.served(WORKLOAD_API, {})
    found.follow()
    [informer] = found.informers()
    world.memory.delete(CRDS, None, f"{NATIVE_GROUPS.plural}.{NATIVE_GROUPS.group}")
    informer.relist()
    until(lambda: informer.absent, SECONDS)
    hangs[0] = True
    informer.relist()
    assert asked.wait(SECONDS)
    found.served(WORKLOAD_API, {})
    ending = threading.Thread(target=found.end, daemon=True)
    ending.start()
    ending.join(0.2)
    waits = ending.is_alive()
    answered.set()
    ending.join(SECONDS)
    assert waits
    assert not informer.alive()


def test_namespace_controller_lists_nothing_in_other_namespaces() -> None:
    world, asked = kueue_world(), set[tuple[Resource, str | None]]()

    def note(verb: str, resource: Resource, namespace: str | None = None, *_: Any, **__: Any) -> None:
        if verb == "list":
            asked.add((resource, namespace))

    settings = ControllerSettings(namespace="default")
    context = ControllerContext(cluster=disturbed(world.memory, note), settings=settings)
    IntegrationInformers(context, on_change=lambda _: None).served(KUEUE, {})
    assert asked >= {(WORKLOADS, "default"), (FLAVORS, None)}
    assert {namespace for resource, namespace in asked if resource.namespaced} == {"default"}


class Forbidding:
    """Forwards every call except lists of one kind, which are forbidden."""

    def __init__(self, inner: Any, resource: Resource) -> None:
        self._inner = inner
        self._resource = resource

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def list(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if resource == self._resource:
            raise Forbidden(f"may not list {resource.plural}.{resource.group}")
        return self._inner.list(resource, *args, **kwargs)


def test_message_names_kind_that_may_not_be_listed() -> None:
    world = World()
    world.controller = Controller(Forbidding(world.memory, VOLCANO_GROUPS), clock=world.clock, monotonic=world.clock)
    world.submit(asking(GangScheduler.VOLCANO))
    world.settle()
    assert world.status()["message"].endswith("may not list podgroups.scheduling.volcano.sh")


def schedulers(cluster: Any, monotonic: Callable[[], float]) -> IntegrationInformers:
    return IntegrationInformers(ControllerContext(cluster=cluster, monotonic=monotonic), on_change=lambda _: None)


def test_missing_gang_scheduler_is_probed_again_after_15_s() -> None:
    world, now = World(), [0.0]
    found = schedulers(world.memory, lambda: now[0])
    missing = found.served(WORKLOAD_API, {})
    assert missing is not None
    assert "podgroups of scheduling.k8s.io" in missing.missing
    define(world.memory, NATIVE_GROUPS)
    now[0] = 14.0
    assert found.served(WORKLOAD_API, {}) == missing
    now[0] = 15.0
    served = found.served(WORKLOAD_API, {})
    assert served is not None
    assert (served.missing, served.versions) == ("", {"PodGroup.scheduling.k8s.io": "v1beta1"})


def test_changed_resource_flavor_queues_jobs_of_kueue() -> None:
    world, woken = kueue_world(), list[JobRef]()
    world.submit(asking(GangScheduler.KUEUE))
    world.settle()
    found = IntegrationInformers(ControllerContext(cluster=world.memory), on_change=woken.append)
    found.served(KUEUE, {})
    woken.clear()
    world.memory.patch(FLAVORS, None, "spot", {"metadata": {"labels": {"changed": "true"}}})
    found.informer(FLAVORS).refresh()
    assert woken == [JobRef(TFJOBS, "default", "mnist")]


def test_workload_v1alpha1_is_used_when_only_version_served() -> None:
    first = Resource("scheduling.k8s.io", "v1alpha1", "Workload", "workloads")
    world = world_of(first)
    world.submit(asking(GangScheduler.WORKLOAD))
    world.settle()
    name = gang_object(world.memory, first)["metadata"]["name"]
    assert world.pods()["mnist-ps-0"]["spec"]["workloadRef"] == {"name": name, "podGroup": "gang"}


def test_unbound_pods_of_other_gang_scheduler_use_no_capacity() -> None:
    world = world_of(COSCHEDULING_GROUPS, cpu="4")
    world.submit(asking(GangScheduler.COSCHEDULING, workers=3))
    world.settle()
    assert len(world.pods()) == 4
    world.submit(tfjob("ours", workers=2))
    world.settle()
    assert (world.status("ours")["reason"], len(world.pods())) == ("Admitted", 7)


def test_running_pods_of_other_gang_scheduler_use_capacity() -> None:
    world = world_of(COSCHEDULING_GROUPS, cpu="4")
    world.run_job(asking(GangScheduler.COSCHEDULING))
    world.submit(tfjob("ours", workers=2))
    world.settle()
    assert world.status("ours")["reason"] == "WaitingForCapacity"
    assert world.status()["state"] == "Running"


def test_job_annotation_overrides_default_gang_scheduler() -> None:
    world = world_of(COSCHEDULING_GROUPS)
    settings = ControllerSettings(gang_scheduler=GangScheduler.COSCHEDULING)
    world.controller = Controller(world.memory, clock=world.clock, monotonic=world.clock, settings=settings)
    world.submit(tfjob("theirs"))
    world.submit(asking(GangScheduler.BUILTIN, "ours"))
    world.settle()
    assert gang_object(world.memory, COSCHEDULING_GROUPS)["metadata"]["name"].startswith("theirs-")
    assert (world.status("ours")["reason"], world.status("theirs")["state"]) == ("Admitted", "Waiting")


def test_status_names_gang_scheduler_that_admits_job() -> None:
    world = world_of(COSCHEDULING_GROUPS)
    settings = ControllerSettings(gang_scheduler=GangScheduler.COSCHEDULING)
    world.controller = Controller(
        world.memory,
        clock=world.clock,
        monotonic=world.clock,
        settings=settings,
    )
    world.submit(tfjob())
    ref = JobRef(TFJOBS, "default", "mnist")
    assert JobIndex().read(ref, world.job()).claim() is not None
    assert JobIndex(settings).read(ref, world.job()).claim() is None
    world.settle()
    assert world.status()["gang"] == "coscheduling"


def test_job_uses_builtin_admission_when_other_schedulers_are_disabled() -> None:
    """The same job file runs on a laptop and on a cluster."""
    world = world_of(VOLCANO_GROUPS)
    settings = ControllerSettings(other_schedulers=False)
    world.controller = Controller(world.memory, clock=world.clock, monotonic=world.clock, settings=settings)
    world.submit(asking(GangScheduler.VOLCANO))
    world.settle()
    assert (world.status()["reason"], world.memory.list(VOLCANO_GROUPS).items) == ("Admitted", [])


def test_new_default_gang_scheduler_does_not_change_running_jobs() -> None:
    world = world_of(COSCHEDULING_GROUPS)
    world.run_job(tfjob())
    settings = ControllerSettings(gang_scheduler=GangScheduler.COSCHEDULING)
    world.controller = Controller(world.memory, clock=world.clock, monotonic=world.clock, settings=settings)
    world.settle()
    assert (world.memory.list(COSCHEDULING_GROUPS).items, world.status()["state"]) == ([], "Running")


@pytest.mark.parametrize("after", range(1, 12))
def test_controller_after_crash_continues_with_existing_workload_and_pods(after: int) -> None:
    world = kueue_world()
    world.submit(asking(GangScheduler.KUEUE))
    crashing = CrashingCluster(world.memory)
    crashing.after = after
    died = False
    for driver in (
        Controller(crashing, clock=world.clock, monotonic=world.clock),
        Controller(world.memory, clock=world.clock, monotonic=world.clock),
    ):
        world.controller = driver
        try:
            world.settle()
            admit_by_kueue(world, ps=1, worker=2)
            world.start_pods()
        except Crash:
            died = True
    assert died
    gang_object(world.memory, WORKLOADS)
    assert (list(world.pods()), world.status()["state"]) == (PODS_OF_MNIST, "Running")
    assert world.status()["attempts"] == {"job": 1}


def test_controller_with_threads_follows_gang_scheduler_and_stops() -> None:
    world = world_of(VOLCANO_GROUPS)
    before = threading.active_count()
    driver = Controller(world.memory)  # real clocks, so that retries happen
    driver.start()
    try:
        until(driver.synced, 60)
        world.submit(asking(GangScheduler.VOLCANO))
        until(lambda: bool(world.memory.list(VOLCANO_GROUPS).items), 60)
        tell(world.memory, VOLCANO_GROUPS, phase="Inqueue")
        until(lambda: len(world.pods()) == 3, 60)
        world.run_pods()
        until(lambda: world.status().get("state") == "Running", 60)
    finally:
        driver.stop()
    assert threading.active_count() == before
    assert VOLCANO.name in world.status()["admission"]["by"]
    assert all(pod["spec"]["schedulerName"] == "volcano" for pod in world.memory.list(PODS).items)


def test_hanging_list_blocks_neither_other_gang_scheduler_nor_end() -> None:
    world = world_of(NATIVE_GROUPS)
    asked, answered = threading.Event(), threading.Event()

    def hang(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("list", VOLCANO_GROUPS):
            asked.set()
            answered.wait(SECONDS)

    schedulers = IntegrationInformers(
        ControllerContext(cluster=disturbed(world.memory, hang)), on_change=lambda _: None
    )
    found: list[Any] = []
    looking = threading.Thread(target=lambda: found.append(schedulers.served(VOLCANO, {})), daemon=True)
    looking.start()
    assert asked.wait(SECONDS)

    def meanwhile() -> None:
        schedulers.follow()
        found.append(schedulers.served(WORKLOAD_API, {}))
        schedulers.end()

    other = threading.Thread(target=meanwhile, daemon=True)
    other.start()
    other.join(SECONDS / 4)
    held = other.is_alive()
    answered.set()
    for thread in (other, looking):
        thread.join(SECONDS)
    for informer in schedulers.informers():
        informer.stop()
    assert not held
    assert found[0] is not None, "the other one was looked for and found"
    assert not any(informer.alive() for informer in schedulers.informers())


def test_concurrent_jobs_share_probe_of_gang_scheduler() -> None:
    world = world_of(VOLCANO_GROUPS)
    probes: list[Resource] = []

    def count(verb: str, resource: Resource, *_: Any, **how: Any) -> None:
        if verb == "list" and how.get("limit") == 1:
            probes.append(resource)

    schedulers = IntegrationInformers(
        ControllerContext(cluster=disturbed(world.memory, count)), on_change=lambda _: None
    )
    together, found = threading.Barrier(8), list[Any]()

    def ask() -> None:
        together.wait(SECONDS)
        found.append(schedulers.served(VOLCANO, {}))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(found) == 8
    assert None not in found
    assert len(probes) == len(set(probes))

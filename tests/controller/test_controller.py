"""The controller on the embedded store, with complete lives of jobs.

If a controller crashes after any write, the next controller reaches the same result.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count as counter
from typing import Any, cast

import pytest

from tests.controller.harness import (
    START,
    Counting,
    Crash,
    CrashingCluster,
    Hands,
    RunningClock,
    World,
    container,
    disturbed,
    tfjob,
)
from tests.waiting import until
from tf_dist.cluster.api import (
    CONFIG_MAPS,
    EVENTS,
    NODES,
    PODS,
    QUEUES,
    SERVICES,
    TFJOBS,
    VOLCANO_JOBS,
    Cluster,
    Resource,
)
from tf_dist.cluster.apiserver.storage.store import Key
from tf_dist.controller.controller import Controller
from tf_dist.controller.leader_election import Standalone
from tf_dist.controller.settings import ControllerSettings


@pytest.fixture
def world() -> World:
    return World()


def test_job_runs_succeeds_and_deletes_running_pods(world: World) -> None:
    world.submit(tfjob())
    world.settle()
    assert sorted(world.phases()) == ["mnist-ps-0", "mnist-worker-0", "mnist-worker-1"]
    world.run_pods()
    world.settle()
    assert world.status()["phase"] == "Running"
    world.end_pod("mnist-worker-0", 0)
    world.remove_pods()
    assert world.status()["phase"] == "Completed"
    assert world.phases() == {"mnist-worker-0": "Succeeded"}
    types = [c["type"] for c in world.job()["status"]["conditions"] if c["status"] == "True"]
    assert types == ["SpecAccepted", "Admitted", "Created", "Succeeded"]


def test_nothing_is_written_when_nothing_changes(world: World) -> None:
    world.run_job(tfjob())
    before = world.memory.list(TFJOBS).resource_version
    for _ in range(10):
        world.clock.now += 60
        assert world.controller.step() == 0
    assert world.memory.list(TFJOBS).resource_version == before


def test_worker_with_retryable_exit_code_restarts(world: World) -> None:
    world.run_job(tfjob())
    world.end_pod("mnist-worker-1", 137)
    world.settle()
    assert world.status()["restarts"] == {"PodFailed": 1}
    assert world.phases()["mnist-worker-1"] != "Failed"
    world.run_pods()
    world.settle()
    assert world.status()["phase"] == "Running"
    assert any("worker-1 exited with code 137 (SIGKILL)" in message for _, message in world.events())


def test_worker_with_permanent_exit_code_fails_job(world: World) -> None:
    world.submit(tfjob())
    world.settle()
    world.run_pods()
    world.end_pod("mnist-worker-1", 3)
    world.settle()
    status = world.status()
    assert (status["phase"], status["message"]) == ("Failed", "worker-1 exited with code 3")


def test_gang_that_does_not_fit_waits_and_names_missing_resource(world: World) -> None:
    world.submit(tfjob("first", workers=5))
    world.submit(tfjob("second", workers=4))
    world.settle()
    assert all(name.startswith("first") for name in world.phases())
    message = world.status("second")["message"]
    assert "needs" in message
    assert "cpu" in message
    world.run_pods()
    world.end_pod("first-worker-0", 0)
    world.remove_pods()
    assert sum(name.startswith("second") for name in world.phases()) == 5


def test_gang_that_never_fits_has_reason_never_fits(world: World) -> None:
    world.submit(tfjob(workers=50))
    world.settle()
    assert world.status()["reason"] == "NeverFits"
    assert world.phases() == {}


def test_suspend_and_resume_use_no_restarts(world: World) -> None:
    world.run_job(tfjob(backoffLimit=0))
    for _ in range(3):
        world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"suspend": True}}})
        world.remove_pods()
        assert world.status()["phase"] == "Aborted"
        assert world.phases() == {}
        world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"suspend": False}}})
        world.start_pods()
        assert world.status()["phase"] == "Running"


def test_active_deadline_fails_job_without_other_changes(world: World) -> None:
    world.run_job(tfjob(activeDeadlineSeconds=60))
    world.clock.now = START + 61
    world.settle()
    assert world.status()["reason"] == "DeadlineExceeded"


def test_finished_job_is_deleted_after_ttl(world: World) -> None:
    world.submit(tfjob(ttlSecondsAfterFinished=10))
    world.settle()
    world.run_pods()
    world.end_pod("mnist-worker-0", 0)
    world.remove_pods()
    world.clock.now += 11
    world.controller.step()
    assert world.memory.list(TFJOBS).items == []
    assert world.phases() == {}
    assert world.memory.list(SERVICES).items == []


def test_job_with_name_conflict_does_not_stop_other_jobs(world: World) -> None:
    world.submit(tfjob("aaa"))
    foreign = {"metadata": {"name": "aaa-ps-0"}, "spec": {"containers": [{"name": "x", "image": "y"}]}}
    world.memory.create(PODS, "default", foreign)
    world.submit(tfjob("zzz"))
    for _ in range(2):
        world.controller.step()
    assert "zzz-worker-0" in world.phases()
    told = [message for reason, message in world.events() if reason == "ReconcileFailed"]
    assert "Pod default/aaa-ps-0 exists already" in told[0]
    assert "rename the job, or ask the owner of Pod aaa-ps-0 to remove it" in told[0]


@pytest.mark.parametrize("kind", [PODS, SERVICES], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("owner", ["another job", "no controller", "nobody"])
def test_job_reports_at_once_and_backs_off_when_object_gets_another_owner(
    world: World, kind: Resource, owner: str
) -> None:
    other = world.submit(tfjob("other"))
    world.run_job(tfjob())
    [reference] = world.memory.get(kind, "default", "mnist-worker-0")["metadata"]["ownerReferences"]
    owners = {
        "another job": [{**reference, "name": "other", "uid": other["metadata"]["uid"]}],
        "no controller": [{**reference, "controller": False}],
        "nobody": [],
    }
    world.memory.patch(kind, "default", "mnist-worker-0", {"metadata": {"ownerReferences": owners[owner]}})
    retries = 0
    for _ in range(600):  # a minute
        world.controller.step(())
        world.clock.now += 0.1
        retries = world.controller.readings().work.retries
    assert 8 <= retries <= 12
    told = [message for reason, message in world.events() if reason == "ReconcileFailed"]
    assert any(f"{kind.kind} default/mnist-worker-0 exists already and belongs to" in message for message in told)


def test_scaling_down_removes_highest_workers(world: World) -> None:
    world.run_job(tfjob(workers=3))
    world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}}})
    world.remove_pods()
    assert sorted(world.phases()) == ["mnist-ps-0", "mnist-worker-0"]
    services = {service["metadata"]["name"] for service in world.memory.list(SERVICES).items}
    assert services == {"mnist-ps-0", "mnist-worker-0"}
    assert world.memory.list(CONFIG_MAPS).items == []


def test_job_with_unreadable_memory_is_reported_and_others_continue(world: World) -> None:
    broken = world.submit(tfjob("aaa"))
    status = {"tfDist": {"phase": "Sideways"}}
    world.memory.replace(TFJOBS, "default", "aaa", {**broken, "status": status}, subresource="status")
    world.submit(tfjob("zzz"))
    for _ in range(2):
        world.controller.step()
    assert "zzz-worker-0" in world.phases()
    assert any("Sideways" in message for reason, message in world.events() if reason == "ReconcileFailed")


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "example.com/mine", "", 7])
@pytest.mark.parametrize("broken", [False, True], ids=["readable", "unreadable"])
def test_job_managed_by_another_controller_is_not_changed(world: World, manager: object, broken: bool) -> None:
    document = tfjob(managedBy=manager)
    if broken:
        document["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = -1
    submitted = world.submit(document)
    world.submit(tfjob("ours", managedBy="kubeflow.org/training-operator"))
    world.submit(tfjob("also-ours", managedBy=None))
    world.settle()
    assert world.job() == submitted
    assert sorted(name for name in world.phases() if name.endswith("ps-0")) == ["also-ours-ps-0", "ours-ps-0"]
    assert not [event for event in world.memory.list(EVENTS).items if event["involvedObject"]["name"] == "mnist"]
    world.run_pods()
    world.memory.patch(TFJOBS, "default", "ours", {"spec": {"runPolicy": {"managedBy": manager}}})
    given_away = world.job("ours")
    world.settle()
    assert world.job("ours") == given_away
    assert set(world.phases().values()) == {"Running"}


def test_jobs_of_two_kinds_can_have_same_name(world: World) -> None:
    task = {"name": "worker", "replicas": 1, "template": {"spec": {"containers": [container()]}}}
    volcano = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "mnist"}}
    world.submit(tfjob(workers=50))
    world.submit({**volcano, "spec": {"minAvailable": 1, "tasks": [task]}}, VOLCANO_JOBS)
    world.settle()
    assert world.status()["reason"] == "NeverFits"
    assert world.status(resource=VOLCANO_JOBS)["reason"] == "Admitted"


def test_gangs_submitted_together_never_exceed_capacity(world: World) -> None:
    for number in range(6):
        world.submit(tfjob(f"job-{number}", workers=3))
    for _ in range(12):
        world.settle()
        by_job = Counter(name.rsplit("-", 2)[0] for name, phase in world.phases().items() if phase != "Succeeded")
        assert set(by_job.values()) <= {4}
        assert sum(by_job.values()) <= 8
        world.run_pods()
        for name in by_job:
            world.end_pod(f"{name}-worker-0", 0)
        world.settle()
        world.bury()
    assert {world.status(f"job-{number}")["phase"] for number in range(6)} == {"Completed"}


@pytest.mark.parametrize("policy", [{"suspend": True}, None], ids=["suspended", "evicted"])
def test_stopped_replica_with_exit_code_0_has_not_succeeded(world: World, policy: dict[str, bool] | None) -> None:
    world.run_job(tfjob())
    if policy:
        world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": policy}})
    else:
        world.memory.delete(PODS, "default", "mnist-worker-0")
    world.settle()
    world.end_pod("mnist-worker-0", 0)
    world.settle()
    world.bury()
    world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"suspend": False}}})
    world.settle()
    assert world.status()["phase"] in ("Pending", "Restarting", "Running")
    assert "mnist-worker-0" in world.phases()


def test_node_with_invalid_capacity_is_ignored(world: World) -> None:
    """The server refuses such a node now, but an older server may have stored it."""
    stored = world.memory.create(NODES, None, {"metadata": {"name": "n0"}})
    broken = {**stored, "status": {"allocatable": {"cpu": "lots", "memory": "64Gi"}}}
    world.memory._store.put(Key(NODES.plural, "", "n0"), broken)
    world.submit(tfjob())
    world.settle()
    assert world.status()["reason"] == "Admitted"


def test_loop_continues_after_unexpected_error(world: World) -> None:
    first = counter()

    def breaks_once(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("list", NODES) and next(first) == 0:
            raise ZeroDivisionError("a defect")

    driver = Controller(disturbed(world.memory, breaks_once))
    driver.start()
    try:
        world.submit(tfjob())
        until(lambda: world.status().get("reason") == "Admitted", 60)
    finally:
        driver.stop()
    assert next(first) > 0


def test_loop_age_grows_while_cycle_hangs() -> None:
    world, asked, let_go = World(clock=RunningClock()), threading.Event(), threading.Event()

    def hangs(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("list", NODES):
            asked.set()
            let_go.wait(60)

    driver = Controller(disturbed(world.memory, hangs), clock=world.clock, monotonic=world.clock)
    driver.start()
    try:
        assert asked.wait(60)
        world.clock.now += 400
        assert driver.readings().loop_age >= 400
        let_go.set()
        driver.wake()
        until(lambda: driver.readings().loop_age < 400, 60)
    finally:
        let_go.set()
        driver.stop()


def test_no_job_is_queued_before_all_kinds_are_listed(world: World) -> None:
    """With many pods, workers that retry their jobs slow down the lists for which they wait."""
    world.run_job(tfjob())
    let_go = threading.Event()

    def hangs(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("list", QUEUES):
            let_go.wait(60)

    driver = Controller(disturbed(world.memory, hangs), clock=world.clock, monotonic=world.clock)
    driver.start()
    try:
        until(lambda: {"tfjobs", "pods"} <= {one.resource for one in driver.readings().informers if one.lists}, 60)
        assert driver.readings().work.adds == 0
        let_go.set()
        until(lambda: driver.readings().work.adds >= 1, 60)
    finally:
        let_go.set()
        driver.stop()


@pytest.mark.parametrize("stopping", [True, False], ids=["it stops", "its leadership ends"])
def test_pass_writes_nothing_after_stop_or_loss_of_leadership(world: World, stopping: bool) -> None:
    leadership = Hands()

    def end(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", PODS):
            if stopping:
                driver.stop()
            else:
                leadership.left = 0

    driver = Controller(disturbed(world.memory, end), clock=world.clock, monotonic=world.clock, leadership=leadership)
    world.submit(tfjob())
    while not world.pods():
        driver.step()
    for _ in range(3):
        driver.step()
    assert len(world.pods()) == 1


@pytest.mark.parametrize("call", [1, 2, 3], ids=lambda call: f"call {call}")
def test_new_job_is_admitted_after_error_in_loop(world: World, call: int) -> None:
    class Faltering(Standalone):
        left = 0

        def kinds(self) -> frozenset[Resource]:
            self.left -= 1
            if self.left == 0:
                raise ZeroDivisionError("a defect")
            return super().kinds()

    leadership = Faltering()
    driver = Controller(world.memory, leadership=leadership)
    driver.start()
    try:
        world.submit(tfjob())
        until(lambda: len(world.pods()) == 3, 60)
        leadership.left = call
        world.submit(tfjob("other"))
        until(lambda: world.status("other").get("reason") == "Admitted", 60)
    finally:
        driver.stop()
    assert leadership.left < 0


def test_addresses_are_read_only_while_replica_is_missing(world: World) -> None:
    counting = Counting(world.memory)
    world.controller = Controller(cast("Cluster", counting), clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    world.settle()
    assert "addresses" in counting.calls
    counting.calls.clear()
    world.run_pods()
    world.settle()
    assert "addresses" not in counting.calls


def test_job_with_unreadable_constraints_waits_and_others_start(world: World) -> None:
    broken = tfjob("aaa")
    broken["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"] = {"nodeAffinity": ["nonsense"]}
    world.submit(broken)
    world.submit(tfjob("zzz"))
    world.settle()
    assert world.status("zzz")["reason"] == "Admitted"
    assert world.status("aaa")["reason"] == "Unreadable"
    assert "worker" in world.status("aaa")["message"]


class Fragile(World):
    """A world whose controller dies after its n-th write. A new controller with empty caches replaces it."""

    def __init__(self, crash_after: int | None) -> None:
        super().__init__()
        self.wire = CrashingCluster(self.memory)
        self.wire.after = crash_after
        self.deaths = 0
        self._replace_driver()

    def _replace_driver(self) -> None:
        self.controller = Controller(self.wire, clock=self.clock, monotonic=self.clock)

    def settle(self, most: int = 50) -> int:
        try:
            return super().settle(most)
        except Crash:
            self.deaths += 1
            self._replace_driver()
            return super().settle(most)


def _life(world: World) -> dict[str, Any]:
    """Start a job, kill a worker, evict a pod, succeed, and clean up."""
    world.run_job(tfjob(backoffLimit=5))
    world.end_pod("mnist-worker-1", 137)
    world.start_pods()
    world.evict("mnist-ps-0")
    world.start_pods()
    world.end_pod("mnist-worker-0", 0)
    world.remove_pods()
    status = world.status()
    return {"phases": world.phases(), **{key: status.get(key) for key in ("phase", "restarts", "attempts", "reason")}}


def _writes_of_a_life() -> int:
    world = Fragile(None)
    _life(world)
    return world.wire.writes


@pytest.mark.parametrize("write", range(1, _writes_of_a_life() + 1))
def test_crash_after_any_write_does_not_change_result(write: int) -> None:
    world = Fragile(write)
    assert _life(world) == _life(World())
    assert world.deaths == 1


def test_addresses_end_in_cluster_domain(world: World) -> None:
    world.controller.stop()
    settings = ControllerSettings(cluster_domain="example.local")
    world.controller = Controller(world.memory, clock=world.clock, monotonic=world.clock, settings=settings)
    world.submit(tfjob())
    world.settle()
    (variable,) = world.pods()["mnist-worker-0"]["spec"]["containers"][0]["env"]
    assert "mnist-ps-0.default.svc.example.local:2222" in variable["value"]

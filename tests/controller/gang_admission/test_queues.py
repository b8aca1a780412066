"""Queues and priorities in a controller: quotas, preemption, and the statuses of queues.

Queues can be open only to some namespaces, which they select by labels.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.harness import World, disturbed, queue, queued, tfjob
from tests.waiting import until
from tf_dist.cluster.api import NAMESPACES, PRIORITY_CLASSES, QUEUES, TFJOBS, Object, Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.job_index import JobIndex
from tf_dist.controller.settings import JobRef
from tf_dist.errors import Forbidden, Unavailable


def priority(name: str, value: int, **fields: Any) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        **fields,
    }


def test_job_waits_for_queue_quota_and_queue_status_counts_jobs() -> None:
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("research", "4"))
    world.submit(queued("first", "research"))
    world.submit(queued("second", "research"))
    world.settle()
    assert world.status("first")["reason"] == "Admitted"
    assert world.status("second")["reason"] == "QuotaExceeded"
    assert "research" in world.status("second")["message"]
    status = world.memory.get(QUEUES, None, "research")["status"]
    assert (status["pending"], status["admitted"], status["used"]["cpu"]) == (1, 1, "3")


def test_controller_with_threads_reports_queue_usage() -> None:
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("research", "4"))
    controller = Controller(world.memory)
    controller.start()
    try:
        world.submit(queued("first", "research"))
        until(lambda: world.memory.get(QUEUES, None, "research").get("status", {}).get("admitted") == 1, 60)
    finally:
        controller.stop()


def test_raised_queue_quota_admits_waiting_job() -> None:
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("research", "4"))
    world.submit(queued("first", "research"))
    world.submit(queued("second", "research"))
    world.settle()
    world.memory.patch(QUEUES, None, "research", {"spec": {"quotas": {"cpu": {"nominal": "6"}}}})
    world.settle()
    assert world.status("second")["reason"] == "Admitted"


def test_quota_of_permanently_failed_replica_goes_to_waiting_job() -> None:
    """The job has dynamic workers that are never restarted. It continues with the remaining workers."""
    world = World(cpu="16")
    world.memory.create(QUEUES, None, queue("research", "5"))
    first, second = queued("first", "research"), queued("second", "research")
    first["spec"] |= {"enableDynamicWorker": True}
    first["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "Never"
    world.submit(first)
    world.submit(second)
    world.settle()
    assert world.status("second")["reason"] == "QuotaExceeded"
    world.run_pods()
    world.settle()
    world.end_pod("first-worker-1", 1)
    world.clock.now += 20
    world.settle()
    assert world.status("first")["reason"] == "JobRunning"
    assert world.status("second")["reason"] == "Admitted"


def test_suspended_job_keeps_capacity_until_status_is_written() -> None:
    """A worker may still create its pods until then, so other jobs must not get the capacity."""
    world = World(cpu="3")
    world.submit(tfjob())
    world.settle()
    ref = JobRef(TFJOBS, "default", "mnist")
    world.memory.patch(TFJOBS, "default", "mnist", {"spec": {"runPolicy": {"suspend": True}}})
    assert JobIndex().read(ref, world.job()).claim() is not None
    world.settle()
    assert world.status()["phase"] in ("Aborting", "Aborted")
    assert JobIndex().read(ref, world.job()).claim() is None


def test_job_waits_until_queue_exists() -> None:
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("research", "4"))
    world.submit(queued("lost", "reserch"))
    world.settle()
    assert world.status("lost")["reason"] == "QueueNotFound"
    assert "research" in world.status("lost")["message"]
    world.memory.create(QUEUES, None, queue("reserch", "4"))
    world.settle()
    assert world.status("lost")["reason"] == "Admitted"


def test_higher_priority_job_preempts_lower_priority_job() -> None:
    world = World(cpu="4")
    world.memory.create(PRIORITY_CLASSES, None, priority("urgent", 1000))
    world.run_job(queued("low"))
    world.clock.now += 60
    world.submit(queued("high", priority_class="urgent"))
    world.settle()
    assert ("Preempted", world.status("low")["failure"]["message"]) in world.events()
    assert "default/high" in world.status("low")["failure"]["message"]
    assert world.status("high").get("admission") is None  # not before the capacity is free
    world.bury()
    world.settle()
    assert world.status("high")["reason"] == "Admitted"
    assert world.status("low").get("admission") is None
    assert world.status("low")["restarts"] == {"Preempted": 1}
    world.bury()
    world.memory.delete(TFJOBS, "default", "high")
    for name in list(world.pods()):
        world.evict(name)
    world.settle()
    assert world.status("low").get("admission") is not None


def test_job_with_preemption_policy_never_waits() -> None:
    world = World(cpu="4")
    world.memory.create(PRIORITY_CLASSES, None, priority("patient", 1000, preemptionPolicy="Never"))
    world.submit(queued("low"))
    world.settle()
    world.clock.now += 60
    world.submit(queued("high", priority_class="patient"))
    world.settle()
    assert world.status("low").get("admission") is not None
    assert world.status("high")["reason"] == "WaitingForCapacity"


def test_invalid_queue_reports_error_and_its_jobs_wait() -> None:
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("broken", "much"))
    world.submit(queued("first", "broken"))
    world.submit(queued("other"))
    world.settle()
    assert world.status("other")["reason"] == "Admitted"
    assert world.status("first")["reason"] == "QueueNotFound"
    assert "nominal" in world.memory.get(QUEUES, None, "broken")["status"]["message"]


def test_queue_names_are_ignored_when_no_queues_exist() -> None:
    """The names belong to another system, or the controller may not list queues."""
    world = World(cpu="8")
    world.submit(queued("first", "research"))
    world.settle()
    assert world.status("first")["reason"] == "Admitted"


def test_unanswered_queue_status_write_stops_writes_of_other_queues() -> None:
    """Each write takes until its timeout. Writes for all queues would look like a stuck loop."""

    class Silent:
        """A cluster that does not answer writes of queue statuses."""

        away = True
        asked = 0

        def __getattr__(self, verb: str) -> Any:
            return getattr(world.memory, verb)

        def replace(self, resource: Resource, *args: Any, **kwargs: Any) -> Object:
            if resource is QUEUES and self.away:
                self.asked += 1
                raise Unavailable("no answer")
            return world.memory.replace(resource, *args, **kwargs)

    world = World(cpu="8")
    silent: Any = Silent()
    driver = Controller(silent, clock=world.clock, monotonic=world.clock)
    for name in ("a", "b", "c"):
        world.memory.create(QUEUES, None, queue(name, "4"))
    world.submit(queued("first", "a"))
    driver.step()
    assert silent.asked == 1
    silent.away = False
    world.clock.now += 60
    world.run_pods()
    for _ in range(3):
        driver.step()
        world.clock.now += 60
    assert all(world.memory.get(QUEUES, None, name).get("status") for name in ("a", "b", "c"))


def test_queue_status_is_written_only_when_changed() -> None:
    world, written = World(cpu="8"), list[str]()

    def note(verb: str, resource: Resource, *_: Any, **how: Any) -> None:
        if (verb, resource, how.get("subresource")) == ("replace", QUEUES, "status"):
            written.append(verb)

    world.controller = Controller(disturbed(world.memory, note), clock=world.clock, monotonic=world.clock)
    world.memory.create(QUEUES, None, queue("a", "4"))
    world.submit(queued("first", "a"))
    world.settle()
    world.clock.now += 60
    world.settle()
    before = len(written)
    for name in ("second", "third"):
        world.submit(queued(name))  # these jobs have no queue, but admission decides about them
        world.clock.now += 60
        world.settle()
    assert len(written) == before > 0


VISION = {"matchLabels": {"team": "vision"}}


def label(memory: MemoryCluster, team: str | None, namespace: str = "default") -> None:
    memory.patch(NAMESPACES, None, namespace, {"metadata": {"labels": {"team": team}}})


def waiting(**spec: Any) -> World:
    """A world with a job of the namespace ``default`` that names the queue of another team."""
    world = World(cpu="8")
    world.memory.create(QUEUES, None, queue("vision", "8", **spec))
    world.submit(queued("mine", "vision"))
    world.settle()
    return world


def test_job_waits_until_queue_selects_its_namespace() -> None:
    world = waiting(namespaceSelector=VISION)
    status = world.status("mine")
    assert status["reason"] == "NamespaceMismatch"
    assert status["message"].startswith('queue "vision" is not open to namespace "default": ')
    assert (status.get("admission"), world.pods()) == (None, {})
    assert world.memory.get(QUEUES, None, "vision")["status"]["pending"] == 1
    label(world.memory, "speech")
    world.settle()
    assert world.status("mine")["reason"] == "NamespaceMismatch"
    label(world.memory, "vision")
    world.settle()
    assert world.status("mine")["reason"] == "Admitted"


@pytest.mark.parametrize("selector", [None, {}, {"matchLabels": {"kubernetes.io/metadata.name": "default"}}])
def test_waiting_job_starts_when_queue_opens_to_its_namespace(selector: Any) -> None:
    world = waiting(namespaceSelector=VISION)
    assert world.status("mine")["reason"] == "NamespaceMismatch"
    stored = world.memory.get(QUEUES, None, "vision")
    spec = {key: value for key, value in stored["spec"].items() if key != "namespaceSelector"}
    spec |= {"namespaceSelector": selector} if selector is not None else {}
    world.memory.replace(QUEUES, None, "vision", {**stored, "spec": spec})
    world.settle()
    assert world.status("mine")["reason"] == "Admitted"


def test_running_job_keeps_admission_when_namespace_no_longer_matches() -> None:
    world = World(cpu="8")
    label(world.memory, "vision")
    world.memory.create(QUEUES, None, queue("vision", "8", namespaceSelector=VISION))
    world.run_job(queued("mine", "vision"))
    label(world.memory, None)
    world.submit(queued("next", "vision"))
    world.settle()
    assert world.status("mine").get("admission") is not None
    assert set(world.phases().values()) == {"Running"}
    assert world.status("next")["reason"] == "NamespaceMismatch"


def test_queue_with_invalid_selector_admits_no_jobs() -> None:
    world = waiting(namespaceSelector={"matchLabls": {"team": "vision"}})
    assert world.status("mine")["reason"] == "QueueNotFound"
    assert "matchLabls" in world.memory.get(QUEUES, None, "vision")["status"]["message"]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        (VISION, "NamespaceMismatch"),
        ({"matchExpressions": [{"key": "restricted", "operator": "DoesNotExist"}]}, "NamespaceMismatch"),
        ({"matchLabels": {"kubernetes.io/metadata.name": "default"}}, "Admitted"),
        ({}, "Admitted"),
        (None, "Admitted"),
    ],
)
def test_only_namespace_names_match_without_permission_to_list_namespaces(selector: Any, found: str) -> None:
    def blind(verb: str, kind: Any = None, *_: Any, **__: Any) -> None:
        if kind == NAMESPACES and verb in ("list", "watch"):
            raise Forbidden("namespaces is forbidden")

    world = World(cpu="8")
    world.controller = Controller(disturbed(world.memory, blind), clock=world.clock, monotonic=world.clock)
    label(world.memory, "vision")
    spec = {} if selector is None else {"namespaceSelector": selector}
    world.memory.create(QUEUES, None, queue("vision", "8", **spec))
    world.submit(queued("mine", "vision"))
    world.settle()
    assert world.status("mine")["reason"] == found
    if found != "Admitted":
        assert "list and watch namespaces" in world.status("mine")["message"]


def test_controller_admits_waiting_job_when_namespace_label_changes() -> None:
    world = waiting(namespaceSelector=VISION)
    watched: list[Resource] = []

    def seen(verb: str, kind: Any = None, *_: Any, **__: Any) -> None:
        if verb == "watch":
            watched.append(kind)

    driver = Controller(disturbed(world.memory, seen), clock=world.clock)
    driver.start()
    try:
        until(lambda: NAMESPACES in watched, seconds=60)
        label(world.memory, "vision")
        until(lambda: world.status("mine")["reason"] == "Admitted", seconds=60)
    finally:
        driver.stop()

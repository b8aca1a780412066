"""Informers: kinds that the API does not serve, and missing permissions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.controller.controller_processes import ask, settings
from tests.controller.harness import RunningClock, World, disturbed, queue, queued, tfjob
from tests.controller.informers.gang_apis import definition
from tests.waiting import until
from tf_dist.cluster.api import (
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    SERVICES,
    TFJOBS,
    VOLCANO_JOBS,
    Object,
    Resource,
)
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.controller.controller import Controller
from tf_dist.controller.manager import Manager
from tf_dist.controller.settings import ControllerSettings, JobRef
from tf_dist.errors import Forbidden, Unavailable

SECONDS = 60.0


@contextmanager
def started(world: World, cluster: Any = None, **more: Any) -> Iterator[Controller]:
    driver = Controller(cluster or world.memory, clock=world.clock, monotonic=world.clock, **more)
    driver.start()
    try:
        until(driver.synced, SECONDS)
        yield driver
    finally:
        driver.stop()


def reason(world: World, name: str) -> str:
    return str(world.status(name).get("reason", ""))


def test_job_is_queued_when_its_service_is_deleted() -> None:
    world, changed = World(), list[JobRef]()
    world.submit(tfjob())
    world.settle()
    driver = Controller(world.memory, clock=world.clock, monotonic=world.clock, on_change=changed.append)
    driver.informers.refresh()
    changed.clear()
    world.memory.delete(SERVICES, "default", "mnist-worker-0")
    driver.informers.refresh()
    assert changed == [JobRef(TFJOBS, "default", "mnist")]


def _version(stored: Object) -> str:
    return str(stored["metadata"]["resourceVersion"])


def test_job_is_queued_only_for_relevant_changes_of_pods() -> None:
    """In a large cluster, most changes are irrelevant: annotations and conditions of other tools, managed fields."""
    world, changed = World(), list[JobRef]()
    world.submit(tfjob())
    world.settle()
    world.run_pods()
    driver = Controller(world.memory, clock=world.clock, monotonic=world.clock, on_change=changed.append)
    driver.informers.refresh()
    changed.clear()

    world.memory.patch(PODS, "default", "mnist-worker-0", {"metadata": {"annotations": {"seen-by": "a-mesh"}}})
    mesh = {"type": "example.com/mesh", "status": "True"}
    status = world.pods()["mnist-worker-1"]["status"]
    world.set_status("mnist-worker-1", {**status, "conditions": [*status["conditions"], mesh]})
    world.memory.patch(SERVICES, "default", "mnist-worker-0", {"metadata": {"annotations": {"seen-by": "a-mesh"}}})
    driver.informers.refresh()
    assert changed == []
    kept = {
        pod["metadata"]["resourceVersion"] for pod in driver.informers.pods("default", world.job()["metadata"]["uid"])
    }
    assert kept == {pod["metadata"]["resourceVersion"] for pod in world.pods().values()}

    world.set_status("mnist-worker-1", {**status, "conditions": [{"type": "Ready", "status": "False"}]})
    driver.informers.refresh()
    assert changed == [JobRef(TFJOBS, "default", "mnist")]


@pytest.fixture
def bare() -> World:
    """A cluster without tf-dist's CRD of queues."""
    return World(lacks=[QUEUES], clock=RunningClock())


@pytest.fixture
def following(bare: World) -> Iterator[Controller]:
    with started(bare) as driver:
        yield driver


def test_informers_have_distinct_names_in_metrics() -> None:
    """Volcano's queues have the same plural as tf-dist's queues."""
    with started(World(clock=RunningClock())) as driver:
        found = [one.resource for one in driver.readings().informers]
    assert {"queues", "queues.scheduling.volcano.sh"} <= set(found)
    assert len(found) == len(set(found))


def test_quotas_apply_while_queue_crd_exists(bare: World, following: Controller) -> None:
    bare.submit(tfjob("before"))
    until(lambda: len(bare.pods()) == 3, SECONDS)
    bare.memory.create(CRDS, None, definition(QUEUES))
    bare.memory.create(QUEUES, None, queue("research", "4"))
    until(lambda: following.informers.rules(QUEUES) != [], SECONDS)
    bare.submit(queued("first", "research", workers=1))
    until(lambda: reason(bare, "first") == "Admitted", SECONDS)
    bare.submit(queued("second", "research", workers=2))
    until(lambda: reason(bare, "second") == "QuotaExceeded", SECONDS)

    bare.memory.delete(CRDS, None, "queues.tf-dist.dev")
    until(lambda: following.informers.rules(QUEUES) == [], SECONDS)
    until(lambda: reason(bare, "second") != "QuotaExceeded", SECONDS)
    assert following.synced()


def test_controller_without_threads_reads_queues_defined_later() -> None:
    world = World(lacks=[QUEUES])  # its clock does not advance, so no decision is delayed
    world.settle()
    world.memory.create(CRDS, None, definition(QUEUES))
    world.memory.create(QUEUES, None, queue("research", "4"))
    world.submit(queued("first", "research", workers=4))
    world.settle()
    assert reason(world, "first") == "NeverFits"


@pytest.mark.parametrize("kind", [TFJOBS, VOLCANO_JOBS], ids=lambda kind: kind.kind)
def test_readyz_names_job_kind_that_is_not_served(kind: Resource) -> None:
    world = World(lacks=[kind], clock=RunningClock())
    with Manager(world.memory, settings(volcano_jobs=True)) as controller:
        name = f"{kind.plural}.{kind.group}"
        until(lambda: ask(controller, "/readyz")[0] == 503, SECONDS)
        until(lambda: name in ask(controller, "/readyz")[1], SECONDS)
        assert ask(controller, "/healthz")[0] == 200
        world.memory.create(CRDS, None, definition(kind))
        until(lambda: ask(controller, "/readyz") == (200, "ok\n"), SECONDS)
        until(controller.leads, SECONDS)
        if kind is TFJOBS:
            world.submit(tfjob())
            until(lambda: len(world.pods()) == 3, SECONDS)
        world.memory.delete(CRDS, None, name)
        until(lambda: name in ask(controller, "/readyz")[1], SECONDS)


class Rights:
    """The permissions of a controller, with kinds that it may not list in all namespaces."""

    def __init__(self, world: World) -> None:
        self.refused: set[Resource] = set()
        self.broken: set[Resource] = set()
        self.attempts: Counter[Resource] = Counter()
        self.cluster = disturbed(world.memory, self._check)

    def _check(self, verb: str, resource: Any, *args: Any, **how: Any) -> None:
        if verb not in ("list", "watch"):
            return
        self.attempts[resource] += 1
        if resource in self.broken:
            raise Unavailable(f"{verb} {resource.plural}: no answer")
        if resource in self.refused and not (any(args) or how.get("namespace")):
            raise Forbidden(f"may not {verb} {resource.plural} in all namespaces")


@pytest.fixture
def world() -> World:
    return World(clock=RunningClock())


@pytest.fixture
def rights(world: World) -> Rights:
    return Rights(world)


@pytest.mark.parametrize("kind", [NODES, PODS], ids=lambda kind: kind.kind)
def test_namespace_controller_detects_changed_permissions(world: World, rights: Rights, kind: Resource) -> None:
    rights.refused = {kind}
    team = ControllerSettings(namespace="default")
    with started(world, rights.cluster, settings=team) as controller:
        assert not controller.informers.sees_nodes
        world.submit(tfjob("early", workers=9, ps=1))
        until(lambda: len(world.pods()) == 10, SECONDS)  # more than 8 CPUs: the free capacity is unknown
        assert not controller.informers.rights_changed()
        rights.refused = set()
        assert controller.informers.rights_changed()
    with started(world, rights.cluster, settings=team) as controller:
        assert controller.informers.sees_nodes
        world.submit(tfjob("late", workers=9))
        until(lambda: reason(world, "late") not in ("", "JobCreated"), SECONDS)
        assert reason(world, "late") != "Admitted"
        rights.broken = {kind}
        assert not controller.informers.rights_changed(), "an error is no answer"
        rights.broken, rights.refused = set(), {kind}
        assert controller.informers.rights_changed()
        assert "restarts" not in world.status("early")


@pytest.mark.parametrize("kind", [QUEUES, PRIORITY_CLASSES], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("trouble", ["refused", "broken"])
def test_cluster_controller_admits_jobs_only_after_reading_rules(
    world: World, rights: Rights, kind: Resource, trouble: str
) -> None:
    """A controller of the cluster cannot continue without its rules, after an error or after a refusal."""
    setattr(rights, trouble, {kind})
    driver = Controller(rights.cluster, clock=world.clock, monotonic=world.clock)
    world.memory.create(QUEUES, None, queue("research", "1"))
    world.submit(queued("first", "research"))
    driver.start()
    try:
        until(lambda: any(kind.plural in problem for problem in driver.informers.problems()), SECONDS)
        assert not driver.synced()
        setattr(rights, trouble, set())
        until(driver.synced, SECONDS)
        until(lambda: reason(world, "first") not in ("", "JobCreated"), SECONDS)
        assert world.pods() == {}
    finally:
        driver.stop()


def test_cluster_controller_names_missing_permission_and_recovers(
    world: World, rights: Rights, caplog: pytest.LogCaptureFixture
) -> None:
    rights.refused = {NODES}
    world.submit(tfjob())
    with Manager(rights.cluster, settings()) as controller:
        until(lambda: "may not list nodes" in ask(controller, "/readyz")[1], SECONDS)
        until(lambda: rights.attempts[NODES] > 2, SECONDS)
        assert [record.levelname for record in caplog.records if "may not list nodes" in record.getMessage()] == [
            "WARNING"
        ]
        rights.refused = set()
        until(lambda: len(world.pods()) == 3, SECONDS)

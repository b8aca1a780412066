"""What the API serves, and what a driver may see, is followed for as long as it lives."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.controller.controller_processes import ask, settings
from tests.controller.harness import RunningClock, World, disturbed, queue, queued, tfjob
from tests.controller.informers.gang_apis import definition
from tests.waiting import until
from tf_dist.cluster.api import (
    LEASES,
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
from tf_dist.controller.settings import ControllerSettings, JobRef
from tf_dist.controller.gang_admission.admission_leader import LeaseAdmissionLeader
from tf_dist.controller.informers.scoped_informers import ScopedInformers
from tf_dist.controller.leases.lease import LeaseRef, admission_leader_lease
from tf_dist.controller.manager import Manager
from tf_dist.errors import Forbidden, Unavailable

SECONDS = 60.0
WIDE = ControllerSettings(can_lead_admission=True, admissions=LeaseRef("default", "admissions"))


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


def test_a_job_is_looked_at_when_a_service_of_it_goes() -> None:
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


def test_a_job_is_looked_at_only_for_what_a_decision_looks_at_in_its_pods() -> None:
    """Labels of other tools, managed fields, conditions of sidecars: most of what changes in a large cluster."""
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
    """A cluster without our definition of queues."""
    return World(lacks=[QUEUES], clock=RunningClock())


@pytest.fixture
def following(bare: World) -> Iterator[Controller]:
    with started(bare) as driver:
        yield driver


def test_each_informer_has_a_name_of_its_own_in_the_metrics() -> None:
    """Also with Volcano Jobs, whose queues have the plural of ours."""
    with started(World(clock=RunningClock())) as driver:
        found = [one.resource for one in driver.readings().informers]
    assert {"queues", "queues.scheduling.volcano.sh"} <= set(found)
    assert len(found) == len(set(found))


def test_quotas_hold_from_when_queues_are_defined_until_they_are_not(bare: World, following: Controller) -> None:
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


def test_a_driver_that_lists_sees_queues_that_were_defined_later(bare: World) -> None:
    bare.settle()
    bare.memory.create(CRDS, None, definition(QUEUES))
    bare.memory.create(QUEUES, None, queue("research", "4"))
    bare.submit(queued("first", "research", workers=4))
    bare.settle()
    assert reason(bare, "first") == "NeverFits"


@pytest.mark.parametrize("kind", [TFJOBS, VOLCANO_JOBS], ids=lambda kind: kind.kind)
def test_a_controller_says_which_kind_of_jobs_is_not_served(kind: Resource) -> None:
    world = World(lacks=[kind], clock=RunningClock())
    world.memory.create(LEASES, "default", {"metadata": {"name": "tf-dist-controller"}})
    with Manager(world.memory, settings(volcano_jobs=True)) as controller:
        name = f"{kind.plural}.{kind.group}"
        until(lambda: ask(controller, "/readyz")[0] == 503, SECONDS)
        until(lambda: name in ask(controller, "/readyz")[1], SECONDS)
        assert ask(controller, "/healthz")[0] == 200
        world.memory.create(CRDS, None, definition(kind))
        until(lambda: ask(controller, "/readyz") == (200, "ok\n"), SECONDS)
        until(lambda: holds(world), SECONDS)
        if kind is TFJOBS:
            world.submit(tfjob())
            until(lambda: len(world.pods()) == 3, SECONDS)
        world.memory.delete(CRDS, None, name)
        until(lambda: name in ask(controller, "/readyz")[1], SECONDS)


def holds(world: World) -> bool:
    """Whether a driver decides for all."""
    leases = world.memory.list(
        LEASES, admission_leader_lease().namespace, fields=f"metadata.name={admission_leader_lease().name}"
    ).items
    return any((stored.get("spec") or {}).get("holderIdentity") for stored in leases)


class Rights:
    """Of a driver of one namespace: kinds that it may not see in the whole cluster."""

    def __init__(self, world: World) -> None:
        self.refused: set[Resource] = set()
        self.broken: set[Resource] = set()
        self.cluster = disturbed(world.memory, self._check)

    def _check(self, verb: str, resource: Any, *args: Any, **how: Any) -> None:
        if verb not in ("list", "watch"):
            return
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


@contextmanager
def arbitrating(world: World, rights: Rights, namespace: str | None = "default") -> Iterator[Controller]:
    """A driver that decides for all if it sees all."""
    wide = replace(WIDE, namespace=namespace)
    with started(
        world, rights.cluster, settings=wide, admission_leader=LeaseAdmissionLeader(world.memory, renew_every=0.4)
    ) as driver:
        yield driver


def asked_again(world: World, driver: Controller, condition: Any) -> None:
    """Let the time pass after which rights are looked for again, as often as it takes."""

    def come() -> bool:
        world.clock.now += 31
        driver.wake()
        return bool(condition())

    until(come, SECONDS)


@pytest.mark.parametrize("kind", [NODES, PODS, TFJOBS], ids=lambda kind: kind.kind)
def test_a_right_that_is_granted_later_widens_what_is_seen(world: World, rights: Rights, kind: Resource) -> None:
    rights.refused = {kind}
    with arbitrating(world, rights) as driver:
        assert not driver.informers.sees_all
        assert not holds(world)
        world.submit(tfjob("early", workers=1, ps=1))
        until(lambda: len(world.pods()) == 2, SECONDS)
        rights.refused = set()
        asked_again(world, driver, lambda: driver.informers.sees_all and holds(world))
        # There are 8 CPUs, two of them taken.
        world.submit(tfjob("large", workers=8))
        until(lambda: reason(world, "large") not in ("", "JobCreated"), SECONDS)
        assert reason(world, "large") != "Admitted"
        assert len(world.pods()) == 2
        assert "restarts" not in world.status("early")


def test_a_right_that_is_withdrawn_ends_deciding_for_all(world: World, rights: Rights) -> None:
    with arbitrating(world, rights) as driver:
        until(lambda: driver.informers.sees_all and holds(world), SECONDS)
        world.submit(tfjob("early", workers=1, ps=1))
        until(lambda: len(world.pods()) == 2, SECONDS)
        rights.refused = {NODES}
        for reflector in driver.informers._reflectors.values():
            reflector._stir()  # its watch ends, as it does every few minutes
        asked_again(world, driver, lambda: not driver.informers.sees_all and not holds(world))
        asked_again(world, driver, driver.synced)
        world.submit(tfjob("late", workers=1, ps=1))
        until(lambda: len(world.pods()) == 4, SECONDS)
        assert "restarts" not in world.status("early")


def test_who_may_not_see_queues_does_not_decide_for_all(world: World, rights: Rights) -> None:
    rights.refused = {QUEUES}
    with arbitrating(world, rights) as driver:
        assert driver.informers.sees_nodes
        assert not driver.informers.sees_all
        until(lambda: not holds(world), SECONDS)  # it may have stood for the Lease until it was refused the queues
        rights.refused = set()
        asked_again(world, driver, lambda: driver.informers.sees_all and holds(world))


@pytest.mark.parametrize("kind", [QUEUES, PRIORITY_CLASSES], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("trouble", ["refused", "broken"])
def test_a_driver_of_all_admits_nothing_before_it_knows_the_rules(
    world: World, rights: Rights, kind: Resource, trouble: str
) -> None:
    """An error is no answer; nor is a refusal, to the one that would give the cluster away."""
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


class Promised(Rights):
    """Of a driver whose probes are answered, while its lists of the same kinds are refused."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.promises = False
        self.probes = 0

    def _check(self, verb: str, resource: Any, *args: Any, **how: Any) -> None:
        probe = self.promises and verb == "list" and how.get("limit") == 1
        self.probes += probe and resource is TFJOBS
        if not probe:
            super()._check(verb, resource, *args, **how)


def views_of(rights: Rights) -> int:
    """How many views are still in memory."""
    gc.collect()
    return sum(isinstance(one, ScopedInformers) and one._context.cluster is rights.cluster for one in gc.get_objects())


def test_views_that_are_given_up_are_let_go_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(
        logging.CRITICAL, logger="tf_dist.cluster.client.informer"
    )  # what is captured keeps all it is about
    rights = Promised(world)
    rights.refused = {NODES}
    with arbitrating(world, rights) as driver:
        rights.promises = True
        asked_again(world, driver, lambda: rights.probes >= 8)
        assert not driver.informers.sees_nodes
        asked_again(world, driver, lambda: views_of(rights) <= 3)


def test_a_driver_that_lists_goes_on_as_before_where_more_is_promised_than_it_gets(world: World) -> None:
    rights = Promised(world)
    rights.refused = {NODES}
    wide = ControllerSettings(namespace="default", can_lead_admission=True, admissions=LeaseRef("default", "admissions"))
    driver = Controller(rights.cluster, settings=wide, clock=world.clock, monotonic=world.clock)
    driver.step()
    rights.promises = True
    world.clock.now += 31
    world.submit(tfjob("early", workers=1, ps=1))
    driver.step()
    driver.step()
    assert len(world.pods()) == 2

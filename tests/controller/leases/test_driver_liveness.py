"""Messages about jobs that have no living driver."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.controller.harness import claimed_by, disturbed, tfjob
from tests.waiting import until
from tf_dist.cluster.api import LEASES, NAMESPACES, TFJOBS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.gang_admission.admission_leader import LeaseAdmissionLeader
from tf_dist.controller.leases.driver_liveness import controller_lives, no_living_driver
from tf_dist.controller.leases.lease import (
    BROKEN_BY,
    CONTROLLER_LEASE,
    CONTROLLER_NAME,
    DRIVER_ADMISSION_LEADER,
    DRIVER_CONTROLLER,
    DRIVER_INLINE,
    LeaseRef,
    admission_leader_lease,
    controller_lease_name,
    new_lease,
)
from tf_dist.controller.leases.lease import NAMESPACES as LEASE_NAMESPACES
from tf_dist.controller.manager import Manager, ManagerSettings
from tf_dist.core.api import names
from tf_dist.core.api.timestamps import parse_time
from tf_dist.errors import Forbidden

CONTROLLER = LeaseRef(names.SYSTEM_NAMESPACE, CONTROLLER_NAME)
INLINE = LeaseRef("default", "tf-dist-1")


def job(cluster: MemoryCluster, driver: str = "", **spec: Any) -> dict[str, Any]:
    document = tfjob()
    if driver:
        document["metadata"]["annotations"] = {names.DRIVER: driver}
    document["spec"].setdefault("runPolicy", {}).update(spec)
    return cluster.create(TFJOBS, "default", document)


def lease(cluster: MemoryCluster, ref: LeaseRef, renewed: float, holder: str = "pod-1") -> None:
    kind = DRIVER_INLINE if ref == INLINE else DRIVER_CONTROLLER
    cluster.create(LEASES, ref.namespace, new_lease(ref, holder, 15.0, renewed, {names.DRIVER: kind}))


@pytest.mark.parametrize(
    ("driver", "age", "holder", "said"),
    [
        ("", 10.0, "pod-1", ""),
        ("", 3600.0, "pod-1", "no controller is alive in tf-dist-system: the job waits until one is"),
        ("", 10.0, "", "no controller is alive in tf-dist-system: the job waits until one is"),
        (str(CONTROLLER), 10.0, "pod-1", ""),
        (str(CONTROLLER), 3600.0, "pod-1", "its controller is not alive: Lease tf-dist-system/tf-dist-controller"),
        ("embedded", 3600.0, "pod-1", ""),
        (str(INLINE), 10.0, "pod-1", "its driver default/tf-dist-1 has ended"),
    ],
)
def test_a_job_that_no_living_driver_has_says_so(driver: str, age: float, holder: str, said: str) -> None:
    cluster = MemoryCluster()
    stored = job(cluster, driver)
    now = parse_time(stored["metadata"]["creationTimestamp"]) or 0.0
    lease(cluster, CONTROLLER, now - age, holder)
    found = no_living_driver(cluster, stored, now)
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize("driver", ["ghost", str(CONTROLLER), "kube-system/kube-scheduler"])
def test_reports_driver_that_only_an_annotation_names(driver: str) -> None:
    cluster = MemoryCluster()
    stored = cluster.create(TFJOBS, "default", claimed_by(driver))
    now = parse_time(stored["metadata"]["creationTimestamp"]) or 0.0
    lease(cluster, CONTROLLER, now)
    assert f"names the driver {driver}, which has not taken the job" in no_living_driver(cluster, stored, now + 60)


def test_a_program_that_drove_it_and_was_killed() -> None:
    cluster = MemoryCluster()
    stored = job(cluster, str(INLINE))
    now = parse_time(stored["metadata"]["creationTimestamp"]) or 0.0
    lease(cluster, INLINE, now - 3600)
    assert no_living_driver(cluster, stored, now).startswith("the program that drove it is not alive: Lease default/")


def test_where_tf_dist_has_no_lease_a_job_has_some_time_to_be_taken() -> None:
    cluster = MemoryCluster()
    stored = job(cluster)
    now = parse_time(stored["metadata"]["creationTimestamp"]) or 0.0
    assert no_living_driver(cluster, stored, now + 29) == ""
    assert no_living_driver(cluster, stored, now + 31).startswith("no controller is alive in tf-dist-system")


def test_a_job_of_another_controller_is_none_of_ours() -> None:
    cluster = MemoryCluster()
    stored = job(cluster, managedBy="kueue.x-k8s.io/multikueue")
    now = parse_time(stored["metadata"]["creationTimestamp"]) or 0.0
    assert no_living_driver(cluster, stored, now + 3600) == ""


@pytest.mark.parametrize(
    ("name", "age", "holder", "lives"),
    [
        (CONTROLLER_NAME, 10.0, "pod-1", True),
        (CONTROLLER_NAME, 60.0, "pod-1", False),
        (CONTROLLER_NAME, 10.0, "", False),
        (f"{CONTROLLER_NAME}-default", 10.0, "pod-1", True),
        (f"{CONTROLLER_NAME}-other", 10.0, "pod-1", False),
    ],
)
def test_a_job_is_left_to_a_controller_that_lives_and_has_its_namespace(
    name: str, age: float, holder: str, lives: bool
) -> None:
    cluster = MemoryCluster()
    assert not controller_lives(cluster, "default", 1000.0)
    lease(cluster, LeaseRef(names.SYSTEM_NAMESPACE, name), 1000.0 - age, holder)
    assert controller_lives(cluster, "default", 1000.0) is lives


@pytest.mark.parametrize(("namespaces", "lives"), [(("default", "vision"), True), (("vision", "research"), False)])
def test_a_controller_of_several_namespaces_says_which(namespaces: tuple[str, ...], lives: bool) -> None:
    cluster = MemoryCluster()
    ref = LeaseRef(names.SYSTEM_NAMESPACE, controller_lease_name(namespaces))
    cluster.create(LEASES, ref.namespace, {"metadata": {"name": ref.name, "labels": {names.DRIVER: DRIVER_CONTROLLER}}})
    with Manager(cluster, ManagerSettings(lease_namespace=ref.namespace, namespaces=namespaces, metrics_port=0)):
        until(lambda: bool(cluster.get(LEASES, *ref).get("spec", {}).get("holderIdentity")), 30)
        assert controller_lives(cluster, "default", time.time()) is lives
    assert not controller_lives(cluster, "default", time.time())


@pytest.mark.parametrize(("namespaces", "lives"), [((), True), (("default",), False)], ids=["of all", "of one"])
def test_a_controller_of_another_namespace_shows_in_the_lease_of_the_admission_leader(
    namespaces: tuple[str, ...], lives: bool
) -> None:
    """``tf-dist install --into ml-system``: one of all namespaces decides about places for all: by that it is known."""
    cluster = MemoryCluster()
    cluster.create(NAMESPACES, None, {"metadata": {"name": "ml-system"}})
    ref, leader = LeaseRef("ml-system", controller_lease_name(namespaces)), admission_leader_lease()
    labels = {names.DRIVER: DRIVER_CONTROLLER}
    cluster.create(LEASES, ref.namespace, {"metadata": {"name": ref.name, "labels": labels}})
    labels = {names.DRIVER: DRIVER_ADMISSION_LEADER}
    cluster.create(LEASES, leader.namespace, {"metadata": {"name": leader.name, "labels": labels}})
    held = leader if lives else ref
    with Manager(cluster, ManagerSettings(lease_namespace=ref.namespace, namespaces=namespaces, metrics_port=0)):
        until(lambda: bool(cluster.get(LEASES, *held).get("spec", {}).get("holderIdentity")), 30)
        assert controller_lives(cluster, "default", time.time()) is lives
    assert not controller_lives(cluster, "default", time.time())


def test_a_program_that_decides_about_places_is_no_controller() -> None:
    cluster = MemoryCluster()
    leader = admission_leader_lease()
    left = {"annotations": {CONTROLLER_LEASE: "ml-system/tf-dist-controller"}, "name": leader.name}
    cluster.create(LEASES, leader.namespace, {"metadata": {**left, "labels": {names.DRIVER: DRIVER_ADMISSION_LEADER}}})
    program = LeaseAdmissionLeader(cluster)
    program.start(sees_all=True)
    until(program.for_all, 30)
    assert not controller_lives(cluster, "default", time.time())
    program.stop()


def test_where_leases_may_not_be_read_no_job_is_left_to_a_controller() -> None:
    def refuse(verb: str, *_: object, **__: object) -> None:
        raise Forbidden(f"may not {verb} leases")

    memory = MemoryCluster()
    lease(memory, CONTROLLER, 1000.0)
    assert not controller_lives(disturbed(memory, refuse), "default", 1000.0)


def test_what_drivers_of_other_releases_read_in_leases() -> None:
    """Replicas of two releases run side by side during a rollout: none of these words may change."""
    assert (DRIVER_INLINE, DRIVER_CONTROLLER, DRIVER_ADMISSION_LEADER) == ("inline", "controller", "arbiter")
    assert (BROKEN_BY, LEASE_NAMESPACES) == ("tf-dist.dev/broken-by", "tf-dist.dev/namespaces")
    assert CONTROLLER_NAME == "tf-dist-controller"

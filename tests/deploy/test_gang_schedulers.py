"""Other gang schedulers on a real API server: the roles suffice for their objects, and grant nothing more.

The definitions accept any object, and the test acts as the scheduler. Only the API server is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.cluster.support import names
from tests.controller.harness import tfjob
from tests.controller.informers.gang_apis import (
    COSCHEDULING_GROUPS,
    FLAVORS,
    VOLCANO_GROUPS,
    WORKLOADS,
    definition,
    gang_object,
    tell,
)
from tests.deploy.conftest import SYSTEM, is_served
from tests.deploy.kubelet import Kubelet
from tests.deploy.manifests import template
from tests.deploy.roles import CONTROLLER, DRIVER, QUEUES, Account, Kubectl, Life, granted, short, table
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS, Object, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.names import GANG_SCHEDULER
from tf_dist.errors import Conflict, Forbidden

pytestmark = pytest.mark.cluster

_KINDS = (VOLCANO_GROUPS, COSCHEDULING_GROUPS, WORKLOADS, FLAVORS)
_ASKED = "gangSchedulers={volcano,coscheduling,kueue}"

OBJECTS = table(
    """
    podgroups.scheduling.volcano.sh: get list watch create patch delete
    podgroups.scheduling.x-k8s.io: get list watch create patch delete
    workloads.kueue.x-k8s.io: get list watch create patch delete
    workloads/status.kueue.x-k8s.io: patch
    """
)
SHARED = table(
    """
    resourceflavors.kueue.x-k8s.io: list watch
    workloadpriorityclasses.kueue.x-k8s.io: list watch
    """
)


def _is_gone(admin: RestCluster, kind: Resource) -> bool:
    return not is_served(admin, kind)


@pytest.fixture(scope="module")
def schedulers(admin: RestCluster) -> Iterator[None]:
    """The definitions that these schedulers need. The tests are skipped on a cluster that has such a scheduler."""
    if any(is_served(admin, kind) for kind in _KINDS):
        pytest.skip("this cluster has other gang schedulers")
    for kind in _KINDS:
        admin.create(CRDS, None, definition(kind))
    try:
        for kind in _KINDS:
            until(partial(is_served, admin, kind), 60)
        yield
    finally:
        for kind in _KINDS:
            admin.delete(CRDS, None, f"{kind.plural}.{kind.group}")
        for kind in _KINDS:
            until(partial(_is_gone, admin, kind), 60)


@pytest.fixture
def home(
    kubectl: Kubectl, install: Callable[..., Any], installed: str, schedulers: None, namespace: str
) -> Iterator[str]:
    """A namespace in which ``tf-dist-driver`` may use these schedulers. The controller may use them everywhere."""
    made = template(_ASKED, f"drivers={{{namespace}}}", "crds.enabled=false")
    kubectl("apply", "-f", "-", stdin=made)
    yield namespace
    kubectl("delete", "--ignore-not-found", "clusterrolebinding", "tf-dist-flavors", f"tf-dist-driver-{namespace}")
    kubectl("delete", "clusterrole", "tf-dist-flavors")
    kubectl("apply", "-f", "-", stdin=install().stdout)


def asking(gang: GangScheduler) -> Object:
    document = short(tfjob(cleanPodPolicy="All", ttlSecondsAfterFinished=0))
    return {**document, "metadata": {**document["metadata"], "annotations": {GANG_SCHEDULER: gang.value}}}


def life_of(admin: RestCluster, account: RestCluster, room: Kubelet, namespace: str, gang: GangScheduler) -> Life:
    """A job with a gang scheduler, reconciled by a controller with an account of the namespace."""
    driver = Controller(account, settings=ControllerSettings(namespace=namespace, volcano_jobs=False))
    return Life(admin, driver, room, TFJOBS, account.create(TFJOBS, namespace, asking(gang)))


def test_roles_grant_only_enabled_schedulers(kubectl: Kubectl, home: str) -> None:
    assert granted(kubectl, "tf-dist-driver", home, home) == DRIVER | QUEUES | OBJECTS | SHARED
    assert granted(kubectl, "tf-dist-driver", home, "default") == QUEUES | SHARED
    assert granted(kubectl, "tf-dist-controller", SYSTEM, home) == CONTROLLER | OBJECTS | SHARED


@pytest.mark.parametrize(
    ("gang", "kind"),
    [(GangScheduler.VOLCANO, VOLCANO_GROUPS), (GangScheduler.COSCHEDULING, COSCHEDULING_GROUPS)],
    ids=["volcano", "coscheduling"],
)
def test_driver_role_suffices_for_pod_groups(
    admin: RestCluster, as_account: Account, room: Kubelet, home: str, gang: GangScheduler, kind: Resource
) -> None:
    account = as_account("tf-dist-driver", home)
    life = life_of(admin, account, room, home, gang)
    life.until(lambda: bool(names(admin, kind, home)))
    tell(admin, kind, home, phase="Inqueue")
    life.until(lambda: life.memory().get("phase") == "Running")
    assert life.memory()["admission"]["by"] == gang.value
    size = gang_object(admin, kind, home)["spec"]["minMember"]
    spec = {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}
    account.patch(TFJOBS, home, "mnist", {"spec": spec})
    life.until(lambda: gang_object(admin, kind, home)["spec"]["minMember"] == size + 1)
    life.until(life.gone, worker_0=0, worker_1=0, worker_2=0)
    until(lambda: not names(admin, kind, home), 60)


def test_driver_role_suffices_for_kueue(admin: RestCluster, as_account: Account, room: Kubelet, home: str) -> None:
    flavor = {"metadata": {"name": f"any-{home}"}, "spec": {"nodeLabels": {}}}
    admin.create(FLAVORS, None, flavor)
    account = as_account("tf-dist-driver", home)
    life = life_of(admin, account, room, home, GangScheduler.KUEUE)

    def says(*true: str) -> list[dict[str, str]]:
        given = {"lastTransitionTime": "2027-01-15T08:00:00Z", "reason": "Preempted", "message": "says the test"}
        every = ("QuotaReserved", "Admitted", "Evicted")
        return [{"type": one, "status": "True" if one in true else "False", **given} for one in every]

    def told(type_: str) -> str:
        conditions = (gang_object(admin, WORKLOADS, home).get("status") or {}).get("conditions") or ()
        return next((one["status"] for one in conditions if one["type"] == type_), "")

    def admitted() -> None:
        assigned = [{"name": n, "count": c, "flavors": {"cpu": f"any-{home}"}} for n, c in (("ps", 1), ("worker", 2))]
        admission = {"clusterQueue": "all", "podSetAssignments": assigned}
        tell(admin, WORKLOADS, home, conditions=says("QuotaReserved", "Admitted"), admission=admission)

    try:
        life.until(lambda: bool(names(admin, WORKLOADS, home)))
        assert not names(admin, PODS, home)
        admitted()
        life.until(lambda: told("PodsReady") == "True")
        evict(admin, home, says("QuotaReserved", "Admitted", "Evicted"))
        life.until(lambda: told("QuotaReserved") == "False" and not names(admin, PODS, home))
        assert life.memory()["restarts"] == {"Preempted": 1}
        admitted()
        life.until(lambda: life.memory().get("phase") == "Running")
        life.until(life.gone, worker_0=0, worker_1=0)
        until(lambda: not names(admin, WORKLOADS, home), 60)
    finally:
        admin.delete(FLAVORS, None, f"any-{home}")


def evict(admin: RestCluster, namespace: str, conditions: list[dict[str, str]]) -> None:
    """Retry on conflicts, because the controller writes to the same status."""

    def written() -> bool:
        try:
            tell(admin, WORKLOADS, namespace, conditions=conditions)
        except Conflict:
            return False
        return True

    until(written, 60)


def test_job_reports_missing_permission_for_gang_scheduler(
    admin: RestCluster, as_account: Account, room: Kubelet, home: str, kubectl: Kubectl
) -> None:
    kubectl("delete", "clusterrolebinding", "tf-dist-flavors")
    account = as_account("tf-dist-driver", home)

    def refused() -> bool:
        try:
            account.list(FLAVORS)
        except Forbidden:
            return True
        return False

    until(refused, 60)
    life = life_of(admin, account, room, home, GangScheduler.KUEUE)
    life.until(lambda: life.memory().get("reason") == "GangSchedulerMissing")
    assert "resourceflavors" in life.memory()["message"]
    assert not names(admin, WORKLOADS, home)
    role = "--clusterrole=tf-dist-flavors"
    kubectl("create", "clusterrolebinding", f"tf-dist-flavors-{home}", role, f"--serviceaccount={home}:tf-dist-driver")

"""What a tenant with the role ``edit`` of one namespace can write, on a real API server with the controller's own role.

None of it holds the quota of others, or takes more than its queue has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.controller.harness import container, queue, replica, tfjob
from tests.deploy.conftest import SYSTEM
from tests.deploy.kubelet import Kubelet
from tests.waiting import until
from tf_dist.cluster.api import LIMIT_RANGES, PODS, QUEUES, RESOURCE_QUOTAS, TFJOBS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings
from tf_dist.core.model import names

pytestmark = pytest.mark.cluster

FINALIZER = "example.com/other"


class Team:
    """A namespace, its tenant and its queue of two CPUs, beside a controller that sees the cluster."""

    def __init__(self, admin: RestCluster, tenant: RestCluster, controller: RestCluster, namespace: str) -> None:
        self.admin, self.tenant, self.namespace = admin, tenant, namespace
        self.queue = f"queue-{namespace}"
        self.driver = Controller(controller, settings=ControllerSettings(volcano_jobs=False))
        self.kubelet = Kubelet(admin, namespace)

    def submit(self, name: str, *, requests: str = "1", **metadata: Any) -> None:
        body = container(cpu=requests) if requests else {"name": "tensorflow", "image": "tf"}
        job = tfjob(name, schedulingPolicy={"queue": self.queue})
        job["metadata"] |= {"namespace": self.namespace, **metadata}
        job["spec"]["tfReplicaSpecs"] = {"Worker": {**replica(2), "template": {"spec": {"containers": [body]}}}}
        self.tenant.create(TFJOBS, self.namespace, job)

    def memory(self, name: str) -> Object:
        self.driver.step()
        return (self.admin.get(TFJOBS, self.namespace, name).get("status") or {}).get("tfDist") or {}

    def reason(self, name: str) -> str:
        return str(self.memory(name).get("reason", ""))

    def run(self, name: str) -> None:
        """Until a job runs."""

        def runs() -> bool:
            self.kubelet.step({})
            return self.memory(name).get("phase") == "Running"

        until(runs, 60)

    def pods(self, name: str) -> list[Object]:
        found = self.admin.list(PODS, self.namespace, labels=f"{names.JOB_NAME}={name}").items
        return [pod for pod in found if pod["metadata"]["name"].startswith(name)]

    def bury(self, name: str) -> None:
        for pod in self.pods(name):
            self.admin.delete(PODS, self.namespace, pod["metadata"]["name"], grace_period=0)


@pytest.fixture
def team(
    admin: RestCluster,
    namespace: str,
    room: Kubelet,
    as_account: Callable[[str, str], RestCluster],
    kubectl: Callable[..., str],
) -> Iterator[Team]:
    account = f"{namespace}:default"
    kubectl("create", "rolebinding", "tenant", "-n", namespace, "--clusterrole=edit", f"--serviceaccount={account}")
    team = Team(admin, as_account("default", namespace), as_account("tf-dist-controller", SYSTEM), namespace)
    admin.create(QUEUES, None, queue(team.queue, "2"))
    yield team
    for job in admin.list(TFJOBS, namespace).items:
        admin.patch(TFJOBS, namespace, job["metadata"]["name"], {"metadata": {"finalizers": None}})
    admin.delete(QUEUES, None, team.queue)


def test_job_being_deleted_holds_no_place(team: Team) -> None:
    team.submit("first")
    team.run("first")
    team.submit("goes", finalizers=[FINALIZER])
    until(lambda: team.reason("goes") == "QuotaExceeded", 60)
    team.tenant.delete(TFJOBS, team.namespace, "goes")
    team.submit("next")
    until(lambda: team.reason("next") == "QuotaExceeded", 60)
    team.tenant.delete(TFJOBS, team.namespace, "first")
    team.bury("first")
    until(lambda: team.reason("next") == "Admitted", 60)
    goes = team.admin.get(TFJOBS, team.namespace, "goes")
    assert "deletionTimestamp" in goes["metadata"]
    assert "admission" not in goes["status"]["tfDist"]


def test_orphaned_pods_count_until_they_are_gone(team: Team) -> None:
    team.submit("first")
    team.run("first")
    team.tenant.delete(TFJOBS, team.namespace, "first", propagation="Orphan")
    until(lambda: not any(pod["metadata"].get("ownerReferences") for pod in team.pods("first")), 60)
    assert len(team.pods("first")) == 2
    team.submit("next")
    until(lambda: team.reason("next") == "QuotaExceeded", 60)
    team.bury("first")
    until(lambda: team.reason("next") == "Admitted", 60)


def test_forged_pods_count_only_where_the_queue_is_open(team: Team, admin: RestCluster, room: Kubelet) -> None:
    other = queue(team.queue, "2", namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}})
    admin.patch(QUEUES, None, team.queue, {"spec": other["spec"]})
    labels = {names.JOB_UID: "forged", names.QUEUE: team.queue}
    spec = {"containers": [container(cpu="2")], "nodeName": f"node-{team.namespace}"}
    team.tenant.create(PODS, team.namespace, {"metadata": {"name": "forged", "labels": labels}, "spec": spec})
    team.driver.step()
    used = admin.get(QUEUES, None, team.queue).get("status", {}).get("used", {}).get("cpu", "0")
    assert used == "0"


def test_system_class_is_refused(team: Team) -> None:
    team.submit("first")
    team.run("first")
    team.submit("high")
    patch = {"spec": {"runPolicy": {"schedulingPolicy": {"priorityClass": "system-node-critical"}}}}
    team.tenant.patch(TFJOBS, team.namespace, "high", patch)
    until(lambda: team.reason("high") == "PriorityClassRefused", 60)
    assert team.memory("first")["phase"] == "Running"


def test_defaults_of_limit_range_count(team: Team) -> None:
    rules = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
    team.admin.create(LIMIT_RANGES, team.namespace, {"metadata": {"name": "defaults"}, "spec": rules})
    quota = {"metadata": {"name": "quota"}, "spec": {"hard": {"requests.cpu": "1"}}}
    team.admin.create(RESOURCE_QUOTAS, team.namespace, quota)
    team.submit("first", requests="")
    until(lambda: team.reason("first") == "NeverFits", 60)
    assert team.pods("first") == []

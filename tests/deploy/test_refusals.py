"""A ResourceQuota on a real API server blocks a job. The job reports it, and continues when the quota changes."""

from __future__ import annotations

import pytest

from tests.controller.harness import tfjob
from tests.deploy.kubelet import Kubelet
from tests.deploy.roles import Life, short
from tests.waiting import until
from tf_dist.cluster.api import PODS, RESOURCE_QUOTAS, TFJOBS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings

pytestmark = pytest.mark.cluster
QUOTAS = RESOURCE_QUOTAS


def test_gang_waits_until_resource_quota_allows_all_pods(admin: RestCluster, room: Kubelet, namespace: str) -> None:
    admin.create(QUOTAS, namespace, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}})
    until(lambda: bool((admin.get(QUOTAS, namespace, "few").get("status") or {}).get("hard")), 60)
    other = {"metadata": {"name": "other"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    admin.create(PODS, namespace, other)
    driver = Controller(admin, settings=ControllerSettings(namespace=namespace, volcano_jobs=False))
    life = Life(admin, driver, room, TFJOBS, admin.create(TFJOBS, namespace, short(tfjob(cleanPodPolicy="All"))))

    waits = "waits for ResourceQuota few: pods 1 of 3 used, needs 3"
    life.until(lambda: life.memory().get("message") == waits)
    assert [pod["metadata"]["name"] for pod in admin.list(PODS, namespace).items] == ["other"]
    admin.patch(QUOTAS, namespace, "few", {"spec": {"hard": {"pods": "4"}}})
    life.until(lambda: life.memory().get("phase") == "Running")
    life.until(lambda: life.memory().get("phase") == "Completed", worker_0=0, worker_1=0)


def test_job_reports_refusing_quota_and_continues_when_quota_changes(
    admin: RestCluster, room: Kubelet, namespace: str
) -> None:
    """Admission does not check quotas for resources that the pods do not specify."""
    admin.create(QUOTAS, namespace, {"metadata": {"name": "few"}, "spec": {"hard": {"limits.cpu": "10"}}})
    # Until the quota controller has computed the usage, the quota refuses all pods.
    until(lambda: bool((admin.get(QUOTAS, namespace, "few").get("status") or {}).get("hard")), 60)
    driver = Controller(admin, settings=ControllerSettings(namespace=namespace, volcano_jobs=False))
    life = Life(admin, driver, room, TFJOBS, admin.create(TFJOBS, namespace, short(tfjob(cleanPodPolicy="All"))))

    life.until(lambda: "failed quota: few: must specify limits.cpu" in life.memory().get("lastError", ""))
    assert life.holds("Stalled")
    assert life.memory()["why"] == "ReconcileFailed"

    admin.patch(QUOTAS, namespace, "few", {"spec": {"hard": {"limits.cpu": None, "pods": "10"}}})
    life.until(lambda: life.memory().get("phase") == "Running" and "lastError" not in life.memory())
    assert not life.holds("Stalled")
    life.until(lambda: life.memory().get("phase") == "Completed", worker_0=0, worker_1=0)

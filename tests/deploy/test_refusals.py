"""A real API server that refuses what a job needs: the job says so, and goes on as soon as it is let."""

from __future__ import annotations

import pytest

from tests.deploy.kubelet import Kubelet
from tests.deploy.test_roles import Life, short
from tests.driver.harness import tfjob
from tests.waiting import until
from tf_dist.cluster.api import TFJOBS, Resource
from tf_dist.cluster.rest import RestCluster
from tf_dist.driver.loop import Driver
from tf_dist.driver.settings import DriverSettings

pytestmark = pytest.mark.cluster
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")


def test_a_job_says_that_a_quota_for_pods_is_spent_and_goes_on_when_it_is_raised(
    admin: RestCluster, room: Kubelet, namespace: str
) -> None:
    admin.create(QUOTAS, namespace, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    # Before its controller has counted, it refuses everything.
    until(lambda: bool((admin.get(QUOTAS, namespace, "few").get("status") or {}).get("hard")), 60)
    driver = Driver(admin, settings=DriverSettings(namespace=namespace, volcano_jobs=False))
    life = Life(admin, driver, room, TFJOBS, admin.create(TFJOBS, namespace, short(tfjob(cleanPodPolicy="All"))))

    life.until(lambda: "exceeded quota: few" in life.memory().get("obstacle", ""))
    assert life.holds("Stalled")
    assert life.memory()["why"] == "ReconcileFailed"

    admin.patch(QUOTAS, namespace, "few", {"spec": {"hard": {"pods": "10"}}})
    life.until(lambda: life.memory().get("phase") == "Running" and "obstacle" not in life.memory())
    assert not life.holds("Stalled")
    life.until(lambda: life.memory().get("phase") == "Completed", worker_0=0, worker_1=0)

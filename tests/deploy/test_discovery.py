"""On a real API server, a definition is installed and removed while a controller runs."""

from __future__ import annotations

import pytest

from tests.controller.harness import container
from tests.deploy.conftest import is_served
from tests.deploy.kubelet import Kubelet
from tests.waiting import until
from tf_dist.cluster.api import PODS, VOLCANO_JOBS
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings
from tools.definitions.crds import volcano_jobs

pytestmark = pytest.mark.cluster
SECONDS = 120.0


def test_jobs_of_kind_defined_after_start_are_reconciled(admin: RestCluster, room: Kubelet, namespace: str) -> None:
    if is_served(admin, VOLCANO_JOBS):
        pytest.skip("this cluster has Volcano")
    driver = Controller(admin, settings=ControllerSettings(namespace=namespace, volcano_jobs=True))
    driver.start()
    try:
        until(driver.synced, SECONDS)
        assert driver.informers.missing() == [VOLCANO_JOBS]
        made = admin.create(CRDS, None, volcano_jobs())
        try:
            until(lambda: driver.informers.missing() == [], SECONDS)
            task = {"name": "worker", "replicas": 2, "template": {"spec": {"containers": [container()]}}}
            admin.create(
                VOLCANO_JOBS, namespace, {"metadata": {"name": "vc"}, "spec": {"minAvailable": 2, "tasks": [task]}}
            )
            until(lambda: len(admin.list(PODS, namespace).items) == 2, SECONDS)
        finally:
            admin.delete(CRDS, None, made["metadata"]["name"])
        until(lambda: driver.informers.missing() == [VOLCANO_JOBS], SECONDS)
        assert list(driver.informers.jobs()) == []
    finally:
        driver.stop()

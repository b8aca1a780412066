"""Fallbacks on a real API server: they keep the age of their job, and an eviction restarts the list."""

from __future__ import annotations

import time

import pytest

from tests.controller.harness import container, replica, tfjob
from tests.deploy.test_exclusions import nodes
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS, Object
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings

pytestmark = pytest.mark.cluster
__all__ = ["nodes"]

FALLBACK = {
    "tf-dist.dev/fallback": '[{"workers": 1}]',
    "tf-dist.dev/admission-timeout": "10m",
    "tf-dist.dev/on-eviction": "fallback",
}


def submit(admin: RestCluster, namespace: str, name: str, count: int, **annotations: str) -> None:
    """A job whose workers each need a whole node."""
    template = {"spec": {"containers": [container(cpu="6")], "nodeSelector": {"for": namespace}}}
    job = tfjob(name)
    job["metadata"] |= {"namespace": namespace, "annotations": annotations}
    job["spec"]["tfReplicaSpecs"] = {"Worker": {**replica(count), "template": template}}
    admin.create(TFJOBS, namespace, job)


def test_fallback_keeps_age_of_job_and_eviction_restarts_list(
    admin: RestCluster, namespace: str, nodes: list[str]
) -> None:
    for name in nodes:
        spec = {"containers": [container(cpu="6")], "nodeName": name}
        admin.create(PODS, namespace, {"metadata": {"name": f"held-{name}"}, "spec": spec})
    ahead = 0.0
    settings = ControllerSettings(namespace=namespace, volcano_jobs=False)
    driver = Controller(admin, settings=settings, clock=lambda: time.time() + ahead)

    def memory(name: str) -> Object:
        driver.step()
        return (admin.get(TFJOBS, namespace, name).get("status") or {}).get("tfDist") or {}

    submit(admin, namespace, "older", 3, **FALLBACK)
    until(lambda: "fallback 1 is tried from" in memory("older").get("message", ""), 60)
    submit(admin, namespace, "younger", 1)
    until(lambda: memory("younger").get("reason") == "WaitingForCapacity", 60)
    ahead += 601
    until(lambda: "fallback 1 also waits" in memory("older").get("message", ""), 60)

    admin.delete(PODS, namespace, f"held-{nodes[0]}", grace_period=0)
    until(lambda: memory("older").get("fallback") == 1, 60)
    assert memory("older")["message"].startswith("fallback 1 of 1 (1 worker instead of 3): ")
    assert "admission" not in memory("younger")
    until(lambda: memory("older") and len(admin.list(PODS, namespace).items) == 3, 60)
    assert not [one for one in admin.list(PODS, namespace).items if one["metadata"]["name"].startswith("younger")]
    container_ = {"name": "tensorflow", "image": "tf", "imageID": "", "ready": True, "restartCount": 0}
    running = {"phase": "Running", "containerStatuses": [{**container_, "state": {"running": {}}}]}
    admin.patch(PODS, namespace, "older-worker-0", {"status": running}, subresource="status")
    until(lambda: memory("older").get("phase") == "Running", 60)

    # After the eviction in the last fallback, "older" waits for all three workers again, and "younger" is admitted.
    admin.delete(PODS, namespace, "older-worker-0", grace_period=0)
    until(lambda: "admission" in memory("younger"), 60)
    last = memory("older")
    assert ("admission" in last, last.get("fallbackFrom", 0)) == (False, 0)
    assert sum(last["disruptions"].values()) == 1

"""What the kubelet writes to the status of pods."""

from __future__ import annotations

import pytest

from tests.cluster.support import pod
from tf_dist.cluster.api import PODS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.informer import UidInformer
from tf_dist.cluster.kubelet.pod.pod_worker import StatusManager
from tf_dist.errors import ClusterError, Conflict


def writer(cluster: MemoryCluster) -> StatusManager:
    return StatusManager(cluster, UidInformer(cluster, PODS, lambda uid: None), "n")


def test_defaults_of_an_api_server_are_not_written_back(memory: MemoryCluster) -> None:
    memory.create(PODS, "default", pod("one"))
    condition = {"type": "Ready", "status": "True", "lastProbeTime": None}
    memory.patch(PODS, "default", "one", {"status": {"conditions": [condition]}}, subresource="status")
    found = memory.get(PODS, "default", "one")
    found = {**found, "status": {**found["status"], "conditions": [condition]}}
    said = {key: value for key, value in found["status"].items() if key != "conditions"}
    said["conditions"] = [{"type": "Ready", "status": "True"}]
    assert writer(memory).show(found, said) is None
    assert writer(memory).show(found, {**said, "phase": "Failed"}) is not None


def test_status_write_to_changed_pod_conflicts(memory: MemoryCluster) -> None:
    before = memory.create(PODS, "default", pod("one"))
    memory.patch(PODS, "default", "one", {"status": {"message": "from another client"}}, subresource="status")
    with pytest.raises(Conflict):
        writer(memory).show(before, {"phase": "Failed"})


def test_write_and_delete_do_not_affect_new_pod_of_same_name(memory: MemoryCluster) -> None:
    before = memory.create(PODS, "default", pod("one"))
    memory.delete(PODS, "default", "one", grace_period=0)
    memory.create(PODS, "default", pod("one"))
    with pytest.raises(ClusterError):
        writer(memory).show(before, {"phase": "Failed"})
    with pytest.raises(Conflict):
        writer(memory).delete("default", "one", before["metadata"]["uid"])
    assert memory.get(PODS, "default", "one")["status"].get("phase") != "Failed"

"""The official Python client on the embedded cluster: only calls that releases 35, 36 and 37 all have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.support import FixedLogs, config_map, pod
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster

kubernetes = pytest.importorskip("kubernetes")


@pytest.fixture
def api(server: ApiServer) -> Iterator[Any]:
    configuration = kubernetes.client.Configuration()
    loader = kubernetes.config.kube_config.KubeConfigLoader(make_kubeconfig(server.app.url, server.token))
    loader.load_and_set(configuration)
    with kubernetes.client.ApiClient(configuration) as client:
        yield client


@pytest.fixture
def core(api: Any) -> Any:
    return kubernetes.client.CoreV1Api(api)


@pytest.fixture
def custom(api: Any) -> Any:
    return kubernetes.client.CustomObjectsApi(api)


def typed(body: dict, kind: str, api_version: str = "v1") -> dict:
    return {"apiVersion": api_version, "kind": kind, **body}


def test_pods_are_created_read_and_deleted(core: Any) -> None:
    core.create_namespaced_pod("default", typed(pod("a"), "Pod"))
    found = core.list_namespaced_pod("default", label_selector="", field_selector="status.phase=Pending")
    assert [item.metadata.name for item in found.items] == ["a"]
    assert found.items[0].metadata.creation_timestamp.tzinfo is not None
    assert core.read_namespaced_pod("a", "default").spec.containers[0].image == "example.com/main:1"
    assert core.delete_namespaced_pod("a", "default").metadata.name == "a"
    with pytest.raises(kubernetes.client.ApiException) as gone:
        core.read_namespaced_pod("a", "default")
    assert (gone.value.status, json.loads(gone.value.body)["reason"]) == (404, "NotFound")


def test_custom_objects_are_created_changed_and_deleted(custom: Any) -> None:
    place = ("kubeflow.org", "v1", "default", "tfjobs")
    body = typed({"metadata": {"name": "j"}, "spec": {"x": 1}}, "TFJob", "kubeflow.org/v1")
    made = custom.create_namespaced_custom_object(*place, body)
    custom.patch_namespaced_custom_object(*place, "j", {"spec": {"y": 2}})
    custom.patch_namespaced_custom_object_status(*place, "j", {"status": {"phase": "Running"}})
    found = custom.get_namespaced_custom_object(*place, "j")
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert (found["spec"], found["status"]) == ({"x": 1, "y": 2}, {"phase": "Running"})
    found["spec"] = {"x": 9}
    assert custom.replace_namespaced_custom_object(*place, "j", found)["metadata"]["generation"] == 3
    assert len(custom.list_namespaced_custom_object(*place)["items"]) == 1
    assert custom.delete_namespaced_custom_object(*place, "j")["status"] == "Success"


def test_watch_yields_changes(core: Any) -> None:
    since = core.list_namespaced_config_map("default").metadata.resource_version
    core.create_namespaced_config_map("default", typed(config_map("a"), "ConfigMap"))
    core.delete_namespaced_config_map("a", "default")
    watch = kubernetes.watch.Watch()
    seen = []
    for event in watch.stream(core.list_namespaced_config_map, "default", resource_version=since, timeout_seconds=30):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            watch.stop()
    assert seen == [("ADDED", "a"), ("DELETED", "a")]


def test_logs_are_read_and_followed(core: Any, memory: MemoryCluster) -> None:
    core.create_namespaced_pod("default", typed(pod("a"), "Pod"))
    memory.log_source = FixedLogs([b"one\n", b"two\n"]).logs
    assert core.read_namespaced_pod_log("a", "default") in ("one\ntwo\n", "b'one\\ntwo\\n'")
    raw = core.read_namespaced_pod_log("a", "default", follow=True, _preload_content=False)
    assert raw.read() == b"one\ntwo\n"


def test_collection_is_deleted_by_label(core: Any) -> None:
    for name in ("a", "b"):
        body = typed(config_map(name), "ConfigMap")
        body["metadata"]["labels"] = {"which": name}
        core.create_namespaced_config_map("default", body)
    core.delete_collection_namespaced_config_map("default", label_selector="which=a")
    assert [item.metadata.name for item in core.list_namespaced_config_map("default").items] == ["b"]


def test_eviction_deletes_bound_pod(core: Any, memory: MemoryCluster) -> None:
    core.create_namespaced_pod("default", typed(pod("a"), "Pod"))
    memory.bind("default", "a", "n1")
    bound = core.read_namespaced_pod("a", "default")
    assert bound.spec.node_name == "n1"
    assert [(one.type, one.status) for one in bound.status.conditions] == [("PodScheduled", "True")]
    eviction = typed({"metadata": {"name": "a"}}, "Eviction", "policy/v1")
    core.create_namespaced_pod_eviction("a", "default", eviction, _preload_content=False)
    assert core.read_namespaced_pod("a", "default").metadata.deletion_timestamp is not None

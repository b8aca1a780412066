"""Small objects and waits for the tests of clusters."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from tf_dist.cluster.api import ALL_LINES, Cluster, LogOptions, Object, Resource, WatchEvent
from tf_dist.cluster.client.client_config import load_config
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import NotFound
from tools.definitions import crds


def pod(name: str, **spec: Any) -> Object:
    """The smallest pod that an API server accepts."""
    containers = [{"name": "main", "image": "example.com/main:1"}]
    fixed = {"containers": containers, "restartPolicy": "Never", "automountServiceAccountToken": False}
    return {"metadata": {"name": name}, "spec": {**fixed, **spec}}


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


def job(name: str, **spec: Any) -> Object:
    """A TFJob that the CustomResourceDefinition accepts."""
    worker = {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "example.com/tf:1"}]}}}
    return {"metadata": {"name": name}, "spec": {"tfReplicaSpecs": {"Worker": worker}, **spec}}


def node(name: str, cpu: str = "4", memory: str = "8Gi", pods: str = "110", **more: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": more.pop("labels", {})},
        "spec": more,
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": pods},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def owned_by(owner: Object, body: Object, *, block: bool = False) -> Object:
    """The body with a reference to its owner added."""
    metadata = owner["metadata"]
    reference: Object = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    if block:
        reference["blockOwnerDeletion"] = True
    references = [*body["metadata"].get("ownerReferences", ()), reference]
    return {**body, "metadata": {**body["metadata"], "ownerReferences": references}}


def names(cluster: Cluster, resource: Resource, namespace: str | None, **selectors: Any) -> list[str]:
    return [obj["metadata"]["name"] for obj in cluster.list(resource, namespace, **selectors).items]


def exists(cluster: Cluster, resource: Resource, namespace: str | None, name: str) -> bool:
    try:
        cluster.get(resource, namespace, name)
    except NotFound:
        return False
    return True


def wait_for(
    cluster: Cluster,
    resource: Resource,
    namespace: str | None,
    name: str,
    until: Callable[[Object | None], bool],
    seconds: float = 120,
) -> None:
    """Watch an object until the condition holds, and raise AssertionError after the timeout.

    ``until`` gets None if the object does not exist. The garbage collector of a real cluster discovers new kinds every
    30 seconds, and then waits until it tries again.
    """
    selector, deadline = f"metadata.name={name}", time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        found = cluster.list(resource, namespace, fields=selector)
        if until(found.items[0] if found.items else None):
            return
        # A watch without changes may end early.
        with cluster.watch(resource, namespace, fields=selector, since=found.resource_version, timeout=left) as events:
            for event in events:
                if event.type != "BOOKMARK" and until(None if event.type == "DELETED" else event.object):
                    return
    raise AssertionError(f"{resource.plural} {name} did not come to that in {seconds} s")


def wait_gone(cluster: Cluster, resource: Resource, namespace: str | None, name: str) -> None:
    wait_for(cluster, resource, namespace, name, lambda obj: obj is None)


def take(events: Iterator[WatchEvent], count: int) -> list[tuple[str, str]]:
    """The types and names of the next changes, without bookmarks."""
    found: list[tuple[str, str]] = []
    for event in events:
        if event.type != "BOOKMARK":
            found.append((event.type, event.object["metadata"]["name"]))
        if len(found) == count:
            break
    return found


def cluster_of_kubeconfig(path: str) -> RestCluster:
    """A client of the cluster in a kubeconfig."""
    return load_config(path).cluster()


def tf_job_definition() -> Object:
    """The CustomResourceDefinition that tf-dist installs."""
    return crds.tfjobs()


def real_kubeconfig() -> str:
    """The kubeconfig of a real API server from the environment, or ""."""
    return os.environ.get("TF_DIST_TEST_KUBECONFIG", "")


class FixedLogs:
    """A log source with fixed lines."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> FixedStream:
        return FixedStream(self._lines)


class FixedStream:
    def __init__(self, lines: list[bytes]) -> None:
        self._lines = iter(lines)

    def __iter__(self) -> FixedStream:
        return self

    def __next__(self) -> bytes:
        return next(self._lines)

    def close(self) -> None:
        self._lines = iter(())

    def __enter__(self) -> FixedStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

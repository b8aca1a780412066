"""The cluster for the triggerers of ``benchmarks.airflow``: it counts requests and plays the kubelet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from benchmarks.jobs import tfjob
from tf_dist.cluster.api import ALL_LINES, NODES, PODS, TFJOBS, LogOptions, Object, Resource
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.local.embedded import write_private_json

_LINES = tuple(f"step={step} loss={1 / (step + 1):.4f}\n".encode() for step in range(10))
_BATCH_JOBS = Resource("batch", "v1", "Job", "jobs")
_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SCHEMA = {"type": "object", "properties": {"spec": _ANYTHING, "status": _ANYTHING}}
_BATCH_DEFINITION: Object = {
    "metadata": {"name": "jobs.batch"},
    "spec": {
        "group": "batch",
        "names": {"kind": "Job", "plural": "jobs"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "properties": {"spec": _ANYTHING, "status": _ANYTHING}}
                },
            }
        ],
    },
}
"""The embedded cluster has no Jobs of Kubernetes' own."""


class Log:
    """A container's log: some lines, and no end before the container's."""

    def __init__(self, ended: threading.Event | None) -> None:
        self._lines = iter(_LINES)
        self._ended = ended
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        line = None if self._closed.is_set() else next(self._lines, None)
        if line is not None:
            return line
        while self._ended is not None and not self._closed.is_set() and not self._ended.wait(0.2):
            pass
        raise StopIteration

    def close(self) -> None:
        """End it."""
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Counting(MemoryCluster):
    """Counts its requests; its pods write a few lines, and run until they are asked to end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self._ended = threading.Event()

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Counted."""
        self.asked["get"] += 1
        return super().get(resource, namespace, name)

    def list(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        """Counted."""
        self.asked["list"] += 1
        return super().list(resource, *args, **kwargs)

    def watch(self, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        """Counted."""
        self.asked[f"watch {resource.plural}"] += 1
        return super().watch(resource, *args, **kwargs)

    def replace(self, resource: Resource, *args: Any, **kwargs: Any) -> Object:
        """Counted."""
        self.asked["replace"] += 1
        return super().replace(resource, *args, **kwargs)

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Log:
        """Counted."""
        self.asked["logs"] += 1
        return Log(self._ended if options.follow else None)

    def job(self, name: str) -> None:
        """Submit a job of one worker that a triggerer is to drive."""
        document = tfjob(name, workers=1)
        del document["spec"]["tfReplicaSpecs"]["PS"]
        self.create(TFJOBS, "default", document)

    def pod(self, name: str) -> None:
        """Create a pod as the Kubernetes provider's trigger waits for."""
        container = {"name": "base", "image": "none", "command": ["true"]}
        self.create(PODS, "default", {"metadata": {"name": name}, "spec": {"containers": [container]}})

    def batch_job(self, name: str) -> None:
        """Create a Job of Kubernetes' own, which nothing here acts on."""
        template = {"spec": {"containers": [{"name": "base", "image": "none"}], "restartPolicy": "Never"}}
        self.create(_BATCH_JOBS, "default", {"metadata": {"name": name}, "spec": {"template": template}})

    def run_pods(self) -> None:
        """Have every pod that is there, or comes, run; returns when the cluster is closed."""
        with self.watch(PODS, "default") as stream:
            for event in stream:
                if event.type == "ADDED":
                    self._write(event.object, "Running", {"running": {}})

    def running(self) -> int:
        """How many pods run."""
        found = MemoryCluster.list(self, PODS, "default").items
        return sum((pod.get("status") or {}).get("phase") == "Running" for pod in found)

    def end_pods(self) -> None:
        """Have every pod succeed, one after the other."""
        self._ended.set()
        for pod in MemoryCluster.list(self, PODS, "default").items:
            self._write(pod, "Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}})

    def end_batch_jobs(self) -> None:
        """Have every Job complete, one after the other."""
        body = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
        for job in MemoryCluster.list(self, _BATCH_JOBS, "default").items:
            self.patch(_BATCH_JOBS, "default", job["metadata"]["name"], body, subresource="status")

    def _write(self, pod: Object, phase: str, state: Object) -> None:
        name = pod["spec"]["containers"][0]["name"]
        container = {"name": name, "ready": True, "restartCount": 0, "state": state, "image": "", "imageID": ""}
        scheduled = {"type": "PodScheduled", "status": "True"}
        body = {"status": {"phase": phase, "conditions": [scheduled], "containerStatuses": [container]}}
        self.patch(PODS, "default", pod["metadata"]["name"], body, subresource="status")


@contextmanager
def site(folder: Path) -> Iterator[tuple[Counting, Path]]:
    """A cluster with room for everything, and its kubeconfig."""
    with Counting() as cluster:
        cluster.create(CRDS, None, _BATCH_DEFINITION)
        room = {"cpu": "4000", "memory": "4000Gi", "pods": "4000"}
        cluster.create(NODES, None, {"metadata": {"name": "node"}})
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        cluster.patch(NODES, None, "node", {"status": status}, subresource="status")
        server = ApiServer(cluster)
        file = folder / "kubeconfig"
        write_private_json(make_kubeconfig(server.start(), server.token), file)
        kubelet = threading.Thread(target=cluster.run_pods, daemon=True)
        kubelet.start()
        try:
            yield cluster, file
        finally:
            server.stop()
    kubelet.join()

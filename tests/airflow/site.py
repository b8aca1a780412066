"""The cluster of the Airflow tests, and small jobs for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import until
from tf_dist.cluster.api import LEASES, PODS, TFJOBS, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.model import names
from tf_dist.errors import NotFound
from tf_dist.local.embedded import EmbeddedCluster

SECONDS = 120.0
FOREVER = "trap 'exit 143' TERM; echo up; while :; do sleep 0.05; done"


def document(script: str = "true", *, name: str = "job", workers: int = 1, **policy: Any) -> dict[str, Any]:
    """A TFJob whose workers run a shell script."""
    container = {"name": "tensorflow", "image": "none", "command": ["sh", "-c", script]}
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    worker = {"replicas": workers, "restartPolicy": "Never", "template": template}
    spec = {"runPolicy": {"cleanPodPolicy": "Running", **policy}, "tfReplicaSpecs": {"Worker": worker}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True)
class Site:
    """An embedded cluster that Airflow reaches through ``kubeconfig``."""

    embedded: EmbeddedCluster
    kubeconfig: str

    @property
    def cluster(self) -> MemoryCluster:
        return self.embedded.cluster

    def flag(self, name: str) -> Path:
        """A file that does not exist yet, so that scripts of jobs can wait for it."""
        return Path(self.kubeconfig).with_name(f"flag-{name}")

    def jobs(self) -> list[Object]:
        return self.cluster.list(TFJOBS, "default").items

    def names(self) -> list[str]:
        """The names of the jobs."""
        return [job["metadata"]["name"] for job in self.jobs()]

    def pods(self) -> list[str]:
        """The names of pods that have not ended."""
        found = self.cluster.list(PODS, "default").items
        over = ("Succeeded", "Failed")
        return [pod["metadata"]["name"] for pod in found if (pod.get("status") or {}).get("phase") not in over]

    def leases(self) -> list[str]:
        """The names of the Leases with which controllers lead the namespace."""
        found = self.cluster.list(LEASES, "default").items
        return [one["metadata"]["name"] for one in found if names.LEADER in (one["metadata"].get("labels") or {})]

    def submit(self, body: Object) -> Object:
        return self.cluster.create(TFJOBS, "default", body)

    def delete(self, name: str) -> None:
        with suppress(NotFound):
            self.cluster.delete(TFJOBS, "default", name)

    def is_empty(self) -> bool:
        return not self.jobs() and not self.cluster.list(PODS, "default").items

    def until_empty(self) -> None:
        """Wait until no job, pod or Lease remains."""
        until(self.is_empty, SECONDS)
        until(lambda: not self.leases(), SECONDS)

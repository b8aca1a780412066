"""A cluster over HTTP without kubelet and controller: only the test changes its objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.airflow.site import document
from tf_dist.airflow.jobs.task_identity import OWNER_ANNOTATION
from tf_dist.cluster.api import LEASES, TFJOBS, Object
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.model import names


@dataclass(frozen=True)
class LightSite:
    """``url`` and ``token`` reach the cluster, and ``kubeconfig`` is a file with both."""

    cluster: MemoryCluster
    folder: Path
    url: str
    token: str

    @property
    def kubeconfig(self) -> str:
        return self.config(self.url)

    def config(self, url: str) -> str:
        """A kubeconfig that reaches this cluster at ``url``."""
        path = self.folder / f"kubeconfig-{url.rpartition(':')[2]}"
        path.write_text(json.dumps(make_kubeconfig(url, self.token)))
        return str(path)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port of the API server."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def submit(self, name: str, owner: str = "", **annotations: str) -> str:
        """Create a job and return its uid."""
        body = document(name=name)
        body["metadata"]["annotations"] = {**({OWNER_ANNOTATION: owner} if owner else {}), **annotations}
        return str(self.cluster.create(TFJOBS, "default", body)["metadata"]["uid"])

    def status(self, name: str, **memory: Any) -> None:
        """Write the job's memory like a controller."""
        patch = {"status": {"tfDist": memory}}
        self.cluster.patch(TFJOBS, "default", name, patch, subresource="status")

    def job(self, name: str) -> Object:
        return self.cluster.get(TFJOBS, "default", name)

    def uids(self) -> list[str]:
        """The uids of the jobs."""
        return [job["metadata"]["uid"] for job in self.cluster.list(TFJOBS, "default").items]

    def leases(self) -> list[str]:
        """The names of the Leases with which controllers lead the namespace."""
        found = self.cluster.list(LEASES, "default").items
        return [one["metadata"]["name"] for one in found if names.LEADER in (one["metadata"].get("labels") or {})]


@contextmanager
def light_site(folder: Path) -> Iterator[LightSite]:
    """Start such a cluster."""
    with MemoryCluster() as cluster, ApiServer(cluster) as server:
        yield LightSite(cluster, folder, server.app.url, server.token)

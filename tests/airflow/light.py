"""A cluster over HTTP in which nothing runs and nobody leads: what a test does not write there stays as it is."""

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
    """``url`` and ``token``: how it is reached; ``make_kubeconfig``: a file that says so."""

    cluster: MemoryCluster
    folder: Path
    url: str
    token: str

    @property
    def kubeconfig(self) -> str:
        return self.config(self.url)

    def config(self, url: str) -> str:
        """A kubeconfig for this cluster as it is reached at ``url``."""
        path = self.folder / f"kubeconfig-{url.rpartition(':')[2]}"
        path.write_text(json.dumps(make_kubeconfig(url, self.token)))
        return str(path)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def submit(self, name: str, owner: str = "", **annotations: str) -> str:
        """A job; its uid."""
        body = document(name=name)
        body["metadata"]["annotations"] = {**({OWNER_ANNOTATION: owner} if owner else {}), **annotations}
        return str(self.cluster.create(TFJOBS, "default", body)["metadata"]["uid"])

    def status(self, name: str, **memory: Any) -> None:
        """The job is as a controller has written it."""
        patch = {"status": {"tfDist": memory}}
        self.cluster.patch(TFJOBS, "default", name, patch, subresource="status")

    def job(self, name: str) -> Object:
        return self.cluster.get(TFJOBS, "default", name)

    def uids(self) -> list[str]:
        """Those of its jobs."""
        return [job["metadata"]["uid"] for job in self.cluster.list(TFJOBS, "default").items]

    def leases(self) -> list[str]:
        """By which programs lead the namespace."""
        found = self.cluster.list(LEASES, "default").items
        return [one["metadata"]["name"] for one in found if names.LEADER in (one["metadata"].get("labels") or {})]


@contextmanager
def light_site(folder: Path) -> Iterator[LightSite]:
    """One of them."""
    with MemoryCluster() as cluster, ApiServer(cluster) as server:
        yield LightSite(cluster, folder, server.app.url, server.token)

"""One look at the cluster: lists of jobs, of what they own, and of nodes, sorted by the job they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tf_dist.cluster.api import (
    CONFIG_MAPS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    TFJOBS,
    VOLCANO_JOBS,
    Cluster,
    Object,
    Resource,
)
from tf_dist.core import names
from tf_dist.errors import Forbidden, NotFound

JOB_KINDS: Final = (TFJOBS, VOLCANO_JOBS)
OWNED_KINDS: Final = (SERVICES, CONFIG_MAPS, NETWORK_POLICIES)


class JobRef(NamedTuple):
    """Where a job is: its resource, namespace and name."""

    resource: Resource
    namespace: str
    name: str

    @classmethod
    def of(cls, resource: Resource, stored: Object) -> JobRef:
        """The reference of a stored job."""
        return cls(resource, stored["metadata"]["namespace"], stored["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class View:
    """``pods`` and ``objects`` are keyed by the uid of their job. ``nodes``: None where they may not be listed.

    ``all_pods`` are those of everybody, as far as nodes have to hold them.
    """

    jobs: Mapping[JobRef, Object] = field(default_factory=dict)
    pods: Mapping[str, list[Object]] = field(default_factory=dict)
    objects: Mapping[str, dict[tuple[str, str], Object]] = field(default_factory=dict)
    nodes: tuple[Object, ...] | None = None
    all_pods: tuple[Object, ...] = ()


def look(cluster: Cluster, namespace: str | None) -> View:
    """Everything a driver decides on, listed now."""
    jobs = {JobRef.of(kind, stored): stored for kind in JOB_KINDS for stored in _list(cluster, kind, namespace)}
    nodes = _nodes(cluster)
    # Pods of other owners take room on nodes too, wherever they are.
    pods = _list(cluster, PODS, namespace if nodes is None else None)
    objects: dict[str, dict[tuple[str, str], Object]] = {}
    for kind in OWNED_KINDS:
        for uid, stored in _by_job(_list(cluster, kind, namespace, labels=names.JOB_UID)):
            objects.setdefault(uid, {})[kind.kind, stored["metadata"]["name"]] = stored
    grouped: dict[str, list[Object]] = {}
    for uid, stored in _by_job(pods):
        grouped.setdefault(uid, []).append(stored)
    return View(jobs, grouped, objects, nodes, tuple(pods))


def _list(cluster: Cluster, kind: Resource, namespace: str | None, *, labels: str = "") -> list[Object]:
    """Nothing where the kind is not served: its definition is not installed."""
    try:
        return cluster.list(kind, namespace, labels=labels).items
    except NotFound:
        return []


def _nodes(cluster: Cluster) -> tuple[Object, ...] | None:
    try:
        return tuple(cluster.list(NODES).items)
    except Forbidden:
        return None


def _by_job(objects: Iterable[Object]) -> Iterable[tuple[str, Object]]:
    for stored in objects:
        uid = (stored["metadata"].get("labels") or {}).get(names.JOB_UID)
        if uid:
            yield uid, stored

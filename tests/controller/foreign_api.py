"""Clusters with the job CRDs of other projects, which prune unknown fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Object, Resource
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster

_CONDITION = ("type", "status", "reason", "message", "lastUpdateTime", "lastTransitionTime")
_TFJOB = ("conditions", "replicaStatuses", "startTime", "completionTime", "lastReconcileTime")
_JOB = (
    *("state", "minAvailable", "taskStatusCount", "pending", "running", "succeeded", "failed", "terminating"),
    *("unknown", "version", "retryCount", "runningDuration", "controlledResources", "conditions"),
)


def _kubeflows(status: Object) -> Object:
    kept = _part(status, _TFJOB)
    if "conditions" in kept:
        kept["conditions"] = [_part(one, _CONDITION) for one in kept["conditions"]]
    return kept


def _volcanos(status: Object) -> Object:
    kept = _part(status, _JOB)
    if "conditions" in kept:
        kept["conditions"] = [_part(one, ("status", "lastTransitionTime")) for one in kept["conditions"]]
    if "controlledResources" in kept:
        assert all(isinstance(value, str) for value in kept["controlledResources"].values())
    return kept


def _part(whole: Object, keys: tuple[str, ...]) -> Object:
    return {key: whole[key] for key in keys if key in whole}


class Pruning:
    """A cluster with Kubeflow's definition of TFJob and Volcano's definition of Job.

    ``writes`` counts the writes of statuses. ``keeps`` prunes a status as another definition does.
    """

    def __init__(self, inner: MemoryCluster, keeps: Callable[[Object], Object] | None = None) -> None:
        self.inner = inner
        self.writes = 0
        self._keeps = {TFJOBS: keeps or _kubeflows, VOLCANO_JOBS: keeps or _volcanos}

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.inner, verb)

    def replace(self, resource: Resource, namespace: str | None, name: str, body: Object, **kwargs: Any) -> Object:
        if resource in self._keeps and kwargs.get("subresource") == "status":
            self.writes += 1
            body = {**body, "status": self._keeps[resource](body["status"])}
        return self.inner.replace(resource, namespace, name, body, **kwargs)

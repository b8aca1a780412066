"""Becoming the driver of a job by writing it there: for drivers that are asked to, and take over nothing themselves."""

from __future__ import annotations

import json
from typing import Any

from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.core import names
from tf_dist.core.status_codec import FIELD, stored_status


def claim(cluster: Cluster, resource: Resource, stored: Object, me: str) -> Object:
    """Name ``me`` as the driver of the job as it was ``stored``; Conflict if it has changed since, NotFound.

    Who may be claimed from is ``core.claims.may_claim``'s to say. List its pods before: see ``Caches.confirm``.
    """
    metadata, status = stored["metadata"], stored.get("status") or {}
    where = metadata["namespace"], metadata["name"]
    if FIELD in status:
        body = {**stored, "status": {**status, FIELD: {**status[FIELD], "driver": me}}}
        return cluster.replace(resource, *where, body, subresource="status")
    fence = {"resourceVersion": metadata["resourceVersion"]}
    return cluster.patch(resource, *where, {"metadata": {**fence, "annotations": _annotations(stored, me)}})


def _annotations(stored: Object, me: str) -> dict[str, Any]:
    """Before its first status a job names its driver in an annotation, and where statuses are pruned always."""
    memory = stored_status(stored).get(FIELD)
    if memory is None:
        return {names.DRIVER: me}
    return {names.MEMORY: json.dumps({**memory, "driver": me}, separators=(",", ":"))}

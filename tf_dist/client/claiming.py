"""Becoming the driver of a job by writing it there: for drivers that are asked to, and take over nothing themselves."""

from __future__ import annotations

from collections.abc import Mapping

from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.core import names
from tf_dist.core.pruned_status import carried, carries
from tf_dist.core.status_codec import FIELD, stored_status


def claim(cluster: Cluster, resource: Resource, stored: Object, me: str) -> Object:
    """Name ``me`` as the driver of the job as it was ``stored``; Conflict if it has changed since, NotFound.

    Who may be claimed from is ``core.claims.may_claim``'s to say. List its pods before: see ``Caches.confirm``.
    Before its first status a job names its driver in an annotation.
    """
    metadata, status = stored["metadata"], stored_status(stored)
    where = metadata["namespace"], metadata["name"]
    if not isinstance(status.get(FIELD), Mapping):
        version = metadata["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version, "annotations": {names.DRIVER: me}}}
        return cluster.patch(resource, *where, patch)
    claimed = {**status, FIELD: {**status[FIELD], "driver": me}}
    if carries(stored.get("status")):
        claimed = dict(carried(claimed, resource.kind))
    return cluster.replace(resource, *where, {**stored, "status": claimed}, subresource="status")

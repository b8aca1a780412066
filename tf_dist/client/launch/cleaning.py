"""What a workflow leaves: its jobs, found by its uid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tf_dist.client.jobs import JOB_KINDS, StoredJob
from tf_dist.client.launch import contract
from tf_dist.client.waiting import wait_for
from tf_dist.cluster.api import Cluster
from tf_dist.cluster.refusals import NotServed
from tf_dist.errors import NotFound


def clean(
    cluster: Cluster,
    namespace: str,
    workflow_uid: str,
    told: Callable[[str], object],
    *,
    all_jobs: bool,
    timeout: float,
) -> int:
    """Delete the jobs of a workflow that still run (``all_jobs``: all), and see them go; how many.

    NotYet when they have not in ``timeout`` seconds; they are deleted all the same.
    """
    jobs: list[StoredJob] = []
    for resource in JOB_KINDS:
        with suppress(NotServed):
            listed = cluster.list(resource, namespace, labels=f"{contract.WORKFLOW_UID}={workflow_uid}").items
            jobs += [StoredJob(resource, stored) for stored in listed]
    doomed = [job for job in jobs if all_jobs or not job.status.finished]
    for job in doomed:
        with suppress(NotFound):
            cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    wait_for(cluster, doomed, "deleted", timeout, told)
    return len(doomed)

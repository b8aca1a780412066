"""What a workflow leaves: its jobs, found by its uid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tf_dist.client.jobs import StoredJob, list_jobs
from tf_dist.client.launch import contract
from tf_dist.client.waiting import wait_for
from tf_dist.cluster.api import Cluster
from tf_dist.cluster.refusals import NotServed
from tf_dist.errors import Conflict, NotFound


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

    A kind of job that is not there, or that this account may not list, has none of this workflow's: the role in
    ``rbac.yaml`` knows TFJobs only. Forbidden when it may list no kind; NotYet when jobs have not gone in ``timeout``
    seconds; they are deleted all the same.
    """
    jobs: list[StoredJob] = []
    with suppress(NotServed):
        jobs = list_jobs(cluster, namespace, labels=f"{contract.WORKFLOW_UID}={workflow_uid}")
    doomed = [job for job in jobs if all_jobs or not job.status.finished]
    for job in doomed:
        with suppress(NotFound, Conflict):  # gone already, and perhaps another in its place
            cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    wait_for(cluster, doomed, "deleted", timeout, told)
    return len(doomed)

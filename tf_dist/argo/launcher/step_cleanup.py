"""Clean-up after a workflow: its jobs that are left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tf_dist.argo.launcher import contract
from tf_dist.client.stored_jobs import StoredJob, list_jobs
from tf_dist.client.wait import wait_for
from tf_dist.cluster.api import Cluster
from tf_dist.cluster.api_errors import NotServed
from tf_dist.errors import Conflict, NotFound


def delete_workflow_jobs(
    cluster: Cluster,
    namespace: str,
    workflow_uid: str,
    report: Callable[[str], object],
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
    marked = [job for job in jobs if all_jobs or not job.status.finished]
    for job in marked:
        with suppress(NotFound, Conflict):  # gone already, and perhaps another in its place
            cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    wait_for(cluster, marked, "deleted", timeout, report)
    return len(marked)

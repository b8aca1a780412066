"""Clean-up of the jobs of a workflow."""

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
    """Delete the running jobs (``all_jobs``: all jobs) of a workflow, wait until they are gone, and count them.

    Kinds of jobs that do not exist, or may not be listed, are skipped, because the role in ``rbac.yaml`` allows only
    TFJobs. Raises Forbidden if no kind may be listed, and GoalNotReached if jobs remain after ``timeout`` seconds.
    """
    jobs: list[StoredJob] = []
    with suppress(NotServed):
        jobs = list_jobs(cluster, namespace, labels=f"{contract.WORKFLOW_UID}={workflow_uid}")
    marked = [job for job in jobs if all_jobs or not job.status.finished]
    for job in marked:
        with suppress(NotFound, Conflict):  # already gone, perhaps replaced by another job
            cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    wait_for(cluster, marked, "deleted", timeout, report)
    return len(marked)

"""``tf-dist scale``: another number of workers for a submitted job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tf_dist.cli import options, output

if TYPE_CHECKING:
    from tf_dist.client.jobs import StoredJob
    from tf_dist.cluster.api import Cluster

# Somebody else writes the job too: a driver its status. So many times it is looked at anew.
_ATTEMPTS: Final = 5


def scale(
    name: options.Name,
    workers: Annotated[
        int, typer.Option("--workers", "-w", min=0, metavar="N", help="How many workers it is to have.")
    ],
    namespace: options.Namespace = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    local: options.Local = False,
) -> None:
    """Give a job another number of workers. Those who leave are the last ones; new ones start when there is room."""
    from tf_dist.client.connect import connect
    from tf_dist.client.jobs import find, refuse_finished

    connection = connect(kubeconfig, context, local=local)
    cluster, namespace = connection.cluster, namespace or connection.namespace
    job = find(cluster, name, namespace)
    refuse_finished(job)
    before = _count(job)
    if before == workers:
        output.line(f"{job.shown} has {workers} workers already")
        return
    output.announce(connection, namespace)
    job = _write(cluster, job, workers)
    output.line(f"{job.shown} scaled from {before} to {workers} workers")
    _advise(job, before, workers)


def _count(job: StoredJob) -> int:
    from tf_dist.core.model import Role

    return next((spec.replicas for spec in job.job.replica_specs if spec.role is Role.WORKER), -1)


def _write(cluster: Cluster, job: StoredJob, workers: int) -> StoredJob:
    """The job as it is with so many workers; Conflict if it is written all the time by somebody else."""
    from tf_dist.client.jobs import StoredJob
    from tf_dist.core.dialects import scale_patch
    from tf_dist.errors import Conflict

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            written = cluster.patch(job.resource, job.namespace, job.name, scale_patch(job.stored, workers))
            return StoredJob(job.resource, written)
        except Conflict:
            if attempt == _ATTEMPTS:
                raise
            job = StoredJob(job.resource, cluster.get(job.resource, job.namespace, job.name))
    raise AssertionError("the last attempt returns or raises")


def _advise(job: StoredJob, before: int, workers: int) -> None:
    """What follows from it, where one would not expect it."""
    from tf_dist.core.model import Role
    from tf_dist.core.sizes import bounds, must_restart, sizes_of

    after, place = sizes_of(job.job), job.status.admission
    worker = next(spec for spec in job.job.replica_specs if spec.role is Role.WORKER)
    granted = place is not None and place.sizes
    if granted and must_restart(job.job, {**after, worker.type: before}, after):
        output.note("all its replicas start again (TF_CONFIG names every worker), which costs none of its restarts")
    least, most = bounds(job.job)[worker.type]
    if (least, most) != (workers, workers):
        output.note(f"it is elastic: depending on what waits, it has from {least} to {most} workers")

"""Ownership of a job: the try that it belongs to adopts it, marks its result as used, or deletes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from tf_dist.airflow.jobs.task_identity import (
    MARKED_FOR_DELETION,
    MAX_TRIES,
    OWNER_ANNOTATION,
    RESULT_USED,
    annotations_of,
)
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import Cluster, Object
from tf_dist.errors import Conflict, NotFound

_WRITE_ATTEMPTS: Final = 20  # a job's controller writes into it, too: each Conflict means that another writer got on


class OwnershipLost(NotFound):
    """The job has become another try's meanwhile."""


def adopt_job(cluster: Cluster, job: StoredJob, owner: str) -> StoredJob:
    """Make it ``owner``'s; NotFound if it is gone, OwnershipLost if it was given up."""

    def notes(stored: Object) -> Mapping[str, str]:
        if MARKED_FOR_DELETION in annotations_of(stored):
            raise OwnershipLost(f"{job.shown} was given up by an earlier try")
        return {OWNER_ANNOTATION: owner}

    return _annotate(cluster, job, notes)


def mark_result_used(cluster: Cluster, job: StoredJob, owner: str, max_tries: int) -> None:
    """Note that its result has been handed on, so that a task that is cleared begins anew; NotFound."""
    _annotate(cluster, job, lambda _: {RESULT_USED: owner, MAX_TRIES: str(max_tries)})


def delete_if_owned(cluster: Cluster, job: StoredJob, owner: str) -> bool:
    """Delete it and all that belongs to it, if it is ``owner``'s still; whether it was, and there was anything to do.

    It is marked first, by a write that fails if the job has changed: a try that comes in between finds the mark,
    or has taken the job, and then it stays.
    """

    def notes(stored: Object) -> Mapping[str, str]:
        if annotations_of(stored).get(OWNER_ANNOTATION) != owner:
            raise OwnershipLost(f"{job.shown} is another try's")
        return {MARKED_FOR_DELETION: owner}

    try:
        _annotate(cluster, job, notes)
        cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    except NotFound:
        return False
    except Conflict:
        with suppress(NotFound):
            if cluster.get(job.resource, job.namespace, job.name)["metadata"]["uid"] == job.uid:
                raise
        return False  # another job has its name by now
    return True


def _annotate(cluster: Cluster, job: StoredJob, notes: Callable[[Object], Mapping[str, str]]) -> StoredJob:
    """Annotate the job, as ``notes`` says of its newest version, at one stroke."""
    for _ in range(_WRITE_ATTEMPTS):
        stored = cluster.get(job.resource, job.namespace, job.name)
        if stored["metadata"]["uid"] != job.uid:
            raise NotFound(f"{job.shown} is another one by now")
        version = stored["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "annotations": dict(notes(stored))}}
        with suppress(Conflict):
            return StoredJob(job.resource, cluster.patch(job.resource, job.namespace, job.name, body))
    raise Conflict(f"{job.shown} changes faster than it can be written", hint="try again")

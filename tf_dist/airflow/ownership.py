"""Whose a job is: found, taken up, marked and deleted so that no try ever touches what is another one's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from tf_dist.airflow.identity import CONSUMED, DOOMED, OWNER, TaskKey, annotations_of
from tf_dist.client.jobs import StoredJob
from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.core.status import SUCCESSFUL
from tf_dist.core.succession import Candidate
from tf_dist.core.times import parse_time
from tf_dist.errors import ClusterError, Conflict, NotFound

_TRIES: Final = 20  # a job's driver writes into it, too: each Conflict means that somebody else got on


class Lost(ClusterError):
    """The job has become another try's meanwhile."""


def earlier(cluster: Cluster, resource: Resource, namespace: str, key: TaskKey) -> list[StoredJob]:
    """The jobs of a task instance, those of all its tries."""
    return [StoredJob(resource, stored) for stored in cluster.list(resource, namespace, labels=key.selector).items]


def candidate(job: StoredJob) -> Candidate:
    """What a new try has to know of it."""
    notes, metadata = annotations_of(job.stored), job.stored["metadata"]
    return Candidate(
        uid=job.uid,
        created=parse_time(metadata.get("creationTimestamp")) or 0.0,
        doomed="deletionTimestamp" in metadata or DOOMED in notes,
        done=job.status.finished,
        succeeded=job.status.phase in SUCCESSFUL,
        consumed=CONSUMED in notes,
    )


def adopt(cluster: Cluster, job: StoredJob, owner: str) -> StoredJob:
    """Make it ``owner``'s; NotFound if it is gone, Lost if somebody has given it up."""

    def notes(stored: Object) -> Mapping[str, str]:
        if DOOMED in annotations_of(stored):
            raise Lost(f"{job.shown} was given up by an earlier try")
        return {OWNER: owner}

    return _annotate(cluster, job, notes)


def consume(cluster: Cluster, job: StoredJob, owner: str) -> None:
    """Note that its result has been handed on, so that a later run of the task begins anew."""
    _annotate(cluster, job, lambda _: {CONSUMED: owner})


def give_up(cluster: Cluster, job: StoredJob, owner: str) -> bool:
    """Delete it and all that belongs to it, if it is ``owner``'s still; whether it was, and there was anything to do.

    It is marked first, by a write that fails if anybody else has written: a try that comes in between finds the mark,
    or has taken the job, and then it stays.
    """

    def notes(stored: Object) -> Mapping[str, str]:
        if annotations_of(stored).get(OWNER) != owner:
            raise Lost(f"{job.shown} is another try's")
        return {DOOMED: owner}

    try:
        _annotate(cluster, job, notes)
        cluster.delete(job.resource, job.namespace, job.name, uid=job.uid)
    except (Lost, NotFound):
        return False
    except Conflict:
        if _is_there(cluster, job):
            raise
        return False  # another job has its name by now
    return True


def _is_there(cluster: Cluster, job: StoredJob) -> bool:
    with suppress(NotFound):
        return bool(cluster.get(job.resource, job.namespace, job.name)["metadata"]["uid"] == job.uid)
    return False


def _annotate(cluster: Cluster, job: StoredJob, notes: Callable[[Object], Mapping[str, str]]) -> StoredJob:
    """Annotate the job, as ``notes`` says of its newest version, at one stroke."""
    for _ in range(_TRIES):
        stored = cluster.get(job.resource, job.namespace, job.name)
        if stored["metadata"]["uid"] != job.uid:
            raise NotFound(f"{job.shown} is another one by now")
        version = stored["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "annotations": dict(notes(stored))}}
        with suppress(Conflict):
            return StoredJob(job.resource, cluster.patch(job.resource, job.namespace, job.name, body))
    raise Conflict(f"{job.shown} changes faster than it can be written", hint="try again")

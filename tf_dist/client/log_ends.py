"""The ends of the logs that decide about a job, read once: the reports of a job that nobody followed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Final

from tf_dist.client.log_follower import LogLines
from tf_dist.client.monitor import JobSnapshot
from tf_dist.client.stored_jobs import StoredJob, pods_of, replica_of
from tf_dist.cluster.api import Cluster, LogOptions, Object
from tf_dist.core.diagnostics.outcome import Outcome
from tf_dist.core.diagnostics.replicas import leaders_first
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.model.status import ending_failure
from tf_dist.errors import ClusterError, InvalidJob

_LINES: Final = 5_000


def read_log_ends(cluster: Cluster, job: StoredJob, pods: list[Object]) -> JobSnapshot:
    """A job and its replicas, with the log lines of the deciding replica, and of the one that failed.

    A log that is gone, or may not be read, has no lines. InvalidJob if the spec of the job is invalid.
    """
    snapshot = JobSnapshot(job.job, kept_lines=_LINES).with_objects(job.status, pods)
    there = {replica: pod for pod in pods if (replica := replica_of(pod)) is not None}
    lines = [LogLines(one, str(one), _lines(cluster, job.job, one, there[one])) for one in _deciding(job, there)]
    return snapshot.with_lines([some for some in lines if some.texts], 0.0)


def observed_outcome(cluster: Cluster, job: StoredJob, outcome: Outcome) -> Outcome:
    """The outcome of a job with the reports of its replicas, if they can be read."""
    try:
        return read_log_ends(cluster, job, pods_of(cluster, job)).observed(outcome)
    except (ClusterError, InvalidJob):  # its pods cannot be listed, or its spec is none
        return outcome


def _deciding(job: StoredJob, there: Iterable[ReplicaId]) -> list[ReplicaId]:
    there = {*there}
    failure = ending_failure(job.status)
    ordered = [one for one in leaders_first(job.job) if one in there]
    return [*ordered[:1], *(one for one in ordered[1:] if failure is not None and failure.replica == str(one))]


def _lines(cluster: Cluster, job: Job, replica: ReplicaId, pod: Object) -> list[str]:
    spec = job.spec(replica.type)
    options = LogOptions(container=spec.container if spec else "", tail=_LINES)
    found: list[str] = []
    try:
        with closing(cluster.logs(pod["metadata"]["namespace"], pod["metadata"]["name"], options)) as stream:
            for some in stream:
                found += some.decode(errors="replace").splitlines()
    except ClusterError:
        return found
    return found

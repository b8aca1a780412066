"""Job of a try: adopted from an earlier try, or created."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_dist.airflow.jobs.job_ownership import adopt_job, delete_if_owned
from tf_dist.airflow.jobs.job_request import JobRequest, request_of_try
from tf_dist.airflow.jobs.task_identity import (
    MARKED_FOR_DELETION,
    MAX_TRIES,
    OWNER_ANNOTATION,
    RESULT_USED,
    TASK_LABEL,
    TaskInstanceKey,
    annotations_of,
)
from tf_dist.client.connection import Connection, refuse_beside_volcano
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.submission import create_companion, create_job
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Resource
from tf_dist.core.diagnostics.outcome import is_suspended
from tf_dist.core.model.job import Dialect
from tf_dist.core.model.status import SUCCESSFUL, Phase
from tf_dist.core.pipeline.adoption import AdoptionCandidate, AdoptionDecision, decide_adoption
from tf_dist.errors import AlreadyExists


def candidate(job: StoredJob, max_tries: int | None = None) -> AdoptionCandidate:
    """What a new try has to know of it. ``max_tries``: of that try.

    Airflow raises it when a user clears the task (``clear_task_instances``). If it is the one with which an earlier
    try used the result, Airflow tries again by itself: it has lost what that try reported, and the result still counts.
    """
    notes, metadata = annotations_of(job.stored), job.stored["metadata"]
    return AdoptionCandidate(
        uid=job.uid,
        created=job.created or 0.0,
        marked_for_deletion="deletionTimestamp" in metadata or MARKED_FOR_DELETION in notes,
        done=job.status.finished or (job.status.phase is Phase.ABORTED and not is_suspended(job.status)),
        succeeded=job.status.phase in SUCCESSFUL,
        result_used=RESULT_USED in notes and (max_tries is None or notes.get(MAX_TRIES) != str(max_tries)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTry:
    """One try of a task. ``drive``: whether Airflow may lead its job; ``durable``: whether earlier tries' are taken up.

    ``max_tries``: as Airflow has it. ``labels`` and ``annotations`` are the user's, for the job. ``exact_name``: it has
    the name that was ordered; else one of its own.
    """

    key: TaskInstanceKey
    number: int
    max_tries: int | None = None
    owner: str
    drive: bool = True
    durable: bool = True
    exact_name: bool = False
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def resource_of_request(request: JobRequest) -> Resource:
    """The kind of job that is ordered."""
    return VOLCANO_JOBS if request.entry.job.dialect is Dialect.VOLCANO else TFJOBS


@dataclass(frozen=True, slots=True)
class TaskJobs:
    """The jobs of a task by their label, as ``start_job`` finds, adopts and creates them.

    ``changed`` may change the document of a job before it is created.
    """

    connection: Connection
    request: JobRequest
    namespace: str
    this: TaskTry
    changed: Callable[[dict[str, Any]], None]

    def find(self) -> Sequence[StoredJob]:
        """The jobs of all tries."""
        resource, selector = resource_of_request(self.request), f"{TASK_LABEL}={self.this.key.label}"
        found = self.connection.cluster.list(resource, self.namespace, labels=selector).items
        return [StoredJob(resource, stored) for stored in found]

    def decide(self, found: Sequence[StoredJob]) -> AdoptionDecision:
        """Of several jobs that live (none, unless they were made by hand) one stays."""
        return decide_adoption([candidate(job, self.this.max_tries) for job in found], durable=self.this.durable)

    def adopt(self, found: StoredJob) -> StoredJob:
        """OwnershipLost if it was given up."""
        return adopt_job(self.connection.cluster, found, self.this.owner)

    def replace(self, found: StoredJob) -> None:
        """Delete a surplus job; the next one has another name."""
        delete_if_owned(self.connection.cluster, found, annotations_of(found.stored).get(OWNER_ANNOTATION, ""))

    def create(self) -> StoredJob:
        """ClusterError, InvalidJob."""
        resource = resource_of_request(self.request)
        connection, request, namespace, this = self.connection, self.request, self.namespace, self.this
        if this.drive and connection.place is not None and request.entry.job.dialect is Dialect.VOLCANO:
            refuse_beside_volcano(connection.cluster, request.base_name)
        # The same however often it is asked, so that no try makes two jobs.
        made = not this.exact_name or "generateName" in request.entry.written.content["metadata"]
        mine = request_of_try(
            request,
            name=this.key.job_name(request.base_name, this.number) if made else request.base_name,
            namespace=namespace,
            labels={**this.labels, **this.key.labels(this.number)},
            notes={**this.annotations, OWNER_ANNOTATION: this.owner},
            changed=self.changed,
        )
        for written in request.companions:
            create_companion(connection.cluster, written, namespace, owner=this.key.task)
        folder = request.folder if connection.here else ""
        try:
            return StoredJob(resource, create_job(connection.cluster, mine.entry, namespace, workdir=folder).stored)
        except AlreadyExists:
            found = StoredJob(resource, connection.cluster.get(resource, namespace, mine.base_name))
            if annotations_of(found.stored).get(OWNER_ANNOTATION) == this.owner:
                return found  # the answer to its creation was lost
        what, hint = f"there is a job {mine.base_name} in namespace {namespace}, and it ", ""
        if (found.stored["metadata"].get("labels") or {}).get(TASK_LABEL) == this.key.label:
            what += f"is of an earlier try of this task, and is {found.state}"
            hint = f"for a new one, delete it first: tf-dist delete {found.shown} -n {namespace}"
        else:
            what += "is not this task's"
            hint = "delete it first, or give this one another name" if this.exact_name else ""
        raise AlreadyExists(f"{what} ({hint})" if hint else what, hint=hint)

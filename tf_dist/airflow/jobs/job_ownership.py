"""Ownership of jobs: each job belongs to a try, which created or adopted it. Only the owner deletes the job."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from tf_dist.airflow.jobs.job_request import JobRequest, request_of_try
from tf_dist.airflow.jobs.task_identity import (
    ENDED_STATES,
    INSTANCE_ANNOTATION,
    MARKED_FOR_DELETION,
    MAX_TRIES,
    OWNER_ANNOTATION,
    RESULT_USED,
    TASK_LABEL,
    StateQuery,
    TaskInstanceKey,
    annotations_of,
    task_key,
)
from tf_dist.client.connection import Connection, refuse_beside_volcano
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.submission import create_companion, create_job
from tf_dist.cluster.api import VOLCANO_JOBS, Cluster, Object, Resource
from tf_dist.core.diagnostics.outcome import is_suspended
from tf_dist.core.model.status import SUCCESSFUL, Phase
from tf_dist.core.pipeline.adoption import AdoptionCandidate, AdoptionDecision, decide_adoption
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound

_WRITE_ATTEMPTS: Final = 20  # the controller also writes the job: each Conflict means that another write succeeded
_LOG: Final = logging.getLogger(__name__)


class OwnershipLost(NotFound):
    """The job now belongs to another try."""


def adopt_job(cluster: Cluster, job: StoredJob, owner: str) -> StoredJob:
    """Make ``owner`` the owner of the job. Raises NotFound, and OwnershipLost if an earlier try is deleting the job."""

    def notes(stored: Object) -> Mapping[str, str]:
        if MARKED_FOR_DELETION in annotations_of(stored):
            raise OwnershipLost(f"{job.shown} was abandoned by an earlier try")
        return {OWNER_ANNOTATION: owner}

    return _annotate(cluster, job, notes)


def mark_result_used(cluster: Cluster, job: StoredJob, owner: str, max_tries: int) -> None:
    """Record that the result was reported, so that a cleared task starts a new job. Raises NotFound."""
    _annotate(cluster, job, lambda _: {RESULT_USED: owner, MAX_TRIES: str(max_tries)})


def delete_if_owned(cluster: Cluster, job: StoredJob, owner: str) -> bool:
    """Delete the job if ``owner`` still owns it. Returns whether the job was deleted.

    The job is marked first, with a write that fails if the job has changed. Another try either sees the mark, or has
    already adopted the job, which is then not deleted.
    """

    def notes(stored: Object) -> Mapping[str, str]:
        if annotations_of(stored).get(OWNER_ANNOTATION) != owner:
            raise OwnershipLost(f"{job.shown} belongs to another try")
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
        return False  # another job has the name now
    return True


def _annotate(cluster: Cluster, job: StoredJob, notes: Callable[[Object], Mapping[str, str]]) -> StoredJob:
    """Add the annotations that ``notes`` returns for the newest version of the job, in one atomic write."""
    for _ in range(_WRITE_ATTEMPTS):
        stored = cluster.get(job.resource, job.namespace, job.name)
        if stored["metadata"]["uid"] != job.uid:
            raise NotFound(f"{job.shown} was deleted and created anew")
        version = stored["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "annotations": dict(notes(stored))}}
        with suppress(Conflict):
            return StoredJob(job.resource, cluster.patch(job.resource, job.namespace, job.name, body))
    raise Conflict(f"{job.shown} keeps changing while tf-dist writes it", hint="try again")


# The job of a try


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTry:
    """One try of a task."""

    key: TaskInstanceKey
    """The task instance."""
    number: int
    """The number of the try, from 1."""
    max_tries: int | None = None
    """Airflow's ``max_tries`` of the task instance."""
    owner: str
    """The name of the try in ``OWNER_ANNOTATION``."""
    drive: bool = True
    """Airflow may lead the namespace of the job."""
    durable: bool = True
    """Jobs of earlier tries are adopted."""
    exact_name: bool = False
    """The job has exactly the name of the request. False: each try has its own name."""
    labels: Mapping[str, str]
    """The user's labels for the job."""
    annotations: Mapping[str, str]
    """The user's annotations for the job, and the annotations that the try needs."""


def candidate(job: StoredJob, max_tries: int | None = None) -> AdoptionCandidate:
    """The facts about a job that decide on its adoption. ``max_tries``: the value of the new try.

    When a user clears the task, Airflow raises ``max_tries`` (``clear_task_instances``). If the value is the same as
    when an earlier try used the result, Airflow itself retries, because it lost the report of that try. Then the result
    is used again.
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


@dataclass(frozen=True, slots=True)
class TaskJobs:
    """Finds the jobs of a task by their label, and adopts, deletes and creates them, for ``start_job``."""

    connection: Connection
    """The cluster."""
    request: JobRequest
    """The job to create."""
    namespace: str
    """Its namespace."""
    this: TaskTry
    """The try that starts the job."""
    changed: Callable[[dict[str, Any]], None]
    """Called with the document of a job before it is created; may change the document."""

    def find(self) -> Sequence[StoredJob]:
        """The jobs of all tries."""
        resource, selector = self.request.resource, f"{TASK_LABEL}={self.this.key.label}"
        found = self.connection.cluster.list(resource, self.namespace, labels=selector).items
        return [StoredJob(resource, stored) for stored in found]

    def decide(self, found: Sequence[StoredJob]) -> AdoptionDecision:
        """Decide by the table of adoption. Only users can create several live jobs; then the newest is adopted."""
        return decide_adoption([candidate(job, self.this.max_tries) for job in found], durable=self.this.durable)

    def adopt(self, found: StoredJob) -> StoredJob:
        """Adopt the job. Raises OwnershipLost if an earlier try is deleting it."""
        return adopt_job(self.connection.cluster, found, self.this.owner)

    def replace(self, found: StoredJob) -> None:
        """Delete a surplus job. Unless ``exact_name`` is set, the job of this try has another name."""
        delete_if_owned(self.connection.cluster, found, annotations_of(found.stored).get(OWNER_ANNOTATION, ""))

    def create(self) -> StoredJob:
        """Create the job and its companion objects. Raises ClusterError and InvalidJob."""
        connection, request, namespace, this = self.connection, self.request, self.namespace, self.this
        resource = request.resource
        if this.drive and connection.place is not None and resource is VOLCANO_JOBS:
            refuse_beside_volcano(connection.cluster, request.base_name)
        # The name is the same at every attempt, so that no try creates two jobs.
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
                return found  # this try created the job, but the response was lost
        what, hint = f"there is a job {mine.base_name} in namespace {namespace}, and it ", ""
        if (found.stored["metadata"].get("labels") or {}).get(TASK_LABEL) == this.key.label:
            what += f"is of an earlier try of this task, and is {found.state}"
            hint = f"for a new one, delete it first: tf-dist delete {found.shown} -n {namespace}"
        else:
            what += "does not belong to this task"
            hint = "delete it first, or give this one another name" if this.exact_name else ""
        raise AlreadyExists(f"{what} ({hint})" if hint else what, hint=hint)


# Orphans are jobs that continue although their task was ended while no process worked for it. Nothing else deletes
# them, so the next task of the same Airflow in the same namespace deletes them.


def orphan_annotation(key: TaskInstanceKey) -> dict[str, str]:
    """The annotation of a job that is deleted with its task: the complete task instance."""
    return {INSTANCE_ANNOTATION: json.dumps(asdict(key), sort_keys=True)}


def delete_orphans(cluster: Cluster, resource: Resource, namespace: str, deployment: str, ask: StateQuery) -> list[str]:
    """Delete the jobs of ``deployment`` that continue although their task has ended. Returns their names.

    Airflow is queried once for each DAG that has jobs. After an error, the remaining jobs are left for the next call.
    """
    try:
        mine: list[tuple[StoredJob, TaskInstanceKey]] = []
        for stored in cluster.list(resource, namespace, labels=TASK_LABEL).items:
            job = StoredJob(resource, stored)
            with suppress(ValueError, TypeError):  # a job that may outlive its task, or that others have changed
                key = TaskInstanceKey(**json.loads(annotations_of(stored).get(INSTANCE_ANNOTATION, "")))
                if key.deployment == deployment and not job.status.finished:
                    mine.append((job, key))
        deleted = []
        for dag_id in {key.dag_id for _, key in mine}:
            here = [(job, key) for job, key in mine if key.dag_id == dag_id]
            tasks, runs = sorted({key.task_id for _, key in here}), sorted({key.run_id for _, key in here})
            states = ask(dag_id=dag_id, task_ids=tasks, run_ids=runs)
            for job, key in here:
                state = (states.get(key.run_id) or {}).get(task_key(key.task_id, key.map_index))
                owner = annotations_of(job.stored).get(OWNER_ANNOTATION, "")
                if str(state) in ENDED_STATES and delete_if_owned(cluster, job, owner):
                    _LOG.info("deleted orphan job=%s: its task was ended while no process worked for it", job.shown)
                    deleted.append(job.name)
        return deleted
    except Exception as error:
        # Errors of the cluster or of Airflow's API must not fail a task.
        unknown = not isinstance(error, ClusterError)
        _LOG.info("failed to look for orphans of other tasks: error=%s", error, exc_info=unknown)
        return []

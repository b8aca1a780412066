"""Jobs of a task: adopted from an earlier try or created, marked, deleted; orphans of ended tasks.

Nothing else deletes them then, so the next task of the same Airflow in the same namespace does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
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
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Cluster, Object, Resource
from tf_dist.core.diagnostics.outcome import is_suspended
from tf_dist.core.model.job import Dialect
from tf_dist.core.model.status import SUCCESSFUL, Phase
from tf_dist.core.model.timestamps import parse_time
from tf_dist.core.pipeline.adoption import AdoptionAction, AdoptionCandidate, decide_adoption
from tf_dist.errors import AlreadyExists, ClusterError, Conflict, NotFound

_WRITE_ATTEMPTS: Final = 20  # a job's controller writes into it, too: each Conflict means that another writer got on


class OwnershipLost(ClusterError):
    """The job has become another try's meanwhile."""


def jobs_of_task(cluster: Cluster, resource: Resource, namespace: str, key: TaskInstanceKey) -> list[StoredJob]:
    """The jobs of a task instance, those of all its tries."""
    return [StoredJob(resource, stored) for stored in cluster.list(resource, namespace, labels=key.selector).items]


def candidate(job: StoredJob, max_tries: int | None = None) -> AdoptionCandidate:
    """What a new try has to know of it. ``max_tries``: of that try.

    Airflow raises it when a user clears the task (``clear_task_instances``). If it is the one with which an earlier
    try used the result, Airflow tries again by itself: it has lost what that try reported, and the result still counts.
    """
    notes, metadata = annotations_of(job.stored), job.stored["metadata"]
    return AdoptionCandidate(
        uid=job.uid,
        created=parse_time(metadata.get("creationTimestamp")) or 0.0,
        marked_for_deletion="deletionTimestamp" in metadata or MARKED_FOR_DELETION in notes,
        done=job.status.finished or (job.status.phase is Phase.ABORTED and not is_suspended(job.status)),
        succeeded=job.status.phase in SUCCESSFUL,
        result_used=RESULT_USED in notes and (max_tries is None or notes.get(MAX_TRIES) != str(max_tries)),
    )


def adopt_job(cluster: Cluster, job: StoredJob, owner: str) -> StoredJob:
    """Make it ``owner``'s; NotFound if it is gone, OwnershipLost if it was given up."""

    def notes(stored: Object) -> Mapping[str, str]:
        if MARKED_FOR_DELETION in annotations_of(stored):
            raise OwnershipLost(f"{job.shown} was given up by an earlier try")
        return {OWNER_ANNOTATION: owner}

    return _annotate(cluster, job, notes)


def mark_result_used(cluster: Cluster, job: StoredJob, owner: str, max_tries: int) -> None:
    """Note that its result has been handed on, so that a task that is cleared begins anew."""
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
    except (OwnershipLost, NotFound):
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
    for _ in range(_WRITE_ATTEMPTS):
        stored = cluster.get(job.resource, job.namespace, job.name)
        if stored["metadata"]["uid"] != job.uid:
            raise NotFound(f"{job.shown} is another one by now")
        version = stored["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "annotations": dict(notes(stored))}}
        with suppress(Conflict):
            return StoredJob(job.resource, cluster.patch(job.resource, job.namespace, job.name, body))
    raise Conflict(f"{job.shown} changes faster than it can be written", hint="try again")


_LOG = logging.getLogger(__name__)


def orphan_annotation(key: TaskInstanceKey) -> dict[str, str]:
    """The annotation of a job that is to go with its task: which task instance that is, word for word."""
    return {INSTANCE_ANNOTATION: json.dumps(asdict(key), sort_keys=True)}


def delete_orphans(cluster: Cluster, resource: Resource, namespace: str, deployment: str, ask: StateQuery) -> list[str]:
    """Delete the jobs of ``deployment`` that go on though their task has ended; their names.

    It asks once for each DAG that has jobs. What cannot be found out, or deleted, is left for the next time.
    """
    try:
        found = [StoredJob(resource, stored) for stored in cluster.list(resource, namespace, labels=TASK_LABEL).items]
        going = [(job, key) for job in found if not job.status.finished and (key := _key_of_job(job)) is not None]
        mine = [(job, key) for job, key in going if key.deployment == deployment]
        states = {dag: _states(ask, dag, (key for _, key in mine if key.dag_id == dag)) for dag in _dags(mine)}
        return [job.name for job, key in mine if _is_over(states[key.dag_id], key) and _delete_orphan(cluster, job)]
    except Exception as error:
        # Neither the cluster nor Airflow's API may keep a task from what it is there for.
        _LOG.info(
            "failed to look for orphans of other tasks: error=%s", error, exc_info=not isinstance(error, ClusterError)
        )
        return []


def _key_of_job(job: StoredJob) -> TaskInstanceKey | None:
    """The task instance that a job belongs to; None if it may outlive that, or is not to be understood."""
    try:
        return TaskInstanceKey(**json.loads(annotations_of(job.stored).get(INSTANCE_ANNOTATION, "")))
    except (ValueError, TypeError):
        return None


def _dags(jobs: Iterable[tuple[StoredJob, TaskInstanceKey]]) -> set[str]:
    return {key.dag_id for _, key in jobs}


def _states(ask: StateQuery, dag_id: str, keys: Iterable[TaskInstanceKey]) -> Mapping[str, Mapping[str, Any]]:
    keys = list(keys)
    tasks, runs = sorted({key.task_id for key in keys}), sorted({key.run_id for key in keys})
    found: Mapping[str, Mapping[str, Any]] = ask(dag_id=dag_id, task_ids=tasks, run_ids=runs)
    return found


def _is_over(states: Mapping[str, Mapping[str, Any]], key: TaskInstanceKey) -> bool:
    state = (states.get(key.run_id) or {}).get(task_key(key.task_id, key.map_index))
    return state is not None and str(state) in ENDED_STATES


def _delete_orphan(cluster: Cluster, job: StoredJob) -> bool:
    deleted = delete_if_owned(cluster, job, annotations_of(job.stored).get(OWNER_ANNOTATION, ""))
    if deleted:
        _LOG.info("deleted orphan job=%s: its task was ended while no process worked for it", job.shown)
    return deleted


_START_ATTEMPTS: Final = 5


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


@dataclass(frozen=True, slots=True)
class StartResult:
    """What the try has: its job, and how it came to it."""

    answer: AdoptionAction
    job: StoredJob


def resource_of_request(request: JobRequest) -> Resource:
    """The kind of job that is ordered."""
    return VOLCANO_JOBS if request.entry.job.dialect is Dialect.VOLCANO else TFJOBS


@dataclass(frozen=True, slots=True)
class JobStarter:
    """Takes up what an earlier try left, else creates a job; ``changed`` may change its document before."""

    connection: Connection
    request: JobRequest
    namespace: str
    this: TaskTry
    changed: Callable[[dict[str, Any]], None]

    def start(self) -> StartResult:
        """The job of the try. Of several that live (there are none, unless they were made by hand) one stays.

        ClusterError, InvalidJob.
        """
        for _ in range(_START_ATTEMPTS):
            try:
                return self._adopt_or_create()
            except (OwnershipLost, NotFound) as error:
                lost = error  # it went while we looked at it
        raise lost

    def _adopt_or_create(self) -> StartResult:
        cluster, this, resource = self.connection.cluster, self.this, resource_of_request(self.request)
        found = {job.uid: job for job in jobs_of_task(cluster, resource, self.namespace, this.key)}
        chosen = decide_adoption([candidate(job, this.max_tries) for job in found.values()], durable=this.durable)
        for uid in chosen.surplus:
            delete_if_owned(cluster, found[uid], annotations_of(found[uid].stored).get(OWNER_ANNOTATION, ""))
        if chosen.answer is AdoptionAction.CREATE:
            return StartResult(chosen.answer, self._create(resource))
        return StartResult(chosen.answer, adopt_job(cluster, found[chosen.uid], this.owner))

    def _create(self, resource: Resource) -> StoredJob:
        connection, request, namespace, this = self.connection, self.request, self.namespace, self.this
        drive = this.drive and connection.place is not None
        if drive and request.entry.job.dialect is Dialect.VOLCANO:
            refuse_beside_volcano(connection.cluster, request.base_name)
        mine = request_of_try(
            request,
            name=_name(request, this),
            namespace=namespace,
            labels={**this.labels, **this.key.labels(this.number)},
            notes={
                **this.annotations,
                OWNER_ANNOTATION: this.owner,
            },
            changed=self.changed,
        )
        for written in request.companions:
            create_companion(connection.cluster, written, namespace, owner=this.key.task)
        folder = request.folder if connection.here else ""
        try:
            created = create_job(connection.cluster, mine.entry, namespace, workdir=folder)
            return StoredJob(resource, created.stored)
        except AlreadyExists:
            return _existing_job(connection, resource, mine, namespace, this)


def _name(request: JobRequest, this: TaskTry) -> str:
    """The name of the job that this try makes: the same however often it is asked, so that none is made twice."""
    made = not this.exact_name or "generateName" in request.entry.written.content["metadata"]
    return this.key.job_name(request.base_name, this.number) if made else request.base_name


def _existing_job(
    connection: Connection, resource: Resource, mine: JobRequest, namespace: str, this: TaskTry
) -> StoredJob:
    """The job of that name: ours, if the answer to its creation was lost and it lives; else the error stands."""
    stored = connection.cluster.get(resource, namespace, mine.base_name)
    if annotations_of(stored).get(OWNER_ANNOTATION) != this.owner:
        found = StoredJob(resource, stored)
        what, hint = f"there is a job {mine.base_name} in namespace {namespace}, and it ", ""
        if (stored["metadata"].get("labels") or {}).get(TASK_LABEL) == this.key.label:
            what += f"is of an earlier try of this task, and is {found.state}"
            hint = f"for a new one, delete it first: tf-dist delete {found.shown} -n {namespace}"
        else:
            what += "is not this task's"
            hint = "delete it first, or give this one another name" if this.exact_name else ""
        raise AlreadyExists(f"{what} ({hint})" if hint else what, hint=hint)
    return StoredJob(resource, stored)


def finish_job(connection: Connection, job: StoredJob, owner: str, max_tries: int, *, delete: bool) -> bool:
    """The result has been handed on: delete the job, or note that on it; whether it was deleted.

    A try that has lost the job to another one leaves it alone.
    """
    if delete:
        return delete_if_owned(connection.cluster, job, owner)
    with suppress(NotFound):
        mark_result_used(connection.cluster, job, owner, max_tries)
    return False

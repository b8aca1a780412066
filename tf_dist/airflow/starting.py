"""What a try of a task begins with: the job that an earlier try left, or a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tf_dist.airflow.documents import Order, personal
from tf_dist.airflow.identity import OWNER, TaskKey, annotations_of
from tf_dist.airflow.ownership import Lost, adopt, candidate, consume, earlier, give_up
from tf_dist.airflow.seat import RESERVED
from tf_dist.client.companions import create_companion
from tf_dist.client.connect import Connection
from tf_dist.client.jobs import StoredJob
from tf_dist.client.ownership import leave_to_volcano
from tf_dist.client.submitting import create_job
from tf_dist.cluster.api import TFJOBS, VOLCANO_JOBS, Resource
from tf_dist.core import names
from tf_dist.core.model import Dialect
from tf_dist.core.succession import Answer, choose
from tf_dist.errors import AlreadyExists, NotFound

_LOG = logging.getLogger(__name__)
_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One try of a task. ``drive``: whether Airflow drives its job; ``durable``: whether earlier tries' are taken up.

    ``labels`` and ``annotations`` are the user's, for the job.
    """

    key: TaskKey
    number: int
    owner: str
    drive: bool = True
    durable: bool = True
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Start:
    """What the try has: its job, and how it came to it."""

    answer: Answer
    job: StoredJob


def resource_of(order: Order) -> Resource:
    """The kind of job that is ordered."""
    return VOLCANO_JOBS if order.entry.job.dialect is Dialect.VOLCANO else TFJOBS


def begin(
    connection: Connection, order: Order, namespace: str, this: Try, changed: Callable[[dict[str, Any]], None]
) -> Start:
    """Take up what an earlier try left, else create a job; ``changed`` may change its document before.

    Of several that live (there are none, unless somebody made them by hand) one stays. ClusterError, InvalidJob.
    """
    for _ in range(_TRIES):
        try:
            return _begin(connection, order, namespace, this, changed)
        except (Lost, NotFound) as error:
            lost = error  # it went while we looked at it
    raise lost


def _begin(
    connection: Connection, order: Order, namespace: str, this: Try, changed: Callable[[dict[str, Any]], None]
) -> Start:
    resource = resource_of(order)
    found = {job.uid: job for job in earlier(connection.cluster, resource, namespace, this.key)}
    chosen = choose([candidate(job) for job in found.values()], durable=this.durable)
    for uid in chosen.surplus:
        give_up(connection.cluster, found[uid], annotations_of(found[uid].stored).get(OWNER, ""))
    if chosen.answer is Answer.CREATE:
        return Start(chosen.answer, _create(connection, resource, order, namespace, this, changed))
    return Start(chosen.answer, adopt(connection.cluster, found[chosen.uid], this.owner))


def _create(
    connection: Connection,
    resource: Resource,
    order: Order,
    namespace: str,
    this: Try,
    changed: Callable[[dict[str, Any]], None],
) -> StoredJob:
    drive = this.drive and connection.place is not None
    if drive and order.entry.job.dialect is Dialect.VOLCANO:
        leave_to_volcano(connection.cluster, order.base_name)
    notes = {**this.annotations, OWNER: this.owner, **({names.DRIVER: RESERVED} if drive else {})}
    mine = personal(
        order,
        name=this.key.job_name(order.base_name, this.number),
        namespace=namespace,
        labels={**this.labels, **this.key.labels(this.number)},
        notes=notes,
        changed=changed,
    )
    for written in order.companions:
        create_companion(connection.cluster, written, namespace, owner=this.key.task)
    folder = order.folder if connection.here else ""
    try:
        created = create_job(connection.cluster, mine.entry, namespace, workdir=folder)
        return StoredJob(resource, created.stored)
    except AlreadyExists:
        return _there(connection, resource, mine, namespace, this)


def _there(connection: Connection, resource: Resource, mine: Order, namespace: str, this: Try) -> StoredJob:
    """The job of that name: ours, if the answer to its creation was lost and it lives; else the error stands."""
    stored = connection.cluster.get(resource, namespace, mine.base_name)
    if annotations_of(stored).get(OWNER) != this.owner:
        raise AlreadyExists(f"there is a job {mine.base_name} in namespace {namespace}, and it is not this task's")
    return StoredJob(resource, stored)


def finish(connection: Connection, job: StoredJob, owner: str, *, delete: bool) -> bool:
    """The result has been handed on: delete the job, or note that on it; whether it was deleted.

    Whoever has lost the job to another try leaves it alone.
    """
    if delete:
        return give_up(connection.cluster, job, owner)
    with suppress(NotFound):
        consume(connection.cluster, job, owner)
    return False

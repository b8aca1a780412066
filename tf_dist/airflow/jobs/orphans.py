"""Orphans: jobs that go on though their task was ended while no process worked for it.

Nothing else deletes them then, so the next task of the same Airflow in the same namespace does.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict

from tf_dist.airflow.jobs.job_ownership import delete_if_owned
from tf_dist.airflow.jobs.task_identity import (
    ENDED_STATES,
    INSTANCE_ANNOTATION,
    OWNER_ANNOTATION,
    TASK_LABEL,
    StateQuery,
    TaskInstanceKey,
    annotations_of,
    task_key,
)
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import Cluster, Resource
from tf_dist.errors import ClusterError

_LOG = logging.getLogger(__name__)


def orphan_annotation(key: TaskInstanceKey) -> dict[str, str]:
    """The annotation of a job that is to go with its task: which task instance that is, word for word."""
    return {INSTANCE_ANNOTATION: json.dumps(asdict(key), sort_keys=True)}


def delete_orphans(cluster: Cluster, resource: Resource, namespace: str, deployment: str, ask: StateQuery) -> list[str]:
    """Delete the jobs of ``deployment`` that go on though their task has ended; their names.

    It asks once for each DAG that has jobs. What cannot be found out, or deleted, is left for the next time.
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
        # Neither the cluster nor Airflow's API may keep a task from what it is there for.
        unknown = not isinstance(error, ClusterError)
        _LOG.info("failed to look for orphans of other tasks: error=%s", error, exc_info=unknown)
        return []

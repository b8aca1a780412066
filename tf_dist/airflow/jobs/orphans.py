"""Orphans: jobs that go on though their task was ended while no process worked for it.

Nothing else deletes them then, so the next task of the same Airflow in the same namespace does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

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

"""Jobs whose task a user ended while no process worked for it: between a clear and the next try, or after a crash.

Nobody is there to delete them then, so that the next task of the same Airflow in the same namespace does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tf_dist.airflow.identity import INSTANCE, OWNER, TASK, TaskKey, annotations_of
from tf_dist.airflow.ownership import give_up
from tf_dist.airflow.task_states import ENDED, Ask, key_of
from tf_dist.client.jobs import StoredJob
from tf_dist.cluster.api import Cluster, Resource
from tf_dist.errors import ClusterError

_LOG = logging.getLogger(__name__)


def note(key: TaskKey) -> dict[str, str]:
    """The annotation of a job that is to go with its task: which task instance that is, word for word."""
    return {INSTANCE: json.dumps(asdict(key), sort_keys=True)}


def sweep(cluster: Cluster, resource: Resource, namespace: str, deployment: str, ask: Ask) -> list[str]:
    """Delete the jobs of ``deployment`` that go on though their task has ended; their names.

    It asks once for each DAG that has jobs. What cannot be found out, or deleted, is left for the next time.
    """
    try:
        found = [StoredJob(resource, stored) for stored in cluster.list(resource, namespace, labels=TASK).items]
        going = [(job, key) for job in found if not job.status.finished and (key := _key(job)) is not None]
        mine = [(job, key) for job, key in going if key.deployment == deployment]
        states = {dag: _states(ask, dag, (key for _, key in mine if key.dag_id == dag)) for dag in _dags(mine)}
        return [job.name for job, key in mine if _is_over(states[key.dag_id], key) and _delete(cluster, job)]
    except Exception as error:
        # Neither the cluster nor Airflow's API may keep a task from what it is there for.
        _LOG.info("no look at what other tasks left: %s", error, exc_info=not isinstance(error, ClusterError))
        return []


def _key(job: StoredJob) -> TaskKey | None:
    """The task instance that a job belongs to; None if it may outlive that, or is not to be understood."""
    try:
        return TaskKey(**json.loads(annotations_of(job.stored).get(INSTANCE, "")))
    except (ValueError, TypeError):
        return None


def _dags(jobs: Iterable[tuple[StoredJob, TaskKey]]) -> set[str]:
    return {key.dag_id for _, key in jobs}


def _states(ask: Ask, dag_id: str, keys: Iterable[TaskKey]) -> Mapping[str, Mapping[str, Any]]:
    keys = list(keys)
    tasks, runs = sorted({key.task_id for key in keys}), sorted({key.run_id for key in keys})
    found: Mapping[str, Mapping[str, Any]] = ask(dag_id=dag_id, task_ids=tasks, run_ids=runs)
    return found


def _is_over(states: Mapping[str, Mapping[str, Any]], key: TaskKey) -> bool:
    state = (states.get(key.run_id) or {}).get(key_of(key.task_id, key.map_index))
    return state is not None and str(state) in ENDED


def _delete(cluster: Cluster, job: StoredJob) -> bool:
    deleted = give_up(cluster, job, annotations_of(job.stored).get(OWNER, ""))
    if deleted:
        _LOG.info("%s is deleted: its task was ended while nobody worked for it", job.shown)
    return deleted

"""A try only changes jobs that it owns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.airflow.site import document
from tests.controller.harness import START, Clock, disturbed
from tf_dist.airflow.jobs.job_ownership import (
    OwnershipLost,
    adopt_job,
    candidate,
    delete_if_owned,
    delete_orphans,
    mark_result_used,
    orphan_annotation,
)
from tf_dist.airflow.jobs.task_identity import (
    INSTANCE_ANNOTATION,
    MARKED_FOR_DELETION,
    OWNER_ANNOTATION,
    RESULT_USED,
    TaskInstanceKey,
    annotations_of,
)
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import TFJOBS, Cluster
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.pipeline.adoption import decide_adoption
from tf_dist.errors import Conflict, NotFound


def stored(cluster: MemoryCluster, **annotations: str) -> StoredJob:
    body = document()
    body["metadata"]["annotations"] = annotations
    return StoredJob(TFJOBS, cluster.create(TFJOBS, "default", body))


def test_try_deletes_own_job() -> None:
    with MemoryCluster() as cluster:
        job = stored(cluster, **{OWNER_ANNOTATION: "one/1"})
        assert delete_if_owned(cluster, job, "one/1")
        assert cluster.list(TFJOBS, "default").items == []
        assert not delete_if_owned(cluster, job, "one/1")


def test_earlier_try_does_not_delete_adopted_job() -> None:
    with MemoryCluster() as cluster:
        job = stored(cluster, **{OWNER_ANNOTATION: "one/1"})
        adopt_job(cluster, job, "two/2")
        assert not delete_if_owned(cluster, job, "one/1")
        assert annotations_of(cluster.get(TFJOBS, "default", "job"))[OWNER_ANNOTATION] == "two/2"
        assert delete_if_owned(cluster, job, "two/2")


def test_job_with_same_name_but_other_uid_is_not_touched() -> None:
    with MemoryCluster() as cluster:
        job = stored(cluster, **{OWNER_ANNOTATION: "one/1"})
        cluster.delete(TFJOBS, "default", "job")
        other = stored(cluster, **{OWNER_ANNOTATION: "one/1"})
        assert not delete_if_owned(cluster, job, "one/1")
        assert cluster.get(TFJOBS, "default", "job")["metadata"]["uid"] == other.uid
        with pytest.raises(NotFound):
            adopt_job(cluster, job, "two/2")


@pytest.mark.parametrize("again", [True, False])
def test_job_replaced_before_deletion_counts_as_deleted(again: bool) -> None:
    with MemoryCluster() as cluster:
        job = stored(cluster, **{OWNER_ANNOTATION: "one/1"})

        def before(verb: str, *_: Any, **__: Any) -> None:
            if verb == "delete":
                cluster.delete(TFJOBS, "default", "job")
                if again:
                    stored(cluster, **{OWNER_ANNOTATION: "one/1"})

        assert not delete_if_owned(disturbed(cluster, before), job, "one/1")
        left = cluster.list(TFJOBS, "default").items
        assert [MARKED_FOR_DELETION in annotations_of(one) for one in left] == [False] * again


def test_rejected_deletion_raises_conflict() -> None:
    with MemoryCluster() as cluster:
        job = stored(cluster, **{OWNER_ANNOTATION: "one/1"})

        def before(verb: str, *_: Any, **__: Any) -> None:
            if verb == "delete":
                raise Conflict("try again")

        with pytest.raises(Conflict):
            delete_if_owned(disturbed(cluster, before), job, "one/1")


def test_job_marked_for_deletion_cannot_be_adopted() -> None:
    with MemoryCluster() as cluster:
        job = stored(cluster, **{OWNER_ANNOTATION: "one/1", MARKED_FOR_DELETION: "one/1"})
        assert candidate(job).marked_for_deletion
        with pytest.raises(OwnershipLost):
            adopt_job(cluster, job, "two/2")


def test_job_with_deletion_timestamp_counts_as_marked() -> None:
    with MemoryCluster() as cluster:
        body = document()
        body["metadata"]["finalizers"] = ["example.com/held"]
        job = StoredJob(TFJOBS, cluster.create(TFJOBS, "default", body))
        assert not candidate(job).marked_for_deletion
        cluster.delete(TFJOBS, "default", "job")
        assert candidate(StoredJob(TFJOBS, cluster.get(TFJOBS, "default", "job"))).marked_for_deletion


def test_used_result_is_marked() -> None:
    with MemoryCluster() as cluster:
        job = stored(cluster, **{OWNER_ANNOTATION: "one/1"})
        assert not candidate(job).result_used
        mark_result_used(cluster, job, "one/1", max_tries=2)
        used = StoredJob(TFJOBS, cluster.get(TFJOBS, "default", "job"))
        assert candidate(used).result_used
        assert candidate(used, max_tries=3).result_used  # the task was cleared
        assert not candidate(used, max_tries=2).result_used  # Airflow has lost the result of the try
        assert RESULT_USED in annotations_of(cluster.get(TFJOBS, "default", "job"))


def test_newest_running_job_is_adopted() -> None:
    clock = Clock()
    with MemoryCluster(clock=clock) as cluster:
        jobs = []
        for name in ("third", "first", "second"):
            clock.now += 60
            jobs.append(StoredJob(TFJOBS, cluster.create(TFJOBS, "default", document(name=name))))
        made = [candidate(job) for job in jobs]
        assert [one.created for one in made] == [START + 60, START + 120, START + 180]
        assert decide_adoption(made).uid == jobs[-1].uid


class Busy:
    """A cluster where another client changes a job after each of the first ``times`` reads."""

    def __init__(self, inner: MemoryCluster, times: int) -> None:
        self._inner = inner
        self._left = times

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def get(self, *where: Any) -> Any:
        found = self._inner.get(*where)
        if self._left:
            self._left -= 1
            self._inner.patch(*where, {"metadata": {"annotations": {"count": str(self._left)}}})
        return found


def test_adoption_retries_after_conflicts() -> None:
    with MemoryCluster() as cluster:
        job = stored(cluster, **{OWNER_ANNOTATION: "one/1"})
        adopt_job(cast(Cluster, Busy(cluster, 5)), job, "two/2")
        assert annotations_of(cluster.get(TFJOBS, "default", "job"))[OWNER_ANNOTATION] == "two/2"
        with pytest.raises(Conflict, match="keeps changing"):
            adopt_job(cast(Cluster, Busy(cluster, 1000)), job, "three/3")


ENDED = TaskInstanceKey(deployment="prod", dag_id="first", run_id="run", task_id="train")
ORPHANS = {
    "ended": ENDED,
    "mapped": replace(ENDED, map_index=3),
    "other-run": replace(ENDED, run_id="later"),
    "other-task": replace(ENDED, task_id="tune"),
    "other-dag": replace(ENDED, dag_id="second"),
    "other-deployment": replace(ENDED, deployment="test"),
}


def test_only_jobs_of_ended_tasks_of_same_deployment_are_orphans() -> None:
    states = {"first": {"run": {"train": "failed", "train_3": "running"}, "later": {"train": "deferred"}}}
    asked: list[dict[str, Any]] = []

    def ask(*, dag_id: str, task_ids: list[str], run_ids: list[str]) -> Any:
        asked.append({"dag_id": dag_id, "task_ids": task_ids, "run_ids": run_ids})
        return states.get(dag_id, {"run": {"train": "running"}})

    with MemoryCluster() as cluster:
        for name, key in ORPHANS.items():
            body = document(name=name)
            body["metadata"] |= {
                "labels": key.labels(1),
                "annotations": {**orphan_annotation(key), OWNER_ANNOTATION: name},
            }
            cluster.create(TFJOBS, "default", body)
        foreign = document(name="not-a-task")
        foreign["metadata"] |= {"labels": ENDED.labels(1), "annotations": {INSTANCE_ANNOTATION: "[]"}}
        cluster.create(TFJOBS, "default", foreign)
        assert delete_orphans(cluster, TFJOBS, "default", "prod", ask) == ["ended"]
        left = {one["metadata"]["name"] for one in cluster.list(TFJOBS, "default").items}
    assert left == {*ORPHANS, "not-a-task"} - {"ended"}
    assert sorted(asked, key=str) == [
        {"dag_id": "first", "task_ids": ["train", "tune"], "run_ids": ["later", "run"]},
        {"dag_id": "second", "task_ids": ["train"], "run_ids": ["run"]},
    ]

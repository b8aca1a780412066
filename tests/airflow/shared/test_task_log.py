"""A task's log of a job that waits, and the clean-up of its waiter."""

from __future__ import annotations

import threading
from typing import Any

from tests.airflow.site import document
from tests.waiting import until
from tf_dist.airflow.shared.job_store import InformerJobStore
from tf_dist.airflow.shared.job_waiter import TaskLogView
from tf_dist.client.log_follower import LogLine
from tf_dist.client.monitor import JobSnapshot
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import TFJOBS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.api.job import ReplicaId


def waiting(message: str) -> JobSnapshot:
    """A job that waits, and why."""
    stored: dict[str, Any] = document(name="a")
    stored["metadata"] |= {"namespace": "default", "uid": "u"}
    stored["status"] = {"tfDist": {"phase": "Pending", "reason": "NoRoom", "message": message}}
    job = StoredJob(TFJOBS, stored)
    return JobSnapshot(job.job).with_objects(job.status, [])


def test_its_place_in_the_line_is_told_when_it_changes() -> None:
    said: list[str] = []
    view = TaskLogView(waiting("").job, said.append, lines=True)
    for message in ("place 3", "place 2", "place 2"):
        view.show(waiting(message), [])
    view.show(waiting("place 2"), [LogLine(ReplicaId("worker", 0), "worker-0", "step=1")])
    assert said == [
        "tf-dist  | job a is Waiting: place 3",
        "tf-dist  | job a is Waiting: place 2",
        "worker-0 | step=1",
    ]


def test_many_lines_of_a_replica_are_a_group_with_its_attempt() -> None:
    said: list[str] = []
    view = TaskLogView(waiting("").job, said.append, lines=True)
    names = ["worker-0", "worker-1"] * 20 + ["chief-0"]
    lines = [LogLine(ReplicaId(name[:-2], int(name[-1])), name, f"step={step}") for step, name in enumerate(names)]
    view.show(waiting(""), lines)
    assert said[0] == "chief-0  | step=40"
    assert said[1:3] == ["::group::worker-0, attempt 1: 20 lines", "worker-0 | step=0"]
    assert said[22:25] == ["::endgroup::", "::group::worker-1, attempt 1: 20 lines", "worker-1 | step=1"]
    said.clear()
    view.show(waiting(""), lines[:6])
    assert [line[:8] for line in said] == names[:6], "a few lines stay in the order in which they came"


def test_when_it_is_closed_nothing_is_followed_any_more() -> None:
    with MemoryCluster() as cluster:
        before = {*threading.enumerate()}
        on_change: list[Any] = []
        store = InformerJobStore(cluster, "default", on_change=on_change.append, on_error=lambda: None)
        store.follow(TFJOBS)
        cluster.create(TFJOBS, "default", document(name="a"))
        until(lambda: bool(on_change), 60)
        store.close()
        until(lambda: {*threading.enumerate()} <= before, 60)

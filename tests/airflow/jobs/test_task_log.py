"""The task log of a waiting job, and the clean-up of the waiter."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.airflow.instance import Instance, MakeOperator, deferred, event_of
from tests.airflow.site import Site, document
from tests.waiting import until
from tf_dist.airflow.informers.job_store import JobStore
from tf_dist.airflow.jobs.job_waiter import TaskLogView
from tf_dist.client.log_follower import LogLines
from tf_dist.client.monitor import JobSnapshot
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import TFJOBS, LogOptions
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.model.job import ReplicaId


def waiting(message: str) -> JobSnapshot:
    """A waiting job with the message of its status."""
    stored: dict[str, Any] = document(name="a")
    stored["metadata"] |= {"namespace": "default", "uid": "u"}
    stored["status"] = {"tfDist": {"phase": "Pending", "reason": "NoRoom", "message": message}}
    job = StoredJob(TFJOBS, stored)
    return JobSnapshot(job.job).with_objects(job.status, [])


def test_wait_message_is_logged_when_it_changes() -> None:
    said: list[str] = []
    view = TaskLogView(waiting("").job, lambda line, _="": said.append(line), lines=True)
    for message in ("place 3", "place 2", "place 2"):
        view.show(waiting(message), [])
    view.show(waiting("place 2"), [LogLines(ReplicaId("worker", 0), "worker-0", ["step=1"])])
    assert said == [
        "tf-dist  | job a is Waiting: place 3",
        "tf-dist  | job a is Waiting: place 2",
        "worker-0 | step=1",
    ]


def test_lines_of_replicas_keep_their_times() -> None:
    said: list[tuple[str, str]] = []
    view = TaskLogView(waiting("").job, lambda line, written="": said.append((written, line)), lines=True)
    times = [f"2026-11-27T12:00:{second:02}.5Z" for second in range(30)]
    lines = [LogLines(ReplicaId("worker", 0), "worker-0", ["step=1"] * 30, written=times)]
    view.show(waiting("place 3"), lines)
    assert said == [*((time, "worker-0 | step=1") for time in times), ("", "tf-dist  | job a is Waiting: place 3")]


def test_equal_lines_get_different_times() -> None:
    times: list[str] = []
    view = TaskLogView(waiting("").job, lambda _, written="": times.append(written), lines=True)
    time = "2026-11-27T12:00:00.123456789Z"
    view.show(waiting(""), [LogLines(ReplicaId("worker", 0), "worker-0", ["hello"] * 12, written=[time] * 12)])
    shown = [time[:26] for time in times if time]  # Airflow reads microseconds
    assert len(shown) == 12
    assert shown == sorted({*shown})


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("deferrable", [False, True], ids=["in the worker", "deferred"])
def test_records_have_times_of_replica_logs(
    cluster_site: Site, operator: MakeOperator, instance: Instance, deferrable: bool
) -> None:
    task = operator(document("for i in 1 2 3; do echo step=$i; sleep 0.05; done"), on_finish_action="keep_job")
    with capture_logs() as records:
        if deferrable:
            event_of(deferred(task, instance))
        else:
            task.execute(instance.context())
    (name,) = cluster_site.names()
    with cluster_site.cluster.logs("default", f"{name}-worker-0", LogOptions(timestamps=True)) as stream:
        written = [tuple(line.decode().split()) for line in b"".join(stream).splitlines()]
    prefix = "worker-0 | "
    found = [
        (record["timestamp"], record["event"].removeprefix(prefix))
        for record in records
        if record["event"].startswith(prefix)
    ]
    assert len(found) == 3
    assert found == written


def test_closed_store_leaves_no_threads() -> None:
    with MemoryCluster() as cluster:
        before = {*threading.enumerate()}
        on_change: list[Any] = []
        store = JobStore(cluster, "default", on_change=on_change.append, on_error=lambda: None)
        store.follow(TFJOBS)
        cluster.create(TFJOBS, "default", document(name="a"))
        until(lambda: bool(on_change), 60)
        store.close()
        until(lambda: {*threading.enumerate()} <= before, 60)

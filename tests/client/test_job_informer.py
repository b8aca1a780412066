"""The state of a job and its pods, derived from lists and watch events."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.cluster.support import pod
from tests.controller.harness import tfjob
from tests.waiting import until
from tf_dist.client.log_follower import ContainerInstance
from tf_dist.client.monitor import JobInformer, ObjectChanged, ObjectsListed, WatchingJobInformer
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, TFJOBS, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster

JOB: Object = {**tfjob(), "metadata": {"name": "mnist", "namespace": "default", "uid": "u"}}


def mailbox() -> JobInformer:
    return JobInformer(StoredJob(TFJOBS, JOB))


def at(version: int, uid: str = "p", **status: Any) -> Object:
    stored = pod("a")
    return {**stored, "metadata": {**stored["metadata"], "uid": uid, "resourceVersion": str(version)}, "status": status}


RUNNING = {"name": "main", "restartCount": 1, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("status", "number", "ended"),
    [
        (None, 0, True),
        ({}, 0, True),
        ({"containerStatuses": [RUNNING]}, 1, False),
        ({"containerStatuses": [RUNNING]}, 0, True),
        ({"containerStatuses": [{**RUNNING, "name": "other"}]}, 0, True),
        ({"initContainerStatuses": [RUNNING]}, 1, False),
        ({"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}, 0, True),
    ],
)
def test_ended_reports_state_of_container_instance(status: Object | None, number: int, ended: bool) -> None:
    box = mailbox()
    if status is not None:
        box.learn(ObjectsListed(PODS, [at(1, **status)]))
    assert box.ended(ContainerInstance("p", "main", number)) is ended


def test_stale_watch_events_are_ignored() -> None:
    box = mailbox()
    box.learn(ObjectsListed(PODS, [at(5)]))
    box.learn(ObjectChanged(PODS, "MODIFIED", at(4)))
    assert box.pods == {"p": at(5)}
    for version in (5, 6):
        box.learn(ObjectChanged(PODS, "MODIFIED", at(version, phase=f"{version}")))
        assert box.pods == {"p": at(version, phase=f"{version}")}
    box.learn(ObjectChanged(PODS, "ADDED", at(7, "q")))
    box.learn(ObjectChanged(PODS, "DELETED", at(8)))
    assert box.pods == {"q": at(7, "q")}


def test_job_with_same_name_but_other_uid_is_ignored() -> None:
    box = mailbox()
    other = {**JOB, "metadata": {**JOB["metadata"], "uid": "v"}}
    box.learn(ObjectChanged(TFJOBS, "ADDED", other))
    assert box.job is not None
    assert box.job.uid == "u"
    box.learn(ObjectsListed(TFJOBS, [other]))
    assert (box.job, box.over) == (None, True)


def test_close_ends_watches() -> None:
    with MemoryCluster() as memory:
        before = {*threading.enumerate()}
        with WatchingJobInformer(memory, StoredJob(TFJOBS, memory.create(TFJOBS, "default", tfjob()))) as watch:
            until(lambda: bool(watch.take(60)), 60)
        until(lambda: {*threading.enumerate()} <= before, 60)


@pytest.mark.parametrize("seconds", [float("inf"), 9_999_999_999.0])
def test_take_accepts_very_long_timeouts(seconds: float) -> None:
    box = mailbox()
    box.put(ObjectsListed(TFJOBS, [JOB]))
    assert box.take(seconds) == [ObjectsListed(TFJOBS, [JOB])]

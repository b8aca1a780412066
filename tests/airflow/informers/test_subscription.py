"""A subscription wakes its waiter once for several changes, and the waiter takes all of them."""

from __future__ import annotations

from typing import Any

from tests.airflow.site import document
from tf_dist.airflow.informers.subscription import SeenJob, Subscription
from tf_dist.client.log_follower import LogLines
from tf_dist.client.monitor import ObjectsListed
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import PODS, TFJOBS, Object
from tf_dist.controller.settings import JobRef
from tf_dist.core.model.job import ReplicaId


def job(uid: str = "u", phase: str = "Running") -> Object:
    stored = document(name="a")
    status = {"tfDist": {"phase": phase}}
    return {**stored, "metadata": {"name": "a", "namespace": "default", "uid": uid}, "status": status}


class Desk:
    """A subscription, how often its waiter was woken, and what the informer has stored."""

    def __init__(self) -> None:
        self.told = 0
        self.seen: SeenJob | None = StoredJob(TFJOBS, job()), []
        self.subscription = Subscription(JobRef(TFJOBS, "default", "a"), job(), self._tell, lambda _: self.seen)

    def _tell(self) -> None:
        self.told += 1


LINE = LogLines(ReplicaId("worker", 0), "worker-0", ["step=1"])


def test_wakes_once_until_changes_are_taken() -> None:
    desk = Desk()
    for _ in range(3):
        desk.subscription.notify()
    desk.subscription.put(LINE)
    assert desk.told == 1
    assert desk.subscription.take(0) == [ObjectsListed(PODS, []), LINE]
    desk.subscription.notify()
    assert desk.told == 2
    assert desk.subscription.take(0) == [ObjectsListed(PODS, [])]
    desk.subscription.mark_changed()
    assert (desk.told, desk.subscription.take(0)) == (2, [ObjectsListed(PODS, [])])


def test_wakes_again_when_batch_is_full() -> None:
    desk = Desk()
    for _ in range(1_001):
        desk.subscription.put(LINE)
    assert (desk.told, len(desk.subscription.take(0)), desk.told) == (1, 1_000, 2)
    assert (len(desk.subscription.take(0)), desk.told) == (1, 2)


def test_shows_latest_version_of_job() -> None:
    desk = Desk()
    pods: list[Any] = [{"metadata": {"uid": "p"}}]
    for seen, there, last in [
        ((StoredJob(TFJOBS, job(phase="Completed")), pods), True, "Completed"),
        (None, True, "Completed"),
        ((StoredJob(TFJOBS, job("another")), []), False, "Completed"),
        ((None, []), False, "Completed"),
    ]:
        desk.seen = seen
        desk.subscription.notify()
        desk.subscription.take(0)
        assert (desk.subscription.job is not None, desk.subscription.last.status.phase) == (there, last)
        assert list(desk.subscription.pods) == ["p"] * there

"""Work for a bounded number of threads, and logs that are asked for a few at a time."""

from __future__ import annotations

import io
import threading
from functools import partial
from typing import Any

from benchmarks.jobs import tfjob
from tests.waiting import until
from tf_dist.airflow.shared.job_informer import SharedJobInformer
from tf_dist.airflow.shared.subscription import BoundedThreads, LogRequestLimiter
from tf_dist.client.connection import Connection
from tf_dist.cluster.api import ALL_LINES, PODS, TFJOBS, LogOptions, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.driver_settings import JobRef
from tf_dist.core.api import names

SECONDS = 60


def test_no_more_at_a_time_than_there_are_slots_and_everything_is_done() -> None:
    slots, gate, lock = BoundedThreads(2), threading.Semaphore(0), threading.Lock()
    now, most, done = [0], [0], [0]

    def work() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.acquire()
        with lock:
            now[0] -= 1
            done[0] += 1

    for _ in range(5):
        slots.start(work)
    until(lambda: now[0] == 2, SECONDS)
    assert slots.waiting == 3
    gate.release(5)
    until(lambda: done[0] == 5, SECONDS)
    slots.close()
    assert (most[0], slots.waiting) == (2, 0)


def test_what_raises_takes_no_slot_with_it() -> None:
    def broken() -> None:
        raise RuntimeError("out of luck")

    slots, done = BoundedThreads(1), threading.Event()
    slots.start(broken)
    slots.start(done.set)
    assert done.wait(SECONDS)
    slots.close()


def test_a_thread_without_work_ends_and_closing_forgets_what_waits() -> None:
    slots, gate, seen = BoundedThreads(1), threading.Event(), list[int]()
    begun = threading.Event()

    def first() -> None:
        begun.set()
        gate.wait(SECONDS)

    slots.start(first)
    slots.start(lambda: seen.append(1))
    assert begun.wait(SECONDS)
    closing = threading.Thread(target=slots.close)
    closing.start()
    until(lambda: slots.waiting == 0, SECONDS)
    gate.set()
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert seen == []


def test_when_it_is_closed_its_threads_are_dead() -> None:
    for _ in range(500):
        slots, done = BoundedThreads(2), threading.Event()
        slots.start(done.set)
        done.wait()
        slots.close()
        assert not [one for one in threading.enumerate() if one.name == "log"]


class Waiting:
    """A cluster that answers requests for logs when it is let; ``most``: how many it has had to answer at a time."""

    def __init__(self) -> None:
        self.answer = threading.Semaphore(0)
        self.asked = self.answered = self.most = 0
        self._lock = threading.Lock()

    def get(self, *_: object) -> Object:
        with self._lock:
            self.asked += 1
            self.most = max(self.most, self.asked - self.answered)
        self.answer.acquire(timeout=SECONDS)
        with self._lock:
            self.answered += 1
        return {}

    def logs(self, *_: object) -> Any:
        return self.get()


def asked_by_many(cluster: Waiting, limiter: LogRequestLimiter, count: int) -> list[threading.Thread]:
    """Threads that each open a log, or ask for the state of a pod."""
    work = [partial(limiter.logs, "default", "p"), partial(limiter.get, PODS, "default", "p")]
    threads = [threading.Thread(target=work[number % 2], daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: cluster.asked >= 4, SECONDS)
    return threads


def joined(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(SECONDS)
    return not any(thread.is_alive() for thread in threads)


def test_a_few_requests_for_logs_are_made_at_a_time_and_all_are_made() -> None:
    cluster = Waiting()
    threads = asked_by_many(cluster, LogRequestLimiter(cluster, patience=SECONDS), 20)
    for answered in range(20):
        until(lambda answered=answered: cluster.asked == min(20, 4 + answered), SECONDS)
        cluster.answer.release()
    assert joined(threads)
    assert (cluster.answered, cluster.most) == (20, 4)


def test_requests_that_are_not_answered_hold_up_the_others_for_a_moment_only() -> None:
    cluster = Waiting()
    threads = asked_by_many(cluster, LogRequestLimiter(cluster, patience=0.01), 20)
    until(lambda: cluster.asked == 20, SECONDS)
    cluster.answer.release(20)
    assert joined(threads)


def test_where_logs_are_closed_no_request_waits_for_the_others() -> None:
    cluster = Waiting()
    limiter = LogRequestLimiter(cluster, patience=SECONDS)
    threads = asked_by_many(cluster, limiter, 20)
    limiter.close()
    until(lambda: cluster.asked == 20, SECONDS)
    cluster.answer.release(20)
    assert joined(threads)


class Opening(MemoryCluster):
    """Its pods' logs take a moment to open; ``most``: how many were opened at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.opened, self.most = 0, 0
        self._opening, self._lock, self._never = 0, threading.Lock(), threading.Event()

    def logs(self, namespace: str, pod: str, options: LogOptions = ALL_LINES) -> Any:
        with self._lock:
            self._opening += 1
            self.most = max(self.most, self._opening)
        self._never.wait(0.05)  # so long a request takes
        with self._lock:
            self._opening -= 1
            self.opened += 1
        return io.BytesIO(b"2026-01-01T00:00:00.000000000Z step=1\n")


def running_pod(name: str) -> Object:
    labels = {names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0"}
    metadata = {"name": name, "namespace": "default", "uid": name, "labels": labels}
    return {"metadata": metadata, "status": {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}}


def test_the_logs_of_many_jobs_are_opened_a_few_at_a_time() -> None:
    with Opening() as cluster:
        informer = SharedJobInformer(Connection(cluster, "default", "memory"), "default", streams=64)
        followers = []
        for number in range(64):
            cluster.create(TFJOBS, "default", tfjob(f"job-{number}"))
            subscription = informer.join(JobRef(TFJOBS, "default", f"job-{number}"), lambda: None)
            followers.append(informer.read_logs(subscription, LogOptions(), begun=True))
        for number, follower in enumerate(followers):
            follower.notice(running_pod(f"job-{number}-worker-0"))
        until(lambda: cluster.opened == 64, SECONDS)
        informer.close()
    assert cluster.most < 20  # 4, and a few more on a machine on which a request takes longer than a place is kept

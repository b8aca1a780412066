"""Bounded threads, and limits for concurrent log requests."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from tests.waiting import until
from tf_dist.airflow.informers.log_limits import BoundedThreads, LogRequestLimiter
from tf_dist.cluster.api import PODS, Object

SECONDS = 60


def test_all_work_runs_within_thread_limit() -> None:
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
        slots.start(partial(work))
    until(lambda: now[0] == 2, SECONDS)
    assert slots.waiting == 3
    gate.release(5)
    until(lambda: done[0] == 5, SECONDS)
    slots.close()
    assert (most[0], slots.waiting) == (2, 0)


def test_error_in_work_frees_thread() -> None:
    def broken() -> None:
        raise RuntimeError("out of luck")

    slots, done = BoundedThreads(1), threading.Event()
    slots.start(broken)
    slots.start(done.set)
    assert done.wait(SECONDS)
    slots.close()


def test_closing_drops_queued_work() -> None:
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


def test_no_threads_remain_after_close() -> None:
    for _ in range(500):
        slots, done = BoundedThreads(2), threading.Event()
        slots.start(done.set)
        done.wait()
        slots.close()
        assert not [one for one in threading.enumerate() if one.name == "log"]


def test_queued_work_runs_once_and_can_be_cancelled() -> None:
    slots, gate, begun, done = BoundedThreads(1), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        gate.wait(SECONDS)

    slots.start(first)
    assert begun.wait(SECONDS)
    second, third = partial(done.append, "second"), partial(done.append, "third")
    for work in (second, third, third, second):
        slots.start(work)
    slots.cancel(second)
    slots.cancel(first)  # already running
    gate.set()
    until(lambda: done == ["third"], SECONDS)
    slots.close()
    assert done == ["third"]


class Waiting:
    """A cluster that answers requests when the test allows it. ``most`` is the highest number of open requests."""

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
    """Threads that each request a log or the state of a pod."""
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


def test_limiter_bounds_concurrent_requests() -> None:
    cluster = Waiting()
    threads = asked_by_many(cluster, LogRequestLimiter(cluster, at_once=4, patience=SECONDS), 20)
    for answered in range(20):
        until(lambda answered=answered: cluster.asked == min(20, 4 + answered), SECONDS)
        cluster.answer.release()
    assert joined(threads)
    assert (cluster.answered, cluster.most) == (20, 4)


def test_unanswered_requests_delay_others_only_briefly() -> None:
    cluster = Waiting()
    threads = asked_by_many(cluster, LogRequestLimiter(cluster, at_once=4, patience=0.01), 20)
    until(lambda: cluster.asked == 20, SECONDS)
    cluster.answer.release(20)
    assert joined(threads)


def test_closed_limiter_releases_waiting_requests() -> None:
    cluster = Waiting()
    limiter = LogRequestLimiter(cluster, at_once=4, patience=SECONDS)
    threads = asked_by_many(cluster, limiter, 20)
    limiter.close()
    until(lambda: cluster.asked == 20, SECONDS)
    cluster.answer.release(20)
    assert joined(threads)

"""Work for a bounded number of threads, and logs that are opened a few at a time."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

from tests.waiting import until
from tf_dist.airflow.shared.subscription import BoundedThreads, LogOpenLimiter
from tf_dist.client.log_follower import ContainerInstance

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


def test_a_log_that_is_open_takes_no_place_of_those_that_are_opened() -> None:
    """Who finds no place waits for a second: a job of a thousand pods would wait for minutes."""
    opened: list[ContainerInstance] = []
    open_log = LogOpenLimiter().through(lambda _, instance: cast(Any, opened.append(instance)))
    begun = time.monotonic()
    for number in range(40):
        open_log({}, ContainerInstance("p", "main", number))
    assert len(opened) == 40
    assert time.monotonic() - begun < 10

"""Concurrent work starts with one task and stops after an error. Queues can be filled by signal handlers."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, SignalSafeQueue, SlowStart
from tf_dist.controller.observability.json_logging import current_job, job_log_context


@pytest.fixture
def slow_start() -> Iterator[SlowStart]:
    with ThreadPoolExecutor(8) as pool:
        yield SlowStart(SYSTEM_RUNTIME, pool, 4)


def met(*sizes: int) -> list[Callable[[], object]]:
    """Tasks in groups of these sizes. The tasks of a group wait for each other, so none ends alone."""
    barriers = [threading.Barrier(size, timeout=30) for size in sizes]
    return [barrier.wait for barrier, size in zip(barriers, sizes, strict=True) for _ in range(size)]


def test_batches_double_up_to_limit(slow_start: SlowStart) -> None:
    slow_start.run(met(1, 2, 4, 4, 3))


def test_empty_work_ends_immediately(slow_start: SlowStart) -> None:
    slow_start.run([])


def test_error_stops_new_tasks_but_finishes_running_ones(slow_start: SlowStart) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number in (1, 2):
            raise ValueError(f"refused {number}")
        done.append(number)

    tasks = [lambda number=number: work(number) for number in (0, 3, 1, 2, 4, 5, 6, 7)]  # type: ignore[misc]
    with pytest.raises(ValueError, match="refused 1"):
        slow_start.run(tasks)
    assert sorted(done) == [0, 3]


def test_tasks_run_when_other_work_occupies_pool() -> None:
    """If the webhook of a namespace hangs, creations in other namespaces must not wait."""
    hangs, done = threading.Event(), list[int]()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hangs.wait, 120)
        work = [lambda number=number: done.append(number) for number in range(7)]  # type: ignore[misc]
        caller = threading.Thread(target=SlowStart(SYSTEM_RUNTIME, pool, 4).run, args=(work,), daemon=True)
        caller.start()
        caller.join(10)
        ended = not caller.is_alive()
        hangs.set()
        caller.join(60)
    assert ended
    assert done == [*range(7)]


def test_tasks_run_in_context_of_caller() -> None:
    """The log lines of a pod's creation must contain the job."""
    seen: list[tuple[str, str]] = []
    together = threading.Barrier(4, timeout=60)

    def task() -> None:
        together.wait()  # each task runs in a different thread
        seen.append((threading.current_thread().name, current_job.get()))

    with SYSTEM_RUNTIME.pool(4, "worker") as pool, job_log_context("default/mnist"):
        SlowStart(SYSTEM_RUNTIME, pool, 4).run([lambda: None, lambda: None, lambda: None, *[task] * 4])
    assert {job for _, job in seen} == {"default/mnist"}
    assert len({thread for thread, _ in seen}) == 4


SHORT = [0.0, *(10.0**-exponent for exponent in range(4, 10))]


def test_queue_get_with_very_short_timeout_returns() -> None:
    ended = list[float]()

    def wait() -> None:
        for timeout in SHORT * 300:
            with suppress(queue.Empty):
                SignalSafeQueue[int]().get(timeout)
            ended.append(timeout)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(60)
    assert ended == SHORT * 300


def test_queue_keeps_order_of_each_writer() -> None:
    items = SignalSafeQueue[tuple[int, int]]()

    def put(writer: int) -> None:
        for number in range(500):
            items.put((writer, number))

    writers = [threading.Thread(target=put, args=(writer,)) for writer in range(4)]
    for thread in writers:
        thread.start()
    taken = [items.get(timeout=60) for _ in range(2000)]
    assert all([number for by, number in taken if by == writer] == list(range(500)) for writer in range(4))
    with pytest.raises(queue.Empty):
        items.get_nowait()


@contextmanager
def on_signal(handler: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """A function that sends this process a signal shortly after each call."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield lambda: threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_signal_handler_can_put_into_waiting_queue() -> None:
    items = SignalSafeQueue[str]()
    with on_signal(lambda: items.put("signal")) as send:
        send()
        assert items.get(timeout=60) == "signal"
        send()
        assert items.get() == "signal"


def test_queue_get_times_out_during_signal_handler() -> None:
    items = SignalSafeQueue[str]()
    rescue = threading.Timer(60, items.put, ("too late",))
    rescue.start()
    with on_signal(lambda: threading.Event().wait(0.3)) as send:
        send()
        with pytest.raises(queue.Empty):
            items.get(timeout=0.2)
    rescue.cancel()

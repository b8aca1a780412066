"""Work side by side: it begins with one piece, and nothing follows an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tf_dist.cluster.concurrency import SYSTEM_RUNTIME, SlowStart
from tf_dist.controller.observability.json_logging import current_job, job_log_context


@pytest.fixture
def slow_start() -> Iterator[SlowStart]:
    with ThreadPoolExecutor(8) as pool:
        yield SlowStart(SYSTEM_RUNTIME, pool, 4)


def met(*sizes: int) -> list[Callable[[], object]]:
    """Pieces of work of which so many at a time wait for each other: none ends alone."""
    barriers = [threading.Barrier(size, timeout=30) for size in sizes]
    return [barrier.wait for barrier, size in zip(barriers, sizes, strict=True) for _ in range(size)]


def test_one_then_two_then_four_and_never_more_than_the_most(slow_start: SlowStart) -> None:
    slow_start.run(met(1, 2, 4, 4, 3))


def test_nothing_is_no_work(slow_start: SlowStart) -> None:
    slow_start.run([])


def test_starts_no_task_after_an_error_and_finishes_those_under_way(slow_start: SlowStart) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number in (1, 2):
            raise ValueError(f"refused {number}")
        done.append(number)

    tasks = [lambda number=number: work(number) for number in (0, 3, 1, 2, 4, 5, 6, 7)]  # type: ignore[misc]
    with pytest.raises(ValueError, match="refused 1"):
        slow_start.run(tasks)
    assert sorted(done) == [0, 3]


def test_tasks_are_done_though_other_work_holds_all_threads_of_the_pool() -> None:
    """The creations of a namespace whose webhook hangs must not hold up those of another one."""
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


def test_all_of_it_is_done_in_the_callers_context() -> None:
    """Else a log line of one pod's creation would not say which job it is about."""
    seen: list[tuple[str, str]] = []
    together = threading.Barrier(4, timeout=60)

    def task() -> None:
        together.wait()  # no thread does two of them
        seen.append((threading.current_thread().name, current_job.get()))

    with SYSTEM_RUNTIME.pool(4, "worker") as pool, job_log_context("default/mnist"):
        SlowStart(SYSTEM_RUNTIME, pool, 4).run([lambda: None, lambda: None, lambda: None, *[task] * 4])
    assert {job for _, job in seen} == {"default/mnist"}
    assert len({thread for thread, _ in seen}) == 4

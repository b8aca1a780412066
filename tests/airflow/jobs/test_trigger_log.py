"""The lines that a trigger writes to its task's log."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from tf_dist.airflow.jobs.task_log import TriggerLog

SECONDS = 60.0


def form(text: str, written: str) -> tuple[str, str]:
    return f"worker-0 | {text}", written


@pytest.mark.parametrize("size", [0, 9, 999])
def test_slow_log_keeps_last_lines_and_counts_skipped_lines(size: int) -> None:
    begun, goes_on, written = threading.Event(), threading.Event(), list[str]()

    def write(line: str, written_at: str = "") -> None:
        begun.set()
        assert goes_on.wait(SECONDS)
        written.append(line)

    log = TriggerLog(write, most=1_000)
    log.lines(["first"], [], form)
    assert begun.wait(SECONDS)
    log("tf-dist  | job a is Running")
    for number in range(0, 100_000, 1 + size):
        some = range(number, min(number + 1 + size, 100_000))
        log.lines([f"line {one}" for one in some], [], form)
    goes_on.set()
    log.flush(SECONDS)
    assert written[1] == "tf-dist  | job a is Running"
    *lines, note = written[2:]
    assert lines == [f"worker-0 | line {number}" for number in range(100_000 - len(lines), 100_000)]
    assert 0 < sum(len(line) - len("worker-0 | ") for line in lines) <= 1_000
    assert f"{100_000 - len(lines):,} lines are not shown here" in note


def test_lines_of_many_triggers_keep_order_and_context() -> None:
    whose: ContextVar[int] = ContextVar("whose")
    written: dict[int, list[str]] = {number: [] for number in range(20)}
    logs = []
    for number in written:
        whose.set(number)
        logs.append(TriggerLog(lambda line, _="": written[whose.get()].append(line)))
    for line in range(200):
        for log in logs:
            log(str(line))
    for log in logs:
        log.flush(SECONDS)
    assert all(lines == [str(line) for line in range(200)] for lines in written.values())


def test_long_line_is_truncated() -> None:
    written: list[str] = []
    log = TriggerLog(lambda line, _="": written.append(line))
    log("x" * 1_000_000)
    log.flush(SECONDS)
    assert written == ["x" * 16_384 + " … (983,616 more characters)"]


def test_flush_times_out_when_log_is_blocked() -> None:
    goes_on = threading.Event()
    written: list[str] = []

    def write(line: str, written_at: str = "") -> None:
        assert goes_on.wait(SECONDS)
        written.append(line)

    log = TriggerLog(write)
    log("line")
    log.flush(0.01)
    assert not written
    goes_on.set()
    log.flush(SECONDS)
    assert written == ["line"]

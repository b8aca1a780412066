"""Task log: the way of lines into it, the same in a worker and in a triggerer.

In a triggerer a thread writes them, and with a limit, so that no job stalls the others.

Lines leave a triggerer over one socket, of which Airflow's supervisor reads 4 KiB at a time: some 1,000 lines a second
were measured for all triggers together. A write that waits for room there would hold up the event loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextvars import copy_context
from typing import Final, Protocol

import structlog

from tf_dist.airflow.masking import masked
from tf_dist.airflow.shared.subscription import BoundedThreads
from tf_dist.client.job_display import OWN_NAME

_MOST: Final = 256 * 1024  # characters of one trigger that wait: some seconds' worth
_LONGEST: Final = 16 * 1024  # characters of one line
_AT_ONCE: Final = 50  # lines of one trigger, before the others have their turn
_SAY_EVERY: Final = 60.0  # seconds between two notes of skipped lines, while more and more are skipped
_WRITER: Final = BoundedThreads(1)
# Airflow's own way of logging: before 3.1 the loggers of its operators and triggers are others, and take no time.
_LOG: Final = structlog.get_logger(__name__)


class LineWriter(Protocol):
    """Writes lines into a log."""

    def __call__(self, line: str, written: str = "", /) -> object:
        """Write one. ``written``: when a replica wrote it (RFC 3339); "": now."""


def write_line(line: str, written: str = "") -> None:
    """Write a line into the log of the task that this context works for, see ``LineWriter``."""
    _LOG.info(masked(line), **_record_time(written))


def write_error(line: str, written: str = "") -> None:
    """``write_line`` as an error."""
    _LOG.error(masked(line), **_record_time(written))


def _record_time(written: str) -> dict[str, str]:
    # A record that has a time keeps it, and Airflow shows a task's log in the order of these.
    return {"timestamp": written} if written else {}


class TriggerLog:
    """Takes lines without waiting, from one event loop; the oldest that wait go when there are too many.

    ``write`` and ``write_error`` are called in the context in which this is made, by which Airflow knows whose line it
    is.
    """

    def __init__(
        self, write: LineWriter = write_line, write_error: LineWriter = write_error, *, most: int = _MOST
    ) -> None:
        self._write, self._write_error = write, write_error
        self._most, self._context = most, copy_context()
        self._lines: deque[tuple[LineWriter, str, str]] = deque()
        self._size = self._skipped = 0
        self._said_at = time.monotonic()  # when it was said last that lines were skipped
        self._changed = threading.Condition()
        # Asked for once, not for each line: the locks of the writing thread would cost more than all else.
        self._asked = False

    def __call__(self, line: str, written: str = "", /) -> None:
        """Have a line written."""
        self._add(self._write, line, written)

    def error(self, line: str, written: str = "", /) -> None:
        """Have a line written as an error."""
        self._add(self._write_error, line, written)

    def _add(self, write: LineWriter, line: str, written: str) -> None:
        if len(line) > _LONGEST:
            line = f"{line[:_LONGEST]} … ({len(line) - _LONGEST:,} more characters)"
        with self._changed:
            self._lines.append((write, line, written))
            self._size += len(line)
            if self._size > self._most:
                self._make_room()
            asked, self._asked = self._asked, True
        if not asked:
            _WRITER.start(self._write_some)

    def flush(self, seconds: float) -> None:
        """Wait until all is written, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._asked, timeout=seconds)

    def _make_room(self) -> None:
        """Let go of the oldest lines of replicas, half of what may wait; with the lock."""
        kept = []
        while self._lines and self._size > self._most // 2:
            entry = self._lines.popleft()
            self._size -= len(entry[1])
            if entry[1].startswith(OWN_NAME):  # what tf-dist says
                kept.append(entry)
            else:
                self._skipped += 1
        self._lines.extendleft(reversed(kept))
        self._size += sum(len(line) for _, line, _ in kept)

    def _write_some(self) -> None:
        with self._changed:
            lines = [self._lines.popleft() for _ in range(min(_AT_ONCE, len(self._lines)))]
            self._size -= sum(len(line) for _, line, _ in lines)
            now = time.monotonic()
            if self._skipped and (not self._lines or now - self._said_at >= _SAY_EVERY):
                skipped = f"{self._skipped:,} lines are not shown here: they came faster than a triggerer writes them"
                where = "tf-dist logs shows them, and deferrable=False does"
                lines.append((self._write, f"{OWN_NAME} | {skipped} ({where})", ""))
                self._skipped, self._said_at = 0, now
        try:
            for write, line, written in lines:
                self._context.run(write, line, written)
        finally:
            with self._changed:
                self._asked = more = bool(self._lines)
                self._changed.notify_all()
            if more:
                _WRITER.start(self._write_some)

"""The way of a trigger's lines into its task's log: by a thread, and with a limit, so that no job stalls the others.

Lines leave a triggerer over one socket, of which Airflow's supervisor reads 4 KiB between two looks at its database:
some 100 KB a second for all triggers together. A write that waits for room there would hold up the event loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Final

from tf_dist.airflow.shared.subscription import BoundedThreads
from tf_dist.client.job_display import OWN_NAME

_MOST: Final = 256 * 1024  # characters of one trigger that wait: some seconds' worth
_LONGEST: Final = 16 * 1024  # characters of one line
_AT_ONCE: Final = 50  # lines of one trigger, before the others have their turn
_WRITER: Final = BoundedThreads(1)


class TriggerLog:
    """Takes lines without waiting, from one event loop; the oldest that wait go when there are too many.

    ``write`` and ``write_error`` are called in the context in which this is made, by which Airflow knows whose line it
    is.
    """

    def __init__(
        self, write: Callable[[str], None], write_error: Callable[[str], None] | None = None, *, most: int = _MOST
    ) -> None:
        self._write, self._write_error = write, write_error or write
        self._most, self._context = most, copy_context()
        self._lines: deque[tuple[Callable[[str], None], str]] = deque()
        self._size = self._skipped = 0
        self._changed = threading.Condition()
        self._writing = False

    def __call__(self, line: str) -> None:
        """Have a line written."""
        self._add(self._write, line)

    def error(self, line: str) -> None:
        """Have a line written as an error."""
        self._add(self._write_error, line)

    def _add(self, write: Callable[[str], None], line: str) -> None:
        if len(line) > _LONGEST:
            line = f"{line[:_LONGEST]} … ({len(line) - _LONGEST:,} more characters)"
        with self._changed:
            self._lines.append((write, line))
            self._size += len(line)
            if self._size > self._most:
                self._make_room()
        _WRITER.start(self._write_some)

    def flush(self, seconds: float) -> None:
        """Wait until all is written, for so many seconds at most."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._lines or self._writing), timeout=max(0.0, deadline - time.monotonic())
            )

    def _make_room(self) -> None:
        """Let go of the oldest lines of replicas, half of what may wait; with the lock."""
        kept = []
        while self._lines and self._size > self._most // 2:
            write, line = self._lines.popleft()
            self._size -= len(line)
            if line.startswith((OWN_NAME, "::")):  # what tf-dist says, and the marks of groups
                kept.append((write, line))
            else:
                self._skipped += 1
        self._lines.extendleft(reversed(kept))
        self._size += sum(len(line) for _, line in kept)

    def _write_some(self) -> None:
        with self._changed:
            lines = [self._lines.popleft() for _ in range(min(_AT_ONCE, len(self._lines)))]
            self._size -= sum(len(line) for _, line in lines)
            if self._skipped:
                skipped = f"{self._skipped:,} lines are not shown here: they came faster than a triggerer writes them"
                where = "tf-dist logs shows them, and deferrable=False does"
                lines.insert(0, (self._write, f"{OWN_NAME} | {skipped} ({where})"))
                self._skipped = 0
            self._writing = True
        try:
            for write, line in lines:
                self._context.run(write, line)
        finally:
            with self._changed:
                self._writing = False
                more = bool(self._lines)
                self._changed.notify_all()
        if more:
            _WRITER.start(self._write_some)

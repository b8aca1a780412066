"""Task log: writes lines to the log of a task, in a worker or in a triggerer.

In a triggerer, a thread writes the lines, with a limit, so that no job delays the others. All lines leave a triggerer
through one socket, from which Airflow's supervisor reads 4 KiB at a time. This is about 1,000 lines a second for all
triggers. A write that waits for the socket would block the event loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import starmap, zip_longest
from typing import Final, Protocol

import structlog

from tf_dist.airflow.informers.log_limits import BoundedThreads
from tf_dist.airflow.masking import masked
from tf_dist.client.job_display import OWN_NAME

_MOST: Final = 256 * 1024  # maximum characters of a trigger that wait, which is output of a few seconds
_LONGEST: Final = 16 * 1024  # maximum characters of a line
_AT_ONCE: Final = 50  # lines of a trigger that are written before the next trigger has its turn
_SAY_EVERY: Final = 60.0  # seconds between two notes about skipped lines, while lines keep coming
_WRITER: Final = BoundedThreads(1)
# Airflow's own logging library. Before 3.1, operators and triggers have other loggers, which accept no timestamp.
_LOG: Final = structlog.get_logger(__name__)


class LineWriter(Protocol):
    """Writes lines to a log."""

    def __call__(self, line: str, written: str = "", /) -> object:
        """Write a line. ``written``: when a replica wrote it (RFC 3339); "": now."""


LineFormat = Callable[[str, str], tuple[str, str]]
"""Makes the written line and its time from a replica's line and its time."""


def write_line(line: str, written: str = "") -> None:
    """Write a line to the log of the task of this context, see ``LineWriter``."""
    _LOG.info(masked(line), **_record_time(written))


def write_error(line: str, written: str = "") -> None:
    """Write a line as an error, see ``write_line``."""
    _LOG.error(masked(line), **_record_time(written))


def _record_time(written: str) -> dict[str, str]:
    # A record with a timestamp keeps it, and Airflow sorts a task's log by timestamp.
    return {"timestamp": written} if written else {}


class LinesWriter(Protocol):
    """Writes several lines of a replica to a log."""

    def __call__(self, texts: Sequence[str], written: Sequence[str], form: LineFormat, /) -> object:
        """Write lines. ``written``: the time of each line, or nothing."""


@dataclass(slots=True)
class _Waiting:
    """Lines that wait to be written."""

    write: LineWriter
    texts: Sequence[str]
    written: Sequence[str] = ()
    form: LineFormat | None = None
    """The format; None for lines of tf-dist itself, which are never skipped."""

    def split(self, count: int) -> _Waiting:
        """Remove the first ``count`` lines, and return them."""
        first = replace(self, texts=self.texts[:count], written=self.written[:count])
        self.texts, self.written = self.texts[count:], self.written[count:]
        return first

    def records(self) -> Iterator[tuple[str, str]]:
        """The formatted lines and their times. Lines are formatted late, because most lines of a flood are skipped."""
        pairs = zip_longest(self.texts, self.written, fillvalue="")
        return pairs if self.form is None else starmap(self.form, pairs)


class TriggerLog:
    """Takes lines from an event loop without waiting. If too many lines wait, the oldest are skipped.

    ``write`` and ``write_error`` are called in the context of the constructor, which tells Airflow the task.
    """

    def __init__(
        self, write: LineWriter = write_line, write_error: LineWriter = write_error, *, most: int = _MOST
    ) -> None:
        self._write, self._write_error = write, write_error
        self._most, self._context = most, copy_context()
        self._waiting: deque[_Waiting] = deque()
        self._size = self._skipped = 0
        self._said_at = time.monotonic()  # the time of the last note about skipped lines
        self._changed = threading.Condition()
        # Whether a write is scheduled. Scheduling once for each line would cost too much time for locks.
        self._asked = False

    def __call__(self, line: str, written: str = "", /) -> None:
        """Write a line of tf-dist."""
        self._add(_Waiting(self._write, [line], [written]))

    def error(self, line: str, written: str = "", /) -> None:
        """Write a line of tf-dist as an error."""
        self._add(_Waiting(self._write_error, [line], [written]))

    def lines(self, texts: Sequence[str], written: Sequence[str], form: LineFormat, /) -> None:
        """Write lines of a replica, see ``LinesWriter``."""
        self._add(_Waiting(self._write, texts, written, form))

    def _add(self, waiting: _Waiting) -> None:
        if max(map(len, waiting.texts), default=0) > _LONGEST:
            waiting.texts = [
                f"{line[:_LONGEST]} … ({len(line) - _LONGEST:,} more characters)" if len(line) > _LONGEST else line
                for line in waiting.texts
            ]
        with self._changed:
            self._waiting.append(waiting)
            self._size += sum(map(len, waiting.texts))
            if self._size > self._most:
                self._make_room()
            asked, self._asked = self._asked, True
        if not asked:
            _WRITER.start(self._write_some)

    def flush(self, seconds: float) -> None:
        """Wait until all lines are written, for at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._asked, timeout=seconds)

    def _make_room(self) -> None:
        """Skip the oldest lines of replicas, down to half of the limit. The caller holds the lock."""
        kept = []
        while self._waiting and self._size > self._most // 2:
            oldest = self._waiting.popleft()
            if oldest.form is None:
                kept.append(oldest)
                continue
            count, size = len(oldest.texts), sum(map(len, oldest.texts))
            if self._size - size < self._most // 2:  # keep its last lines
                count, size = 0, 0
                while self._size - size > self._most // 2:
                    size += len(oldest.texts[count])
                    count += 1
                self._waiting.appendleft(oldest)
            self._skipped += len(oldest.split(count).texts)
            self._size -= size
        self._waiting.extendleft(reversed(kept))

    def _write_some(self) -> None:
        some: list[_Waiting] = []
        with self._changed:
            left = _AT_ONCE
            while self._waiting and left > 0:
                oldest = self._waiting[0]
                some.append(self._waiting.popleft() if len(oldest.texts) <= left else oldest.split(left))
                left -= len(some[-1].texts)
            self._size -= sum(len(text) for one in some for text in one.texts)
            now = time.monotonic()
            if self._skipped and (not self._waiting or now - self._said_at >= _SAY_EVERY):
                skipped = (
                    f"{self._skipped:,} lines are not shown here: they came faster than a triggerer can write them"
                )
                where = "tf-dist logs shows them, and so does a task with deferrable=False"
                some.append(_Waiting(self._write, [f"{OWN_NAME} | {skipped} ({where})"]))
                self._skipped, self._said_at = 0, now
        try:
            for one in some:
                for line, written in one.records():
                    self._context.run(one.write, line, written)
        finally:
            with self._changed:
                self._asked = more = bool(self._waiting)
                self._changed.notify_all()
            if more:
                _WRITER.start(self._write_some)

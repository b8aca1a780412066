"""Reading container logs from the runtime's files, as kubectl logs shows them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from tf_dist.cluster.api import LogOptions, Stream
from tf_dist.cluster.kubelet.runtime.log_file import log_timestamp, rotated_paths

_POLL = 0.1  # seconds between reads of a followed file
_MAX_LINE = 1 << 20  # the longest line, in bytes, that is returned as a whole
_CHUNK = 1 << 16
_OPEN_ATTEMPTS = 100  # if files are rotated meanwhile
_GAP = b"tf-dist: lines may be missing here: the container writes faster than its log is read"
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d")


class ContainerLogStream(Stream[bytes]):
    """The lines of one container instance, none older than ``since`` (epoch seconds). Lines that are available together
    are one item.

    ``alive`` returns whether more may follow; ``close`` ends the iteration from any thread.
    """

    def __init__(self, path: Path, options: LogOptions, alive: Callable[[], bool], *, since: float = 0.0) -> None:
        self._options = options
        self._since = log_timestamp(since).encode()
        self._closed = threading.Event()
        self._files = _LogFiles(path, alive if options.follow else lambda: False, self._closed)
        self._lines = self._begin()

    def __next__(self) -> bytes:
        if self._closed.is_set():
            raise StopIteration
        for lines in filter(None, self._lines):
            if self._closed.is_set():
                break
            return lines
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the stream: the reader's next step raises StopIteration."""
        self._closed.set()
        with contextlib.suppress(ValueError):  # another thread is reading, and closes the files itself
            self._lines.close()
            self._files.close()

    def _begin(self) -> Generator[bytes, None, None]:
        try:
            present, coming = self._files.present(), self._files.coming() if self._options.follow else iter(())
            if self._options.tail is not None:
                yield b"".join(deque(chain.from_iterable(self._chosen(present)), maxlen=self._options.tail))
            yield from map(b"".join, self._chosen(chain(present, coming)))
        finally:
            self._files.close()

    def _chosen(self, blocks: Iterator[list[bytes]]) -> Iterator[Iterable[bytes]]:
        stamped = self._options.timestamps
        line, stamp = b"", b""
        for entries in blocks:
            lines = []
            for entry in entries:
                when, _, rest = entry.partition(b" ")
                kind, text = rest[7:8], rest[9:]
                if kind not in (b"F", b"P") or not _STAMP.match(when):
                    continue  # cut off by a full disk
                stamp = stamp or when
                line = line + text if line else text
                if kind == b"P" and len(line) < _MAX_LINE:
                    continue
                if stamp >= self._since:
                    end = b"" if kind == b"P" else b"\n"
                    lines.append(b"%b %b%b" % (stamp, line, end) if stamped else line + end)
                line, stamp = b"", b""
            yield lines


class _LogFiles:
    """Raw entries of a log, without line ends, in lists of the entries of one read.

    First come the rotated files, then the current file, and then (when following) new entries.

    The file that is being read stays open, so that its reader loses nothing in a rotation. Only a reader that falls
    behind by more than all files together misses lines, because they are deleted, and reads ``_GAP`` instead.
    """

    def __init__(self, path: Path, alive: Callable[[], bool], closed: threading.Event) -> None:
        self._path = path
        self._alive = alive
        self._closed = closed
        self._rest = b""
        self._open = _opened(path)

    def present(self) -> Iterator[list[bytes]]:
        """The entries that were written so far."""
        while self._open:
            yield from self._read(self._open[0])
            if len(self._open) == 1:
                return
            self._open.pop(0).close()

    def coming(self) -> Iterator[list[bytes]]:
        """The entries that are written from now on, until the container has ended."""
        while not self._closed.is_set():
            alive = self._alive()  # checked before reading, so that all entries from before the end are read
            self._look_for_newer()
            yield from self.present()
            if not alive:
                return
            self._closed.wait(_POLL)

    def close(self) -> None:
        """Close the files."""
        while self._open:
            self._open.pop().close()

    def _look_for_newer(self) -> None:
        """Open the files after the current one, which is read to its end first."""
        last = _identity(os.fstat(self._open[-1].fileno())) if self._open else None
        with contextlib.suppress(FileNotFoundError):
            if _identity(os.stat(self._path)) == last:
                return
        found = _opened(self._path)
        seen = next((at for at, file in enumerate(found, 1) if _identity(os.fstat(file.fileno())) == last), 0)
        for file in found[:seen]:
            file.close()
        if last and found and not seen:
            stamp = found[0].read(len(log_timestamp(0)))  # of the first line after the gap
            found[0].seek(0)
            self._open.append(io.BytesIO(b"%b stdout F %b\n" % (stamp, _GAP)))
        self._open += found[seen:]

    def _read(self, file: BinaryIO) -> Iterator[list[bytes]]:
        while not self._closed.is_set() and (data := file.read(_CHUNK)):
            *entries, self._rest = (self._rest + data).split(b"\n")
            yield entries


def _opened(path: Path) -> list[BinaryIO]:
    """All files of a log, oldest first. Checks that no rotation renamed them while they were opened."""
    for _ in range(_OPEN_ATTEMPTS):
        files: list[BinaryIO] = []
        for name in rotated_paths(str(path)):
            with contextlib.suppress(FileNotFoundError):
                files.append(open(name, "rb"))  # noqa: SIM115 - closed by their reader
        opened = [_identity(os.fstat(file.fileno())) for file in files]
        if opened == _identities(path):
            break
        for file in files:
            file.close()
        files = []
    return files


def _identities(path: Path) -> list[tuple[int, int]]:
    found = []
    for name in rotated_paths(str(path)):
        with contextlib.suppress(FileNotFoundError):
            found.append(_identity(os.stat(name)))
    return found


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def log_tail(path: Path, *, lines: int = 80, size: int = 2048) -> str:
    """The last lines of a log, for a failed container's message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8 * size))
            entries = file.read().split(b"\n")[:-1][-lines:]
    except OSError:
        return ""
    text = b"\n".join(entry.split(b" ", 3)[-1] for entry in entries)
    return text[-size:].decode(errors="replace")

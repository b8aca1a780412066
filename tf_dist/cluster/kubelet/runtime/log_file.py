"""A container's log file in the CRI format, with rotation."""

from __future__ import annotations

import contextlib
import os
import sys
import time

MAX_ENTRY_BYTES = 16 * 1024  # bytes of one entry; a longer line continues in the next (P: partial, F: full)
ROTATED_FILES = 4  # older files in addition to the current file; .1 is the newest
_PAUSE = 1.0  # seconds until opening a file is retried


def log_timestamp(seconds: float) -> str:
    """A time in the format of the log."""
    whole, nanos = divmod(round(seconds * 1e9), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{nanos:09d}Z"


class LogFile:
    """Writes the two streams of a container instance; at ``limit`` bytes, the file becomes ``.1``, and ``.1`` ``.2``.

    Methods never fail, because a training run matters more than its log. While the disk is full, or the folder is
    missing or not writable, lines are lost.
    """

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._rest = {"stdout": b"", "stderr": b""}
        self._fd = -1
        self._size = 0
        self._torn = False  # the last entry was cut off by a full disk
        self._retry_at = 0.0
        self._closed = False
        self._told = False
        self._open()

    def _open(self) -> None:
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._fd).st_size
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        self._retry_at = time.monotonic() + _PAUSE
        if not self._told:
            self._told = True
            sys.stderr.write(f"lines of {self._path} are lost: {error}\n")
            sys.stderr.flush()

    def write(self, stream: str, data: bytes) -> None:
        """Add data from a pipe. An unfinished line waits for its end (or for ``MAX_ENTRY_BYTES`` bytes)."""
        head = f"{log_timestamp(time.time())} {stream} "
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        full, partial = head.encode() + b"F ", head.encode() + b"P "
        out = [_entry(line, full, partial) for line in lines]
        while len(rest) >= MAX_ENTRY_BYTES:
            out.append(partial + rest[:MAX_ENTRY_BYTES] + b"\n")
            rest = rest[MAX_ENTRY_BYTES:]
        self._rest[stream] = rest
        self._put(b"".join(out))

    def close(self) -> None:
        """Write unfinished lines and close the file."""
        if self._closed:
            return
        for stream, rest in self._rest.items():
            if rest:
                self._put(f"{log_timestamp(time.time())} {stream} F ".encode() + rest + b"\n")
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, data: bytes) -> None:
        if not data:
            return
        if self._fd >= 0 and self._size + len(data) > self._limit and self._size:
            self._rotate()
        if self._fd < 0 and time.monotonic() >= self._retry_at:
            self._open()
        if self._fd < 0:
            return
        try:
            if self._torn:
                data = b"\n" + data
            while data:
                written = os.write(self._fd, data)
                self._size += written
                self._torn = not data[:written].endswith(b"\n")
                data = data[written:]
        except OSError as error:
            self._lost(error)

    def _rotate(self) -> None:
        self._let_go()
        with contextlib.suppress(OSError):  # the file then continues to grow
            for number in range(ROTATED_FILES - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
            os.replace(self._path, f"{self._path}.1")
        self._open()


def rotated_paths(path: str) -> list[str]:
    """The possible files of a log, oldest first."""
    return [*(f"{path}.{number}" for number in range(ROTATED_FILES, 0, -1)), path]


def _entry(line: bytes, full: bytes, partial: bytes) -> bytes:
    out = b""
    while len(line) > MAX_ENTRY_BYTES:
        out += partial + line[:MAX_ENTRY_BYTES] + b"\n"
        line = line[MAX_ENTRY_BYTES:]
    return out + full + line + b"\n"

"""A container's log in the form every kubelet writes: ``<RFC 3339, nanoseconds> stdout|stderr F|P <line>``."""

from __future__ import annotations

import os
import time

LONGEST = 16 * 1024  # bytes of one entry; a longer line goes on in the next (P: partial, F: full)


def stamp(seconds: float) -> str:
    """A time as the log writes it."""
    whole, nanos = divmod(round(seconds * 1e9), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{nanos:09d}Z"


class LogFile:
    """Writes the two streams of one container instance; at ``limit`` bytes the file becomes ``.1``."""

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._rest = {"stdout": b"", "stderr": b""}
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size = os.path.getsize(path)

    def write(self, stream: str, data: bytes) -> None:
        """Add what a pipe gave; an unfinished line waits for its end (or for ``LONGEST`` bytes)."""
        head = f"{stamp(time.time())} {stream} "
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        full, partial = head.encode() + b"F ", head.encode() + b"P "
        out = [_entry(line, full, partial) for line in lines]
        while len(rest) >= LONGEST:
            out.append(partial + rest[:LONGEST] + b"\n")
            rest = rest[LONGEST:]
        self._rest[stream] = rest
        self._put(b"".join(out))

    def close(self) -> None:
        """Write unfinished lines and let go of the file."""
        if self._file.closed:
            return
        for stream, rest in self._rest.items():
            if rest:
                self._put(f"{stamp(time.time())} {stream} F ".encode() + rest + b"\n")
        self._file.close()

    def _put(self, data: bytes) -> None:
        if not data:
            return
        if self._size + len(data) > self._limit and self._size:
            self._rotate()
        try:
            self._file.write(data)
        except OSError:  # the disk is full: a training run matters more than its log
            return
        self._size += len(data)

    def _rotate(self) -> None:
        os.replace(self._path, self._path + ".1")
        self._file.close()
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._size = 0


def _entry(line: bytes, full: bytes, partial: bytes) -> bytes:
    out = b""
    while len(line) > LONGEST:
        out += partial + line[:LONGEST] + b"\n"
        line = line[LONGEST:]
    return out + full + line + b"\n"

"""Logs that go on where they broke off: the connection to a kubelet is a long one, and something always cuts it."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self

from tf_dist.client.patience import PASSING, Patience
from tf_dist.cluster.api import Cluster, LogOptions, Stream
from tf_dist.errors import ClusterError

_SLACK: Final = 5.0  # seconds asked for once more: what was written last may still have been under way
_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?[^ ]* ")
_Moment = tuple[bytes, bytes]


class LastingLog:
    """The lines of a container, ``options.timestamps`` or not, each once, through every break of the connection."""

    def __init__(
        self, cluster: Cluster, namespace: str, pod: str, options: LogOptions, *, limit: float = 120.0
    ) -> None:
        self._shown = options.timestamps
        self._options = replace(options, timestamps=True)
        self._open: Callable[[LogOptions], Stream[bytes]] = lambda wanted: cluster.logs(namespace, pod, wanted)
        self._closed = threading.Event()
        self._patience = Patience(limit, sleep=self._closed.wait)
        self._heard = time.monotonic()
        self._last: _Moment | None = None  # the stamp of the newest line that was given
        self._given = 0  # how many lines had that stamp
        self._known: tuple[_Moment, int] | None = None  # both, as they were at the last break
        self._lock = threading.Lock()
        self._stream: Stream[bytes] | None = None  # the first line has it opened, so that another thread can close it

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        while not self._closed.is_set():
            try:
                line = next(self._stream or self._opened())
            except PASSING as error:
                self._broken(error)
                continue
            self._patience.succeeded()
            found = _STAMP.match(line)
            if found is None:
                return line  # a word of the server itself
            if self._new((found[1], (found[2] or b"").ljust(9, b"0"))):
                return line if self._shown else line[found.end() :]
        raise StopIteration

    def _new(self, moment: _Moment) -> bool:
        """Whether a line of this moment was not given before the last break; it is taken for given from now on."""
        if self._known is not None:
            last, count = self._known
            if moment < last:
                return False
            if moment == last and count > 0:
                self._known = last, count - 1
                return False
            self._known = None
        self._given = self._given + 1 if moment == self._last else 1
        self._last, self._heard = moment, time.monotonic()
        return True

    def _opened(self) -> Stream[bytes]:
        """A stream, after a break from a little before it; ClusterError."""
        ago = math.ceil(time.monotonic() - self._heard + _SLACK)
        stream = self._open(replace(self._options, tail=None, since_seconds=ago) if self._last else self._options)
        self._known = (self._last, self._given) if self._last else None
        self._patience.answered()
        with self._lock:
            self._stream = stream
        if self._closed.is_set():
            stream.close()
        return stream

    def _broken(self, error: ClusterError) -> None:
        """Let go of the stream, and return after a pause; ``error`` when that has gone on for too long."""
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._patience.failed(error)

    def close(self) -> None:
        """End it; from any thread."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

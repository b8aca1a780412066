"""Read pacing: busy watch streams are read in batches.

A single event costs two to four times as much as an event in a batch, because the processor was idle and threads
switch. At 100 pod changes a second, this is most of the cost of following them.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from urllib3.util import wait_for_read

from tf_dist.cluster.client.workqueue import TokenBucket


class ReadPacer:
    """The pause before the next read of a stream that has no data: 0, unless its reader wakes up often.

    ``burst`` wake-ups are free, and one more every ``interval`` seconds, which is the longest delay of an event. Call
    ``rest`` in the reading thread, and ``end`` in any thread.
    """

    def __init__(
        self, *, interval: float = 0.1, burst: int = 20, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake_ups = TokenBucket(interval=interval, burst=burst)
        self._monotonic = monotonic
        self._ended = threading.Event()

    def pause(self) -> float:
        """The seconds to pause; counts a wake-up."""
        now = self._monotonic()
        pause = max(0.0, self._wake_ups.due() - now)
        self._wake_ups.take(now)
        return pause

    def rest(self) -> None:
        """Wait for the pause, or until ``end``."""
        self._ended.wait(self.pause())

    def end(self) -> None:
        """End the wait, because nothing more will be read."""
        self._ended.set()


# Bytes that are read at once, usually about twenty pods.
_BLOCK: Final = 256 * 1024


class PacedReader(io.RawIOBase):
    """Reads like a socket's reader, from ``open`` on.

    With a pacer, it pauses when there is no data, and then takes everything from the socket at once instead of in the
    small parts that callers request.
    """

    def __init__(self) -> None:
        self._raw = io.RawIOBase()
        self._sock: object = None
        self._pacer: ReadPacer | None = None
        self._block = bytearray()
        self._unread = memoryview(self._block)

    def open(self, raw: io.RawIOBase, sock: object) -> None:
        """Read from ``raw``, the reader of ``sock``."""
        self._raw, self._sock = raw, sock

    def pace(self, pacer: ReadPacer) -> None:
        """Read at this pace from now on."""
        self._pacer, self._block = pacer, bytearray(_BLOCK)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Called when all returned data is consumed."""
        if self._pacer is None:
            return self._raw.readinto(buffer)
        if not self._unread:
            if not self._has_arrived():
                self._pacer.rest()
            count = self._raw.readinto(self._block)
            if not count:
                return count
            self._unread = memoryview(self._block)[:count]
        size = min(len(buffer), len(self._unread))
        buffer[:size] = self._unread[:size]
        self._unread = self._unread[size:]
        return size

    def _has_arrived(self) -> bool:
        if not isinstance(self._sock, socket.socket):
            return True  # TLS through a proxy's TLS cannot report buffered data
        decrypted = getattr(self._sock, "pending", None)
        try:
            return bool(decrypted and decrypted()) or wait_for_read(self._sock, timeout=0)
        except (OSError, ValueError):
            return True  # the socket was closed, and the read will report it

    def close(self) -> None:
        """Close the socket's reader and drop unread data, because a connection outlives its streams."""
        self._raw.close()
        self._block, self._unread = bytearray(), memoryview(b"")
        super().close()

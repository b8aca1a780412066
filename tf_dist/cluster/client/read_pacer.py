"""Read pacing: streams in which something arrives all the time are read some at a time.

A processor that has been idle, and a thread that takes turns with others, take two to four times as long for an event
as for one in a row of them. With 100 changes of pods a second that is most of what following them costs.
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
    """How long to leave a stream alone in which nothing has arrived: not at all, unless its reader wakes up often.

    ``burst`` wake-ups are free, and one more every ``interval`` seconds, which is the longest that something that has
    arrived waits. ``rest`` in the thread that reads; ``end`` from any.
    """

    def __init__(
        self, *, interval: float = 0.1, burst: int = 20, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake_ups = TokenBucket(interval=interval, burst=burst)
        self._monotonic = monotonic
        self._ended = threading.Event()

    def pause(self) -> float:
        """Seconds, before a wake-up that counts as one."""
        now = self._monotonic()
        pause = max(0.0, self._wake_ups.due() - now)
        self._wake_ups.take(now)
        return pause

    def rest(self) -> None:
        """Wait as long, or until the end."""
        self._ended.wait(self.pause())

    def end(self) -> None:
        """Nothing more is to be read: end the wait."""
        self._ended.set()


# Bytes that are read at once: those of twenty pods, most often.
_BLOCK: Final = 256 * 1024


class PacedReader(io.RawIOBase):
    """Reads what a socket's reader does, from ``open`` on; with a pacer it rests wherever nothing has arrived.

    Then all that has arrived is taken from the socket at once, and not in the small parts in which it is asked for.
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
        """Called when all that was returned before is used up."""
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
            return True  # TLS through a proxy's TLS: what it holds back cannot be asked
        decrypted = getattr(self._sock, "pending", None)
        try:
            return bool(decrypted and decrypted()) or wait_for_read(self._sock, timeout=0)
        except (OSError, ValueError):
            return True  # it was closed, as the read will say

    def close(self) -> None:
        """Close the socket's reader, and let go of what was not read: a connection outlives its streams."""
        self._raw.close()
        self._block, self._unread = bytearray(), memoryview(b"")
        super().close()

"""Event loop, configuration and wire protocol of the supervisor."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import selectors
import stat
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

Message = dict[str, Any]


def encode_message(message: Message) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class MessageDecoder:
    """Splits the received data into messages, and keeps the incomplete rest."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes."""
        self._rest += data
        if b"\n" not in data:
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [json.loads(line) for line in lines]


SOCKET_NAME = "node.sock"  # in the state folder
_MAX_LOG = 10 << 20  # bytes of supervisor.log


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """The configuration of the supervisor."""

    folder: str
    mode: str  # isolated or shared
    ephemeral: bool  # end with the kubelet, folder included
    kubelet_pid: int
    kubelet_fd: int  # a connected socket to the kubelet that starts it
    lock_fd: int  # only held: the folder is in use while it is open
    log_limit: int
    bridge: str = "10.88.0.1"
    prefix: int = 16
    pids_limit: int = 8192  # of a container; 0: none


class EventLoop:
    """Descriptors and timers, each with a callback."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.stopped = False

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back whenever ``fd`` is readable (or at its end)."""
        self._selector.register(fd, selectors.EVENT_READ, callback)
        self._watched[fd] = callback

    def forget(self, fd: int) -> None:
        """Stop watching, before ``fd`` is closed; unknown descriptors are ignored."""
        if self._watched.pop(fd, None) is not None:
            self._selector.unregister(fd)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back once, ``seconds`` from now."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), callback))

    def run(self) -> None:
        """Handle events until ``stopped``."""
        while not self.stopped:
            self.step()

    def step(self, longest: float = 60.0) -> None:
        """Wait for an event and handle it."""
        wait = min(longest, max(0.0, self._timers[0][0] - time.monotonic())) if self._timers else longest
        for key, _ in self._selector.select(wait):
            callback = self._watched.get(key.fd)
            if callback is not None and callback is key.data:  # else an earlier callback removed it
                _guarded(callback)
        while self._timers and self._timers[0][0] <= time.monotonic():
            _guarded(heapq.heappop(self._timers)[2])


def _guarded(callback: Callable[[], None]) -> None:
    """Run a callback. An exception is written to supervisor.log, so that other pods continue."""
    try:
        callback()
    except Exception:
        log_exception()


def log_exception() -> None:
    """Write the current exception to supervisor.log, which is truncated when it is too long."""
    with contextlib.suppress(OSError):
        info = os.fstat(2)
        if stat.S_ISREG(info.st_mode) and info.st_size > _MAX_LOG:
            os.ftruncate(2, 0)
        traceback.print_exc()

"""Signals of a process: the first requests a stop, the second an immediate stop, the third ends the process.

A Python signal handler runs in the main thread, and a signal that arrives just before that thread waits for a lock does
not end the wait. Therefore the handlers do nothing. The interpreter writes each signal's number into a socket, and a
thread that reads the socket calls the listeners.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any, Final, Self

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_ON_SIGNAL: Final = 3


class Signals:
    """A context manager that calls every listener with each signal, including earlier signals.

    ``exit_after``: the number of signals after which the process ends at once (0: never).
    """

    def __init__(self, *, exit_after: int = _EXIT_ON_SIGNAL) -> None:
        self._exit_after = exit_after
        self._received: list[int] = []
        self._listeners: list[Callable[[int], None]] = []
        self._before: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in STOPPING:
            # `nohup`, and `&` in a script, ignore signals on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda *_: None)
        threading.Thread(target=self._read, name="signals", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._writing.close()

    def listen(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with every signal, including earlier ones."""
        with self._lock:
            self._listeners.append(listener)
            for number in self._received:
                listener(number)

    def _read(self) -> None:
        with self._reading:
            while data := self._reading.recv(16):
                for number in data:
                    if number in self._before:
                        self._notify(number)

    def _notify(self, number: int) -> None:
        with self._lock:
            self._received.append(number)
            if len(self._received) == self._exit_after:
                os._exit(128 + number)  # the supervisor ends the pods, however the kubelet ends
            for listener in self._listeners:
                listener(number)

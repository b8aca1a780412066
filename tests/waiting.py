"""Waiting for something to become true, with an end; and what is waited for."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float, every: float = 0.05) -> None:
    """Return as soon as ``condition`` holds; AssertionError when it does not within ``seconds``."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds:g} s"
        pause.wait(every)


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed a connection that says nothing."""
    try:
        sock.settimeout(0.01)
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True

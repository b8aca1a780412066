"""Wait for conditions with a timeout."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float, every: float = 0.05) -> None:
    """Return as soon as ``condition`` holds. Raise AssertionError if it does not hold within ``seconds``."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds:g} s"
        pause.wait(every)


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed an idle connection."""
    try:
        sock.settimeout(0.01)
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True

"""Notices when a client of a quiet stream has gone: nobody writes to it, so nobody else would."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Hangups:
    """One thread over all quiet streams. ``watch`` a socket; when its peer closes, the callback runs once."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._bell, self._ear = socket.socketpair()
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="tf-dist-hangups", daemon=True)
        self._thread.start()

    def watch(self, sock: socket.socket, gone: Callable[[], None]) -> None:
        """Call ``gone`` (from another thread) when the peer closes the socket or sends anything unasked."""
        with self._lock:
            if not self._stopped:
                self._selector.register(sock, selectors.EVENT_READ, gone)
                self._bell.send(b"!")

    def forget(self, sock: socket.socket) -> None:
        """Watch the socket no longer; call it before the socket is closed."""
        with self._lock:
            if not self._stopped and sock.fileno() in self._selector.get_map():
                self._selector.unregister(sock)

    def _run(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._ear.recv(4096)
                    continue
                self.forget(key.fileobj)  # type: ignore[arg-type]  # only sockets are ever registered
                try:
                    key.data()
                except Exception:
                    _log.exception("a stream whose client has gone could not be closed")

    def stop(self) -> None:
        """End the thread."""
        with self._lock:
            self._stopped = True
        self._bell.send(b"!")
        self._thread.join()
        self._selector.close()
        self._bell.close()
        self._ear.close()

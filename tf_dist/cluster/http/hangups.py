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

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._selector = selector or selectors.DefaultSelector()
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
                if not self._drop_if_gone(key):
                    continue
                try:
                    key.data()
                except Exception:
                    _log.exception("a stream whose client has gone could not be closed")

    def _drop_if_gone(self, key: selectors.SelectorKey) -> bool:
        """Whether the peer has really gone; then the socket is watched no longer.

        Between the kernel's word and this line the stream may have ended and the connection, which is kept alive, may
        serve the next one: then the readiness was the next request, and this stream is not the one that was watched.
        """
        with self._lock:
            watched = self._selector.get_map().get(key.fd) is key
            if not watched or not _readable(key.fileobj):  # type: ignore[arg-type]  # only sockets are registered
                return False
            self._selector.unregister(key.fileobj)
            return True

    def stop(self) -> None:
        """End the thread."""
        with self._lock:
            self._stopped = True
        self._bell.send(b"!")
        self._thread.join()
        self._selector.close()
        self._bell.close()
        self._ear.close()


def _readable(sock: socket.socket) -> bool:
    """Whether there is an end, an error or unasked data to read, without taking it."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    return True

"""The listener of the servers in the fault tests, on loopback. It leaves no socket and no thread behind."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_RESET = struct.pack("ii", 1, 0)  # linger for 0 seconds


class Listener:
    """Calls ``serve`` with each connection in a separate thread, and closes the connection when it returns."""

    def __init__(self, name: str, serve: Callable[[socket.socket], None]) -> None:
        self.ended = threading.Event()
        self._name = name
        self._serve = serve
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)

    def start(self) -> None:
        """Accept connections from now on."""
        self._acceptor.start()

    def end(self) -> None:
        """Break every connection and wait for its thread."""
        self.ended.set()
        # Closing a socket does not wake a thread that waits in accept; a connection does.
        with suppress(OSError), socket.create_connection(self._socket.getsockname()):
            pass
        self._acceptor.join()
        self._socket.close()
        self.disconnect()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def disconnect(self) -> None:
        """Break all connections."""
        with self._lock:
            for sock in self._sockets:
                hang_up(sock)

    @contextmanager
    def dialled(self, address: tuple[str, int]) -> Iterator[socket.socket]:
        """A connection to another address that breaks with the others. Raises ConnectionError after the end."""
        sock = socket.create_connection(address)
        try:
            if not self._take(sock):
                raise ConnectionAbortedError("the listener has ended")
            yield sock
        finally:
            self._close(sock)

    def _accept(self) -> None:
        while True:
            sock, _ = self._socket.accept()
            if not self._take(sock):
                sock.close()
                return
            thread = threading.Thread(target=self._run, args=(sock,), name=f"{self._name}-connection", daemon=True)
            with self._lock:
                # A thread that has closed its connection may still be alive, and is kept until it has ended.
                self._threads = {one for one in self._threads if one.is_alive()} | {thread}
            thread.start()

    def _run(self, sock: socket.socket) -> None:
        try:
            self._serve(sock)
        finally:
            self._close(sock)

    def _take(self, sock: socket.socket) -> bool:
        """Register a connection, unless the listener has ended."""
        with self._lock:
            if not self.ended.is_set():
                self._sockets.add(sock)
            return not self.ended.is_set()

    def _close(self, sock: socket.socket) -> None:
        # Under the lock, because a fault must not break a new connection that has the same file descriptor.
        with self._lock:
            self._sockets.discard(sock)
            sock.close()


def hang_up(sock: socket.socket) -> None:
    """Shut down a connection that a thread uses."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def break_off(sock: socket.socket) -> None:
    """Make the connection break when it is closed, so that the peer's next read fails."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

"""What the servers of the fault tests stand on: a listener on loopback that leaves no socket and no thread behind."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_RESET = struct.pack("ii", 1, 0)  # linger, but for no time at all


class Listener:
    """Calls ``serve`` with each connection, in a thread of its own; closes the connection when that returns."""

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
        """Break every connection there is."""
        with self._lock:
            for sock in self._sockets:
                hang_up(sock)

    @contextmanager
    def dialled(self, address: tuple[str, int]) -> Iterator[socket.socket]:
        """A connection to somewhere else that breaks with the others; ConnectionError when all is over already."""
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
                # One that has let go of its connection is not dead yet: it is known until it is.
                self._threads = {one for one in self._threads if one.is_alive()} | {thread}
            thread.start()

    def _run(self, sock: socket.socket) -> None:
        try:
            self._serve(sock)
        finally:
            self._close(sock)

    def _take(self, sock: socket.socket) -> bool:
        """Know a connection, unless the end has come."""
        with self._lock:
            if not self.ended.is_set():
                self._sockets.add(sock)
            return not self.ended.is_set()

    def _close(self, sock: socket.socket) -> None:
        # Under the lock: a fault that breaks connections must not hit another one that has got this one's number.
        with self._lock:
            self._sockets.discard(sock)
            sock.close()


def hang_up(sock: socket.socket) -> None:
    """End a connection under the thread that uses it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def break_off(sock: socket.socket) -> None:
    """Have the connection break when it is closed, instead of ending: the peer's next read fails."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

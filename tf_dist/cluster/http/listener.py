"""A listening socket that knows its connections, so that all of them can be ended."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

_PATIENCE: Final = 30.0  # seconds for a thread whose connection was broken; on a busy machine it may take some


class TrackingServer(ThreadingHTTPServer):
    """A thread for each connection; both are known from their first moment to their last, the thread's being the later.

    To end it: ``shutdown``, join the thread of ``serve_forever``, ``end_connections``, ``server_close``.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    thread_name: ClassVar[str]  # of the connections' threads

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._serving: set[threading.Thread] = set()
        super().__init__(address, handler)

    @property
    def connections(self) -> int:
        """How many there are now."""
        with self._lock:
            return len(self._open)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection."""
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name=self.thread_name, daemon=True
        )
        with self._lock:
            self._open.add(request)
            # Only here, where they come one by one: a thread that has let go of its connection is not dead yet.
            self._serving = {one for one in self._serving if one.is_alive()} | {thread}
        thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection to its end."""
        try:
            self.serve_connection(request, client_address)
        finally:
            with self._lock:
                self._open.discard(request)

    def serve_connection(self, request: Any, client_address: Any) -> None:
        """What is done for a connection, in its own thread, up to and with its closing."""
        super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is the client's business."""

    def end_connections(self) -> None:
        """Break every connection and wait for its thread."""
        with self._lock:
            connections, threads = list(self._open), list(self._serving)
        for sock in connections:
            hang_up(sock)
        for thread in threads:
            thread.join(timeout=_PATIENCE)


def hang_up(sock: socket.socket) -> None:
    """End a connection under the feet of whoever uses it (without TLS's own farewell, which would disturb them)."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)

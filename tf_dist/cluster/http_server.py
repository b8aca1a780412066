"""The threaded HTTP server under the API server and the controller's health endpoints.

A connection *waits* while the server waits for the client: for a handshake, the head of a request, or the next request.
Waiting has a deadline. At the limit of connections, a new connection replaces the connection that has waited longest.
Connections that are not *trusted* yet are replaced before idle connections. A connection that is being served is never
closed. A *stream* that is written to a connection ends when its client disconnects, even if the stream is silent.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar, Final

_LOG = logging.getLogger(__name__)
_JOIN_TIMEOUT: Final = 30.0  # seconds to wait for a thread whose connection was shut down
_POLL: Final = 0.05  # seconds between checks whether to stop
_STREAM_POLL: Final = 0.25  # seconds between checks whether the clients of streams are connected
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The maximum number of connections, and the seconds within which each must become trusted."""

    connections: int = 128
    seconds: float = 10.0


@dataclass(slots=True)
class _Connection:
    """``deadline``: when waiting for the client ends (monotonic); None while the connection is being served."""

    deadline: float | None
    trusted: bool = False


class ConnectionTrackingServer(HTTPServer):
    """A server with a thread for each connection.

    Connections and threads are tracked until they end. The thread ends after its connection.
    """

    allow_reuse_address = True
    request_queue_size = 128
    thread_name: ClassVar[str]  # of the connections' threads

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], limits: ConnectionLimits | None = None
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}
        self._serving: set[threading.Thread] = set()
        self._streams: dict[socket.socket, Callable[[], None]] = {}
        self._streams_due = 0.0
        self._stopping = False
        self._pause = threading.Event()  # never set
        super().__init__(address, handler)

    def start(self) -> None:
        """Serve in a thread."""
        name = f"{self.thread_name}-listener"
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every stream and connection, and wait for all threads."""
        self.shutdown()
        self._thread.join()
        with self._lock:
            self._stopping, streams = True, list(self._streams.values())
        for close in streams:
            close()
        self.end_connections()
        self.server_close()

    def server_bind(self) -> None:
        """Bind without resolving the host name, which may take half a minute without a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def connections(self) -> int:
        """The number of connections now."""
        with self._lock:
            return len(self._open)

    # The state of connections, set by handlers

    def serving(self, sock: socket.socket) -> None:
        """Mark the connection as authenticated and being served: no deadline applies."""
        self._note(sock, None, trusted=True)

    def waiting(self, sock: socket.socket, seconds: float) -> None:
        """Mark the connection as trusted and waiting for its client for at most this number of seconds."""
        self._note(sock, time.monotonic() + seconds, trusted=True)

    def _note(self, sock: socket.socket, deadline: float | None, *, trusted: bool) -> None:
        with self._lock:
            # Removed and added again, so that the connection that has waited longest comes first.
            if (connection := self._open.pop(sock, None)) is not None:
                connection.deadline, connection.trusted = deadline, trusted
                self._open[sock] = connection

    @contextmanager
    def streaming(self, sock: socket.socket, close: Callable[[], None]) -> Iterator[None]:
        """Register a stream while it is written: ``close`` ends it when the client disconnects or the server stops."""
        with self._lock:
            self._streams[sock] = close
            stopping = self._stopping
        if stopping:
            close()
        try:
            yield
        finally:
            with self._lock:
                self._streams.pop(sock, None)
            close()

    # Connections

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. If descriptors run out, close a waiting connection and raise: the server retries."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                with self._lock:
                    self._make_room()
                self._pause.wait(0.05)  # until it is closed; without the pause, accepting would spin
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it when too many connections are being served."""
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name=self.thread_name, daemon=True
        )
        with self._lock:
            if not self._has_room():
                self.shutdown_request(request)
                return
            self._open[request] = _Connection(time.monotonic() + self.limits.seconds)
            # Ended threads are removed only here: a thread that has released its connection still runs for a moment.
            self._serving = {one for one in self._serving if one.is_alive()} | {thread}
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._forget(request, thread)
            raise

    def _has_room(self) -> bool:
        while len(self._open) >= self.limits.connections:
            if not self._make_room():
                return False
        return True

    def _make_room(self) -> bool:
        """Close the connection that has waited longest, untrusted connections first; False when none waits."""
        waiting = [sock for sock, connection in self._open.items() if connection.deadline is not None]
        if not waiting:
            return False
        self._break(next((sock for sock in waiting if not self._open[sock].trusted), waiting[0]))
        return True

    def _break(self, sock: socket.socket) -> None:
        """Shut the connection down, which ends its thread."""
        del self._open[sock]
        abort_connection(sock)

    def service_actions(self) -> None:
        """Close connections whose deadline has passed, and streams without a client; called several times a second."""
        now = time.monotonic()
        with self._lock:
            for sock, connection in list(self._open.items()):
                if connection.deadline is not None and now >= connection.deadline:
                    self._break(sock)
        if now >= self._streams_due:
            self._streams_due = now + _STREAM_POLL
            self._end_abandoned_streams()

    def _end_abandoned_streams(self) -> None:
        # Checked under the lock: data that arrives after the end of a stream is the next request of the connection.
        with self._lock:
            abandoned = [close for sock, close in self._streams.items() if _readable(sock)]
        for close in abandoned:
            try:
                close()
            except Exception:
                _LOG.exception("failed to close stream after client disconnected")

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection to its end."""
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # a broken connection is not an error of the server
        except Exception:
            _LOG.exception("failed to serve connection")
        finally:
            self._forget(request)
            self.shutdown_request(request)

    def _forget(self, sock: socket.socket, thread: threading.Thread | None = None) -> None:
        with self._lock:
            self._open.pop(sock, None)
            if thread is not None:
                self._serving.discard(thread)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Close a connection that cannot be served, without writing to stderr."""

    def end_connections(self) -> None:
        """Shut every connection down and wait for its thread."""
        with self._lock:
            threads = list(self._serving)
            for sock in list(self._open):
                self._break(sock)
        for thread in threads:
            thread.join(timeout=_JOIN_TIMEOUT)


def abort_connection(sock: socket.socket) -> None:
    """Shut down a connection that another thread uses, without TLS's close_notify, which would disturb that thread."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _readable(sock: socket.socket) -> bool:
    """Whether the socket has reached its end, or has an error or unexpected data. Consumes no data."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    return True

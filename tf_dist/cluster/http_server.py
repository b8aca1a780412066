"""The threaded HTTP server under the API server and the controller's health endpoints; log options of a query.

A connection *waits* while its server waits for the client: for a handshake, for the head of a request, for the next
one. Waiting has a deadline, and when there are too many connections, the longest waiting one is closed for a new one:
first those that have not been *trusted* yet, then idle ones. One that is being served is never closed.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar, Final

from tf_dist.cluster.api import LogOptions
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.core.api.timestamps import parse_time

_LOG = logging.getLogger(__name__)
_JOIN_TIMEOUT: Final = 30.0  # seconds for a thread whose connection was broken; on a busy machine it may take some
_POLL: Final = 0.05  # seconds between two looks whether to stop
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be at a time, and how many seconds each may take before it is trusted."""

    connections: int = 128
    seconds: float = 10.0


@dataclass(slots=True)
class _Connection:
    """``deadline``: when waiting for the client ends (monotonic); None while it is served."""

    deadline: float | None
    trusted: bool = False


class ConnectionTrackingServer(HTTPServer):
    """A thread for each connection; both are known from their first moment to their last, the thread's being the later.

    ``start`` it, ``stop`` it.
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
        self._pause = threading.Event()  # never set
        super().__init__(address, handler)

    def start(self) -> None:
        """Serve in a thread."""
        name = f"{self.thread_name}-listener"
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL,), name=name, daemon=True)
        self._thread.start()

    def stop(self, closing: Callable[[], None] = lambda: None) -> None:
        """End every connection and wait for all threads; ``closing`` ends what they may wait for."""
        self.shutdown()
        self._thread.join()
        closing()
        self.end_connections()
        self.server_close()

    def server_bind(self) -> None:
        """Bind, and do not look our own name up: that may take half a minute without a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def connections(self) -> int:
        """How many there are now."""
        with self._lock:
            return len(self._open)

    # What handlers say of their connections

    def serving(self, sock: socket.socket) -> None:
        """Mark the connection as authenticated and being served: no deadline applies."""
        self._note(sock, None, trusted=True)

    def waiting(self, sock: socket.socket, seconds: float) -> None:
        """Mark the connection as trusted and waiting for its client for at most so many seconds."""
        self._note(sock, time.monotonic() + seconds, trusted=True)

    def _note(self, sock: socket.socket, deadline: float | None, *, trusted: bool) -> None:
        with self._lock:
            # Taken out and put back: the one that has waited longest comes first.
            if (connection := self._open.pop(sock, None)) is not None:
                connection.deadline, connection.trusted = deadline, trusted
                self._open[sock] = connection

    # Connections

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; when descriptors run out, a waiting one is closed first."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                with self._lock:
                    self._make_room()
                self._pause.wait(0.05)  # until it is closed; without this accepting would spin
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it when too many are being served."""
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name=self.thread_name, daemon=True
        )
        with self._lock:
            if not self._has_room():
                self.shutdown_request(request)
                return
            self._open[request] = _Connection(time.monotonic() + self.limits.seconds)
            # Only here, where they come one by one: a thread that has let go of its connection is not dead yet.
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
        """Close the longest waiting connection, untrusted ones first; False when none waits."""
        waiting = [sock for sock, connection in self._open.items() if connection.deadline is not None]
        if not waiting:
            return False
        self._break(next((sock for sock in waiting if not self._open[sock].trusted), waiting[0]))
        return True

    def _break(self, sock: socket.socket) -> None:
        """Shut the connection down; its thread then ends by itself."""
        del self._open[sock]
        abort_connection(sock)

    def service_actions(self) -> None:
        """Close connections whose deadline has passed; called several times a second."""
        now = time.monotonic()
        with self._lock:
            for sock, connection in list(self._open.items()):
                if connection.deadline is not None and now >= connection.deadline:
                    self._break(sock)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection to its end."""
        try:
            self.serve_connection(request, client_address)
        finally:
            self._forget(request)

    def serve_connection(self, request: Any, client_address: Any) -> None:
        """What is done for a connection, in its own thread, up to and with its closing."""
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # a connection that breaks is the client's business
        except Exception:
            _LOG.exception("failed to serve connection")
        finally:
            self.shutdown_request(request)

    def _forget(self, sock: socket.socket, thread: threading.Thread | None = None) -> None:
        with self._lock:
            self._open.pop(sock, None)
            if thread is not None:
                self._serving.discard(thread)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that cannot be served is closed, and nothing goes to stderr."""

    def end_connections(self) -> None:
        """Shut every connection down and wait for its thread."""
        with self._lock:
            threads = list(self._serving)
            for sock in list(self._open):
                self._break(sock)
        for thread in threads:
            thread.join(timeout=_JOIN_TIMEOUT)


def abort_connection(sock: socket.socket) -> None:
    """Shut a connection down while another thread uses it: without TLS's close_notify, which would disturb it."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class DisconnectWatcher:
    """One thread over all quiet streams. ``watch`` a socket; when its peer closes, the callback runs once."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._selector = selector or selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._bell, self._ear = socket.socketpair()
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="tf-dist-disconnects", daemon=True)
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
                    _LOG.exception("failed to close stream after client disconnected")

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
    """Whether the socket has an end, an error or unexpected data, without consuming it."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
    return True


_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("", "0", "f", "F", "FALSE", "false", "False")


def query_flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean of a query, as Go reads it; BadRequest."""
    value = query.get(name, "")
    if value not in _TRUE + _FALSE:
        raise BadRequest(f"invalid value {value!r} for {name}: true or false")
    return value in _TRUE


def query_number(query: Mapping[str, str], name: str) -> int | None:
    """A whole number of a query that is not negative; BadRequest."""
    value = query.get(name, "")
    if not value:
        return None
    if not (value.isascii() and value.isdecimal()):
        raise BadRequest(f"invalid value {value!r} for {name}: a whole number, not negative")
    return int(value)


def query_log_options(query: Mapping[str, str], container: str, now: float) -> LogOptions:
    """Which lines of a container's log a query asks for, ``now`` (epoch seconds); BadRequest."""
    since: float | None = query_number(query, "sinceSeconds")
    if text := query.get("sinceTime"):
        begin = parse_time(text)
        if begin is None:
            raise BadRequest(f"invalid sinceTime {text!r}: an RFC 3339 time")
        since = max(0.0, now - begin)
    return LogOptions(
        container=container,
        follow=query_flag(query, "follow"),
        tail=query_number(query, "tailLines"),
        since_seconds=since,
        timestamps=query_flag(query, "timestamps"),
        previous=query_flag(query, "previous"),
    )


def limit_bytes(lines: Iterable[bytes], limit: int | None) -> Iterator[bytes]:
    """The lines up to so many bytes (None: all)."""
    left = limit
    for line in lines:
        yield line if left is None else line[:left]
        if left is not None:
            left -= len(line)
            if left <= 0:
                return

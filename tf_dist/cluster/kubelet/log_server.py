"""The kubelet's HTTPS server: container logs for the API server, and /healthz."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from tf_dist.cluster.api import LogOptions, Stream
from tf_dist.cluster.http_server import (
    ConnectionLimits,
    ConnectionTrackingServer,
    DisconnectWatcher,
    abort_connection,
    limit_bytes,
    query_log_options,
    query_number,
)
from tf_dist.cluster.kubelet.delegated_auth import DelegatedAuth
from tf_dist.errors import ClusterError, NotFound, Unavailable


@dataclass(frozen=True, slots=True)
class LogRequest:
    """A request for a log; at most ``limit`` bytes of it (None: all)."""

    namespace: str
    pod: str
    options: LogOptions
    limit: int | None


def parse_log_request(target: str, now: float) -> LogRequest:
    """A request's target, ``/containerLogs/NAMESPACE/POD/CONTAINER?...``; NotFound for others, BadRequest."""
    parts = urlsplit(target)
    head, *path = [unquote(part) for part in parts.path.strip("/").split("/")]
    if head != "containerLogs" or len(path) != 3 or not all(path):
        raise NotFound("404 page not found")
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    options = query_log_options(query, path[2], now)
    return LogRequest(path[0], path[1], options, query_number(query, "limitBytes"))


_log = logging.getLogger(__name__)
_LIMITS = ConnectionLimits(connections=128, seconds=10.0)  # for a handshake and a request


class LogSource(Protocol):
    """Source of container logs: the Kubelet."""

    def logs(self, namespace: str, pod: str, options: LogOptions) -> Stream[bytes]:
        """As ``Cluster.logs``."""


class LogServer:
    """Serves the logs of ``source`` at ``address`` (an IP of this machine), at ``port`` (0: a free one).

    ``gate`` decides who may read; None serves every client. Set ``source`` once there is one. ``limits``:
    see ``ConnectionLimits``.
    """

    def __init__(
        self,
        address: str,
        port: int,
        context: ssl.SSLContext,
        gate: DelegatedAuth | None,
        *,
        clock: Callable[[], float] = time.time,
        limits: ConnectionLimits = _LIMITS,
    ) -> None:
        self.source: LogSource | None = None
        self.gate = gate
        self.clock = clock
        try:
            self._listener = _Listener((address, port), context, self, limits)
        except OSError as error:
            raise Unavailable(
                f"cannot serve logs at {address}:{port}: {error.strerror}",
                hint="--log-port and --address choose others",
            ) from error
        self.port: int = self._listener.server_port
        self.disconnects = DisconnectWatcher()
        self._stopped = False
        self._listener.start()

    def stop(self) -> None:
        """End every connection and all threads. A second time it does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self._listener.stop()
        self.disconnects.stop()


class _Listener(ConnectionTrackingServer):
    """Accepts TLS connections."""

    thread_name = "node-log-reader"

    def __init__(
        self, address: tuple[str, int], context: ssl.SSLContext, owner: LogServer, limits: ConnectionLimits
    ) -> None:
        self.owner = owner
        self._context = context
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler, limits)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for the connection; the handshake is made there."""
        request.settimeout(self.limits.seconds)
        request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        secure = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        super().process_request(secure, client_address)

    def serve_connection(self, request: Any, client_address: Any) -> None:
        """Serve one request. The handshake is made here, so that a slow client delays no other."""
        with suppress(OSError, ValueError), request:
            request.do_handshake()
            self.finish_request(request, client_address)
            abort_connection(request)


class _Handler(BaseHTTPRequestHandler):
    """Handles one request; the connection ends with it."""

    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024
    server_version = "tf-dist"
    sys_version = ""
    server: _Listener
    connection: ssl.SSLSocket

    def do_GET(self) -> None:
        """Serve a GET request."""
        self.close_connection = True
        owner = self.server.owner
        if self.path.partition("?")[0] == "/healthz":
            self._text(200, "ok")
            return
        try:
            if owner.gate is not None:
                owner.gate.admit(self.connection.getpeercert(), self.headers.get("Authorization", ""))
            request = parse_log_request(self.path, owner.clock())
            if owner.source is None:
                raise Unavailable("the node is starting")
            lines = owner.source.logs(request.namespace, request.pod, request.options)
        except ClusterError as error:
            self._text(error.code or 503, str(error))
        except Exception:
            _log.exception("failed to serve container log")
            self._text(500, "the node has failed; see its own log")
        else:
            self._stream(lines, request)

    def _stream(self, lines: Stream[bytes], request: LogRequest) -> None:
        self.server.serving(self.connection)
        self.connection.settimeout(None)  # a client that follows a log may pause; keep-alive detects one that is gone
        plain = socket.socket(fileno=_duplicate(self.connection))
        disconnects = self.server.owner.disconnects
        with lines, plain:
            disconnects.watch(plain, lines.close)
            try:
                self._head(200, [("Transfer-Encoding", "chunked")])
                for part in filter(None, limit_bytes(lines, request.limit)):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                    if request.options.follow:
                        self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
                self.wfile.flush()
            finally:
                disconnects.forget(plain)

    def _text(self, code: int, text: str) -> None:
        body = text.encode()
        self._head(code, [("Content-Length", str(len(body)))])
        self.wfile.write(body)

    def _head(self, code: int, headers: list[tuple[str, str]]) -> None:
        self.send_response_only(code)
        for name, value in (("Content-Type", "text/plain"), ("Connection", "close"), *headers):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing goes to stderr."""


def _duplicate(sock: socket.socket) -> int:
    """The connection below TLS: it becomes readable only when the client has disconnected."""
    return os.dup(sock.fileno())

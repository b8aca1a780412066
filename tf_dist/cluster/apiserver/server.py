"""The API server on loopback: its socket, connections, request bodies, token, and kubeconfig.

Ambiguous requests are refused: several lengths, or any transfer coding.
"""

from __future__ import annotations

import base64
import hmac
import resource
import secrets
import socket
import time
from contextlib import suppress
from email.message import Message
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from tf_dist.cluster.api import Object
from tf_dist.cluster.api_errors import BadRequest, LengthRequired, RequestEntityTooLarge, Unauthorized
from tf_dist.cluster.apiserver.handlers import Router, error_response
from tf_dist.cluster.apiserver.requests import Request, ResourcePath, Response, StreamResponse
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.client_config import EMBEDDED_EXTENSION
from tf_dist.cluster.concurrency import Service
from tf_dist.cluster.http_server import ConnectionLimits, ConnectionTrackingServer
from tf_dist.errors import ClusterError

_MAX_CONNECTIONS: Final = 512
EMBEDDED_USER: Final = "tf-dist"


class ApiServer(Service):
    """Serves a MemoryCluster on loopback. ``port`` 0 selects a free port; without a token, a random token is generated.

    ``limits`` of connections; None: half of this process's file descriptors, at most 512.
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        limits: ConnectionLimits | None = None,
    ) -> None:
        if not ip_address(host).is_loopback:
            raise ClusterError(f"the embedded cluster serves loopback only, not {host}", hint="use 127.0.0.1")
        self._address = (host, port)
        self.limits = limits or ConnectionLimits(
            min(_MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        )
        self.token = token or secrets.token_urlsafe(32)
        basic = base64.b64encode(f"{EMBEDDED_USER}:{self.token}".encode())
        self.credentials = (f"Bearer {self.token}".encode(), b"Basic " + basic)
        self.app = Router(cluster)
        self._stopped = False
        self._listener: _Listener | None = None

    def start(self) -> str:
        """Listen, and return the server's URL; ClusterError when the port is taken."""
        try:
            self._listener = _Listener(self._address, self)
        except OSError as error:
            host, port = self._address
            raise ClusterError(f"cannot listen on {host}:{port}: {error.strerror}", hint="use another port") from error
        self.app.url = f"http://{self._address[0]}:{self._listener.server_port}"
        self._listener.start()
        return self.app.url

    def stop(self) -> None:
        """End every watch and connection, and wait for their threads. Stopping a stopped server has no effect."""
        if self._listener is None or self._stopped:
            return
        self._stopped = True
        self._listener.stop()


_UNAUTHENTICATED: Final = ("/healthz", "/livez", "/readyz")
_MAX_HEAD: Final = 64 * 1024  # bytes of the request line and all headers; at most 100 headers are allowed
_IDLE_TIMEOUT: Final = 300.0  # seconds from one request of a connection to the next
_BODY_TIMEOUT: Final = 60.0  # seconds for a body
# Seconds and bytes for which a refused client may continue to send, so that it reads the response.
_DISCARD_LIMITS: Final = (1.0, 8 * 1024 * 1024)


class _Head:
    """Lines of a request's head. After too many bytes, raises LineTooLong, which results in a 431."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = _MAX_HEAD

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._stream.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("header")
        return line


class ConnectionHandler(BaseHTTPRequestHandler):
    """One connection, kept alive over many requests."""

    protocol_version = "HTTP/1.1"
    server_version = "tf-dist"
    sys_version = ""
    # Without these two settings, every small response waits 40 ms for a delayed acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024
    server: _Listener
    _known = False  # whether the client has sent the token
    _stream_in: BufferedIOBase

    def handle_one_request(self) -> None:
        """Handle one request, with a limit on the size of its head."""
        stream, self.rfile = self.rfile, _Head(self.rfile)  # type: ignore[assignment]
        self._stream_in = stream
        try:
            super().handle_one_request()
        except LineTooLong:  # in the request line
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
            self.send_error(414)
        finally:
            self.rfile = stream

    def handle_expect_100(self) -> bool:
        """100 Continue is sent only once the client is authorized and the length is known."""
        return True

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            self._authorize(path)
            request = Request(
                self.command,
                path,
                dict(parse_qsl(query, keep_blank_values=True)),
                self.headers.get("Accept", ""),
                self.headers.get("Content-Type", ""),
                self._body(),
            )
        except ClusterError as error:
            self._refuse(error)
            return
        reply = self.server.api.app.handle(request)
        # A client that disconnects early is not an error of the server.
        with suppress(ConnectionError, TimeoutError):
            self._send(reply) if isinstance(reply, Response) else self._stream(reply)
        if self._known:
            self.server.waiting(self.connection, _IDLE_TIMEOUT)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _authorize(self, path: str) -> None:
        """Check the token before the body is read, so that an unauthorized client costs no memory and no time."""
        said = self.headers.get("Authorization", "").encode()
        self._known = any(hmac.compare_digest(said, credential) for credential in self.server.api.credentials)
        if self._known:
            self.server.serving(self.connection)
        elif path not in _UNAUTHENTICATED:
            raise Unauthorized("Unauthorized")

    def _body(self) -> bytes:
        length = content_length(self.command, self.headers)
        if length == 0:
            return b""
        if not self._known:
            raise BadRequest("a probe has no body")
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
            self.wfile.flush()
        self.server.waiting(self.connection, _BODY_TIMEOUT)
        body = self._stream_in.read(length)
        self.server.serving(self.connection)
        if len(body) != length:
            raise BadRequest(f"the body ended after {len(body)} of {length} bytes")
        return body

    def _refuse(self, error: ClusterError) -> None:
        """Respond without reading the body. A client that is still sending may finish; otherwise it would see a broken
        connection instead of the response.
        """
        self.close_connection = True
        with suppress(OSError):
            self._send(error_response(error, ResourcePath("", "")))
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_DISCARD_LIMITS[0])
            end, left = time.monotonic() + _DISCARD_LIMITS[0], _DISCARD_LIMITS[1]
            while left > 0 and time.monotonic() < end and (data := self.connection.recv(1 << 16)):
                left -= len(data)

    def _send(self, reply: Response) -> None:
        body = reply.encoded()
        self.send_response_only(reply.code)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _stream(self, reply: StreamResponse) -> None:
        with self.server.streaming(self.connection, reply.close):
            self.send_response_only(200)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            for part in reply.parts:
                if part:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors of the base class (a bad request line, an unknown method) as a Status."""
        self.close_connection = True
        error = BadRequest(message or explain or f"bad request ({code})")
        reply = error_response(error, ResourcePath("", ""))
        self.command = getattr(self, "command", None) or "GET"
        code = 405 if code == 501 else code
        self._send(Response(code, {**reply.document, "code": code}))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are not logged: there are thousands per second."""

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to stderr, because the router logs failures."""


class _Listener(ConnectionTrackingServer):
    thread_name = "tf-dist-connection"

    def __init__(self, address: tuple[str, int], api: ApiServer) -> None:
        self.api = api
        super().__init__(address, ConnectionHandler, api.limits)


MAX_BODY_BYTES: Final = 3 * 1024 * 1024  # bytes, as a Kubernetes API server
_WITH_BODY: Final = ("POST", "PUT", "PATCH")


def content_length(method: str, headers: Message) -> int:
    """The length of the body in bytes; BadRequest, LengthRequired, RequestEntityTooLarge."""
    lengths, codings = headers.get_all("Content-Length", []), headers.get_all("Transfer-Encoding", [])
    if codings or (not lengths and method in _WITH_BODY):
        # Chunked bodies are refused: kubectl and the Python clients send bodies with a length.
        raise LengthRequired(f"a {method} needs Content-Length, without Transfer-Encoding")
    if len(lengths) > 1:
        raise BadRequest(f"several Content-Length: {', '.join(lengths)}")
    text = lengths[0].strip() if lengths else "0"
    if not (text.isascii() and text.isdecimal()):
        raise BadRequest(f"invalid Content-Length {text[:40]!r}")
    if len(text) > 18 or int(text) > MAX_BODY_BYTES:
        raise RequestEntityTooLarge(f"the request is too large: the limit is {MAX_BODY_BYTES} bytes")
    return int(text)


def make_kubeconfig(url: str, token: str, *, addresses_path: str = "") -> Object:
    """A kubeconfig document with one cluster, one user and one context. It contains the token: keep it private.

    The document contains the token twice. On a URL without TLS, kubectl ignores a user's token, but sends the
    credentials in the URL (and masks them in messages). The Python client does the opposite. ``addresses_path``: of a
    cluster without DNS.
    """
    scheme, _, place = url.partition("://")
    cluster: Object = {"server": f"{scheme}://{EMBEDDED_USER}:{quote(token, safe='')}@{place}"}
    if addresses_path:
        cluster["extensions"] = [{"name": EMBEDDED_EXTENSION, "extension": {"addresses": addresses_path}}]
    context = {"cluster": "tf-dist", "user": EMBEDDED_USER, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "clusters": [{"name": "tf-dist", "cluster": cluster}],
        "users": [{"name": EMBEDDED_USER, "user": {"token": token}}],
        "contexts": [{"name": "tf-dist", "context": context}],
        "current-context": "tf-dist",
    }

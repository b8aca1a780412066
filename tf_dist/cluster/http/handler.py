"""HTTP/1.1 between a socket and the app: reads requests, checks the token, writes replies and streams."""

from __future__ import annotations

import hmac
import socket
import time
from contextlib import suppress
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any, Final

from tf_dist.cluster.http.app import failure
from tf_dist.cluster.http.bodies import body_length, read_body
from tf_dist.cluster.http.messages import Reply, Request, Streamed, query_of
from tf_dist.cluster.http.routes import Route
from tf_dist.cluster.refusals import BadRequest, Unauthorized
from tf_dist.errors import ClusterError

if TYPE_CHECKING:
    from tf_dist.cluster.http.server import ApiServer, Listener

_OPEN: Final = ("/healthz", "/livez", "/readyz")
_LONGEST_HEAD: Final = 64 * 1024  # bytes of the request line and all headers; of headers there may be 100
_IDLE: Final = 300.0  # seconds from one request of a connection to the next
_BODY: Final = 60.0  # seconds for a body
_REST: Final = 1.0, 8 * 1024 * 1024  # seconds and bytes that a refused client may go on sending, to read the answer


class _Head:
    """Lines of a request's head, until there are too many bytes; then LineTooLong, which answers 431."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = _LONGEST_HEAD

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._stream.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("header")
        return line


class Handler(BaseHTTPRequestHandler):
    """One connection, kept alive over many requests."""

    protocol_version = "HTTP/1.1"
    server_version = "tf-dist"
    sys_version = ""
    # Without these two every small reply waits 40 ms for a delayed acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024
    server: Listener
    _known = False  # whether the client has shown the token
    _stream_in: BufferedIOBase

    @property
    def _api(self) -> ApiServer:
        return self.server.api

    def handle_one_request(self) -> None:
        """One request, its head within limits."""
        stream, self.rfile = self.rfile, _Head(self.rfile)  # type: ignore[assignment]
        self._stream_in = stream
        try:
            super().handle_one_request()
        except LineTooLong:  # of the first line
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
            self.send_error(414)
        finally:
            self.rfile = stream

    def handle_expect_100(self) -> bool:
        """Whether the body may come is said when it is known who asks, and for how much."""
        return True

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            self._authorize(path)
            request = Request(
                self.command,
                path,
                query_of(query),
                self.headers.get("Accept", ""),
                self.headers.get("Content-Type", ""),
                self._body(),
            )
        except ClusterError as error:
            self._refuse(error)
            return
        reply = self._api.app.handle(request)
        # A client that hangs up in the middle is no error of ours.
        with suppress(ConnectionError, TimeoutError):
            self._send(reply) if isinstance(reply, Reply) else self._stream(reply)
        if self._known:
            self.server.waiting(self.connection, _IDLE)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _authorize(self, path: str) -> None:
        """Before anything but the head is read: a stranger costs no memory and no time."""
        said = self.headers.get("Authorization", "").encode()
        self._known = any(hmac.compare_digest(said, credential) for credential in self._api.credentials)
        if self._known:
            self.server.serving(self.connection)
        elif path not in _OPEN:
            raise Unauthorized("Unauthorized")

    def _body(self) -> bytes:
        length = body_length(self.command, self.headers)
        if length == 0:
            return b""
        if not self._known:
            raise BadRequest("a probe has no body")
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
            self.wfile.flush()
        self.server.waiting(self.connection, _BODY)
        body = read_body(self._stream_in, length)
        self.server.serving(self.connection)
        return body

    def _refuse(self, error: ClusterError) -> None:
        """Answer without having read the body. The client may still be sending: it is let to, else it sees a broken
        connection and not the answer."""
        self.close_connection = True
        with suppress(OSError):
            self._send(failure(error, Route("", "")))
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_REST[0])
            end, left = time.monotonic() + _REST[0], _REST[1]
            while left > 0 and time.monotonic() < end and (data := self.connection.recv(1 << 16)):
                left -= len(data)

    def _send(self, reply: Reply) -> None:
        body = reply.encoded()
        self.send_response_only(reply.code)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in {**self._api.app.headers, **reply.headers}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _stream(self, reply: Streamed) -> None:
        with self._api.live(self.connection, reply.close):
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
        """What the base class refuses (a bad request line, an unknown method), said as a Status."""
        self.close_connection = True
        error = BadRequest(message or explain or f"bad request ({code})")
        reply = failure(error, Route("", ""))
        self.command = getattr(self, "command", None) or "GET"
        code = 405 if code == 501 else code
        self._send(Reply(code, {**reply.document, "code": code}))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are not logged: there are thousands per second."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing goes to stderr: the app logs what fails."""

"""HTTP/1.1 between a socket and the app: reads requests, checks the token, writes replies and streams."""

from __future__ import annotations

import hmac
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from tf_dist.cluster.http.app import failure
from tf_dist.cluster.http.messages import Reply, Request, Streamed, query_of
from tf_dist.cluster.http.routes import Route
from tf_dist.cluster.refusals import BadRequest, TooLarge, Unauthorized
from tf_dist.errors import ClusterError

if TYPE_CHECKING:
    from tf_dist.cluster.http.server import ApiServer, Listener

MAX_BODY = 16 * 1024 * 1024
_OPEN = ("/healthz", "/livez", "/readyz")


class Handler(BaseHTTPRequestHandler):
    """One connection, kept alive over many requests."""

    protocol_version = "HTTP/1.1"
    server_version = "tf-dist"
    sys_version = ""
    # Without these two every small reply waits 40 ms for a delayed acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024
    server: Listener

    @property
    def _api(self) -> ApiServer:
        return self.server.api

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        try:
            request = Request(
                self.command,
                path,
                query_of(query),
                self.headers.get("Accept", ""),
                self.headers.get("Content-Type", ""),
                self._body(),
            )
            self._authorize(path)
        except ClusterError as error:
            self.close_connection = True
            reply: Reply | Streamed = failure(error, Route("", ""))
        else:
            reply = self._api.app.handle(request)
        # A client that hangs up in the middle is no error of ours.
        with suppress(ConnectionError, TimeoutError):
            self._send(reply) if isinstance(reply, Reply) else self._stream(reply)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _authorize(self, path: str) -> None:
        if path in _OPEN:
            return
        said = self.headers.get("Authorization", "").encode()
        if not any(hmac.compare_digest(said, credential) for credential in self._api.credentials):
            raise Unauthorized("Unauthorized")

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return self._chunks()
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdecimal()):
            raise BadRequest(f"invalid Content-Length {length!r}")
        if int(length) > MAX_BODY:
            raise TooLarge(f"the request is too large: the limit is {MAX_BODY} bytes")
        return self.rfile.read(int(length)) if int(length) else b""

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while length := self._chunk_length():
            size += length
            if size > MAX_BODY:
                raise TooLarge(f"the request is too large: the limit is {MAX_BODY} bytes")
            parts.append(self.rfile.read(length))
            self.rfile.readline(8)
        while self.rfile.readline(65537).strip():
            pass  # trailers say nothing that matters here
        return b"".join(parts)

    def _chunk_length(self) -> int:
        text = self.rfile.readline(64).partition(b";")[0].strip()
        try:
            return int(text, 16)
        except ValueError:
            raise BadRequest(f"invalid chunk length {text!r}") from None

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

"""The connection pool of the REST client: TLS, proxies, socket options, cancellation.

They are urllib3's own connections, in its own pool; TLS, proxies and the choice of a live one are its business. What
is to be read as it comes (a watch, a log) takes its ordinary way.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from http.client import BadStatusLine, HTTPException, IncompleteRead, LineTooLong, RemoteDisconnected
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from tf_dist.cluster.api_errors import ADDRESSES_HEADER
from tf_dist.errors import ClusterError

# What anybody asks of an answer's headers.
_KEPT_HEADERS: Final = ("retry-after", ADDRESSES_HEADER)
_CHUNK: Final = 64 * 1024
_LARGE_CHUNK: Final = 1024 * 1024
_MAX_HEAD: Final = 256 * 1024
_RESPONSE_TIMEOUT: Final = 120.0  # seconds: a server that sends a byte now and then never runs into a read timeout


class HttpResponse(NamedTuple):
    """A whole answer; names of headers in lower case. ``last``: the connection cannot be used again."""

    status: int
    headers: Mapping[str, str]
    data: bytes
    last: bool


def read_response(sock: socket.socket) -> HttpResponse:
    """Read an answer to its end. Whatever is wrong with it raises HTTPException or OSError."""
    incoming = _Incoming(sock)
    while True:
        version, status, headers = _head(incoming.until(b"\r\n\r\n"))
        if status >= 200:  # what comes before is only news of the final one
            break
    last = version == b"HTTP/1.0" or "close" in headers.get("connection", "").lower()
    if status in (204, 304):
        data = b""
    elif "chunked" in headers.get("transfer-encoding", "").lower():
        data = _chunks(incoming)
    elif (length := headers.get("content-length")) is not None:
        if not (length.isascii() and length.isdecimal()):
            raise HTTPException(f"a body of {length!r} bytes")
        data = incoming.exactly(int(length))
    else:
        data, last = incoming.rest(), True
    return HttpResponse(
        status, headers, _decompressed(data, headers.get("content-encoding", "")), last or incoming.left
    )


def _head(text: bytes) -> tuple[bytes, int, dict[str, str]]:
    first, *lines = text.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise BadStatusLine(first[:80].decode("latin-1"))
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
    return version, int(code), headers


def _chunks(incoming: _Incoming) -> bytes:
    found = []
    while True:
        size = incoming.until(b"\r\n").partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            raise HTTPException(f"a chunk of {size[:20]!r} bytes") from None
        if length <= 0:
            break
        found.append(incoming.exactly(length))
        if incoming.exactly(2) != b"\r\n":
            raise HTTPException("a chunk that does not end where it said")
    while incoming.until(b"\r\n"):  # trailers
        pass
    return b"".join(found)


def _decompressed(data: bytes, encoding: str) -> bytes:
    """A body that a proxy has packed though nobody had asked it to."""
    if encoding in ("", "identity"):
        return data
    if encoding not in ("gzip", "deflate"):
        raise HTTPException(f"a body packed as {encoding!r}")
    try:
        return zlib.decompress(data, zlib.MAX_WBITS | 32)
    except zlib.error as error:
        raise HTTPException(f"a body that cannot be unpacked: {error}") from error


class _Incoming:
    """What comes from a socket, in the pieces one wants."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held = b""
        self._any = False
        self._deadline = time.monotonic() + _RESPONSE_TIMEOUT

    @property
    def left(self) -> bool:
        """Whether more has come than was read: bytes that belong to no answer."""
        return bool(self._held)

    def _more(self, missing: int = 0) -> bytes:
        if time.monotonic() > self._deadline:
            raise TimeoutError(f"the answer takes longer than {_RESPONSE_TIMEOUT:g} s")
        found = self._sock.recv(min(max(_CHUNK, missing), _LARGE_CHUNK))
        self._any = self._any or bool(found)
        return found

    def until(self, end: bytes) -> bytes:
        """Everything before ``end``, which is read, too."""
        while (at := self._held.find(end)) < 0:
            if len(self._held) > _MAX_HEAD:
                raise LineTooLong("header")
            found = self._more()
            if not found:
                if not self._any:
                    raise RemoteDisconnected("Remote end closed connection without response")
                raise IncompleteRead(self._held)
            self._held += found
        text, self._held = self._held[:at], self._held[at + len(end) :]
        return text

    def exactly(self, count: int) -> bytes:
        """So many bytes."""
        if count <= len(self._held):
            data, self._held = self._held[:count], self._held[count:]
            return data
        pieces, missing = [self._held], count - len(self._held)
        self._held = b""
        while missing > 0:
            found = self._more(missing)
            if not found:
                raise IncompleteRead(b"", missing)
            pieces.append(found[:missing])
            self._held = found[missing:]
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def rest(self) -> bytes:
        """Everything until the server hangs up."""
        pieces, self._held = [self._held], b""
        while found := self._more():
            pieces.append(found)
        return b"".join(pieces)


class OpenConnections:
    """The connections of a client, so that any thread can end the requests that others wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: WeakSet[HTTPConnection] = WeakSet()
        self.cancelled = False

    def add(self, connection: HTTPConnection) -> None:
        """Take note of one."""
        with self._lock:
            self._known.add(connection)

    def cancel(self) -> None:
        """Break them all, and those to come: every request that waits for an answer fails at once."""
        with self._lock:
            self.cancelled = True
            known = list(self._known)
        for connection in known:
            _abort(connection)

    def abort_slow(self, seconds: float) -> None:
        """Break those that have waited for the head of an answer for longer than this."""
        latest = time.monotonic() - seconds
        with self._lock:
            slow = [one for one in self._known if getattr(one, "asked_at", math.inf) < latest]
        for connection in slow:
            _abort(connection)

    def check(self) -> None:
        """ConnectionAbortedError when they were cancelled."""
        if self.cancelled:
            raise ConnectionAbortedError("the client was stopped")


def _abort(connection: HTTPConnection) -> None:
    with suppress(OSError, TypeError):
        # Not the method of an ssl socket, which would take the TLS session away from under its reader.
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


if TYPE_CHECKING:
    _Base = HTTPConnection
else:
    _Base = object


class _PreloadingConnection(_Base):
    """What is asked for with ``preload_content`` goes out as one piece, and comes back as one."""

    _asked_whole = False
    asked_at = math.inf
    siblings: OpenConnections | None = None

    def connect(self) -> None:
        super().connect()
        if self.siblings is not None:
            self.siblings.check()  # one that was cancelled before it had a socket

    def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        preload_content: bool = True,
        **options: Any,
    ) -> None:
        self._asked_whole, self.asked_at = preload_content, time.monotonic()
        if not preload_content:
            super().request(method, url, body, headers, preload_content=False, **options)
            return
        lines = [f"{method} {url} HTTP/1.1"]
        for name, value in (headers or {}).items():
            if "\n" in value or "\r" in value:
                raise ValueError(f"the value of header {name} has several lines")
            lines.append(f"{name}: {value}")
        if body is not None or method not in ("GET", "HEAD"):
            lines.append(f"Content-Length: {len(body or b'')}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self.timeout)
        self.sock.sendall(head + body if body else head)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        try:
            return self._response()
        finally:
            self.asked_at = math.inf

    def _response(self) -> urllib3.HTTPResponse:
        if not self._asked_whole:
            return super().getresponse()
        self._asked_whole = False
        self.sock.settimeout(self.timeout)
        found = read_response(self.sock)
        if found.last:
            self.close()
        return urllib3.HTTPResponse(
            body=found.data,
            headers={name: found.headers[name] for name in _KEPT_HEADERS if name in found.headers},
            status=found.status,
            preload_content=False,
        )


class _HttpConnection(_PreloadingConnection, HTTPConnection):
    pass


class _HttpsConnection(_PreloadingConnection, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        # Where nothing is verified the kubeconfig says so, and urllib3 need not warn at every request.
        self.is_verified = True


class HttpPool(urllib3.HTTPConnectionPool):
    """Connections without TLS. ``siblings``: where they are noted."""

    ConnectionCls = _HttpConnection
    siblings: OpenConnections | None = None

    def _new_conn(self) -> Any:
        return _registered(super()._new_conn(), self.siblings)


class HttpsPool(urllib3.HTTPSConnectionPool):
    """Connections with TLS. ``siblings``: where they are noted."""

    ConnectionCls = _HttpsConnection
    siblings: OpenConnections | None = None

    def _new_conn(self) -> Any:
        return _registered(super()._new_conn(), self.siblings)


def _registered(connection: Any, siblings: OpenConnections | None) -> Any:
    if siblings is not None:
        connection.siblings = siblings
        siblings.add(connection)
    return connection


_KEEP_ALIVE: tuple[tuple[str, int], ...] = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def socket_options() -> list[tuple[int, int, int]]:
    """No delay, and keep-alive probes: a followed log may rightly be silent for hours, a dead peer must not be."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def open_pool(
    url: str, tls: ssl.SSLContext | None, server_name: str, proxy: str, connections: int
) -> HttpPool | HttpsPool:
    """The connections to one server, at most ``connections`` kept open; ClusterError for addresses that are none."""
    settings: dict[str, Any] = {"maxsize": connections, "block": False, "socket_options": socket_options()}
    if url.startswith("https:"):
        settings["ssl_context"] = tls
        if server_name:
            settings["server_hostname"] = server_name
    try:
        manager = _pool_manager(proxy, settings)
        manager.pool_classes_by_scheme = {"http": HttpPool, "https": HttpsPool}
        return cast(HttpPool | HttpsPool, manager.connection_from_url(url))
    except ValueError as error:  # its text may have the login of a proxy in it
        what = "server or proxy" if proxy else "server"
        raise ClusterError(f"the URL of the {what} is no address", hint="write https://HOST:PORT") from error


def _pool_manager(proxy: str, settings: dict[str, Any]) -> urllib3.PoolManager:
    if not proxy:
        return urllib3.PoolManager(**settings)
    found = urlsplit(proxy)
    if found.scheme.startswith("socks"):
        try:
            from urllib3.contrib.socks import SOCKSProxyManager
        except ImportError as error:
            raise ClusterError(f"the proxy {found.hostname} needs a package", hint="pip install PySocks") from error
        return SOCKSProxyManager(proxy, **settings)
    if found.scheme not in ("http", "https") or not found.hostname:
        raise ClusterError(f"{found.scheme}://{found.hostname} is no proxy", hint="write http://HOST:PORT")
    login = f"{unquote(found.username)}:{unquote(found.password or '')}" if found.username else None
    return urllib3.ProxyManager(proxy, proxy_headers=urllib3.make_headers(proxy_basic_auth=login), **settings)


def tls_context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """TLS as the system trusts, or the given authority; with a client certificate if there is one."""
    trusted = ssl.create_default_context(cafile=ca_file)
    if cert_file:
        trusted.load_cert_chain(cert_file, key_file)
    return trusted

"""The connection pool of the REST client: TLS, proxies, socket options, cancellation.

The connections and the pool are urllib3's. This module adds cancellation from other threads, a deadline for a whole
response (urllib3's timeouts are per read), and interim responses (1xx), of which http.client supports only 100.
"""

from __future__ import annotations

import http.client
import io
import math
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from tf_dist.cluster.client.read_pacer import PacedReader, ReadPacer
from tf_dist.errors import ClusterError

_IDLE_LIMIT: Final = 10.0  # seconds; proxies drop idle connections, and a request on a dropped connection hangs
RESPONSE_TIMEOUT: Final = 120.0  # seconds; a server that sends a byte now and then never causes a read timeout


class OpenConnections:
    """The connections of a client, so that any thread can abort the requests of others.

    ``response_timeout``: the seconds within which a whole response must end, unless it is a stream.
    """

    def __init__(self, response_timeout: float = RESPONSE_TIMEOUT) -> None:
        self.response_timeout = response_timeout
        self._lock = threading.Lock()
        self._known: WeakSet[HTTPConnection] = WeakSet()
        self.cancelled = False

    def add(self, connection: HTTPConnection) -> None:
        """Register a connection."""
        with self._lock:
            self._known.add(connection)

    def cancel(self) -> None:
        """Abort all connections, and refuse new ones. Every request that waits for a response fails at once."""
        with self._lock:
            self.cancelled = True
            known = list(self._known)
        for connection in known:
            _abort(connection)

    def abort_slow(self, seconds: float) -> None:
        """Abort connections that have waited for a response for longer than ``seconds``."""
        latest = time.monotonic() - seconds
        with self._lock:
            slow = [one for one in self._known if getattr(one, "asked_at", math.inf) < latest]
        for connection in slow:
            _abort(connection)

    def check(self) -> None:
        """Raise ConnectionAbortedError if the connections were cancelled."""
        if self.cancelled:
            raise ConnectionAbortedError("the client was stopped")


def _abort(connection: HTTPConnection) -> None:
    wire: Any = getattr(connection, "wire", None)
    with suppress(OSError, TypeError):
        # Not the method of the ssl socket, which would remove the TLS session while another thread reads.
        socket.socket.shutdown(wire, socket.SHUT_RDWR)


class _Response(http.client.HTTPResponse):
    """A response whose interim responses (103 Early Hints) are skipped."""

    def _read_status(self) -> tuple[str, int, str]:
        found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
        while http.client.CONTINUE < found[1] < http.client.OK:
            http.client.parse_headers(self.fp)
            found = super()._read_status()  # type: ignore[misc]
        return found


class _StreamResponse(_Response):
    """A response that ``reader`` reads as it arrives."""

    def __init__(self, reader: PacedReader, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        reader.open(self.fp.detach(), sock)
        self.fp = io.BufferedReader(reader)


class _WholeResponse(_Response):
    """A response that must end within ``seconds``."""

    def __init__(self, seconds: float, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), seconds))


class _DeadlineReader(io.RawIOBase):
    """A socket's reader that raises TimeoutError after this number of seconds."""

    def __init__(self, raw: io.RawIOBase, seconds: float) -> None:
        self._raw, self._seconds, self._deadline = raw, seconds, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self._deadline:
            raise TimeoutError(f"the answer takes longer than {self._seconds:g} s")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


if TYPE_CHECKING:
    _Base = HTTPConnection
    _PoolBase = urllib3.HTTPConnectionPool
else:
    _Base = _PoolBase = object


class _CancellableConnection(_Base):
    """A connection that ``OpenConnections`` can abort.

    ``asked_at``: the time of the request whose response is awaited; with ``preload_content``, until its body is read.
    """

    asked_at = math.inf
    idle_since = math.inf
    wire: socket.socket | None = None  # ``sock`` is None while the body of a connection's last response is read
    reader: PacedReader | None = None  # of a streamed response
    siblings: OpenConnections | None = None

    def connect(self) -> None:
        super().connect()
        self.wire = self.sock
        if self.siblings is not None:
            self.siblings.check()  # the connection may have been cancelled before it had a socket

    def request(  # type: ignore[override]
        self, method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.asked_at = time.monotonic()
        seconds = self.siblings.response_timeout if self.siblings is not None else RESPONSE_TIMEOUT
        self.reader = None if options.get("preload_content", True) else PacedReader()
        kind = partial(_StreamResponse, self.reader) if self.reader else partial(_WholeResponse, seconds)
        self.response_class = kind  # type: ignore[assignment]
        super().request(method, url, body, headers, **options)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        try:
            response = super().getresponse()
        except ValueError as error:  # http.client raises it for a chunk of negative size
            raise http.client.HTTPException(f"not HTTP: {error}") from error
        finally:
            self.asked_at = math.inf
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("", "identity", *response.CONTENT_DECODERS):  # urllib3 would return the encoded body
            raise http.client.HTTPException(f"a body in the encoding {encoding!r}")
        return response


def pace(response: urllib3.BaseHTTPResponse, pacer: ReadPacer) -> None:
    """Read the rest of a streamed response at this pace. A response that has ended has no connection."""
    reader: PacedReader | None = getattr(response.connection, "reader", None)
    if reader is not None:
        reader.pace(pacer)


class _HttpConnection(_CancellableConnection, HTTPConnection):
    pass


class _HttpsConnection(_CancellableConnection, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        # Verification is off only if the kubeconfig requests it, so urllib3 need not warn at every request.
        self.is_verified = True


class _SiblingPool(_PoolBase):
    """A pool that registers its connections in ``siblings``."""

    siblings: OpenConnections | None = None

    def _new_conn(self) -> Any:
        connection: Any = super()._new_conn()
        if self.siblings is not None:
            connection.siblings = self.siblings
            self.siblings.add(connection)
        return connection

    def _get_conn(self, timeout: float | None = None) -> Any:
        connection: Any = super()._get_conn(timeout)
        if time.monotonic() - connection.idle_since > _IDLE_LIMIT:
            connection.close()  # the next request opens it again
        connection.idle_since = math.inf
        return connection

    def _put_conn(self, conn: Any) -> None:
        if conn is not None:
            conn.idle_since = time.monotonic()
        super()._put_conn(conn)


class HttpPool(_SiblingPool, urllib3.HTTPConnectionPool):
    """Connections without TLS."""

    ConnectionCls = _HttpConnection


class HttpsPool(_SiblingPool, urllib3.HTTPSConnectionPool):
    """Connections with TLS."""

    ConnectionCls = _HttpsConnection


_KEEP_ALIVE: tuple[tuple[str, int], ...] = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def socket_options() -> list[tuple[int, int, int]]:
    """TCP_NODELAY, and keep-alive probes: a followed log may be silent for hours, and a dead peer must be noticed."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def open_pool(
    url: str, tls: ssl.SSLContext | None, server_name: str, proxy: str, connections: int
) -> HttpPool | HttpsPool:
    """The pool of connections to one server, at most ``connections`` kept open; ClusterError for a malformed URL."""
    settings: dict[str, Any] = {"maxsize": connections, "block": False, "socket_options": socket_options()}
    if url.startswith("https:"):
        settings["ssl_context"] = tls
        if server_name:
            settings["server_hostname"] = server_name
    try:
        manager = _pool_manager(proxy, settings)
        manager.pool_classes_by_scheme = {"http": HttpPool, "https": HttpsPool}
        return cast(HttpPool | HttpsPool, manager.connection_from_url(url))
    except ValueError as error:  # the text may contain the credentials of a proxy
        what = "server or proxy" if proxy else "server"
        raise ClusterError(f"the URL of the {what} is not an address", hint="write https://HOST:PORT") from error


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
        raise ClusterError(f"{found.scheme}://{found.hostname} is not a proxy", hint="write http://HOST:PORT")
    login = f"{unquote(found.username)}:{unquote(found.password or '')}" if found.username else None
    return urllib3.ProxyManager(proxy, proxy_headers=urllib3.make_headers(proxy_basic_auth=login), **settings)

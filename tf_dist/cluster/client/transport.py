"""HTTP transport of the REST client: credentials, retries, deadlines, and a ClusterError for every failure."""

from __future__ import annotations

import math
import random
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import urllib3

from tf_dist import __version__
from tf_dist.cluster.api_errors import AdmissionDenied, QuotaExceeded, RequestInfo, Unauthorized, error_from_status
from tf_dist.cluster.client import connection_pool
from tf_dist.cluster.client.auth import RefreshingCredentials
from tf_dist.cluster.client.connection_pool import HttpPool, HttpsPool, OpenConnections
from tf_dist.cluster.client.retries import RetryPolicy, call_with_retries, fence_seconds_left
from tf_dist.cluster.client.streams import error_reason, parse_body
from tf_dist.errors import ClusterError, Forbidden, Rejected, Unavailable

CONNECT_TIMEOUT: Final = 5.0
READ_TIMEOUT: Final = 30.0
_POLL: Final = 0.5  # seconds between checks for slow requests
# Seconds after an outage in which a refusal may be temporary: an API server that has just started refuses all requests
# until it has read the roles. Informers repeat a request after at most the same time.
_STARTING: Final = 30.0
_NO_RETRIES: Final = urllib3.Retry(False, redirect=False)
_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"tf-dist/{__version__}",
    "Content-Type": "application/json",
}

RequestObserver = Callable[[str, str, int, float], None]
"""Called after every request: RBAC verb, plural (``tfjobs/status``), HTTP code (0: no response), seconds."""


class ApiRequest(NamedTuple):
    """A request. ``path`` includes the query."""

    method: str
    path: str
    asked: RequestInfo
    body: bytes | None = None
    media: str = "application/json"


class TransportConfig(NamedTuple):
    """How to reach a server. ``server_name``: the name in its certificate, if not the URL's host; ``proxy``: a URL."""

    url: str
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = ""
    connections: int = 64


class Transport:
    """Sends requests. Thread-safe. ``close`` ends a pause between two attempts at once.

    ``read`` and ``whole``: ``timeout`` and ``response_timeout`` of ``RestCluster``.
    """

    def __init__(
        self,
        route: TransportConfig,
        credentials: RefreshingCredentials,
        retries: RetryPolicy,
        *,
        read: float = READ_TIMEOUT,
        whole: float = connection_pool.RESPONSE_TIMEOUT,
        called: RequestObserver | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._route = route
        self._credentials = credentials
        self._retries = retries
        self._whole = urllib3.Timeout(connect=min(CONNECT_TIMEOUT, read), read=read)
        self._called = called
        self._closed = threading.Event()
        self._hurried = False
        self._unavailable_at = -math.inf  # when a request last got no response or a server error
        self._sleep = sleep or self._closed.wait
        self._lock = threading.Lock()
        self._connections = OpenConnections(whole)
        self._pool = self._new_pool()
        url = urlsplit(route.url)
        # A forwarding proxy gets the whole URL, a tunnelling proxy (TLS) only the path.
        self._headers = _HEADERS | {"Host": url.netloc.rpartition("@")[2]}
        self._base = route.url if route.proxy and url.scheme == "http" else url.path.rstrip("/")

    def close(self) -> None:
        """Close the idle connections; a request that waits for its next attempt fails with the last error."""
        self._closed.set()
        self._pool.close()

    def hurry(self, seconds: float) -> None:
        """Stop retrying, and abort requests whose response does not start within this number of seconds."""
        if self._hurried:
            return
        self._hurried, self._retries = True, RetryPolicy(max_retries=0)
        threading.Thread(target=self._cancel_slow, args=(seconds,), name="abort-slow-requests", daemon=True).start()

    def _cancel_slow(self, seconds: float) -> None:
        while not self._closed.wait(_POLL):
            self._connections.abort_slow(seconds)

    def cancel(self) -> None:
        """Abort every running request, and refuse new ones: each fails with Unavailable at once."""
        self._closed.set()
        self._connections.cancel()

    def whole(self, request: ApiRequest) -> bytes:
        """The body of the response. Failed attempts are repeated by the retry policy."""
        started = time.monotonic()

        def pause(error: ClusterError, tries: int) -> float | None:
            elapsed = time.monotonic() - started
            seconds = self._retries.pause(error.code, error, tries=tries, elapsed=elapsed, jitter=random.random())
            return None if self._closed.is_set() else seconds

        return call_with_retries(lambda: self._known(request, self._whole, whole=True).data or b"", pause, self._rest)

    def _rest(self, seconds: float) -> bool:
        """Wait before the next attempt; False when the transport was closed."""
        self._sleep(seconds)
        return not self._closed.is_set()

    def stream(self, request: ApiRequest, read: float | None) -> urllib3.BaseHTTPResponse:
        """A streamed response, each read within ``read`` seconds (None: no limit). Never retried."""
        return self._known(request, urllib3.Timeout(connect=CONNECT_TIMEOUT, read=read), whole=False)

    def _known(self, request: ApiRequest, timeout: urllib3.Timeout, *, whole: bool) -> urllib3.BaseHTTPResponse:
        """One attempt, and after a 401 a second attempt if the credentials can be renewed.

        A refusal soon after an outage is Unavailable.
        """
        try:
            return self._authorized(request, timeout, whole=whole)
        except Unavailable:
            self._unavailable_at = time.monotonic()
            raise
        except (AdmissionDenied, QuotaExceeded):
            raise
        except Forbidden as error:
            if time.monotonic() - self._unavailable_at >= _STARTING:
                raise
            failure = Unavailable(f"{error}; the API server may have just started")
            failure.restarting = True
            raise failure from error

    def _authorized(self, request: ApiRequest, timeout: urllib3.Timeout, *, whole: bool) -> urllib3.BaseHTTPResponse:
        headers = self._credentials.headers()
        try:
            return self._once(request, headers, timeout, whole=whole)
        except Unauthorized:
            if not self._credentials.renew(headers):
                raise
        # Open connections keep the client certificate with which they were opened.
        self._reconnect()
        return self._once(request, self._credentials.headers(), timeout, whole=whole)

    def _once(
        self, request: ApiRequest, own: Any, timeout: urllib3.Timeout, *, whole: bool
    ) -> urllib3.BaseHTTPResponse:
        headers = {**self._headers, **own}
        if request.body is None:
            del headers["Content-Type"]
        else:
            headers["Content-Type"] = request.media
        # The permission may have ended since the last attempt, or while credentials were renewed.
        timeout = _bounded_timeout(timeout, fence_seconds_left())
        code, started = 0, time.monotonic()
        try:
            self._connections.check()
            response = self._pool.urlopen(
                request.method,
                self._base + request.path,
                body=request.body,
                headers=headers,
                timeout=timeout,
                retries=_NO_RETRIES,
                redirect=False,
                assert_same_host=False,
                preload_content=whole,
            )
            if response.status < 300:
                code = response.status
                return response
            body = response.data or b""
            code = response.status
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._no_answer(request.asked, error) from error
        except ValueError:
            # The text of this error would reveal the header, including the token.
            raise Rejected(f"{request.asked}: the credentials contain characters that a header cannot have") from None
        finally:
            if self._called is not None:
                self._called(request.asked.verb, request.asked.plural, code, time.monotonic() - started)
        wish = response.headers.get("Retry-After", "")
        raise error_from_status(response.status, parse_body(body), asked=request.asked, retry_after=wish)

    def _no_answer(self, asked: RequestInfo, error: Exception) -> Unavailable:
        hint = ""
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            hint = "the kubeconfig's certificate-authority did not sign the certificate of this server"
        failure = Unavailable(f"{asked}: no answer from {self._route.url}: {error_reason(error)}", hint=hint)
        failure.code, failure.restarting = 0, _is_refused(error)
        return failure

    def _new_pool(self) -> HttpPool | HttpsPool:
        route = self._route
        pool = connection_pool.open_pool(route.url, route.tls, route.server_name, route.proxy, route.connections)
        pool.siblings = self._connections
        return pool

    def _reconnect(self) -> None:
        with self._lock:
            before = self._pool
            self._pool = self._new_pool()
        before.close()


def _is_refused(error: BaseException | None) -> bool:
    """Whether an error was caused by a server that accepts no connections."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__
    return error is not None


def _bounded_timeout(timeout: urllib3.Timeout, seconds: float) -> urllib3.Timeout:
    """The timeouts, limited to the seconds that the attempt may take."""
    if math.isinf(seconds):
        return timeout
    connect, read = (
        min(limit, seconds) if isinstance(limit, int | float) else seconds
        for limit in (timeout.connect_timeout, timeout.read_timeout)
    )
    return urllib3.Timeout(connect=connect, read=read)

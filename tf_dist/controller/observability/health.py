"""HTTP server for probes and metrics: /healthz, /readyz, /metrics.

Clients may be careless or hostile. Therefore the number of connections and their duration are limited. If there are too
many connections, the server closes the oldest, so that it always answers the kubelet's probes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tf_dist.cluster.http_server import ConnectionLimits, ConnectionTrackingServer
from tf_dist.errors import ClusterError

if TYPE_CHECKING:
    from tf_dist.controller.observability.metrics_interface import ControllerStats


_TEXT: Final = "text/plain; charset=utf-8"
# Seconds: much longer than a cycle of the admission loop may take.
_LOOP_STUCK_AFTER: Final = 300.0


class ProbeResponse(NamedTuple):
    """The response of a page. ``code`` is 200, or 503 with the reason in ``body``."""

    code: int
    body: bytes
    content_type: str = _TEXT


def probe_response(problem: str) -> ProbeResponse:
    """The response 200 without a problem, else 503 with the problem."""
    return ProbeResponse(503, f"{problem}\n".encode()) if problem else ProbeResponse(200, b"ok\n")


class HealthServer(ConnectionTrackingServer):
    """Serves ``pages`` (functions by path) at ``host`` ("": all addresses) and ``port`` (0: any free port).

    ``most``: the maximum number of connections; ``seconds``: the maximum duration of a connection. Raises ClusterError
    if the port is in use.
    """

    thread_name = "health-call"

    def __init__(
        self,
        pages: Mapping[str, Callable[[], ProbeResponse]],
        *,
        host: str = "",
        port: int = 0,
        most: int = 16,
        seconds: float = 5.0,
    ) -> None:
        self.pages = pages
        if not host and socket.has_dualstack_ipv6():
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _ProbeHandler, ConnectionLimits(most, seconds))
        except OSError as error:
            raise ClusterError(
                f"cannot serve metrics on port {port}: {error.strerror}",
                hint="use another port (--metrics-port), or 0 for any free one",
            ) from error

    def server_bind(self) -> None:
        """Bind to IPv4 and IPv6."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _ProbeHandler(BaseHTTPRequestHandler):
    """Handles one request for each connection: the kubelet probes once in ten seconds."""

    server: HealthServer
    protocol_version = "HTTP/1.0"
    server_version = "tf-dist"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request. The response to HEAD has no body."""
        page = self.server.pages.get(self.path.partition("?")[0])
        answer = page() if page else ProbeResponse(404, b"/healthz, /readyz or /metrics\n")
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because probes would fill the log."""


def stuck_threads(readings: ControllerStats, *, worker: float, informer: float) -> list[str]:
    """The threads that made no progress for longer than any request takes, so that only a restart helps.

    ``worker`` and ``informer`` are limits in seconds. A server that does not answer makes no thread stuck: requests
    time out and are retried.
    """
    age = readings.loop_age
    found = [f"the admission loop has completed no cycle for {age:.0f} s"] if age > _LOOP_STUCK_AFTER else []
    found += [
        f"a worker has been busy with {job} for {seconds:.0f} s"
        for job, seconds in sorted(readings.work.running.items())
        if seconds > worker
    ]
    for one in readings.informers:
        if one.dead:
            found.append(f"the informer of {one.resource} has ended")
        elif one.idle > informer:
            found.append(f"the informer of {one.resource} has made no progress for {one.idle:.0f} s")
    return found

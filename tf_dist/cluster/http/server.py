"""The listening socket, its threads, and their end."""

from __future__ import annotations

import base64
import resource
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Final, Self

from tf_dist.cluster.http.app import App
from tf_dist.cluster.http.handler import Handler
from tf_dist.cluster.http.hangups import Hangups
from tf_dist.cluster.http.listener import Limits, TrackingServer
from tf_dist.cluster.http.reviews import USER
from tf_dist.cluster.memory.cluster import MemoryCluster
from tf_dist.errors import ClusterError

_CONNECTIONS: Final = 512


class Listener(TrackingServer):
    """Accepts the connections of an ApiServer."""

    thread_name = "tf-dist-connection"

    def __init__(self, address: tuple[str, int], api: ApiServer) -> None:
        self.api = api
        super().__init__(address, Handler, api.limits)


class ApiServer:
    """Serves a MemoryCluster on loopback. ``port`` 0 takes a free one; a token is made up if none is given.

    ``limits``: of connections; None leaves half of this process's descriptors to others.
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        limits: Limits | None = None,
    ) -> None:
        if not ip_address(host).is_loopback:
            raise ClusterError(f"the embedded cluster serves loopback only, not {host}", hint="use 127.0.0.1")
        self._address = (host, port)
        self.limits = limits or Limits(min(_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
        self.token = token or secrets.token_urlsafe(32)
        basic = base64.b64encode(f"{USER}:{self.token}".encode())
        self.credentials = (f"Bearer {self.token}".encode(), b"Basic " + basic)
        self.app = App(cluster)
        self._lock = threading.Lock()
        self._streams: dict[socket.socket, Callable[[], None]] = {}
        self._stopped = False
        self._listener: Listener | None = None

    def start(self) -> str:
        """Listen; the server's URL. ClusterError when the port is taken."""
        try:
            self._listener = Listener(self._address, self)
        except OSError as error:
            host, port = self._address
            raise ClusterError(f"cannot listen on {host}:{port}: {error.strerror}", hint="use another port") from error
        self._hangups = Hangups()
        self.app.url = f"http://{self._address[0]}:{self._listener.server_port}"
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(0.05,), name="tf-dist-api", daemon=True
        )
        self._thread.start()
        return self.app.url

    def stop(self) -> None:
        """End every watch and connection, and wait for their threads. Stopping what does not run is no error."""
        if self._listener is None or self._stopped:
            return
        self._stopped = True
        self._listener.shutdown()
        self._thread.join()
        with self._lock:
            streams = list(self._streams.values())
        for close in streams:
            close()
        self._listener.end_connections()
        self._listener.server_close()
        self._hangups.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @contextmanager
    def live(self, sock: socket.socket, close: Callable[[], None]) -> Iterator[None]:
        """While a stream is written: it ends when the client hangs up, or the server stops."""
        with self._lock:
            self._streams[sock] = close
        self._hangups.watch(sock, close)
        if self._stopped:
            close()
        try:
            yield
        finally:
            self._hangups.forget(sock)
            with self._lock:
                self._streams.pop(sock, None)
            close()

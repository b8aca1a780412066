"""A TCP proxy that forgets connections: it keeps them open but forwards nothing any more."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import Self

from tests.faults.listener import Listener


class ForgetfulProxy:
    """Listens on loopback and forwards to ``upstream`` (host, port)."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()
        self._forgotten = 0
        self._listener = Listener("forgetful-proxy", self._serve)
        self.opened = 0
        """The number of opened connections."""
        self.url = self._listener.url

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.end()

    def forget(self) -> None:
        """Stop forwarding on open connections. New connections work."""
        self._forgotten = self.opened

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self.opened += 1
            number = self.opened
        with suppress(OSError), self._listener.dialled(self._upstream) as server:
            while True:
                for sock in select.select([client, server], [], [])[0]:
                    data = sock.recv(65536)
                    if not data and number > self._forgotten:
                        return
                    if not data:
                        self._listener.ended.wait()
                        return
                    if number > self._forgotten:
                        (server if sock is client else client).sendall(data)

"""A server that is ended leaves no thread behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tf_dist.cluster.http.listener import TrackingServer

SECONDS = 60


class Lingering(TrackingServer):
    """Its threads have let go of their connections, and do not get the processor for their last step."""

    thread_name = "lingering"

    def __init__(self) -> None:
        self.let_go, self.go_on = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), BaseHTTPRequestHandler)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        super().process_request_thread(request, client_address)
        self.let_go.set()
        self.go_on.wait(SECONDS)


@pytest.fixture
def server() -> Iterator[Lingering]:
    with Lingering() as server:
        accepting = threading.Thread(target=server.serve_forever, args=(0.02,))
        accepting.start()
        try:
            yield server
        finally:
            server.go_on.set()
            server.shutdown()
            accepting.join()


def test_a_thread_that_has_let_go_of_its_connection_is_waited_for_too(server: Lingering) -> None:
    socket.create_connection(server.server_address[:2]).close()
    assert server.let_go.wait(SECONDS)
    assert server.connections == 0
    ending = threading.Thread(target=server.end_connections)
    ending.start()
    ending.join(0.3)
    assert ending.is_alive()
    server.go_on.set()
    ending.join(SECONDS)
    assert not [thread for thread in threading.enumerate() if thread.name == "lingering"]

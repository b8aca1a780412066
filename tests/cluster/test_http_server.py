"""A stopped server leaves no threads, and a quiet stream ends only when its client disconnects."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tf_dist.cluster.http_server import ConnectionTrackingServer

SECONDS = 60


class Lingering(ConnectionTrackingServer):
    """A server whose threads have released their connections, but have not ended yet."""

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


def test_end_connections_waits_for_threads_without_connection(server: Lingering) -> None:
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


@pytest.fixture
def stream(server: Lingering) -> Iterator[tuple[socket.socket, threading.Event]]:
    """The client's end of a stream without data, and an event that is set when the server ends the stream."""
    ours, theirs = socket.socketpair()
    ended = threading.Event()
    with ours, theirs, server.streaming(ours, ended.set):
        yield theirs, ended


def test_quiet_stream_ends_when_client_disconnects(stream: tuple[socket.socket, threading.Event]) -> None:
    client, ended = stream
    assert not ended.wait(0.6)  # the server checks several times in the meantime
    client.close()
    assert ended.wait(SECONDS)


def test_next_request_on_kept_connection_does_not_end_stream(server: Lingering) -> None:
    """The first stream ends and the request for the second arrives before the server checks."""
    ours, theirs = socket.socketpair()
    first, second = threading.Event(), threading.Event()
    with ours, theirs:
        with server.streaming(ours, first.set):
            pass
        assert first.is_set()
        theirs.send(b"GET /next")
        ours.recv(100)
        with server.streaming(ours, second.set):
            assert not second.wait(0.6)
            theirs.close()
            assert second.wait(SECONDS)


def test_stream_that_starts_while_server_stops_ends_immediately() -> None:
    server = Lingering()
    server.go_on.set()
    server.start()
    server.stop()
    ended = threading.Event()
    with socket.socket() as client, server.streaming(client, ended.set):
        assert ended.is_set()

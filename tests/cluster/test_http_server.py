"""A server that is ended leaves no thread behind.

A quiet stream ends when its client goes, and only then.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tf_dist.cluster.http_server import ConnectionTrackingServer, DisconnectWatcher

SECONDS = 60


class Lingering(ConnectionTrackingServer):
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


class Late(selectors.DefaultSelector):
    """Tells of a ready socket only after ``meanwhile`` has run, as when another thread gets the processor first."""

    meanwhile = staticmethod(lambda: None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        if any(key.data for key, _ in found):
            self.meanwhile()
            # The selector looks a ready descriptor up in its map when it returns, not when it became ready.
            found = [(self.get_map().get(key.fd, key), mask) for key, mask in found]
        return found


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_hangup_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    disconnects, gone = DisconnectWatcher(), threading.Event()
    disconnects.watch(ours, gone.set)
    theirs.close()
    assert gone.wait(60)
    disconnects.stop()


def test_the_next_request_on_a_kept_connection_ends_no_stream(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    selector, moved, gone = Late(), threading.Event(), threading.Event()
    disconnects = DisconnectWatcher(selector)

    def next_stream() -> None:
        """The first stream is done, the request for the second is read, and the second begins."""
        disconnects.forget(ours)
        ours.recv(100)
        disconnects.watch(ours, gone.set)
        moved.set()
        selector.meanwhile = lambda: None

    selector.meanwhile = next_stream
    disconnects.watch(ours, lambda: None)
    theirs.send(b"GET /next")
    assert moved.wait(60)
    other, its_peer = socket.socketpair()
    with other:
        after = threading.Event()
        disconnects.watch(other, after.set)
        its_peer.close()
        assert after.wait(60)  # the thread has been round once more
        assert not gone.is_set()
    theirs.close()
    assert gone.wait(60)
    disconnects.stop()

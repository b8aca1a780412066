"""A quiet stream ends when its client goes, and only then."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from tf_dist.cluster.http.hangups import Hangups


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
    hangups, gone = Hangups(), threading.Event()
    hangups.watch(ours, gone.set)
    theirs.close()
    assert gone.wait(60)
    hangups.stop()


def test_the_next_request_on_a_kept_connection_ends_no_stream(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    selector, moved, gone = Late(), threading.Event(), threading.Event()
    hangups = Hangups(selector)

    def next_stream() -> None:
        """The first stream is done, the request for the second is read, and the second begins."""
        hangups.forget(ours)
        ours.recv(100)
        hangups.watch(ours, gone.set)
        moved.set()
        selector.meanwhile = lambda: None

    selector.meanwhile = next_stream
    hangups.watch(ours, lambda: None)
    theirs.send(b"GET /next")
    assert moved.wait(60)
    other, its_peer = socket.socketpair()
    with other:
        after = threading.Event()
        hangups.watch(other, after.set)
        its_peer.close()
        assert after.wait(60)  # the thread has been round once more
        assert not gone.is_set()
    theirs.close()
    assert gone.wait(60)
    hangups.stop()

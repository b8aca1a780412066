"""RestCluster against servers that misbehave: every failure is one of our errors, and none is repeated."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tf_dist.cluster.api import CONFIG_MAPS, PODS
from tf_dist.cluster.refusals import BadRequest, Invalid, MethodNotAllowed, TooLarge, UnsupportedMedia
from tf_dist.cluster.rest import RestCluster
from tf_dist.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Rejected,
    Throttled,
    Unavailable,
)


@contextmanager
def saying(*replies: bytes) -> Iterator[tuple[RestCluster, list[bytes]]]:
    """A client of a server that answers one connection each with these bytes; and the requests it got."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for reply in replies:
                connection, _ = listener.accept()
                with connection:
                    requests.append(connection.recv(65536))
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        with RestCluster(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            yield client, requests
        thread.join(30)


def reply(code: int, body: object, *headers: str) -> bytes:
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    head = "".join(f"{header}\r\n" for header in (f"Content-Length: {len(data)}", "Connection: close", *headers))
    return f"HTTP/1.1 {code} X\r\n{head}\r\n".encode() + data


def failure(code: int, reason: str = "", **details: object) -> bytes:
    return reply(code, {"kind": "Status", "code": code, "reason": reason, "message": "no", "details": details})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (failure(400), BadRequest),
        (failure(401), Forbidden),
        (failure(403), Forbidden),
        (failure(404), NotFound),
        (failure(405), MethodNotAllowed),
        (failure(409, "AlreadyExists"), AlreadyExists),
        (failure(409, "Conflict"), Conflict),
        (failure(410), Gone),
        (failure(413), TooLarge),
        (failure(415), UnsupportedMedia),
        (failure(418), Rejected),
        (failure(422), Rejected),
        (failure(422, causes=[{"field": "spec.x", "message": "bad"}]), Invalid),
        (failure(429), Throttled),
        (failure(500), Unavailable),
        (failure(503), Unavailable),
        (failure(504), Unavailable),
        (reply(302, b"", "Location: http://elsewhere"), Unavailable),
        (reply(502, b"<html>bad gateway</html>"), Unavailable),
        (reply(200, b"<html>a login page</html>"), Unavailable),
        (reply(200, {"kind": "ConfigMap"})[:-3], Unavailable),
        (b"", Unavailable),
        (b"nonsense\r\n\r\n", Unavailable),
    ],
)
def test_every_failure_is_one_of_ours(answer: bytes, error: type[ClusterError]) -> None:
    with saying(answer) as (client, requests), pytest.raises(error) as raised:
        client.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}})
    assert type(raised.value) is error or issubclass(type(raised.value), error)
    assert len(requests) == 1
    assert "0x" not in str(raised.value)


def test_a_forbidden_verb_is_named() -> None:
    with saying(failure(403)) as (client, _), pytest.raises(Forbidden) as raised:
        client.patch(PODS, "default", "a", {}, subresource="status")
    assert "patch pods/status" in str(raised.value)
    assert "patch pods/status" in raised.value.hint


def test_the_servers_wish_to_wait_is_kept() -> None:
    with saying(reply(429, {"kind": "Status"}, "Retry-After: 7")) as (client, _), pytest.raises(Throttled) as raised:
        client.list(PODS)
    assert raised.value.after == 7


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with RestCluster(url) as client, pytest.raises(Unavailable, match="refused"):
        client.list(PODS)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENT = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "a"}}}).encode() + b"\n"
GONE = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "old"}}).encode() + b"\n"


def test_events_may_be_cut_anywhere() -> None:
    pieces = b"".join(chunk(bytes([byte])) for byte in EVENT + EVENT)
    with saying(CHUNKED + pieces + chunk(EVENT + EVENT) + b"0\r\n\r\n") as (client, _), client.watch(PODS) as events:
        assert [event.object["metadata"]["name"] for event in events] == ["a"] * 4


def test_gone_in_the_stream() -> None:
    with saying(CHUNKED + chunk(EVENT) + chunk(GONE)) as (client, _), client.watch(PODS, since="1") as events:
        assert next(events).type == "ADDED"
        with pytest.raises(Gone):
            next(events)
        assert list(events) == []


@pytest.mark.parametrize("end", [b"", b"5\r\nab", chunk(b"nonsense\n"), chunk(b'["x"]\n')])
def test_a_broken_stream_is_unavailable(end: bytes) -> None:
    with saying(CHUNKED + chunk(EVENT) + end) as (client, _), client.watch(PODS) as events:
        assert next(events).type == "ADDED"
        with pytest.raises(Unavailable, match="watch pods"):
            next(events)


def test_headers_may_be_renewed() -> None:
    tokens = iter(["one", "two"])
    empty = reply(200, {"kind": "PodList", "metadata": {}, "items": None})
    with saying(empty, empty) as (client, requests):
        client._headers = lambda: {"Authorization": f"Bearer {next(tokens)}"}
        assert client.list(PODS).items == client.list(PODS).items == []
    assert [b"Bearer one" in requests[0], b"Bearer two" in requests[1]] == [True, True]

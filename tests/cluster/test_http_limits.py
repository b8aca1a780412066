"""The HTTP face against clients without the token or manners: they cost little, and disturb no others."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.waiting import until
from tf_dist.cluster.api import CONFIG_MAPS, NAMESPACES
from tf_dist.cluster.http import ApiServer
from tf_dist.cluster.http.bodies import MAX_BODY
from tf_dist.cluster.http.listener import Limits
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.cluster.rest import RestCluster

MAPS = "/api/v1/namespaces/default/configmaps"
BODY = b'{"metadata": {"name": "a"}}'
SECONDS = 60
Say = Callable[..., tuple[int, str]]


def _port(server: ApiServer) -> int:
    return int(server.app.url.rpartition(":")[2])


def _connect(server: ApiServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", _port(server)), timeout=SECONDS)


def _answer(sock: socket.socket) -> tuple[int, str]:
    """The code and the reason of a Status."""
    with http.client.HTTPResponse(sock) as reply:
        reply.begin()
        data = reply.read()
        found = json.loads(data) if "json" in reply.headers.get("Content-Type", "") else {}
        return reply.status, found.get("reason", "")


@pytest.fixture
def say(server: ApiServer) -> Say:
    """Sends lines of a head, with the token unless told otherwise, and what follows; the answer."""

    def send(first: str, *lines: str, body: bytes = b"", token: bool = True) -> tuple[int, str]:
        own = [f"Authorization: Bearer {server.token}"] if token else []
        head = "\r\n".join([f"{first} HTTP/1.1", "Host: x", *own, *lines, "", ""])
        with _connect(server) as sock:
            sock.sendall(head.encode("latin-1") + body)
            return _answer(sock)

    return send


def test_who_does_not_know_the_token_is_answered_before_the_body(server: ApiServer) -> None:
    """Nothing of the body is sent here, so an answer can only come from a server that does not wait for it."""
    for length in ("1000", str(2**31)):
        with _connect(server) as sock:
            sock.sendall(f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            assert _answer(sock) == (401, "Unauthorized")


def test_a_stranger_that_goes_on_sending_gets_the_answer_all_the_same(server: ApiServer) -> None:
    with _connect(server) as sock:
        sock.sendall(f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n".encode())
        sock.sendall(b" " * 2_000_000)
        assert _answer(sock) == (401, "Unauthorized")


def test_the_body_is_asked_for_only_when_it_is_welcome(server: ApiServer) -> None:
    def ask(token: str, length: int) -> bytes:
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nExpect: 100-continue\r\n"
        with _connect(server) as sock:
            sock.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
            line = sock.makefile("rb").readline()
            if b" 100 " in line:
                sock.sendall(BODY)
            return line

    assert b" 100 " in ask(server.token, len(BODY))
    assert b" 401 " in ask("wrong", len(BODY))
    assert b" 413 " in ask(server.token, MAX_BODY + 1)


@pytest.mark.parametrize(
    ("lines", "body", "code"),
    [
        (["Content-Length: -1"], b"", 400),
        (["Content-Length: +5"], BODY, 400),
        (["Content-Length: 0x1b"], BODY, 400),
        (["Content-Length: 2_7"], BODY, 400),
        (["Content-Length: \xb2"], BODY, 400),
        (["Content-Length:"], BODY, 400),
        (["Content-Length: 27, 27"], BODY, 400),
        (["Content-Length: 27", "Content-Length: 27"], BODY, 400),
        (["Content-Length: 27", "Content-Length: 5"], BODY, 400),
        (["Content-Length: 27", "Transfer-Encoding: chunked"], BODY, 400),
        (["Content-Length: " + "9" * 5000], b"", 413),
        ([f"Content-Length: {MAX_BODY + 1}"], b"", 413),
        ([], b"", 411),
        (["Transfer-Encoding: gzip, chunked"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], b"0\r\n\r\n", 400),
        (["Transfer-Encoding: identity"], BODY, 400),
        (["Transfer-Encoding: chunked"], b"-1\r\n" + BODY, 400),
        (["Transfer-Encoding: chunked"], b"0x5\r\n12345\r\n0\r\n\r\n", 400),
        (["Transfer-Encoding: chunked"], b"1_0\r\n" + b" " * 16 + b"\r\n0\r\n\r\n", 400),
        (["Transfer-Encoding: chunked"], b"5\r\n123456\r\n0\r\n\r\n", 400),
        (["Transfer-Encoding: chunked"], b"\r\n", 400),
        (["Transfer-Encoding: chunked"], b"a" * 2000, 400),
        (["Transfer-Encoding: chunked"], b"ffffffff\r\n", 413),
        (["Transfer-Encoding: chunked"], b"0\r\n" + b"X: y\r\n" * 1000, 400),
        (["Transfer-Encoding: chunked"], b"0\r\nX: " + b"y" * 2000, 400),
    ],
)
def test_a_body_of_no_clear_length_is_refused(
    say: Say, memory: MemoryCluster, lines: list[str], body: bytes, code: int
) -> None:
    assert say(f"POST {MAPS}", *lines, body=body)[0] == code
    assert not memory.list(CONFIG_MAPS, "default").items


def test_a_body_that_ends_early_changes_nothing(server: ApiServer, memory: MemoryCluster) -> None:
    """Its first half is a whole document."""
    for kind in ("Content-Length: 5000", "Transfer-Encoding: chunked"):
        part = BODY if "Length" in kind else b"%x\r\n%b" % (len(BODY) + 20, BODY)
        with _connect(server) as sock:
            head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n{kind}\r\n\r\n"
            sock.sendall(head.encode() + part)
            sock.shutdown(socket.SHUT_WR)
            assert _answer(sock)[0] == 400
    assert not memory.list(CONFIG_MAPS, "default").items


def test_a_body_up_to_the_limit_is_read(say: Say, memory: MemoryCluster) -> None:
    filled = BODY + b" " * (MAX_BODY - len(BODY))
    assert say(f"POST {MAPS}", f"Content-Length: {MAX_BODY}", body=filled)[0] == 201
    chunks = b"%x\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (MAX_BODY, filled.replace(b'"a"', b'"b"'))
    assert say(f"POST {MAPS}", "Transfer-Encoding: Chunked", body=chunks)[0] == 201


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.binary(max_size=200))
def test_whatever_comes_in_chunks_gets_an_answer_and_the_server_lives(server: ApiServer, data: bytes) -> None:
    with _connect(server) as sock:
        head = f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n"
        sock.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + data)
        sock.shutdown(socket.SHUT_WR)
        assert 200 <= _answer(sock)[0] < 500


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([f"X-{number}: y" for number in range(200)], 431),
        (["X: " + "y" * 70_000], 431),
        ([f"X-{number}: {'y' * 5000}" for number in range(20)], 431),
        ([f"X-{number}: {'y' * 500}" for number in range(50)], 200),
    ],
)
def test_heads_are_bounded_in_size_and_number(say: Say, lines: list[str], code: int) -> None:
    """In all, not only line by line: a hundred lines of 64 KiB are 6 MiB for each stranger."""
    assert say("GET /healthz", *lines, token=False)[0] == code


def test_a_first_line_without_end_is_refused(server: ApiServer) -> None:
    with _connect(server) as sock:
        sock.sendall(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n")
        assert _answer(sock)[0] == 414


# Connections


@pytest.fixture
def narrow(memory: MemoryCluster) -> Iterator[ApiServer]:
    """A server with room for eight connections."""
    with ApiServer(memory, limits=Limits(connections=8, seconds=SECONDS)) as server:
        yield server


def _threads() -> int:
    return sum(thread.name == "tf-dist-connection" for thread in threading.enumerate())


def _is_closed(sock: socket.socket) -> bool:
    try:
        sock.settimeout(0.01)
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_strangers_that_say_nothing_keep_no_client_of_the_owner_out(narrow: ApiServer) -> None:
    with RestCluster(narrow.app.url, token=narrow.token, retries=0) as client:
        client.get(NAMESPACES, None, "default")
        with client.watch(CONFIG_MAPS, timeout=SECONDS) as events, ExitStack() as stack:
            strangers = [stack.enter_context(closing(_connect(narrow))) for _ in range(40)]
            for sock in strangers[::2]:
                with closing(sock.dup()) as other:
                    other.sendall(b"GET /api/v1/pods HTTP/1.1\r\nX")
            client.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}})
            assert next(iter(events)).object["metadata"]["name"] == "a"
            with RestCluster(narrow.app.url, token=narrow.token, retries=0) as another:
                another.get(NAMESPACES, None, "default")
            until(lambda: _threads() <= 8, SECONDS)
            assert sum(_is_closed(sock) for sock in strangers) >= 30


def test_idle_clients_go_before_those_that_are_served(narrow: ApiServer) -> None:
    with ExitStack() as stack:
        watching = stack.enter_context(RestCluster(narrow.app.url, token=narrow.token, retries=0))
        events = stack.enter_context(watching.watch(CONFIG_MAPS, timeout=SECONDS))
        for _ in range(20):
            idle = stack.enter_context(RestCluster(narrow.app.url, token=narrow.token, retries=0))
            idle.get(NAMESPACES, None, "default")
        until(lambda: _threads() <= 8, SECONDS)
        idle.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}})
        assert next(iter(events)).object["metadata"]["name"] == "a"


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\n\r\n"])
def test_a_stranger_has_a_few_seconds_however_it_drips(memory: MemoryCluster, sent: bytes) -> None:
    limits = Limits(connections=8, seconds=0.5)
    with ApiServer(memory, limits=limits) as server, _connect(server) as sock:
        sock.sendall(sent)

        def dripped() -> bool:
            try:
                sock.sendall(b"X: y\r\n" if sent else b"")
            except OSError:
                return True
            return _is_closed(sock)

        until(dripped, SECONDS)
        until(lambda: _threads() == 0, SECONDS)


def test_a_client_that_is_served_takes_its_time(memory: MemoryCluster) -> None:
    """Much longer than a stranger may: until a stranger that came later has been closed."""
    limits = Limits(connections=8, seconds=0.3)
    with (
        ApiServer(memory, limits=limits) as server,
        RestCluster(server.app.url, token=server.token, retries=0) as client,
        client.watch(CONFIG_MAPS, timeout=SECONDS) as events,
    ):
        for _ in range(3):
            with _connect(server) as stranger:
                until(lambda: _is_closed(stranger), SECONDS)
        client.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}})
        assert next(iter(events)).object["metadata"]["name"] == "a"


def test_a_token_is_compared_as_a_whole(say: Say, server: ApiServer) -> None:
    said: list[Any] = [server.token[:-1], server.token + "x", server.token.swapcase(), "", " "]
    for token in said:
        assert say(f"GET {MAPS}", f"Authorization: Bearer {token}", token=False)[0] == 401

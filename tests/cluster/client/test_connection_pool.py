"""Connections to faulty servers: forms of responses, deadlines, and cancellation."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cluster.client.raw import CHUNKED, chunk, reply, saying
from tests.forgetful_proxy import ForgetfulProxy
from tf_dist.cluster.api import CONFIG_MAPS, PODS
from tf_dist.cluster.apiserver.server import ApiServer
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client import connection_pool
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import Unavailable

SMALL = json.dumps({"kind": "ConfigMap"}).encode()
EVENT = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "a"}}}).encode() + b"\n"


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, SMALL),
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + reply(200, SMALL),
        b"HTTP/1.0 200 OK\r\n\r\n" + SMALL,
        CHUNKED + chunk(SMALL[:5]) + chunk(SMALL[5:]) + b"0\r\nTrailer: x\r\n\r\n",
        CHUNKED + b"%x;note=1\r\n%b\r\n" % (len(SMALL), SMALL) + b"0\r\n\r\n",
        reply(200, gzip.compress(SMALL), "Content-Encoding: gzip"),
        reply(200, zlib.compress(SMALL), "Content-Encoding: deflate"),
    ],
)
def test_response_is_read_in_any_encoding_and_pieces(answer: bytes) -> None:
    with saying(answer, bytewise=True) as (client, _):
        assert client.get(CONFIG_MAPS, "default", "a") == json.loads(SMALL)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 20",
        b"HTTP/1.1 abc\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-5\r\nabcde",
        CHUNKED + chunk(SMALL)[:-2] + b"xx",
        CHUNKED + chunk(SMALL),
        reply(200, SMALL, "Content-Encoding: gzip"),
        reply(200, SMALL, "Content-Encoding: br"),
    ],
)
def test_malformed_response_is_unavailable(answer: bytes) -> None:
    with saying(answer) as (client, _), pytest.raises(Unavailable) as raised:
        client.get(CONFIG_MAPS, "default", "a")
    assert "0x" not in str(raised.value)


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\nX-Drop: ", CHUNKED])
def test_slow_response_has_total_deadline(begun: bytes) -> None:
    """Each read ends in time, but the response does not end."""
    drop = chunk(b" ") if begun == CHUNKED else b"x"
    limits: dict[str, Any] = {"retries": 0, "response_timeout": 0.3}
    with dripping(begun, drop) as url, RestCluster(url, **limits) as client, pytest.raises(Unavailable):
        client.list(PODS)


def test_stream_has_no_deadline() -> None:
    limits: dict[str, Any] = {"retries": 0, "response_timeout": 0.1}
    later = time.monotonic() + 0.3
    with dripping(CHUNKED, chunk(EVENT)) as url, RestCluster(url, **limits) as client, client.watch(PODS) as events:
        assert any(time.monotonic() > later for _ in events)


@contextmanager
def dripping(begun: bytes, drop: bytes) -> Iterator[str]:
    """A server whose response never ends. It sends a few bytes at a time until the client disconnects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(begun)
                connection.settimeout(0.005)
                while True:
                    with suppress(TimeoutError):
                        if not connection.recv(1):
                            break
                    connection.sendall(drop)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("header", ["", "Connection: close\r\n"])
def test_cancel_ends_response_in_body(header: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        listener.settimeout(60)
        with RestCluster(f"http://127.0.0.1:{listener.getsockname()[1]}", retries=0, timeout=60) as client:
            waits = threads.submit(client.list, PODS)
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                connection.recv(65536)
                body = b" " * (1 << 24)  # larger than socket buffers, so the client is reading when it is sent
                head = f"HTTP/1.1 200 OK\r\n{header}Content-Length: {len(body) + 1}\r\n\r\n"
                connection.sendall(head.encode() + body)
                client.cancel()
                assert isinstance(waits.exception(30), Unavailable)
                assert connection.recv(1) == b""


@pytest.mark.parametrize(("limit", "connections"), [(3600.0, 1), (0.0, 2)])
def test_connection_idle_beyond_limit_is_not_reused(
    monkeypatch: pytest.MonkeyPatch, limit: float, connections: int
) -> None:
    monkeypatch.setattr(connection_pool, "_IDLE_LIMIT", limit)
    with MemoryCluster() as memory, ApiServer(memory) as server:
        address = urlsplit(server.app.url)
        with (
            ForgetfulProxy((address.hostname or "", address.port or 0)) as proxy,
            RestCluster(proxy.url, token=server.token) as client,
        ):
            for _ in range(2):
                assert client.list(CONFIG_MAPS, "default").items == []
            assert proxy.opened == connections

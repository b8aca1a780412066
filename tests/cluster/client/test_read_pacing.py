"""Busy watch streams are read in batches, with a limited delay."""

from __future__ import annotations

import io
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.cluster.client.raw import CHUNKED, chunk
from tests.cluster.client.secure import Authority
from tests.waiting import until
from tf_dist.cluster.api import PODS
from tf_dist.cluster.api_errors import RequestInfo
from tf_dist.cluster.client.auth import cluster_tls_context
from tf_dist.cluster.client.connection_pool import open_pool
from tf_dist.cluster.client.read_pacer import PacedReader, ReadPacer
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.client.streams import LineStream


class Noted(ReadPacer):
    """A pacer that counts its calls, and always returns the same pause."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.asked = seconds, 0

    def pause(self) -> float:
        self.asked += 1
        return self.seconds


def test_only_frequent_reads_are_delayed() -> None:
    now = [100.0]
    pacer = ReadPacer(interval=0.5, burst=3, monotonic=lambda: now[0])
    assert [pacer.pause() for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    now[0] = 102.0  # four intervals later, two of which are used up
    assert [pacer.pause() for _ in range(3)] == [0.0, 0.0, 0.5]
    now[0] = 200.0  # unused intervals do not accumulate beyond the burst
    assert [pacer.pause() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_reader_never_waits_longer_than_interval() -> None:
    now = [0.0]
    pacer = ReadPacer(interval=0.2, burst=20, monotonic=lambda: now[0])
    pauses = []
    for _ in range(200):  # data arrives every 10 ms
        pauses.append(pacer.pause())
        now[0] += max(pauses[-1], 0.01)
    assert max(pauses) <= 0.2 + 1e-9
    assert sum(pauses[-10:]) == pytest.approx(2.0)


@contextmanager
def following(pacer: ReadPacer, tls: Path | None = None) -> Iterator[tuple[LineStream, socket.socket]]:
    """A stream of an endless response, and the server's end of its connection."""
    context = None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        scheme = "http" if tls is None else "https"
        if tls is not None:
            authority = Authority.create(tls)
            context = cluster_tls_context({"certificate-authority": authority.path("ca.crt")})
            serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            serving.load_cert_chain(authority.path("server.crt"), authority.path("server.key"))
        accepted: list[socket.socket] = []

        def serve() -> None:
            connection, _ = listener.accept()
            wire = connection if tls is None else serving.wrap_socket(connection, server_side=True)
            wire.recv(65536)
            wire.sendall(CHUNKED)
            accepted.append(wire)

        thread = threading.Thread(target=serve)
        thread.start()
        with closing(open_pool(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", context, "", "", 1)) as pool:
            response = pool.urlopen("GET", "/", preload_content=False, retries=False)
            thread.join(60)
            with closing(accepted[0]), LineStream(response, RequestInfo("watch", PODS), pacer=pacer) as stream:
                yield stream, accepted[0]


@pytest.mark.parametrize("tls", [False, True])
def test_available_data_is_read_without_pause(tls: bool, tmp_path: Path) -> None:
    pacer = Noted(0.0)
    lines = [b"%d %s\n" % (number, b"x" * 200) for number in range(100)]
    with following(pacer, tmp_path if tls else None) as (stream, server):
        server.sendall(b"".join(map(chunk, lines)))
        assert [next(stream) for _ in lines] == lines
    # The pacer is asked before the first line and when data has not arrived yet, not before each line.
    assert pacer.asked < 20


def test_lines_sent_during_pause_are_read_after_it() -> None:
    pacer = Noted(0.0)
    with following(pacer) as (stream, server):
        server.sendall(chunk(b"first\n"))
        assert next(stream) == b"first\n"
        pacer.seconds, before = 0.3, pacer.asked
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(next(stream)))
        reader.start()
        until(lambda: pacer.asked > before, 60)
        server.sendall(chunk(b"second\n"))
        reader.join(60)
        assert found == [b"second\n"]


def test_connection_without_readiness_check_is_not_paced() -> None:
    """For example, urllib3's connection for TLS through a TLS proxy, which hides the data it has already decrypted."""
    pacer, (client, server) = Noted(3600.0), socket.socketpair()
    with closing(client), closing(server):
        reader = PacedReader()
        reader.open(cast(io.RawIOBase, client.makefile("rb", buffering=0)), object())
        reader.pace(pacer)
        server.sendall(b"some")
        assert reader.read(100) == b"some"
        assert pacer.asked == 0


def test_closed_stream_frees_buffer_of_kept_connection() -> None:
    with following(Noted(0.0)) as (stream, server):
        server.sendall(chunk(b"first\n"))
        assert next(stream) == b"first\n"
        reader = stream._response.connection.reader  # type: ignore[union-attr]
        assert len(reader._block) > 100_000
    assert reader.closed
    assert len(reader._block) == 0


def test_closing_stream_ends_pause() -> None:
    pacer = Noted(3600.0)
    with following(pacer) as (stream, _):
        reader = threading.Thread(target=lambda: list(stream), daemon=True)
        reader.start()
        until(lambda: pacer.asked == 1, 60)
        stream.close()
        reader.join(60)
        assert not reader.is_alive()


def test_ended_stream_is_read_without_pause() -> None:
    pacer = Noted(3600.0)
    with following(pacer) as (stream, server):
        server.sendall(chunk(b"last\n") + chunk(b""))
        assert list(stream) == [b"last\n"]


def test_continuous_events_are_delivered_in_order() -> None:
    """The client of a controller reads twenty times without a pause, then twice a second."""
    versions = [str(number) for number in range(1, 101)]
    events = [{"type": "ADDED", "object": {"kind": "Pod", "metadata": {"resourceVersion": one}}} for one in versions]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(CHUNKED)
                for event in events:
                    connection.sendall(chunk(json.dumps(event).encode() + b"\n"))
                connection.sendall(chunk(b""))

        thread = threading.Thread(target=serve)
        thread.start()
        with RestCluster(f"http://127.0.0.1:{listener.getsockname()[1]}", retries=0, paced=True) as cluster:
            found = [event.object["metadata"]["resourceVersion"] for event in cluster.watch(PODS)]
        thread.join(60)
    assert found == versions

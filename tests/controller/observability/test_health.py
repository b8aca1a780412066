"""The health server answers probes, even if other clients hold connections open."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.waiting import is_closed, until
from tf_dist.controller.observability.health import HealthServer, ProbeResponse, probe_response
from tf_dist.errors import ClusterError

LOCAL = "127.0.0.1"


class State:
    problem = ""


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Iterator[HealthServer]:
    pages = {
        "/healthz": lambda: probe_response(state.problem),
        "/metrics": lambda: ProbeResponse(200, b"x 1\n", "text/plain"),
    }
    with serving(pages, host=LOCAL, most=4, seconds=60) as server:
        yield server


@contextmanager
def serving(pages: dict[str, Callable[[], ProbeResponse]], **options: Any) -> Iterator[HealthServer]:
    server = HealthServer(pages, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(server: HealthServer, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{LOCAL}:{server.server_port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes_report_health_and_metrics(server: HealthServer, state: State) -> None:
    assert ask(server, "/healthz") == (200, "ok\n")
    assert ask(server, "/healthz?verbose") == (200, "ok\n")
    assert ask(server, "/healthz", "HEAD") == (200, "")
    assert ask(server, "/metrics") == (200, "x 1\n")
    state.problem = "the loop stands still"
    assert ask(server, "/healthz") == (503, "the loop stands still\n")
    assert ask(server, "/nothing")[0] == 404
    assert ask(server, "/healthz", "POST")[0] == 501


def test_failing_page_does_not_affect_other_pages(state: State, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> ProbeResponse:
        raise ZeroDivisionError("a defect")

    with serving({"/broken": broken, "/healthz": lambda: probe_response("")}, host=LOCAL) as server:
        with pytest.raises(OSError, match=r"closed|reset"):
            ask(server, "/broken")
        assert ask(server, "/healthz") == (200, "ok\n")
    assert "a defect" in caplog.text


def test_idle_connections_do_not_block_probes(server: HealthServer) -> None:
    idle = [socket.create_connection((LOCAL, server.server_port)) for _ in range(20)]
    try:
        assert ask(server, "/healthz") == (200, "ok\n")
        until(lambda: sum(is_closed(sock) for sock in idle) >= 16, 60)
        until(lambda: _threads() <= 4, 60)
    finally:
        for sock in idle:
            sock.close()


def test_slow_request_is_closed_after_time_limit() -> None:
    with serving({}, host=LOCAL, seconds=0.5) as server, socket.create_connection((LOCAL, server.server_port)) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\n")

        def dripped() -> bool:
            try:
                sock.sendall(b"X: y\r\n")
            except OSError:
                return True
            return is_closed(sock)

        until(dripped, 60)
        until(lambda: _threads() == 0, 60)


def test_stop_closes_connections_and_ends_threads(state: State) -> None:
    server = HealthServer({"/healthz": lambda: probe_response("")}, host=LOCAL, seconds=60)
    server.start()
    with socket.create_connection((LOCAL, server.server_port)) as idle:
        until(lambda: _threads() == 1, 60)
        server.stop()
        assert is_closed(idle)
    assert _threads() == 0
    server.stop()
    with pytest.raises(OSError, match="refused"):
        ask(server, "/healthz")


def test_port_in_use_is_reported_with_option(server: HealthServer) -> None:
    with pytest.raises(ClusterError, match=f"port {server.server_port}: .*in use") as raised:
        HealthServer({}, host=LOCAL, port=server.server_port)
    assert "--metrics-port" in raised.value.hint


def test_server_accepts_ipv4_and_ipv6() -> None:
    with serving({"/healthz": lambda: probe_response("")}) as server:
        assert ask(server, "/healthz") == (200, "ok\n")
        if socket.has_dualstack_ipv6():
            with socket.create_connection(("::1", server.server_port)) as sock:
                sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                assert sock.makefile("rb").readline().startswith(b"HTTP/1.0 200")


def _threads() -> int:
    return sum(thread.name == "health-call" for thread in threading.enumerate())

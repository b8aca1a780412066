"""The node's HTTPS server: whom it lets in, what it serves, and that it ends."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tf_dist.cluster.api import LogOptions
from tf_dist.cluster.api_errors import BadRequest
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.http_server import ConnectionLimits
from tf_dist.cluster.kubelet.delegated_auth import DelegatedAuth, server_tls_context
from tf_dist.cluster.kubelet.log_server import LogServer, parse_log_request
from tf_dist.cluster.kubelet.pod.container_logs import ContainerLogStream
from tf_dist.errors import NotFound, Unavailable

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl to make certificates with")
LOG = "/containerLogs/ns/pod/main"


# Requests


def test_a_request_names_a_log_and_says_how() -> None:
    query = "follow=true&tailLines=5&sinceSeconds=60&timestamps=true&previous=false&limitBytes=100"
    request = parse_log_request(f"{LOG}?{query}", 0.0)
    assert (request.namespace, request.pod, request.limit) == ("ns", "pod", 100)
    assert request.options == LogOptions(container="main", follow=True, tail=5, since_seconds=60, timestamps=True)


def test_a_request_may_say_a_time() -> None:
    assert parse_log_request(f"{LOG}?sinceTime=1970-01-01T00:01:00Z", 100.0).options.since_seconds == 40.0


@pytest.mark.parametrize("target", ["/", "/pods", "/exec/ns/pod/main", "/containerLogs/ns/pod", f"{LOG}/more"])
def test_other_places_are_not_served(target: str) -> None:
    with pytest.raises(NotFound):
        parse_log_request(target, 0.0)


@pytest.mark.parametrize("query", ["tailLines=-1", "limitBytes=x", "follow=perhaps", "sinceTime=yesterday"])
def test_nonsense_is_refused(query: str) -> None:
    with pytest.raises(BadRequest, match=query.partition("=")[0]):
        parse_log_request(f"{LOG}?{query}", 0.0)


# Callers


class Reviews(BaseHTTPRequestHandler):
    """An API server that knows two tokens, and lets one user read logs."""

    asked: list[tuple[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        spec = body["spec"]
        self.asked.append((body["kind"], spec))
        if body["kind"] == "TokenReview":
            user = {"good": "reader", "weak": "nobody"}.get(spec["token"])
            body["status"] = {"authenticated": bool(user), "user": {"username": user, "groups": ["g"]}}
        else:
            body["status"] = {"allowed": spec["user"] == "reader"}
        data = json.dumps(body).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def reviews() -> Iterator[tuple[RestCluster, list[tuple[str, Any]]]]:
    asked: list[tuple[str, Any]] = []
    handler = type("Handler", (Reviews,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        with RestCluster(f"http://127.0.0.1:{server.server_port}") as cluster:
            yield cluster, asked
        server.shutdown()
        thread.join()


@pytest.fixture
def gate(reviews: tuple[RestCluster, list[tuple[str, Any]]]) -> DelegatedAuth:
    return DelegatedAuth(reviews[0], "n")


# The server


class Watched(ContainerLogStream):
    """Tells that it was closed."""

    def __init__(self, *arguments: Any) -> None:
        self.ended = threading.Event()
        super().__init__(*arguments)

    def close(self) -> None:
        super().close()
        self.ended.set()


class Logs:
    """Has one log, in a file that grows while ``alive``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "0.log"
        self.path.touch()
        self.alive = False
        self.open: list[Watched] = []

    def say(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(f"2026-01-01T00:00:00.000000000Z stdout F {text}\n")

    def logs(self, namespace: str, pod: str, options: LogOptions) -> Watched:
        if pod != "pod":
            raise NotFound(f'pods "{pod}" not found')
        self.open.append(Watched(self.path, options, lambda: self.alive))
        return self.open[-1]


Serve = Callable[..., LogServer]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@pytest.fixture
def serve(logs: Logs) -> Iterator[Serve]:
    """Starts servers, and sees that they end."""
    before = set(threading.enumerate())
    with ExitStack() as stack:

        def start(gate: DelegatedAuth | None, authority: str = "", **more: Any) -> LogServer:
            server = LogServer("127.0.0.1", 0, server_tls_context("n", "127.0.0.1", authority), gate, **more)
            stack.callback(server.stop)
            server.source = logs
            return server

        yield start
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("node-log")]


def client_context(certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the server's certificate is its own work
    if certificate:
        context.load_cert_chain(*certificate)
    return context


def ask(
    server: LogServer, target: str, *, token: str = "", certificate: tuple[Path, Path] | None = None
) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection = HTTPSConnection("127.0.0.1", server.port, timeout=30, context=client_context(certificate))
    with closing(connection):
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@needs_openssl
def test_nobody_reads_logs_without_a_name(
    serve: Serve, gate: DelegatedAuth, logs: Logs, reviews: tuple[RestCluster, list[tuple[str, Any]]]
) -> None:
    logs.say("secret")
    server = serve(gate)
    assert ask(server, LOG)[0] == 401
    assert reviews[1] == []
    assert ask(server, LOG, token="unknown")[0] == 401
    assert ask(server, LOG, token="weak")[0] == 403
    assert ask(server, LOG, token="good") == (200, "secret\n")
    kind, spec = reviews[1][-1]
    assert (kind, spec["user"], spec["groups"]) == ("SubjectAccessReview", "reader", ["g"])
    wish = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": "n"}
    assert spec["resourceAttributes"] == wish
    assert ask(server, "/healthz") == (200, "ok")


@needs_openssl
def test_a_yes_is_remembered_for_a_while_and_a_no_is_not(
    reviews: tuple[RestCluster, list[tuple[str, Any]]],
) -> None:
    now = [0.0]
    cluster, asked = reviews
    gate = DelegatedAuth(cluster, "n", monotonic=lambda: now[0])
    for _ in range(3):
        gate.admit(None, "Bearer good")
    assert len(asked) == 2
    now[0] += 61
    gate.admit(None, "Bearer good")
    assert len(asked) == 4


@needs_openssl
def test_a_cluster_that_cannot_be_asked_lets_nobody_in(serve: Serve) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        with RestCluster(f"http://127.0.0.1:{unused.getsockname()[1]}", retries=0) as cluster:
            assert ask(serve(DelegatedAuth(cluster, "n")), LOG, token="good")[0] == 503


def make_authority(folder: Path, name: str, user: str) -> tuple[str, tuple[Path, Path]]:
    """An authority (PEM) and a client certificate of it."""

    def openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    authority, signer, request = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.csr"
    certificate, key = folder / f"{name}-client.pem", folder / f"{name}-client.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-subj", f"/CN={name}", "-keyout", signer, "-out", authority, "-days", 2)
    openssl("req", *curve, "-subj", f"/O=some/O=more/CN={user}", "-keyout", key, "-out", request)
    signing = ("-CA", authority, "-CAkey", signer, "-CAcreateserial", "-days", 2)
    openssl("x509", "-req", "-in", request, *signing, "-out", certificate)
    return authority.read_text(), (certificate, key)


@needs_openssl
def test_certificates_of_the_clusters_authority_are_taken_for_what_they_say(
    serve: Serve, gate: DelegatedAuth, logs: Logs, reviews: tuple[RestCluster, list[tuple[str, Any]]], tmp_path: Path
) -> None:
    logs.say("secret")
    authority, reader = make_authority(tmp_path, "cluster", "reader")
    server = serve(gate, authority)
    assert ask(server, LOG, certificate=reader) == (200, "secret\n")
    assert reviews[1][-1][1]["groups"] == ["some", "more", "system:authenticated"]
    assert ask(server, LOG)[0] == 401

    _, stranger = make_authority(tmp_path, "elsewhere", "reader")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(server, LOG, certificate=stranger)


@needs_openssl
def test_answers_are_those_of_a_kubelet(serve: Serve, logs: Logs) -> None:
    server = serve(None)
    for line in ("one", "two", "three"):
        logs.say(line)
    assert ask(server, LOG) == (200, "one\ntwo\nthree\n")
    assert ask(server, f"{LOG}?tailLines=1") == (200, "three\n")
    assert ask(server, f"{LOG}?limitBytes=6") == (200, "one\ntw")
    assert ask(server, "/containerLogs/ns/none/main") == (404, 'pods "none" not found')
    assert ask(server, "/run/ns/pod/main")[0] == 404
    assert ask(server, f"{LOG}?tailLines=x")[0] == 400


@needs_openssl
def test_a_followed_log_ends_with_its_container_or_its_reader(serve: Serve, logs: Logs) -> None:
    server = serve(None)
    logs.alive = True
    logs.say("first")
    connection = HTTPSConnection("127.0.0.1", server.port, timeout=30, context=client_context())
    with closing(connection):
        connection.request("GET", f"{LOG}?follow=true")
        answer = connection.getresponse()
        assert answer.readline() == b"first\n"
        logs.say("second")
        assert answer.readline() == b"second\n"
        answer.close()
    assert logs.open[0].ended.wait(30)  # nobody reads it any more

    logs.alive = False
    assert ask(server, f"{LOG}?follow=true") == (200, "first\nsecond\n")


@needs_openssl
def test_one_connection_too_many_is_hung_up_on(serve: Serve, logs: Logs) -> None:
    server = serve(None, limits=ConnectionLimits(connections=1, seconds=30))
    logs.alive = True
    logs.say("first")
    with closing(HTTPSConnection("127.0.0.1", server.port, timeout=30, context=client_context())) as connection:
        connection.request("GET", f"{LOG}?follow=true")
        with connection.getresponse() as answer:
            assert answer.readline() == b"first\n"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(server, "/healthz")
            logs.say("second")
            assert answer.readline() == b"second\n"  # whoever was there before is not disturbed

    def served() -> bool:
        with suppress(OSError):
            return ask(server, "/healthz") == (200, "ok")
        return False

    until(served, 30)


@needs_openssl
def test_stopping_ends_whoever_still_reads(serve: Serve, logs: Logs) -> None:
    server = serve(None)
    logs.alive = True
    logs.say("first")
    with closing(HTTPSConnection("127.0.0.1", server.port, timeout=30, context=client_context())) as connection:
        connection.request("GET", f"{LOG}?follow=true")
        answer = connection.getresponse()
        assert answer.readline() == b"first\n"
        with closing(socket.create_connection(("127.0.0.1", server.port))) as silent:  # not even a handshake
            server.stop()
            with suppress(ConnectionError):
                assert silent.recv(1) == b""
        with suppress(OSError, HTTPException):
            assert answer.readline() == b""
        answer.close()


@needs_openssl
def test_a_port_that_is_taken_is_an_error_with_a_way_out(serve: Serve) -> None:
    server = serve(None)
    with pytest.raises(Unavailable, match=f"127.0.0.1:{server.port}"):
        LogServer("127.0.0.1", server.port, server_tls_context("n", "127.0.0.1", ""), None)


def test_a_certificate_that_is_none_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(Unavailable, match="empty"):
        server_tls_context("n", "127.0.0.1", "", (tmp_path / "empty", tmp_path / "empty"))

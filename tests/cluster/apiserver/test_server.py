"""The HTTP server: status codes, bodies, streams and shutdown.

Clients without the token, or with malformed requests, use few resources and do not affect other clients.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.cluster.support import config_map, pod, take
from tests.waiting import is_closed, until
from tf_dist.cluster.api import CONFIG_MAPS, NAMESPACES, PODS
from tf_dist.cluster.apiserver.protobuf import PROTOBUF_MEDIA
from tf_dist.cluster.apiserver.server import MAX_BODY_BYTES, ApiServer
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.http_server import ConnectionLimits
from tf_dist.errors import ClusterError, Forbidden, InvalidJob, Problem, Rejected, Unavailable

Ask = Callable[..., tuple[int, Any]]
MAPS = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
def connection(server: ApiServer) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.app.url.rpartition(":")[2]), timeout=30)
    yield connection
    connection.close()


@pytest.fixture
def ask(server: ApiServer, connection: http.client.HTTPConnection) -> Ask:
    """Sends a request, and returns the code and the decoded body of the response."""

    def send(method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        sent = {"Authorization": f"Bearer {server.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection.request(method, path, body, sent)
        reply = connection.getresponse()
        data = reply.read()
        return reply.status, json.loads(data) if "json" in reply.getheader("Content-Type", "") else data

    return send


@pytest.mark.parametrize(
    ("method", "path", "body", "media", "code", "reason"),
    [
        ("GET", "/api/v1/nones", None, "", 404, "NotFound"),
        ("GET", "/apis/none.example.com/v1", None, "", 404, "NotFound"),
        ("GET", f"{MAPS}/none", None, "", 404, "NotFound"),
        ("GET", "/none", None, "", 404, "NotFound"),
        ("PUT", MAPS, b"{}", "", 405, "MethodNotAllowed"),
        ("POST", "/api/v1", b"{}", "", 405, "MethodNotAllowed"),
        ("POST", MAPS, b"{", "", 400, "BadRequest"),
        ("POST", MAPS, b"[" * 100_000, "", 400, "BadRequest"),
        ("POST", MAPS, b"[]", "", 400, "BadRequest"),
        ("POST", MAPS, b'{"metadata": {"name": "a"}, "data": {"x": NaN}}', "", 400, "BadRequest"),
        ("POST", MAPS, b'{"metadata": {"name": "a"}, "kind": "Pod"}', "", 400, "BadRequest"),
        ("POST", MAPS, b"{}", "text/plain", 415, "UnsupportedMediaType"),
        ("POST", MAPS, b"{}", "application/yaml", 415, "UnsupportedMediaType"),
        ("GET", "/api/v1/namespaces/default/pods/none/log?limitBytes=5", None, "", 400, "BadRequest"),
        ("PATCH", f"{MAPS}/none", b"{}", "application/json", 415, "UnsupportedMediaType"),
        ("PATCH", f"{MAPS}/none", b"{}", "application/apply-patch+yaml", 415, "UnsupportedMediaType"),
        ("POST", MAPS, b'{"metadata": {"name": "UP"}}', "", 422, "Invalid"),
        ("GET", f"{MAPS}?limit=many", None, "", 400, "BadRequest"),
        ("GET", f"{MAPS}?labelSelector=a%20b", None, "", 400, "BadRequest"),
        ("GET", f"{MAPS}?continue=none", None, "", 400, "BadRequest"),
        ("GET", f"{MAPS}?watch=1&resourceVersion=x", None, "", 400, "BadRequest"),
        ("GET", f"{MAPS}?watch=1&resourceVersion=99999", None, "", 410, "Expired"),
        ("POST", f"{MAPS}?dryRun=Some", b"{}", "", 400, "BadRequest"),
    ],
)
def test_errors_are_status_objects(
    ask: Ask, method: str, path: str, body: bytes | None, media: str, code: int, reason: str
) -> None:
    found, status = ask(method, path, body, **({"Content_Type": media} if media else {}))
    assert (found, status["kind"], status["code"], status["reason"]) == (code, "Status", code, reason)
    assert status["message"]


def test_connection_stays_open_after_errors(ask: Ask, connection: http.client.HTTPConnection) -> None:
    ask("GET", "/healthz")
    sock = connection.sock
    for _ in range(3):
        assert ask("GET", "/none")[0] == 404
        assert ask("GET", MAPS)[0] == 200
    assert connection.sock is sock


def test_requests_without_exact_token_are_unauthorized(ask: Ask, server: ApiServer) -> None:
    token = server.token
    near = [f"Bearer {one}" for one in (token[:-1], f"{token}x", token.swapcase(), "", " ")]
    for said in ("", "Bearer wrong", "Basic d3Jvbmc6d3Jvbmc=", "Bearer \xff", *near):
        code, status = ask("GET", MAPS, Authorization=said)
        assert (code, status["reason"]) == (401, "Unauthorized"), said


def test_health_check_needs_no_token(ask: Ask) -> None:
    assert ask("GET", "/readyz", Authorization="") == (200, b"ok")


def test_large_body_is_refused_unread(ask: Ask) -> None:
    code, status = ask("POST", MAPS, Content_Length=str(17 * 1024 * 1024))
    assert (code, status["reason"]) == (413, "RequestEntityTooLarge")


def test_unknown_method_is_answered_with_405(server: ApiServer) -> None:
    with socket.create_connection(("127.0.0.1", int(server.app.url.rpartition(":")[2])), timeout=30) as raw:
        raw.sendall(b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 405 " in raw.makefile("rb").readline()


def test_response_is_json_although_client_prefers_protobuf(ask: Ask) -> None:
    code, found = ask("GET", MAPS, Accept="application/vnd.kubernetes.protobuf,application/json")
    assert (code, found["kind"]) == (200, "ConfigMapList")


def test_damaged_protobuf_is_bad_request(ask: Ask) -> None:
    for body in (b"", b"k8s\x00", b"k8s\x00\x0a\xff", b"k8s\x00" + b"\xff" * 40, b"nothing"):
        code, _ = ask("POST", MAPS, body, Content_Type=PROTOBUF_MEDIA)
        assert code == 400


def test_protobuf_of_unsupported_kind_is_refused_with_advice(ask: Ask) -> None:
    body = b"k8s\x00\x0a\x0d\x0a\x02v1\x12\x07Service"
    code, status = ask("POST", "/api/v1/namespaces/default/services", body, Content_Type=PROTOBUF_MEDIA)
    assert (code, "kubectl apply -f" in status["message"]) == (415, True)


def test_all_problems_are_reported_as_causes(memory: MemoryCluster, server: ApiServer, rest: RestCluster) -> None:
    def refuse(obj: dict, old: dict | None) -> dict:
        raise InvalidJob([Problem("spec.x", "Required value"), Problem("spec.y", "must be odd", "add one")])

    with MemoryCluster(validators={("", "ConfigMap"): refuse}) as strict, ApiServer(strict) as face:
        client = RestCluster(face.app.url, token=face.token)
        with pytest.raises(Rejected) as refused:
            client.create(CONFIG_MAPS, "default", config_map("a"))
        client.close()
    problems = refused.value.problems  # type: ignore[attr-defined]
    assert [(one.path, one.message) for one in problems] == [
        ("spec.x", "Required value"),
        ("spec.y", "must be odd (add one)"),
    ]
    assert 'ConfigMap "a" is invalid' in str(refused.value)


def test_validators_set_defaults_and_check_only_spec_changes() -> None:
    seen: list[tuple[str, str | None]] = []

    def validator(obj: dict, old: dict | None) -> dict:
        seen.append((obj["metadata"]["name"], old and old["data"]["x"]))
        return {**obj, "data": {"filled": "in", **obj.get("data", {})}}

    with MemoryCluster(validators={("", "ConfigMap"): validator}) as cluster:
        made = cluster.create(CONFIG_MAPS, "default", config_map("a", x="1"))
        assert made["data"] == {"filled": "in", "x": "1"}
        cluster.patch(CONFIG_MAPS, "default", "a", {"metadata": {"labels": {"a": "b"}}})
        assert seen == [("a", None)]
        cluster.patch(CONFIG_MAPS, "default", "a", {"data": {"x": "2"}})
        assert seen == [("a", None), ("a", "1")]


def test_tables_can_be_watched(ask: Ask, memory: MemoryCluster) -> None:
    memory.create(PODS, "default", pod("a"))
    code, event = ask("GET", "/api/v1/pods?watch=true&timeoutSeconds=1", Accept=TABLE)
    assert (code, event["type"]) == (200, "ADDED")
    assert event["object"]["rows"][0]["cells"][0] == "a"


@pytest.mark.parametrize("include", ["Metadata", "Object"])
def test_table_rows_contain_requested_object(ask: Ask, memory: MemoryCluster, include: str) -> None:
    memory.create(PODS, "default", pod("a"))
    _, table = ask("GET", f"/api/v1/pods?includeObject={include}", Accept=TABLE)
    shown = table["rows"][0]["object"]
    assert ("metadata" in shown, "spec" in shown) == (True, include == "Object")


def test_initial_events_end_with_a_bookmark(
    memory: MemoryCluster, server: ApiServer, connection: http.client.HTTPConnection
) -> None:
    memory.create(PODS, "default", pod("a"))
    query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    connection.request("GET", f"/api/v1/pods?{query}", headers={"Authorization": f"Bearer {server.token}"})
    with connection.getresponse() as reply:
        events = [json.loads(reply.readline()) for _ in range(2)]
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_stop_ends_live_watches_and_their_threads(memory: MemoryCluster) -> None:
    server = ApiServer(memory)
    url = server.start()
    before = threading.active_count()
    with RestCluster(url, token=server.token) as client, client.watch(CONFIG_MAPS, timeout=100) as events:
        memory.create(CONFIG_MAPS, "default", config_map("a"))
        assert take(events, 1) == [("ADDED", "a")]
        server.stop()
        with pytest.raises((Unavailable, StopIteration)):
            next(events)
        with pytest.raises(Unavailable, match="no answer"):
            client.list(CONFIG_MAPS)
    assert threading.active_count() < before + 1


def test_disconnected_client_frees_its_watch(memory: MemoryCluster, server: ApiServer) -> None:
    with RestCluster(server.app.url, token=server.token) as client:
        events = client.watch(CONFIG_MAPS, timeout=100)
        memory.create(CONFIG_MAPS, "default", config_map("a"))
        assert take(events, 1) == [("ADDED", "a")]
        serving = [thread for thread in threading.enumerate() if thread.name == "tf-dist-connection"]
        events.close()
    assert serving
    for thread in serving:
        thread.join(30)
        assert not thread.is_alive()


def test_server_listens_on_loopback_only(memory: MemoryCluster) -> None:
    with pytest.raises(ClusterError, match="loopback"):
        ApiServer(memory, host="0.0.0.0")


def test_port_in_use_is_reported(memory: MemoryCluster, server: ApiServer) -> None:
    with pytest.raises(ClusterError, match="cannot listen"):
        ApiServer(memory, port=int(server.app.url.rpartition(":")[2])).start()


def test_wrong_token_error_contains_request(server: ApiServer) -> None:
    with RestCluster(server.app.url, token="wrong") as client, pytest.raises(Forbidden, match="list configmaps"):
        client.list(CONFIG_MAPS)


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
    """Sends header lines and a body, by default with the token, and returns the response."""

    def send(first: str, *lines: str, body: bytes = b"", token: bool = True) -> tuple[int, str]:
        own = [f"Authorization: Bearer {server.token}"] if token else []
        head = "\r\n".join([f"{first} HTTP/1.1", "Host: x", *own, *lines, "", ""])
        with _connect(server) as sock:
            sock.sendall(head.encode("latin-1") + body)
            return _answer(sock)

    return send


def test_responds_401_before_reading_body(server: ApiServer) -> None:
    """The test does not send the body, so the server answers only if it does not wait for the body."""
    for length in ("1000", str(2**31)):
        with _connect(server) as sock:
            sock.sendall(f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            assert _answer(sock) == (401, "Unauthorized")


def test_unauthenticated_client_that_keeps_sending_gets_401(server: ApiServer) -> None:
    with _connect(server) as sock:
        sock.sendall(f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n".encode())
        sock.sendall(b" " * 2_000_000)
        assert _answer(sock) == (401, "Unauthorized")


def test_continue_is_sent_only_for_acceptable_body(server: ApiServer) -> None:
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
    assert b" 413 " in ask(server.token, MAX_BODY_BYTES + 1)


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
        (["Content-Length: " + "9" * 5000], b"", 413),
        ([f"Content-Length: {MAX_BODY_BYTES + 1}"], b"", 413),
        ([], b"", 411),
        (["Content-Length: 27", "Transfer-Encoding: chunked"], BODY, 411),
        (["Transfer-Encoding: chunked"], b"1b\r\n" + BODY + b"\r\n0\r\n\r\n", 411),
        (["Transfer-Encoding: identity"], BODY, 411),
    ],
)
def test_body_without_clear_length_is_refused(
    say: Say, memory: MemoryCluster, lines: list[str], body: bytes, code: int
) -> None:
    assert say(f"POST {MAPS}", *lines, body=body)[0] == code
    assert not memory.list(CONFIG_MAPS, "default").items


def test_truncated_body_changes_nothing(server: ApiServer, memory: MemoryCluster) -> None:
    """The part that arrives is a whole JSON document."""
    with _connect(server) as sock:
        head = (
            f"POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\nContent-Length: 5000\r\n\r\n"
        )
        sock.sendall(head.encode() + BODY)
        sock.shutdown(socket.SHUT_WR)
        assert _answer(sock)[0] == 400
    assert not memory.list(CONFIG_MAPS, "default").items


def test_body_of_maximum_size_is_accepted(say: Say, memory: MemoryCluster) -> None:
    filled = BODY + b" " * (MAX_BODY_BYTES - len(BODY))
    assert say(f"POST {MAPS}", f"Content-Length: {MAX_BODY_BYTES}", body=filled)[0] == 201


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([f"X-{number}: y" for number in range(200)], 431),
        (["X: " + "y" * 70_000], 431),
        ([f"X-{number}: {'y' * 5000}" for number in range(20)], 431),
        ([f"X-{number}: {'y' * 500}" for number in range(50)], 200),
    ],
)
def test_headers_are_limited_in_size_and_number(say: Say, lines: list[str], code: int) -> None:
    """The total is limited, not only each line. A hundred lines of 64 KiB would be 6 MiB for each client."""
    assert say("GET /healthz", *lines, token=False)[0] == code


def test_long_request_line_is_refused(server: ApiServer) -> None:
    with _connect(server) as sock:
        sock.sendall(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n")
        assert _answer(sock)[0] == 414


# Connections


@pytest.fixture
def narrow(memory: MemoryCluster) -> Iterator[ApiServer]:
    """A server that allows eight connections."""
    with ApiServer(memory, limits=ConnectionLimits(connections=8, seconds=SECONDS)) as server:
        yield server


def _threads() -> int:
    return sum(thread.name == "tf-dist-connection" for thread in threading.enumerate())


def test_silent_unauthenticated_clients_do_not_block_authenticated_ones(narrow: ApiServer) -> None:
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
            assert sum(is_closed(sock) for sock in strangers) >= 30


def test_idle_connections_are_closed_before_active_ones(narrow: ApiServer) -> None:
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
def test_slow_unauthenticated_connection_is_closed_after_timeout(memory: MemoryCluster, sent: bytes) -> None:
    limits = ConnectionLimits(connections=8, seconds=0.5)
    with ApiServer(memory, limits=limits) as server, _connect(server) as sock:
        sock.sendall(sent)

        def dripped() -> bool:
            try:
                sock.sendall(b"X: y\r\n" if sent else b"")
            except OSError:
                return True
            return is_closed(sock)

        until(dripped, SECONDS)
        until(lambda: _threads() == 0, SECONDS)


def test_active_authenticated_connection_has_no_timeout(memory: MemoryCluster) -> None:
    """The connection of an authenticated client outlives unauthenticated connections that were opened later."""
    limits = ConnectionLimits(connections=8, seconds=0.3)
    with (
        ApiServer(memory, limits=limits) as server,
        RestCluster(server.app.url, token=server.token, retries=0) as client,
        client.watch(CONFIG_MAPS, timeout=SECONDS) as events,
    ):
        for _ in range(3):
            with _connect(server) as stranger:
                until(lambda: is_closed(stranger), SECONDS)
        client.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}})
        assert next(iter(events)).object["metadata"]["name"] == "a"


STRATEGIC = "application/strategic-merge-patch+json"
NAMESPACED = "/api/v1/namespaces/default"


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "said"),
    [
        ("DELETE", f"{MAPS}/m", {"gracePeriodSeconds": "soon"}, 400, "gracePeriodSeconds"),
        ("DELETE", f"{MAPS}/m", {"preconditions": ["uid"]}, 400, "preconditions"),
        ("DELETE", f"{MAPS}/m", {"dryRun": 5}, 400, "dryRun"),
        ("DELETE", f"{MAPS}/m", {"dryRun": ["Some"]}, 422, "dryRun"),
        ("DELETE", f"{MAPS}/m", {"propagationPolicy": ["Orphan"]}, 400, "propagationPolicy"),
        ("DELETE", f"{MAPS}/m", {"propagationPolicy": "Odd"}, 422, "propagationPolicy"),
        ("DELETE", MAPS, {"propagationPolicy": "Odd"}, 422, "propagationPolicy"),
        ("DELETE", f"{MAPS}/m", [], 400, "DeleteOptions"),
        ("PATCH", f"{MAPS}/m", {"data": {"$retainKeys": 5}}, 400, "$retainKeys"),
        ("PATCH", f"{MAPS}/m", {"data": {"$patch": "odd"}}, 400, "$patch"),
        ("PATCH", f"{MAPS}/m", {"metadata": {"ownerReferences": [{"uid": ["x"]}]}}, 400, "does not fit"),
        ("PATCH", f"{MAPS}/m", {"metadata": {"labels": ["x"]}}, 400, "metadata.labels"),
        ("POST", f"{NAMESPACED}/secrets", {"metadata": {"name": "s"}, "stringData": "x"}, 400, "stringData"),
        ("POST", f"{NAMESPACED}/secrets", {"metadata": {"name": "s"}, "stringData": {"a": 5}}, 400, "stringData.a"),
        ("POST", f"{NAMESPACED}/secrets", {"metadata": {"name": "s"}, "data": {"a": "no base64"}}, 400, "data.a"),
        ("POST", f"{NAMESPACED}/services", {"metadata": {"name": "s"}, "spec": None}, 422, "spec.ports"),
        (
            "POST",
            f"{NAMESPACED}/services",
            {"metadata": {"name": "s"}, "spec": {"selector": ["x"], "ports": [{"port": 80}]}},
            400,
            "spec.selector",
        ),
        (
            "POST",
            f"{NAMESPACED}/resourcequotas",
            {"metadata": {"name": "q"}, "spec": {"hard": ["x"]}},
            400,
            "spec.hard",
        ),
        ("POST", "/api/v1/nodes", {"metadata": {"name": "n"}, "spec": {"taints": [5]}}, 400, "spec.taints[0]"),
        ("POST", "/api/v1/nodes", {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a"}]}}, 422, "effect"),
        (
            "POST",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": "c"}, "value": "abc"},
            400,
            "cannot unmarshal string into field value of type int32",
        ),
        ("POST", f"{NAMESPACED}/pods", pod("p", priorityClassName=[]), 400, "spec.priorityClassName"),
        ("POST", f"{NAMESPACED}/pods", pod("p", priority="high"), 400, "spec.priority"),
        ("POST", f"{NAMESPACED}/pods", pod("p", activeDeadlineSeconds="x"), 400, "spec.activeDeadlineSeconds"),
        ("POST", f"{NAMESPACED}/pods", pod("p", activeDeadlineSeconds=0), 422, "spec.activeDeadlineSeconds"),
        ("POST", f"{NAMESPACED}/pods", pod("p", dnsPolicy="Cluster"), 422, "Unsupported value"),
        ("POST", f"{NAMESPACED}/pods", pod("p", volumes=[{"name": "Data"}]), 422, "spec.volumes[0].name"),
        ("POST", f"{NAMESPACED}/pods", pod("p", containers=[{"name": "c"}]), 422, "spec.containers[0].image: Required"),
    ],
)
def test_malformed_requests_are_refused_as_by_kubernetes(
    ask: Ask, memory: MemoryCluster, method: str, path: str, body: Any, code: int, said: str
) -> None:
    memory.create(CONFIG_MAPS, "default", config_map("m", a="b"))
    media = STRATEGIC if method == "PATCH" else "application/json"
    found, answer = ask(method, path, json.dumps(body).encode(), Content_Type=media)
    assert (found, said in answer["message"]) == (code, True), answer
    assert memory.get(CONFIG_MAPS, "default", "m")["data"] == {"a": "b"}


def test_null_and_unknown_fields_are_ignored(ask: Ask) -> None:
    body = pod("p", nodeSelector=None, tolerations=None, quantumEntanglement=True)
    body["spec"]["containers"][0] |= {
        "resources": None,
        "ports": [{"containerPort": 80, "protocol": None}],
        "env": None,
    }
    code, made = ask("POST", f"{NAMESPACED}/pods", json.dumps(body).encode(), Content_Type="application/json")
    assert (code, made["spec"]["containers"][0]["ports"]) == (201, [{"containerPort": 80, "protocol": "TCP"}])

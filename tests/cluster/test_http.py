"""The HTTP face where clients rely on its manners: codes, bodies, streams, and its end."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.support import config_map, pod, take
from tf_dist.cluster.api import CONFIG_MAPS, PODS
from tf_dist.cluster.http import ApiServer
from tf_dist.cluster.http.durations import human
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.cluster.rest import RestCluster
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
    """Sends a request; the code and the decoded body of its answer."""

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
        ("PATCH", f"{MAPS}/none", b"{}", "application/json", 415, "UnsupportedMediaType"),
        ("POST", MAPS, b'{"metadata": {"name": "UP"}}', "", 422, "Invalid"),
        ("GET", f"{MAPS}?limit=many", None, "", 400, "BadRequest"),
        ("GET", f"{MAPS}?labelSelector=a%20b", None, "", 400, "BadRequest"),
        ("GET", f"{MAPS}?continue=none", None, "", 400, "BadRequest"),
        ("GET", f"{MAPS}?watch=1&resourceVersion=x", None, "", 400, "BadRequest"),
        ("GET", f"{MAPS}?watch=1&resourceVersion=99999", None, "", 410, "Expired"),
        ("POST", f"{MAPS}?dryRun=Some", b"{}", "", 400, "BadRequest"),
    ],
)
def test_errors_are_statuses(
    ask: Ask, method: str, path: str, body: bytes | None, media: str, code: int, reason: str
) -> None:
    found, status = ask(method, path, body, **({"Content_Type": media} if media else {}))
    assert (found, status["kind"], status["code"], status["reason"]) == (code, "Status", code, reason)
    assert status["message"]


def test_the_connection_lives_through_errors(ask: Ask, connection: http.client.HTTPConnection) -> None:
    ask("GET", "/healthz")
    sock = connection.sock
    for _ in range(3):
        assert ask("GET", "/none")[0] == 404
        assert ask("GET", MAPS)[0] == 200
    assert connection.sock is sock


@pytest.mark.parametrize("said", ["", "Bearer wrong", "Basic d3Jvbmc6d3Jvbmc=", "Bearer \xff"])
def test_without_the_token_there_is_no_answer(ask: Ask, said: str) -> None:
    code, status = ask("GET", MAPS, Authorization=said)
    assert (code, status["reason"]) == (401, "Unauthorized")


def test_health_needs_no_token(ask: Ask) -> None:
    assert ask("GET", "/readyz", Authorization="") == (200, b"ok")


def test_a_large_body_is_refused_unread(ask: Ask) -> None:
    code, status = ask("POST", MAPS, Content_Length=str(17 * 1024 * 1024))
    assert (code, status["reason"]) == (413, "RequestEntityTooLarge")


def test_bodies_come_as_yaml_and_in_chunks(ask: Ask, memory: MemoryCluster) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {when: 2020-01-01}\n"
    assert ask("POST", MAPS, text, Content_Type="application/yaml")[0] == 201
    assert memory.get(CONFIG_MAPS, "default", "a")["data"] == {"when": "2020-01-01"}


def test_chunked_requests(server: ApiServer, connection: http.client.HTTPConnection) -> None:
    parts = (part for part in (b'{"metadata": ', b'{"name": "c"}}'))
    connection.request("POST", MAPS, parts, {"Authorization": f"Bearer {server.token}"}, encode_chunked=True)
    reply = connection.getresponse()
    assert (reply.status, json.loads(reply.read())["metadata"]["name"]) == (201, "c")


def test_what_is_not_http_gets_an_answer_too(server: ApiServer) -> None:
    with socket.create_connection(("127.0.0.1", int(server.app.url.rpartition(":")[2])), timeout=30) as raw:
        raw.sendall(b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 405 " in raw.makefile("rb").readline()


def test_protobuf_answers_are_not_offered(ask: Ask) -> None:
    code, found = ask("GET", MAPS, Accept="application/vnd.kubernetes.protobuf,application/json")
    assert (code, found["kind"]) == (200, "ConfigMapList")


def test_damaged_protobuf_is_a_bad_request(ask: Ask) -> None:
    for body in (b"", b"k8s\x00", b"k8s\x00\x0a\xff", b"k8s\x00" + b"\xff" * 40, b"nothing"):
        code, _ = ask("POST", MAPS, body, Content_Type="application/vnd.kubernetes.protobuf")
        assert code == 400


def test_all_problems_are_causes(memory: MemoryCluster, server: ApiServer, rest: RestCluster) -> None:
    def refuse(obj: dict) -> dict:
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


def test_validators_fill_in_defaults_and_judge_specs_only() -> None:
    seen: list[str] = []

    def validator(obj: dict) -> dict:
        seen.append(obj["metadata"]["name"])
        return {**obj, "data": {"filled": "in", **obj.get("data", {})}}

    with MemoryCluster(validators={("", "ConfigMap"): validator}) as cluster:
        made = cluster.create(CONFIG_MAPS, "default", config_map("a", x="1"))
        assert made["data"] == {"filled": "in", "x": "1"}
        cluster.patch(CONFIG_MAPS, "default", "a", {"metadata": {"labels": {"a": "b"}}})
        assert seen == ["a"]
        cluster.patch(CONFIG_MAPS, "default", "a", {"data": {"x": "2"}})
        assert seen == ["a", "a"]


def test_tables_may_be_watched(ask: Ask, memory: MemoryCluster) -> None:
    memory.create(PODS, "default", pod("a"))
    code, event = ask("GET", "/api/v1/pods?watch=true&timeoutSeconds=1", Accept=TABLE)
    assert (code, event["type"]) == (200, "ADDED")
    assert event["object"]["rows"][0]["cells"][0] == "a"


@pytest.mark.parametrize("include", ["None", "Metadata", "Object"])
def test_tables_carry_what_is_asked_for(ask: Ask, memory: MemoryCluster, include: str) -> None:
    memory.create(PODS, "default", pod("a"))
    _, table = ask("GET", f"/api/v1/pods?includeObject={include}", Accept=TABLE)
    shown = table["rows"][0].get("object", {})
    assert ("metadata" in shown, "spec" in shown) == (include != "None", include == "Object")


def test_metadata_alone(ask: Ask, memory: MemoryCluster) -> None:
    memory.create(PODS, "default", pod("a"))
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    _, found = ask("GET", "/api/v1/pods", Accept=accept)
    assert found["kind"] == "PartialObjectMetadataList"
    assert [set(item) for item in found["items"]] == [{"kind", "apiVersion", "metadata"}]


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


def test_a_client_that_hangs_up_frees_its_watch(memory: MemoryCluster, server: ApiServer) -> None:
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


def test_loopback_only(memory: MemoryCluster) -> None:
    with pytest.raises(ClusterError, match="loopback"):
        ApiServer(memory, host="0.0.0.0")


def test_a_taken_port_is_named(memory: MemoryCluster, server: ApiServer) -> None:
    with pytest.raises(ClusterError, match="cannot listen"):
        ApiServer(memory, port=int(server.app.url.rpartition(":")[2])).start()


def test_a_wrong_token_names_what_was_asked(server: ApiServer) -> None:
    with RestCluster(server.app.url, token="wrong") as client, pytest.raises(Forbidden, match="list configmaps"):
        client.list(CONFIG_MAPS)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (5, "5s"), (119, "119s"), (125, "2m5s"), (600, "10m"), (10800, "3h"), (12060, "3h21m"),
     (100000, "27h"), (200000, "2d7h"), (700000, "8d"), (70000000, "2y80d"), (300000000, "9y")],
)  # fmt: skip
def test_ages_read_as_kubectl_prints_them(seconds: float, text: str) -> None:
    assert human(seconds) == text

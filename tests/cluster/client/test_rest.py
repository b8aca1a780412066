"""RestCluster and faulty servers: each failure raises an error of tf-dist, and only some requests are retried."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.client.raw import CHUNKED, chunk, failure, reply, saying
from tests.waiting import until
from tf_dist.cluster.api import CONFIG_MAPS, PODS, TFJOBS, LogOptions, Stream, WatchEvent
from tf_dist.cluster.api_errors import (
    MAX_RETRY_AFTER,
    AmbiguousCreate,
    BadRequest,
    Invalid,
    MethodNotAllowed,
    RequestEntityTooLarge,
    Unauthorized,
    UnsupportedMediaType,
)
from tf_dist.cluster.apiserver.server import ApiServer
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.auth import Credential, RefreshingCredentials
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.client.retries import fenced_by
from tf_dist.controller.manager import INFORMER_STUCK_AFTER
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
        (failure(413), RequestEntityTooLarge),
        (failure(415), UnsupportedMediaType),
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
def test_every_failure_raises_cluster_error(answer: bytes, error: type[ClusterError]) -> None:
    with saying(answer) as (client, requests), pytest.raises(error) as raised:
        client.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}})
    assert type(raised.value) is error or issubclass(type(raised.value), error)
    assert len(requests) == 1
    assert "0x" not in str(raised.value)


@pytest.mark.parametrize(
    ("ask", "verb", "what"),
    [
        (lambda client: client.patch(PODS, "default", "a", {}, subresource="status"), "patch", "pods/status"),
        (lambda client: client.logs("default", "a"), "get", "pods/log"),
    ],
)
def test_forbidden_error_contains_verb_and_resource(ask: Callable[[RestCluster], object], verb: str, what: str) -> None:
    with saying(failure(403)) as (client, _), pytest.raises(Forbidden) as raised:
        ask(client)
    assert f"{verb} {what}" in str(raised.value)
    assert f"--verb={verb} --resource={what} -n default" in raised.value.hint


@pytest.mark.parametrize(
    ("options", "query"),
    [
        (LogOptions(), ""),
        (LogOptions(container="tf", tail=0), "container=tf&tailLines=0"),
        (LogOptions(follow=True, tail=5, timestamps=True), "follow=true&tailLines=5&timestamps=true"),
        (LogOptions(since_seconds=0.2, previous=True), "sinceSeconds=1&previous=true"),
        (LogOptions(since_time="2026-01-01T00:00:00Z"), "sinceTime=2026-01-01T00%3A00%3A00Z"),
    ],
)
def test_log_options_become_query_parameters(options: LogOptions, query: str) -> None:
    with saying(reply(200, b"one\n")) as (client, requests), client.logs("default", "a", options) as lines:
        assert list(lines) == [b"one\n"]
    (asked,) = requests
    path = asked.split()[1].decode()
    assert path == "/api/v1/namespaces/default/pods/a/log" + (f"?{query}" if query else "")


@pytest.mark.parametrize("verb", ["create", "replace"])
def test_bodies_have_api_version_and_kind(verb: str) -> None:
    """An API server rejects bodies without apiVersion and kind."""
    body = {"metadata": {"name": "a"}, "spec": {}}
    with saying(MADE) as (client, requests):
        client.create(TFJOBS, "default", body) if verb == "create" else client.replace(TFJOBS, "default", "a", body)
    sent = json.loads(requests[0].partition(b"\r\n\r\n")[2])
    assert sent == {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", **body}


@pytest.mark.parametrize(("wish", "kept"), [("7", 7), ("86400", MAX_RETRY_AFTER), ("9" * 400, MAX_RETRY_AFTER)])
def test_retry_after_has_upper_limit(wish: str, kept: float) -> None:
    """If an informer slept longer, it would count as stuck, and its process would be restarted."""
    answer = reply(429, {"kind": "Status"}, f"Retry-After: {wish}")
    with saying(answer) as (client, _), pytest.raises(Throttled) as raised:
        client.list(PODS)
    assert raised.value.after == kept
    assert kept < INFORMER_STUCK_AFTER


def test_refused_connection_is_unavailable() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # reserves the port without listening
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with RestCluster(url, retries=0) as client, pytest.raises(Unavailable, match="refused") as raised:
            client.list(PODS)
    assert raised.value.code == 0


MADE = reply(201, {"kind": "ConfigMap", "metadata": {"name": "a"}})


def create(client: RestCluster) -> dict[str, Any]:
    return client.create(CONFIG_MAPS, "default", {"metadata": {"name": "a"}})


@pytest.mark.parametrize(
    "fault",
    [
        failure(429),
        failure(500),
        failure(502),
        failure(503),
        failure(504),
        reply(502, b"<html>bad gateway</html>"),
        b"",
        b"HTTP/1.1 201 X\r\nContent-Length: 30\r\n\r\n{",
        b"nonsense\r\n\r\n",
    ],
)
def test_retries_transient_errors(fault: bytes) -> None:
    backoffs: list[float] = []
    with saying(fault, fault, MADE, retries=2, sleep=backoffs.append) as (client, requests):
        assert create(client)["metadata"]["name"] == "a"
    assert len(requests) == 3
    assert [most / 2 <= pause <= most for pause, most in zip(backoffs, (0.2, 0.4), strict=True)] == [True, True]


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 409, 410, 413, 415, 418, 422, 501])
def test_permanent_errors_are_not_retried(code: int) -> None:
    with saying(failure(code), retries=3) as (client, requests), pytest.raises(ClusterError):
        create(client)
    assert len(requests) == 1


def test_number_of_retries_is_limited() -> None:
    with saying(*[failure(503)] * 4, retries=3) as (client, requests), pytest.raises(Unavailable, match="no"):
        create(client)
    assert len(requests) == 4


def test_does_not_retry_when_caller_does() -> None:
    once = fenced_by(lambda: 10.0, retried=False)
    with saying(failure(503), retries=3) as (client, requests), pytest.raises(Unavailable), once:
        create(client)
    assert len(requests) == 1


def test_client_waits_for_retry_after() -> None:
    backoffs: list[float] = []
    busy = reply(429, {"kind": "Status"}, "Retry-After: 4")
    with saying(busy, MADE, retries=1, sleep=backoffs.append) as (client, _):
        create(client)
    assert 4 <= backoffs[0] <= 5


def test_long_retry_after_is_left_to_caller() -> None:
    busy = reply(429, {"kind": "Status"}, "Retry-After: 60")
    with saying(busy, retries=3) as (client, requests), pytest.raises(Throttled) as raised:
        create(client)
    assert (len(requests), raised.value.after) == (1, 60)


def test_closing_client_ends_retry_pause() -> None:
    failed = threading.Event()
    with saying(reply(429, {"kind": "Status"}, "Retry-After: 10"), retries=1, sleep=None) as (client, requests):

        def ask() -> None:
            with pytest.raises(Throttled):
                create(client)
            failed.set()

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: bool(requests), 30)
        client.close()
        thread.join(60)
    assert failed.is_set()
    assert len(requests) == 1


@pytest.mark.parametrize("code", [401, 403])
def test_refusals_after_outage_are_retried(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that has just started refuses all requests until it has read the roles."""
    with saying(b"", *(failure(code) for _ in range(3)), MADE, retries=4) as (client, requests):
        create(client)
    assert len(requests) == 5
    monkeypatch.setattr("tf_dist.cluster.client.transport._STARTING", 0.0)
    with saying(b"", failure(code), retries=1) as (client, _), pytest.raises(Forbidden):
        create(client)


def test_refused_connection_and_refusal_after_outage_mean_restarting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with RestCluster(f"http://127.0.0.1:{port}", retries=0) as client, pytest.raises(Unavailable) as raised:
        create(client)
    assert raised.value.restarting
    with saying(b"", failure(403), retries=0) as (client, _):
        for restarting in (False, True):
            with pytest.raises(Unavailable) as raised:
                create(client)
            assert raised.value.restarting is restarting


TAKEN = failure(409, "AlreadyExists")


def test_existing_name_after_lost_response_is_ambiguous() -> None:
    for fault in (b"", failure(504)):
        with saying(fault, TAKEN, retries=1) as (client, _), pytest.raises(AmbiguousCreate):
            create(client)
    for answers in ([TAKEN], [failure(429), TAKEN]):
        with saying(*answers, retries=1) as (client, _), pytest.raises(AlreadyExists) as raised:
            create(client)
        assert type(raised.value) is AlreadyExists


def test_opening_stream_is_not_retried() -> None:
    with saying(failure(503), retries=3) as (client, requests), pytest.raises(Unavailable):
        client.watch(PODS)
    assert len(requests) == 1


def test_every_request_is_reported_with_code() -> None:
    told: list[tuple[str, str, int]] = []
    watched = reply(200, b"")

    def called(verb: str, plural: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        told.append((verb, plural, code))

    with saying(b"", failure(409), watched, retries=1, called=called) as (client, _):
        with pytest.raises(Conflict):
            client.patch(TFJOBS, "default", "a", {}, subresource="status")
        with client.watch(PODS) as events:
            assert list(events) == []
    assert told == [("patch", "tfjobs/status", 0), ("patch", "tfjobs/status", 409), ("watch", "pods", 200)]


EVENT = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "a"}}}).encode() + b"\n"
GONE = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "old"}}).encode() + b"\n"


def test_events_split_across_chunks_are_read() -> None:
    pieces = b"".join(chunk(bytes([byte])) for byte in EVENT + EVENT)
    with saying(CHUNKED + pieces + chunk(EVENT + EVENT) + b"0\r\n\r\n") as (client, _), client.watch(PODS) as events:
        assert [event.object["metadata"]["name"] for event in events] == ["a"] * 4


def test_gone_event_in_stream_raises_gone() -> None:
    with saying(CHUNKED + chunk(EVENT) + chunk(GONE)) as (client, _), client.watch(PODS, since="1") as events:
        assert next(events).type == "ADDED"
        with pytest.raises(Gone):
            next(events)
        assert list(events) == []


@pytest.mark.parametrize("end", [b"", b"5\r\nab", chunk(b"nonsense\n"), chunk(b'["x"]\n')])
def test_broken_stream_raises_unavailable(end: bytes) -> None:
    with saying(CHUNKED + chunk(EVENT) + end) as (client, _), client.watch(PODS) as events:
        assert next(events).type == "ADDED"
        with pytest.raises(Unavailable, match="watch pods"):
            next(events)


EMPTY = reply(200, {"kind": "PodList", "metadata": {}, "items": None})


class Tokens:
    """A source of credentials that returns these tokens, and then always the last."""

    def __init__(self, *tokens: str, seconds: float | None = None) -> None:
        self._tokens = list(tokens)
        self._seconds = seconds

    def __call__(self) -> Credential:
        token = self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]
        return Credential({"Authorization": f"Bearer {token}"}, seconds=self._seconds)


def tokens_in(requests: list[bytes]) -> list[str]:
    lines = (line for text in requests for line in text.decode().split("\r\n"))
    return [line.removeprefix("Authorization: Bearer ") for line in lines if line.startswith("Authorization")]


def test_refused_token_is_renewed_once() -> None:
    with saying(failure(401), EMPTY, EMPTY, credentials=RefreshingCredentials(Tokens("old", "new"))) as (
        client,
        requests,
    ):
        assert client.list(PODS).items == client.list(PODS).items == []
    assert tokens_in(requests) == ["old", "new", "new"]


def test_stream_renews_refused_token() -> None:
    with saying(failure(401), reply(200, EVENT), credentials=RefreshingCredentials(Tokens("old", "new"))) as (
        client,
        requests,
    ):
        assert [event.type for event in client.watch(PODS)] == ["ADDED"]
    assert tokens_in(requests) == ["old", "new"]


def test_refused_new_token_is_unauthorized() -> None:
    two = (failure(401), failure(401))
    source = RefreshingCredentials(Tokens("old", "new", "newer"))
    with saying(*two, credentials=source, retries=3) as (client, requests), pytest.raises(Unauthorized, match="pods"):
        client.list(PODS)
    assert tokens_in(requests) == ["old", "new"]


def test_unchanged_token_is_not_sent_again() -> None:
    source = RefreshingCredentials(Tokens("only"))
    with saying(failure(401), credentials=source) as (client, requests), pytest.raises(Unauthorized):
        client.list(PODS)
    assert tokens_in(requests) == ["only"]


def test_expired_token_is_renewed() -> None:
    now = [0.0]
    source = RefreshingCredentials(Tokens("one", "two", seconds=10), clock=lambda: now[0])
    with saying(EMPTY, EMPTY, EMPTY, credentials=source) as (client, requests):
        for moment in (0.0, 9.0, 10.0):
            now[0] = moment
            client.list(PODS)
    assert tokens_in(requests) == ["one", "one", "two"]


def test_concurrent_requests_renew_credential_once() -> None:
    asked = []
    grants = [Credential({"Authorization": str(number)}) for number in range(2)]

    def source() -> Credential:
        asked.append(None)
        return grants[min(len(asked), 2) - 1]

    credentials = RefreshingCredentials(source)
    rejected = credentials.headers()
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: credentials.renew(rejected), range(8)))
    assert (credentials.headers(), len(asked)) == (grants[1].headers, 2)


def test_multiline_token_is_rejected_and_not_shown() -> None:
    with RestCluster("http://127.0.0.1:9", token="se\ncret", retries=0) as client:
        for call in (client.list, client.watch):
            with pytest.raises(Rejected, match="credentials") as raised:
                call(PODS)
            assert "cret" not in str(raised.value)


SMALL = json.dumps({"kind": "ConfigMap"}).encode()


def test_one_connection_serves_many_requests(server: ApiServer) -> None:
    with RestCluster(server.app.url, token=server.token) as client:
        for number in range(5):
            client.create(CONFIG_MAPS, "default", {"metadata": {"name": f"a{number}"}})
        assert len(client.list(CONFIG_MAPS, "default").items) == 5
        with client.watch(CONFIG_MAPS, "default") as events:
            assert next(events).type == "ADDED"
        assert client._caller._pool.num_connections == 1


def test_extra_bytes_after_response_close_connection() -> None:
    """The bytes are not read as the next response.

    ``retries``: the client may notice only after its next request that the server has closed the connection.
    """
    first = reply(200, SMALL).replace(b"Connection: close\r\n", b"") + b"HTTP/1.1 200 OK"
    with saying(first, EMPTY, retries=1) as (client, _):
        client.get(CONFIG_MAPS, "default", "a")
        assert client.list(PODS).items == []


def test_large_list_is_read_completely(server: ApiServer, memory: MemoryCluster) -> None:
    text = "x" * 100_000
    for number in range(40):
        memory.create(CONFIG_MAPS, "default", {"metadata": {"name": f"a{number}"}, "data": {"text": text}})
    with RestCluster(server.app.url, token=server.token) as client:
        found = client.list(CONFIG_MAPS, "default").items
    assert [item["data"]["text"] == text for item in found] == [True] * 40


def test_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with RestCluster(url, timeout=0.2, retries=0) as cluster, pytest.raises(Unavailable, match=r"timeout=0\.2"):
            cluster.list(PODS)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_stream_can_be_closed_by_many_threads_while_it_ends() -> None:
    times, closers = 1000, 3
    with saying(*[CHUNKED + chunk(EVENT) + b"0\r\n\r\n"] * times) as (client, _), ThreadPoolExecutor(closers) as pool:
        for _ in range(times):
            at_once = threading.Barrier(closers + 1)

            def close(events: Stream[WatchEvent], at_once: threading.Barrier = at_once) -> None:
                at_once.wait(60)
                events.close()

            with client.watch(PODS) as events:
                assert next(events).type == "ADDED"
                closing = [pool.submit(close, events) for _ in range(closers)]
                at_once.wait(60)
                assert list(events) == []
            for closed in closing:
                closed.result(60)

"""A short outage of the cluster does not end commands: watches and logs resume where they stopped."""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.client.raw import CHUNKED, chunk, failure, reply, saying
from tests.waiting import until
from tf_dist.client.connection import Backoff
from tf_dist.client.job_files import load_job_files
from tf_dist.client.log_follower import (
    ContainerInstance,
    InstanceState,
    ResumingLogStream,
    instance_state,
    without_stamp,
)
from tf_dist.client.monitor import ObjectChanged, ObjectsListed, ObjectWatcher
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.client.submission import create_job
from tf_dist.client.wait import wait_for
from tf_dist.cluster.api import TFJOBS, LogOptions, Object
from tf_dist.errors import AlreadyExists, Forbidden, NotFound, Throttled, Unavailable

STAMP = "2026-11-21T10:00:0"


def lines(*texts: str, broken: bool = False) -> bytes:
    """A log stream of these lines, complete or ``broken``."""
    return CHUNKED + b"".join(chunk(f"{text}\n".encode()) for text in texts) + (b"" if broken else b"0\r\n\r\n")


def log(client: object, *states: InstanceState, **options: object) -> ResumingLogStream:
    """The log of a container that goes through these states and keeps the last."""
    left = list(states or [InstanceState.GONE])
    return ResumingLogStream(
        client,  # type: ignore[arg-type]
        "default",
        "a",
        LogOptions(follow=True, **options),  # type: ignore[arg-type]
        state=lambda: left.pop(0) if len(left) > 1 else left[0],
        settle=0.0,
    )


def test_log_resumes_where_it_stopped() -> None:
    first = lines(f"{STAMP}1.5Z one", f"{STAMP}2.25Z two", f"{STAMP}2.25Z two again", broken=True)
    second = lines(
        f"{STAMP}1.5Z one", f"{STAMP}2.25Z two", f"{STAMP}2.25Z two again", f"{STAMP}2.25Z still two", "bare"
    )
    with saying(first, failure(503), second) as (client, requests), log(client, tail=10) as found:
        assert list(found) == [b"one\n", b"two\n", b"two again\n", b"still two\n", b"bare\n"]
    assert b"tailLines=10" in requests[0]
    assert b"tailLines" not in requests[2]
    assert b"sinceTime=2026-11-21T10%3A00%3A01Z" in requests[2]


RUNNING, ENDED, REPLACED, LOST, GONE = InstanceState
ONE, TWO, THREE = (f"{STAMP}{n}.5Z {text}" for n, text in enumerate(("one", "two", "three"), 1))
NOT_KEPT = lines("unable to retrieve container logs for containerd://1")
MISSING = "is missing: its node does not keep it any more"
CUT = CHUNKED + chunk(f"{ONE}\n".encode()) + chunk(f"{STAMP}2.5Z tw".encode()) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("streams", "states", "expected", "asked"),
    [
        pytest.param([lines(ONE), lines(ONE, TWO)], [ENDED], ["one", "two"], "fe", id="the end is read once more"),
        pytest.param([lines(ONE), lines(ONE, TWO)], [REPLACED], ["one", "two"], "fp", id="of the run before, too"),
        pytest.param(
            [lines(ONE), lines(ONE, TWO), lines(ONE, TWO, THREE)],
            [RUNNING, ENDED],
            ["one", "two", "three"],
            "ffe",
            id="it runs on: the kubelet was restarted",
        ),
        pytest.param(
            [lines(), lines(ONE), lines(ONE)], [RUNNING, RUNNING, ENDED], ["one"], "ffe", id="nothing had been written"
        ),
        pytest.param(
            [CUT, lines(ONE, TWO), lines(ONE, TWO)], [RUNNING, ENDED], ["one", "two"], "ffe", id="a line was cut"
        ),
        pytest.param([CUT, failure(503), lines(ONE, TWO)], [ENDED], ["one", "two"], "fee", id="the node is away"),
        pytest.param([lines(ONE)], [GONE], ["one"], "f", id="with its pod"),
        pytest.param(
            [lines(ONE), NOT_KEPT],
            [ENDED],
            ["one"],
            "fe",
            id="the container is removed already",
        ),
        pytest.param([lines(), NOT_KEPT], [ENDED], [], "fe", id="it wrote nothing, and is removed already"),
        pytest.param([NOT_KEPT, NOT_KEPT], [ENDED], [f"[tf-dist: this log {MISSING}]"], "fe", id="it was never had"),
        pytest.param(
            [lines(ONE), NOT_KEPT, NOT_KEPT],
            [RUNNING, ENDED],
            ["one", f"[tf-dist: the rest of this log {MISSING}]"],
            "ffe",
            id="it is removed while it is followed",
        ),
        pytest.param([lines(ONE), failure(404)], [ENDED], ["one"], "fe", id="its pod is gone meanwhile"),
        pytest.param(
            [lines(ONE), lines(TWO)],
            [RUNNING, REPLACED],
            ["one"],
            "ff",
            id="the next instance's lines are not its own",
        ),
        pytest.param(
            [lines(ONE), lines(THREE), lines(THREE)],
            [RUNNING, RUNNING, ENDED],
            ["one", "[tf-dist: lines are missing here: the node had dropped them before they could be read]", "three"],
            "ffe",
            id="a gap is said",
        ),
        pytest.param(
            [lines(ONE)],
            [LOST],
            ["one", "[tf-dist: the end of this log may be missing: the container was restarted again meanwhile]"],
            "f",
            id="it is not kept",
        ),
    ],
)
def test_log_is_complete_when_stream_ends_early(
    streams: list[bytes], states: list[InstanceState], expected: list[str], asked: str
) -> None:
    """``asked`` has a letter for each request: (f)ollow, read the (e)nd, or read the (p)revious instance."""
    with saying(*streams) as (client, requests), log(client, *states) as found:
        assert [line.decode().rstrip() for line in found] == expected
    shown = ("p" if b"previous=true" in one else "f" if b"follow=true" in one else "e" for one in requests)
    assert "".join(shown) == asked


def test_empty_log_resumes_from_time_of_first_request() -> None:
    streams = lines(), lines(ONE), lines(ONE)
    with saying(*streams) as (client, requests), log(client, RUNNING, ENDED, tail=10) as found:
        assert list(found) == [b"one\n"]
    assert [b"tailLines=10" in one for one in requests] == [True, False, False]
    assert [b"sinceSeconds=" in one for one in requests] == [False, True, False]


@pytest.mark.parametrize("text", ["one", "[tf-dist: this log is missing]", "", "2026 was a year"])
def test_line_without_timestamp_is_unchanged(text: str) -> None:
    assert without_stamp(f"{STAMP}1.5Z {text}") == without_stamp(text) == text


INSTANCE = ContainerInstance("p", "main", 1)


@pytest.mark.parametrize(
    ("uid", "count", "state", "expected"),
    [
        ("p", 1, "running", RUNNING),
        ("p", 1, "terminated", ENDED),
        ("p", 1, "waiting", ENDED),
        ("p", 2, "running", REPLACED),
        ("p", 2, "terminated", REPLACED),
        ("p", 2, "waiting", LOST),
        ("p", 3, "running", LOST),
        ("other", 1, "running", GONE),
    ],
)
def test_instance_state_depends_on_restart_count(uid: str, count: int, state: str, expected: InstanceState) -> None:
    statuses = [{"name": "other"}, {"name": "main", "restartCount": count, "state": {state: {}}}]
    stored = {"metadata": {"uid": uid}, "status": {"containerStatuses": statuses}}
    assert instance_state(stored, INSTANCE) is expected
    assert instance_state(None, INSTANCE) is GONE


def test_fractional_timestamps_are_compared_numerically() -> None:
    first = lines(f"{STAMP}1.5Z one", f"{STAMP}1.75Z two", broken=True)
    second = lines(f"{STAMP}1.5Z one", f"{STAMP}1.75Z two", f"{STAMP}1.8Z three", f"{STAMP}2Z four")
    with saying(first, second) as (client, _), log(client) as found:
        assert list(found) == [b"one\n", b"two\n", b"three\n", b"four\n"]


def test_requested_timestamps_are_kept() -> None:
    with saying(lines(f"{STAMP}1.5Z one")) as (client, _), log(client, timestamps=True) as found:
        assert list(found) == [f"{STAMP}1.5Z one\n".encode()]


def test_rejected_log_request_is_not_retried() -> None:
    first = lines(f"{STAMP}1Z one", broken=True)
    with saying(first, failure(404)) as (client, _), log(client) as found:
        assert next(found) == b"one\n"
        with pytest.raises(NotFound):
            next(found)


@pytest.mark.parametrize("away", [failure(500), failure(503), failure(429), b""], ids=["500", "503", "429", "reset"])
def test_failed_first_log_request_is_retried(away: bytes) -> None:
    """No line was read yet, so the second request has the same options."""
    whole = lines(f"{STAMP}1.5Z one", f"{STAMP}2.25Z two")
    with saying(away, failure(503), whole) as (client, requests), log(client, tail=10) as found:
        assert list(found) == [b"one\n", b"two\n"]
    assert [b"tailLines=10" in request for request in requests] == [True, True, True]
    assert not any(b"since" in request for request in requests)


def test_closed_log_ends_while_waiting_for_retry() -> None:
    busy = reply(429, {"kind": "Status", "code": 429}, "Retry-After: 100")
    with saying(busy) as (client, requests), log(client) as found:
        thread = threading.Thread(target=list, args=(found,))
        thread.start()
        until(lambda: bool(requests), 60)
        found.close()
        thread.join(60)
        assert not thread.is_alive()


def test_log_raises_error_when_retries_time_out() -> None:
    with saying(failure(503)) as (client, _):
        stream = ResumingLogStream(client, "default", "a", LogOptions(follow=True), state=lambda: GONE, limit=-1.0)
        with stream as found, pytest.raises(Unavailable):
            next(found)


def test_backoff_grows_respects_retry_after_and_times_out() -> None:
    backoffs: list[float] = []
    patience = Backoff(60, sleep=backoffs.append)
    for _ in range(20):
        patience.failed(Unavailable("away"))
    assert all(0.1 <= pause <= 5 for pause in backoffs)
    assert max(backoffs) > 2
    patience.failed(Throttled("busy", after=7))
    assert backoffs[-1] == 7
    patience.succeeded()
    patience.failed(Unavailable("away"))
    assert backoffs[-1] <= 0.2
    impatient = Backoff(-1, sleep=backoffs.append)
    with pytest.raises(Unavailable, match="for good"):
        impatient.failed(Unavailable("for good"))


JOB: Object = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": "5"},
    "spec": {},
}


SPEC: Object = {
    "tfReplicaSpecs": {
        "Worker": {"replicas": 1, "template": {"spec": {"containers": [{"name": "tensorflow", "image": "tf"}]}}}
    }
}


def with_phase(phase: str) -> Object:
    return {**JOB, "status": {"tfDist": {"phase": phase}}}


def listed(*items: Object) -> bytes:
    return reply(200, {"kind": "List", "metadata": {"resourceVersion": "5"}, "items": list(items)})


def event(kind: str, stored: Object) -> bytes:
    return chunk(json.dumps({"type": kind, "object": stored}).encode() + b"\n")


def test_wait_survives_unavailable_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    running = {**with_phase("Running"), "metadata": {**JOB["metadata"], "resourceVersion": "6"}}
    answers = (
        failure(503),
        listed(JOB),
        CHUNKED + event("MODIFIED", running)[:-9],
        CHUNKED + event("MODIFIED", running),
    )
    with saying(*answers) as (client, _):
        wait_for(client, [StoredJob(TFJOBS, JOB)], "running", None, print)
    assert capsys.readouterr().out == "tfjob/a Running\n"


def test_watcher_resumes_after_breaks() -> None:
    running = {**with_phase("Running"), "metadata": {**JOB["metadata"], "resourceVersion": "6"}}
    gone = {**running, "metadata": {**JOB["metadata"], "resourceVersion": "7"}}
    answers = (
        *(failure(503), listed(JOB), CHUNKED + event("MODIFIED", running)[:-9], b""),
        CHUNKED + event("MODIFIED", running) + event("DELETED", gone),
    )
    items: queue.Queue[Any] = queue.Queue()
    with saying(*answers) as (client, _):
        watcher = ObjectWatcher(client, TFJOBS, "default", items.put, fields="metadata.name=a")
        assert items.get(timeout=60) == ObjectChanged(TFJOBS, "ADDED", JOB)
        assert items.get(timeout=60) == ObjectsListed(TFJOBS, [JOB])
        assert items.get(timeout=60) == ObjectChanged(TFJOBS, "MODIFIED", running)
        assert items.get(timeout=60) == ObjectChanged(TFJOBS, "DELETED", running)
        watcher.close()


def test_watcher_reports_forbidden() -> None:
    items: queue.Queue[Any] = queue.Queue()
    with saying(failure(403)) as (client, _):
        watcher = ObjectWatcher(client, TFJOBS, "default", items.put)
        assert isinstance(items.get(timeout=60), Forbidden)
        watcher.close()


def test_watcher_reports_missing_kind_after_outage() -> None:
    items: queue.Queue[Any] = queue.Queue()
    with saying(failure(503), failure(404)) as (client, _):
        watcher = ObjectWatcher(client, TFJOBS, "default", items.put)
        assert isinstance(items.get(timeout=30), NotFound)
        watcher.close()


def test_job_is_recognized_after_lost_response(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "metadata": {"name": "a"}, "spec": SPEC}))
    (entry,) = load_job_files([str(tmp_path / "job.yaml")]).jobs
    taken = failure(409, "AlreadyExists")
    stored = {**JOB, "spec": {**SPEC, "added": "by the server"}}
    with saying(b"", taken, reply(200, stored), retries=1) as (client, requests):
        assert create_job(client, entry, "default").uid == "u"
    assert [request.split(b" ")[0] for request in requests] == [b"POST", b"POST", b"GET"]
    other = {**JOB, "spec": {"tfReplicaSpecs": {}}}
    for answers in ((b"", taken, reply(200, other)), (taken,)):
        with saying(*answers, retries=1) as (client, _), pytest.raises(AlreadyExists, match="there is a job a"):
            create_job(client, entry, "default")

"""The logs of a job's containers are read in threads and can be closed at any time."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.support import FixedStream, pod
from tests.controller.harness import tfjob
from tests.waiting import until
from tf_dist.client.log_follower import (
    ContainerInstance,
    InstanceState,
    LogEnded,
    LogFollower,
    LogLines,
    ResumingLogStream,
    log_opener,
)
from tf_dist.client.monitor import JobInformer, JobMonitor, ObjectsListed, SignalReceived
from tf_dist.client.stored_jobs import StoredJob
from tf_dist.cluster.api import ALL_LINES, PODS, TFJOBS, LogOptions, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.model import names
from tf_dist.core.model.status import Status

SECONDS = 60


class Endless(FixedStream):
    """A stream without lines that ends when it is closed."""

    def __init__(self) -> None:
        super().__init__([])
        self.closed = threading.Event()

    def __next__(self) -> bytes:
        assert self.closed.wait(SECONDS)
        raise StopIteration

    def close(self) -> None:
        self.closed.set()


def test_close_ends_open_and_opening_streams() -> None:
    job = StoredJob(TFJOBS, {**tfjob(), "metadata": {"name": "mnist", "namespace": "default", "uid": "u"}}).job
    labels = {names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0"}
    started = [{"name": name, "state": {"running": {}}} for name in ("open", "slow")]
    body = pod("a")
    body["metadata"] |= {"uid": "p", "labels": labels}
    streams = {"open": Endless(), "slow": Endless()}
    gate, opening, said = threading.Event(), list[str](), queue.Queue[LogLines | LogEnded]()

    def open_log(_: Object, instance: ContainerInstance) -> Any:
        opening.append(instance.container)
        assert instance.container == "open" or gate.wait(SECONDS)
        return streams[instance.container]

    following = LogFollower(job, open_log, said)
    assert following.notice({**body, "status": {"containerStatuses": started}})
    until(lambda: len(opening) == 2, SECONDS)
    assert following.pending(lambda _: True)
    following.close()
    gate.set()
    until(lambda: said.qsize() == 2, SECONDS)
    ended = sorted(said.get() for _ in range(2))
    assert ended == [LogEnded(ContainerInstance("p", name, 0)) for name in ("open", "slow")]
    assert not following.pending(lambda _: True)


def worker(state: str, uid: str = "p") -> Object:
    """A worker's pod with its container in this state."""
    body = pod("a")
    labels = {names.REPLICA_TYPE: "worker", names.REPLICA_INDEX: "0"}
    body["metadata"] |= {"namespace": "default", "uid": uid, "labels": labels}
    return {**body, "status": {"containerStatuses": [{"name": "main", "restartCount": 0, "state": {state: {}}}]}}


def stored_job() -> StoredJob:
    return StoredJob(TFJOBS, {**tfjob(), "metadata": {"name": "mnist", "namespace": "default", "uid": "u"}})


class Said(list[LogLines | LogEnded]):
    """The items that a follower has put."""

    put = list[LogLines | LogEnded].append


class Queue:
    """A pool without free threads. It stores the waiting work and whether it is urgent."""

    def __init__(self) -> None:
        self.waiting: dict[Callable[[], None], bool] = {}

    def start(self, work: Callable[[], None], urgent: bool) -> None:
        self.waiting[work] = urgent


def test_log_of_ended_container_becomes_urgent_and_is_read_once() -> None:
    queue, said = Queue(), Said()
    following = LogFollower(stored_job().job, lambda *_: FixedStream([b"step=1\n"]), said, start=queue.start)
    following.notice(worker("running", "goes on"))
    following.notice(worker("running", "ends"))

    def ended(instance: ContainerInstance) -> bool:
        return instance.pod_uid == "ends"

    assert following.expedite(ended)
    assert following.expedite(ended)
    assert [*queue.waiting.values()] == [False, True]
    follow, read = queue.waiting
    read()
    assert not following.expedite(ended)
    assert not following.pending(ended)
    for work in (read, follow):
        work()
    ends = [ContainerInstance("ends", "main", 0), ContainerInstance("goes on", "main", 0)]
    assert [one.instance for one in said if isinstance(one, LogEnded)] == ends
    assert len([one for one in said if isinstance(one, LogLines)]) == 2


class Asked:
    """A cluster with one pod and its log that records requests."""

    def __init__(self, state: str) -> None:
        self.requests: list[str] = []
        self.pod = worker(state)

    def get(self, *_: object) -> Object:
        self.requests.append("get")
        return self.pod

    def logs(self, namespace: str, name: str, options: LogOptions = ALL_LINES) -> Any:
        self.requests.append(f"logs follow={options.follow} previous={options.previous}")
        return FixedStream([b"2026-01-01T00:00:00.000000000Z step=1\n"])


@pytest.mark.parametrize(
    ("known", "requests"),
    [
        (InstanceState.ENDED, ["logs follow=False previous=False"]),
        (InstanceState.REPLACED, ["logs follow=False previous=True"]),
        (None, ["logs follow=True previous=False", "get", "logs follow=False previous=False"]),
    ],
)
def test_log_of_ended_container_takes_one_request(known: InstanceState | None, requests: list[str]) -> None:
    cluster = Asked("terminated")
    open_log = log_opener(cluster, LogOptions(follow=True), lambda *_: known)
    assert list(open_log(cluster.pod, ContainerInstance("p", "main", 0))) == [b"step=1\n"]
    assert cluster.requests == requests


def test_end_of_log_is_checked_with_informer() -> None:
    cluster, states = Asked("running"), [InstanceState.RUNNING, InstanceState.ENDED]
    open_log = log_opener(cluster, LogOptions(follow=True), lambda *_: states.pop(0))
    assert list(open_log(cluster.pod, ContainerInstance("p", "main", 0))) == [b"step=1\n"]
    assert cluster.requests == ["logs follow=True previous=False", "logs follow=False previous=False"]


class Silent:
    """A view that shows nothing. ``said`` contains the messages of tf-dist."""

    tick = None

    def __init__(self) -> None:
        self.said: list[str] = []

    def show(self, *_: object) -> None:
        pass

    def say(self, text: str, style: str = "") -> None:
        self.said.append(text)

    def close(self) -> None:
        pass


def test_rejected_pods_give_advice_once() -> None:
    view, job = Silent(), stored_job()
    rule = 'pods "a" is forbidden: violates PodSecurity "restricted:latest"'
    with JobInformer(job) as informer, MemoryCluster() as cluster:
        monitor = JobMonitor(cluster, job, view, informer, LogFollower(job.job, lambda *_: FixedStream([]), informer))
        for reason in ("", "PodsRejected", "PodsRejected"):
            status = Status(reason=reason, message=f"the cluster refuses pods of the gang: {rule}")
            monitor.snapshot = monitor.snapshot.with_objects(status, [], job.job)
            monitor.show([])
    (said,) = view.said
    assert said.startswith("what to do: add securityContext")


@pytest.mark.parametrize("signals", [0, 1])
def test_unreadable_log_is_reported_unless_job_is_interrupted(signals: int) -> None:
    view, job = Silent(), stored_job()
    unread = LogEnded(ContainerInstance("p", "tf-dist-code", 0), "container tf-dist-code is waiting to start")
    with JobInformer(job) as informer, MemoryCluster() as cluster:
        monitor = JobMonitor(cluster, job, view, informer, LogFollower(job.job, lambda *_: FixedStream([]), informer))
        monitor.show([*[SignalReceived(signal.SIGINT)] * signals, unread])
    assert view.said == ["no more lines of tf-dist-code: container tf-dist-code is waiting to start"][signals:]


QUIET = 0.05


@pytest.mark.parametrize("asked", [False, True])
def test_waiting_log_is_not_given_up(asked: bool) -> None:
    """With ``asked``, a thread reads the log, which stays silent, so the monitor gives it up."""
    queue, stream, view, job = Queue(), Endless(), Silent(), stored_job()
    with JobInformer(job) as informer, MemoryCluster() as cluster:
        following = LogFollower(job.job, lambda *_: stream, informer, start=queue.start)
        monitor = JobMonitor(cluster, job, view, informer, following)
        informer.put(ObjectsListed(PODS, [worker("terminated")]))
        monitor.show(informer.take(0))
        thread = threading.Thread(target=next(iter(queue.waiting)), daemon=True)
        if asked:
            thread.start()
            until(lambda: not following.expedite(lambda _: True), SECONDS)
        steps, begun = monitor.drain(quiet=QUIET), time.monotonic()
        left = next(steps, None)
        while left and (asked or time.monotonic() < begun + 4 * QUIET):
            assert isinstance(left, float)
            try:
                left = steps.send(informer.take(left))
            except StopIteration:
                left = None
        assert bool(left) is not asked
        assert any("could not be read in time" in text for text in view.said) is asked
        stream.close()
        following.close()


@given(st.data())
def test_lines_arrive_once_after_broken_connections(data: st.DataObject) -> None:
    """Times of lines may be equal. The reader gets chunks of whole lines, and reads again after each break."""
    moments = sorted(data.draw(st.lists(st.integers(0, 3_000), min_size=1, max_size=30)))
    lines = [f"2026-11-27T12:00:0{at // 1000}.{at % 1000:03}Z line {n}\n".encode() for n, at in enumerate(moments)]
    breaks = data.draw(st.lists(st.integers(0, len(lines)), max_size=3))

    def logs(*given: Any) -> FixedStream:
        since = (given[-1].since_time or "")[:19].encode()
        present = [line for line in lines[: breaks.pop() if breaks else None] if line[:19] >= since]
        pieces = []
        while present:
            size = data.draw(st.integers(1, len(present)))
            pieces.append(b"".join(present[:size]))
            present = present[size:]
        return FixedStream(pieces)

    reader: Any = SimpleNamespace(logs=logs)
    states = [InstanceState.RUNNING] * len(breaks)
    stream = ResumingLogStream(
        reader,
        "default",
        "a",
        LogOptions(follow=True),
        state=lambda: states.pop() if states and breaks else InstanceState.ENDED,
        settle=0.0,
    )
    assert b"".join(stream).splitlines() == [line[25:-1] for line in lines]


class Again(FixedStream):
    """A stream that repeats an old line each time the test allows it, and ends when it is closed."""

    def __init__(self) -> None:
        super().__init__([])
        self.go, self.closed = threading.Semaphore(0), False

    def __next__(self) -> bytes:
        assert self.go.acquire(timeout=SECONDS)
        if self.closed:
            raise StopIteration
        return b"2026-11-27T12:00:01Z one\n"

    def close(self) -> None:
        self.closed = True
        self.go.release()


def test_log_that_repeats_lines_is_not_given_up() -> None:
    """If a log has a million lines in its last second, the second reading returns no new line for a long time."""
    again, view, job, quiet = Again(), Silent(), stored_job(), 1.0
    first = [b"2026-11-27T12:00:01Z one\n", b"2026-11-27T12:00:02Z two\n"]
    reader: Any = SimpleNamespace(logs=lambda *given: FixedStream(first) if given[-1].follow else again)
    stream = ResumingLogStream(
        reader, "default", "a", LogOptions(follow=True), state=lambda: InstanceState.ENDED, settle=0.0
    )
    with JobInformer(job) as informer, MemoryCluster() as cluster:
        following = LogFollower(job.job, lambda *_: stream, informer)
        monitor = JobMonitor(cluster, job, view, informer, following)
        informer.put(ObjectsListed(PODS, [worker("terminated")]))
        monitor.show(informer.take(0))
        until(lambda: following.line_at(lambda _: True) > 0, SECONDS)
        steps, begun = monitor.drain(quiet=quiet), time.monotonic()
        assert next(steps)
        while time.monotonic() < begun + 1.5 * quiet:
            before = following.line_at(lambda _: True)
            again.go.release()
            until(lambda before=before: following.line_at(lambda _: True) > before, SECONDS)
            steps.send(informer.take(0))
        again.close()
        until(lambda: not following.pending(lambda _: True), SECONDS)
        with suppress(StopIteration):
            while True:
                steps.send(informer.take(0))
        assert view.said == []

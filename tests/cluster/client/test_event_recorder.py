"""Events of jobs: repeated events are counted, and the number of writes is limited."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.harness import START, Clock, tfjob
from tests.waiting import until
from tf_dist.cluster.api import EVENTS, TFJOBS, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.client.event_recorder import EventRateLimiter, EventRecorder, event_name
from tf_dist.cluster.client.retries import fence_seconds_left
from tf_dist.controller.leader_election import LeadershipLost
from tf_dist.core.model.context import EmitEvent
from tf_dist.errors import AlreadyExists, Forbidden, Throttled, Unavailable

STARTED = EmitEvent("Normal", "Started", "all pods run")


class Counting:
    """Forwards calls to a cluster and records them."""

    def __init__(self, inner: MemoryCluster) -> None:
        self._inner = inner
        self.calls: list[str] = []
        self.refuses = False

    def __getattr__(self, verb: str) -> Any:
        self.calls.append(verb)
        if self.refuses:
            raise Forbidden("may not create events")
        return getattr(self._inner, verb)


class Desk:
    """A recorder with events of one job."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.memory = MemoryCluster(clock=self.clock)
        self.cluster = Counting(self.memory)
        self.job = self.memory.create(TFJOBS, "default", tfjob())
        self.writer = self.another()

    def another(self) -> EventRecorder:
        return EventRecorder(
            self.cluster,  # type: ignore[arg-type]  # by __getattr__
            self.clock,
            "tf-dist",
            permission=lambda: math.inf,
            monotonic=self.clock,
        )

    def say(self, event: EmitEvent = STARTED, seconds: float = 0.0) -> None:
        self.clock.now += seconds
        self.writer.emit(TFJOBS, "default", self.job, event)

    def events(self) -> list[Object]:
        return self.memory.list(EVENTS, "default").items

    def counts(self) -> list[int]:
        return [event["count"] for event in self.events()]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_event_involves_job(desk: Desk) -> None:
    desk.say()
    (event,) = desk.events()
    assert event["metadata"]["name"] == event_name(desk.job, STARTED)
    assert event["involvedObject"] == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "name": "mnist",
        "namespace": "default",
        "uid": desk.job["metadata"]["uid"],
    }
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "Started", "all pods run")
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2027-01-15T08:00:00Z"
    assert event["source"] == {"component": "tf-dist"}


def test_repeated_event_is_written_once_a_minute(desk: Desk) -> None:
    for _ in range(13):
        desk.say(seconds=10)
    assert desk.counts() == [13]
    assert desk.cluster.calls == ["create", "patch", "patch"]
    (event,) = desk.events()
    assert event["lastTimestamp"] > event["firstTimestamp"]


def test_different_type_or_message_is_another_event(desk: Desk) -> None:
    desk.say()
    desk.say(EmitEvent("Warning", "Started", "all pods run"))
    desk.say(EmitEvent("Normal", "Started", "all pods but one run"))
    assert desk.counts() == [1, 1, 1]


def test_next_controller_continues_count(desk: Desk) -> None:
    for _ in range(5):
        desk.say(seconds=61)
    assert desk.counts() == [5]
    desk.writer = desk.another()
    desk.say(seconds=61)
    assert desk.counts() == [5]
    desk.say(seconds=61)
    assert desk.counts() == [7]
    assert "get" not in desk.cluster.calls, "a driver may not read events"


def test_next_controller_continues_count_after_refused_write(desk: Desk) -> None:
    for _ in range(5):
        desk.say(seconds=61)
    desk.writer = desk.another()
    desk.cluster.refuses = True
    desk.say(seconds=61)
    desk.cluster.refuses = False
    desk.say(seconds=61)
    desk.say(seconds=61)
    assert desk.counts() == [8]


def test_expired_event_is_created_again(desk: Desk) -> None:
    desk.say()
    desk.memory.delete(EVENTS, "default", event_name(desk.job, STARTED))
    desk.say(seconds=61)
    assert desk.counts() == [2]


def test_count_restarts_after_an_hour(desk: Desk) -> None:
    desk.say()
    desk.memory.delete(EVENTS, "default", event_name(desk.job, STARTED))
    desk.say(seconds=3601)
    assert desk.counts() == [1]
    assert desk.cluster.calls == ["create", "create"]


def test_events_of_job_are_rate_limited(desk: Desk) -> None:
    for number in range(100):
        desk.say(EmitEvent("Normal", "Noise", f"number {number}"))
    assert len(desk.events()) == 10
    for number in range(100, 130):
        desk.say(EmitEvent("Normal", "Noise", f"number {number}"), seconds=5)
    assert len(desk.events()) == 25


def test_suppressed_event_is_written_when_repeated_later(desk: Desk) -> None:
    for number in range(10):
        desk.say(EmitEvent("Normal", "Noise", f"number {number}"))
    desk.say()
    assert len(desk.events()) == 10
    desk.say(seconds=20)
    assert max(desk.counts()) == 2


def test_refused_write_does_not_stop_recorder(desk: Desk) -> None:
    desk.cluster.refuses = True
    desk.say()
    desk.cluster.refuses = False
    desk.say(seconds=61)
    assert desk.counts() == [2]


def test_clock_jump_does_not_stop_recorder(desk: Desk) -> None:
    desk.say()
    desk.say(seconds=-86_400)
    desk.say(seconds=61)
    assert len(desk.events()) == 1
    assert desk.clock.now < START


@pytest.mark.parametrize("name", ["a" * 253, "a" * 239 + "-" + "b" * 13, "x.y"])
def test_event_name_is_valid(name: str, desk: Desk) -> None:
    stored = {**desk.job, "metadata": {**desk.job["metadata"], "name": name}}
    desk.writer.emit(TFJOBS, "default", stored, EmitEvent("Normal", "Long", "x" * 5000))
    (event,) = desk.events()
    assert len(event["metadata"]["name"]) <= 253
    assert "-." not in event["metadata"]["name"]
    assert len(event["message"]) == 1024


def test_series_and_budgets_are_bounded(desk: Desk) -> None:
    budget = EventRateLimiter(desk.clock, burst=1000, most=5)
    writer = EventRecorder(desk.memory, desk.clock, "tf-dist", permission=lambda: math.inf, budget=budget, most=5)
    for number in range(50):
        writer.emit(TFJOBS, "default", desk.job, EmitEvent("Normal", "Noise", str(number)))
    assert len(writer._series) == 5
    budget = EventRateLimiter(desk.clock, burst=1, most=5)
    for number in range(50):
        budget.allow(str(number))
    assert len(budget._buckets) == 5


# With a thread


class Door:
    """Creations wait until ``open`` is set. The first creations raise ``refusals``."""

    def __init__(self, inner: MemoryCluster, *refusals: Exception) -> None:
        self._inner = inner
        self._refusals = list(refusals)
        self.open, self.knocked = threading.Event(), threading.Event()

    def create(self, *args: Any) -> Object:
        self.knocked.set()
        assert self.open.wait(30)
        if self._refusals:
            raise self._refusals.pop(0)
        return self._inner.create(*args)


def noise(number: int) -> EmitEvent:
    return EmitEvent("Normal", "Noise", f"number {number}")


def started(desk: Desk, door: Door, **settings: Any) -> tuple[EventRecorder, Counter[str]]:
    results: Counter[str] = Counter()

    def tried(result: str) -> None:
        results[result] += 1

    writer = EventRecorder(door, desk.clock, "tf-dist", permission=lambda: math.inf, tried=tried, **settings)  # type: ignore[arg-type]  # creates only
    writer.start()
    return writer, results


def test_emit_does_not_block_and_stop_writes_remaining_events(desk: Desk) -> None:
    door = Door(desk.memory)
    writer, results = started(desk, door, burst=1, per_second=0.001)
    for number in range(5):
        writer.emit(TFJOBS, "default", desk.job, noise(number))
    assert desk.events() == []
    door.open.set()
    writer.stop()
    assert {event["message"] for event in desk.events()} == {f"number {number}" for number in range(5)}
    assert results == {"ok": 5}


def test_events_beyond_queue_size_are_dropped_and_counted(desk: Desk) -> None:
    door = Door(desk.memory)
    writer, results = started(desk, door, queue=3)
    writer.emit(TFJOBS, "default", desk.job, noise(0))
    assert door.knocked.wait(30)
    writer.emit(TFJOBS, "default", desk.job, *(noise(number) for number in range(1, 6)))
    assert results == {"Dropped": 2}
    door.open.set()
    writer.stop()
    assert results == {"Dropped": 2, "ok": 4}


def test_repeats_before_write_are_one_write(desk: Desk) -> None:
    door = Door(desk.memory)
    writer, _ = started(desk, door)
    writer.emit(TFJOBS, "default", desk.job, noise(0))
    assert door.knocked.wait(30)
    for _ in range(4):
        writer.emit(TFJOBS, "default", desk.job, STARTED)
    door.open.set()
    writer.stop()
    assert sorted(desk.counts()) == [1, 4]


def test_throttled_event_is_retried(desk: Desk) -> None:
    door = Door(desk.memory, Throttled("busy", after=0.001))
    writer, results = started(desk, door)
    door.open.set()
    writer.emit(TFJOBS, "default", desk.job, STARTED)
    until(lambda: results["ok"] == 1, 30)
    assert results == {"Throttled": 1, "ok": 1}
    writer.stop()


def test_stop_does_not_wait_for_throttling_server(desk: Desk) -> None:
    door = Door(desk.memory, *(Throttled("busy", after=3600.0) for _ in range(3)))
    writer, results = started(desk, door)
    writer.emit(TFJOBS, "default", desk.job, STARTED)
    door.open.set()
    until(lambda: results["Throttled"] == 1, 30)
    writer.stop()
    assert results == {"Throttled": 1, "Dropped": 1}


class Lossy(Door):
    """Creations raise Unavailable if ``fails(message)``. If ``done``, they create the event before they raise."""

    def __init__(self, inner: MemoryCluster, *, fails: Callable[[str], bool], done: bool = False) -> None:
        super().__init__(inner)
        self._fails, self._done = fails, done
        self.tried: list[str] = []
        self.open.set()

    def create(self, *args: Any) -> Object:
        self.tried.append(args[-1]["message"])
        failed = self._fails(self.tried[-1])
        if self._done or not failed:
            super().create(*args)
        if failed:
            raise Unavailable("no answer")
        return args[-1]

    def patch(self, *args: Any) -> Object:
        return self._inner.patch(*args)


def test_failing_event_does_not_delay_others(desk: Desk) -> None:
    door = Lossy(desk.memory, fails=lambda message: message == "number 0")
    writer, results = started(desk, door, monotonic=desk.clock)
    writer.emit(TFJOBS, "default", desk.job, *(noise(number) for number in range(5)))
    until(lambda: results == {"Unavailable": 1, "ok": 4}, 30)  # the clock has not advanced
    for tries in range(2, 6):
        desk.clock.now += 10.0
        writer.emit(TFJOBS, "default", desk.job, noise(tries * 10))
        until(lambda tries=tries: results["Unavailable"] == tries, 30)  # type: ignore[misc]
    until(lambda: results == {"Unavailable": 5, "ok": 8, "Dropped": 1}, 30)
    writer.stop()
    assert len(desk.events()) == 8


def test_long_retry_after_is_shortened(desk: Desk) -> None:
    door = Door(desk.memory, Throttled("busy", after=3600.0))
    door.open.set()
    writer, results = started(desk, door, monotonic=desk.clock)
    writer.emit(TFJOBS, "default", desk.job, STARTED)
    until(lambda: results["Throttled"] == 1, 30)
    desk.clock.now += 10.0
    writer.emit(TFJOBS, "default", desk.job, noise(1))
    until(lambda: results["ok"] == 2, 30)
    writer.stop()


def test_error_does_not_end_thread(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    door = Door(desk.memory, ValueError("a defect"))
    door.open.set()
    writer, results = started(desk, door)
    writer.emit(TFJOBS, "default", desk.job, noise(0), noise(1))
    until(lambda: results["ok"] == 1, 30)
    writer.stop()
    assert "a defect" in caplog.text
    assert [event["message"] for event in desk.events()] == ["number 1"]


class Slow:
    """The creation of an existing event lasts until the deadline of the recorder's stop has passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begun = threading.Event()
        self.patched = False

    def create(self, *_: Any) -> Object:
        self.begun.set()
        until(lambda: fence_seconds_left() <= 2.0, 30)
        self._clock.now += 2.0
        raise AlreadyExists("it is there")

    def patch(self, *_: Any) -> Object:
        fence_seconds_left()  # as a client does before every request
        self.patched = True
        return {}


def test_recorder_writes_nothing_after_stop_deadline(desk: Desk) -> None:
    slow = Slow(desk.clock)
    writer, results = started(desk, slow, monotonic=desk.clock)  # type: ignore[arg-type]
    writer.emit(TFJOBS, "default", desk.job, STARTED)
    assert slow.begun.wait(30)
    writer.stop()
    assert not slow.patched
    assert results == {"Unavailable": 1, "Dropped": 1}


def routine(number: int) -> EmitEvent:
    return EmitEvent("Normal", "SuccessfulCreatePod", f"pod {number}", routine=True)


def test_routine_events_have_lower_priority(desk: Desk) -> None:
    door = Lossy(desk.memory, fails=lambda _: False)
    door.open.clear()
    writer, results = started(desk, door, queue=4)
    writer.emit(TFJOBS, "default", desk.job, noise(0))
    assert door.knocked.wait(30)
    writer.emit(TFJOBS, "default", desk.job, *(routine(number) for number in range(4)))
    writer.emit(TFJOBS, "default", desk.job, *(noise(number) for number in range(1, 4)))
    writer.emit(TFJOBS, "default", desk.job, routine(4))
    assert results == {"Dropped": 4}
    door.open.set()
    writer.stop()
    assert door.tried == ["number 0", "number 1", "number 2", "number 3", "pod 0"]


def test_event_with_lost_response_is_counted_once(desk: Desk) -> None:
    lost = iter([True])
    door = Lossy(desk.memory, fails=lambda _: next(lost, False), done=True)
    writer, results = started(desk, door, monotonic=desk.clock)
    writer.emit(TFJOBS, "default", desk.job, STARTED)
    until(lambda: results["Unavailable"] == 1, 30)
    desk.clock.now += 5.0
    writer.emit(TFJOBS, "default", desk.job, noise(1))
    until(lambda: results["ok"] == 2, 30)
    desk.clock.now += 61.0
    writer.emit(TFJOBS, "default", desk.job, STARTED)
    until(lambda: results["ok"] == 3, 30)
    writer.stop()
    assert sorted(desk.counts()) == [1, 2]


def test_queued_message_is_truncated(desk: Desk) -> None:
    due = desk.writer._due(TFJOBS, "default", desk.job, EmitEvent("Normal", "Created", "x" * 40_000))
    assert due is not None
    assert len(due.body["message"]) == 1024


def test_recorder_without_leadership_writes_no_event(desk: Desk) -> None:
    def permission() -> float:
        raise LeadershipLost("another drives")

    writer = EventRecorder(desk.memory, desk.clock, "tf-dist", permission=permission)
    writer.emit(TFJOBS, "default", desk.job, STARTED)
    assert desk.events() == []


@given(steps=st.lists(st.tuples(st.floats(0, 100), st.sampled_from("ab")), max_size=200))
def test_rate_limiter_never_exceeds_budget(steps: list[tuple[float, str]]) -> None:
    now = 0.0
    budget = EventRateLimiter(lambda: now, burst=3, every=10.0)
    granted: dict[str, list[float]] = {"a": [], "b": []}
    for seconds, job in steps:
        now += seconds
        if budget.allow(job):
            granted[job].append(now)
    assert all(granted[job] for _, job in steps), "the first of each is within any budget"
    for moments in granted.values():
        for first, begun in enumerate(moments):
            for last in range(first, len(moments)):
                assert last - first + 1 <= 3 + (moments[last] - begun) / 10 + 1e-6

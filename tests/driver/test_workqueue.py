"""The work queue runs on a clock that only goes forward, and holds no more than one entry a key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.driver.harness import START, World, tfjob
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS, Resource
from tf_dist.driver.loop import Driver
from tf_dist.driver.workqueue import WorkQueue
from tf_dist.errors import Unavailable

SECONDS = 60.0


class Time:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_keys_come_when_they_are_due_earliest_first(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("later", 5.0)
    queue.add("now")
    queue.add("soon", 1.0)
    assert queue.take() == ["now"]
    time.now += 5
    assert queue.take() == ["soon", "later"]
    assert queue.take() == []


def test_the_earlier_of_two_wishes_counts(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("a", 1.0)
    queue.add("a", 9.0)
    time.now += 1
    assert queue.take() == ["a"]
    queue.add("a", 9.0)
    queue.add("a", 1.0)
    time.now += 1
    assert queue.take() == ["a"]
    time.now += 9
    assert queue.take() == []


def test_events_until_a_distant_deadline_leave_nothing_behind(time: Time) -> None:
    """Every event of a job with a deadline ends with the wish to be looked at when that falls."""
    queue: WorkQueue[int] = WorkQueue(time)
    for number in range(20_000):
        key = number % 10
        queue.add(key)
        assert queue.take() == [key]
        queue.add(key, 86_400.0 - time.now)
        time.now += 0.001
    assert len(queue) == 10
    assert queue.entries <= 100


def test_the_pause_doubles_with_every_failure_in_a_row_up_to_a_limit(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    pauses = [queue.retry("a") for _ in range(12)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-2:] == [30.0, 30.0]
    assert (queue.failures("a"), queue.retries) == (12, 12)
    assert queue.retry("b") == 0.1
    assert queue.retry("b", after=7.0) == 7.0
    queue.succeeded("a")
    assert (queue.failures("a"), queue.retry("a")) == (0, 0.1)


def test_a_wish_that_an_earlier_one_has_replaced_is_granted_once(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("a", 10.0)
    queue.add("a", 1.0)
    time.now += 1.0
    assert queue.take() == ["a"]
    queue.add("a", 60.0)
    time.now += 9.0  # that is when the first wish would have been due
    assert queue.take() == []
    time.now += 51.0
    assert queue.take() == ["a"]


def test_who_is_woken_once_waits_again(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.wake()
    assert queue.wait(SECONDS) == [], "at once"
    waited: list[list[str]] = []
    waiting = threading.Thread(target=lambda: waited.append(queue.wait(SECONDS)), daemon=True)
    waiting.start()
    queue.add("a")
    waiting.join(SECONDS)
    assert waited == [["a"]]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1000), st.booleans()), max_size=300))
def test_it_holds_a_few_entries_a_key_whatever_is_wished(steps: list[tuple[int, float, bool]]) -> None:
    time, wishes = Time(), dict[int, float]()
    queue: WorkQueue[int] = WorkQueue(time)
    for key, after, takes in steps:
        queue.add(key, after)
        wishes[key] = min(wishes.get(key, float("inf")), time.now + after)
        assert queue.entries <= 64 + 2 * len(queue)
        if takes:
            time.now += after / 2
            due = {key for key, at in wishes.items() if at <= time.now}
            assert set(queue.take()) == due
            wishes = {key: at for key, at in wishes.items() if key not in due}
    assert len(queue) == len(wishes)


class Wall:
    """The wall clock of the machine, which somebody sets."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return START + self.offset


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def stumbling(world: World, wall: Wall) -> Iterator[Driver]:
    """A driver whose first creation of a pod fails, just as the wall clock is set back by an hour."""
    tries = count(1)

    class Wire:
        def __getattr__(self, verb: str) -> object:
            return getattr(world.memory, verb)

        def create(self, resource: Resource, *args: object, **kwargs: object) -> object:
            if resource == PODS and next(tries) == 1:
                wall.offset -= 3600
                raise Unavailable("create pods: no answer")
            return world.memory.create(resource, *args, **kwargs)  # type: ignore[arg-type]

    driver = Driver(Wire(), clock=wall)  # type: ignore[arg-type]
    driver.start()
    yield driver
    driver.stop()


@pytest.fixture
def world() -> World:
    return World()


def test_a_wall_clock_that_is_set_back_delays_no_retry(world: World, stumbling: Driver) -> None:
    world.submit(tfjob())
    until(lambda: len(world.pods()) == 3, SECONDS)


def test_a_wall_clock_that_is_set_forward_makes_deadlines_fire(world: World, wall: Wall) -> None:
    driver = Driver(world.memory, clock=wall)
    driver.start()
    try:
        world.submit(tfjob(activeDeadlineSeconds=3600))
        until(lambda: len(world.pods()) == 3, SECONDS)
        world.run_pods()
        until(lambda: world.status().get("phase") == "Running", SECONDS)
        wall.offset += 7200
        driver.wake()  # it comes round by itself every few seconds
        until(lambda: world.status().get("phase") == "Failed", SECONDS)
        assert world.status()["reason"] == "DeadlineExceeded"
    finally:
        driver.stop()


def test_what_a_driver_wrote_whose_clock_was_ahead_postpones_nothing(world: World, wall: Wall) -> None:
    ahead = Driver(world.memory, clock=lambda: wall() + 3600)
    world.submit(tfjob(workers=3))
    while ahead.step():
        pass
    world.run_pods()
    while ahead.step():
        pass
    assert world.status()["phase"] == "Running"
    driver = Driver(world.memory, clock=wall)
    driver.start()
    try:
        world.end_pod("mnist-worker-1", 0)
        until(lambda: world.status().get("succeeded", {}) != {}, SECONDS)
        assert world.memory.get(TFJOBS, "default", "mnist")["status"]["replicaStatuses"]["Worker"]["succeeded"] == 1
    finally:
        driver.stop()

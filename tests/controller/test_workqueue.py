"""The work queue uses a monotonic clock, and holds at most one entry for each key.

Routine checks of jobs are spread over a period, and never come before changed jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.harness import START, RunningClock, World, disturbed, tfjob
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS, Resource
from tf_dist.cluster.client.workqueue import Lane, ResyncSchedule, TokenBucket, WorkQueue
from tf_dist.controller.controller import Controller
from tf_dist.controller.observability.metrics_interface import Metric, MetricsRecorder
from tf_dist.controller.settings import ControllerSettings, JobRef
from tf_dist.errors import Unavailable

SECONDS = 60.0


class Time:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def take(queue: WorkQueue[Any]) -> list[Any]:
    """All queued keys, in the order in which a single worker takes them."""
    keys = []
    while (found := queue.get(0.0)) is not None:
        keys.append(found[0])
    for key in keys:
        queue.done(key)
    return keys


def test_keys_are_taken_when_due_earliest_first(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("later", 5.0)
    queue.add("now")
    queue.add("soon", 1.0)
    assert take(queue) == ["now"]
    time.now += 5
    assert take(queue) == ["soon", "later"]
    assert take(queue) == []


def test_earlier_of_two_due_times_counts(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("a", 1.0)
    queue.add("a", 9.0)
    time.now += 1
    assert take(queue) == ["a"]
    queue.add("a", 9.0)
    queue.add("a", 1.0)
    time.now += 1
    assert take(queue) == ["a"]
    time.now += 9
    assert take(queue) == []


def test_many_adds_before_distant_deadline_do_not_grow_heap(time: Time) -> None:
    """After every event of a job with a deadline, the job is queued for its deadline."""
    queue: WorkQueue[int] = WorkQueue(time)
    for number in range(20_000):
        key = number % 10
        queue.add(key)
        assert take(queue) == [key]
        queue.add(key, 86_400.0 - time.now)
        time.now += 0.001
    assert len(queue) == 10
    assert len(queue._heap) <= 100


def test_retry_delay_doubles_up_to_limit(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    backoffs = [queue.retry("a") for _ in range(12)]
    assert backoffs[:4] == [0.1, 0.2, 0.4, 0.8]
    assert backoffs[-2:] == [30.0, 30.0]
    assert (queue.failures("a"), queue.retries) == (12, 12)
    assert queue.retry("b") == 0.1
    assert queue.retry("b", after=7.0) == 7.0
    queue.succeeded("a")
    assert (queue.failures("a"), queue.retry("a")) == (0, 0.1)


def test_key_with_replaced_due_time_is_taken_once(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("a", 10.0)
    queue.add("a", 1.0)
    time.now += 1.0
    assert take(queue) == ["a"]
    queue.add("a", 60.0)
    time.now += 9.0  # the due time of the first add
    assert take(queue) == []
    time.now += 51.0
    assert take(queue) == ["a"]


def test_worker_waits_for_key_or_close_of_queue(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    taken: list[Any] = []
    worker = threading.Thread(target=lambda: taken.extend((queue.get(), queue.get())), daemon=True)
    worker.start()
    queue.add("a")
    until(lambda: queue.passes() == {"a": 100.0}, SECONDS)
    queue.close()
    worker.join(SECONDS)
    assert taken == [("a", 100.0), None]


def test_one_worker_handles_key_and_key_added_meanwhile_is_taken_again(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("a")
    queue.add("a")
    assert queue.get(0.0) == ("a", 100.0)
    time.now += 1
    queue.add("a")
    assert queue.get(0.0) is None, "one worker is at it"
    queue.done("a")
    assert queue.get(0.0) == ("a", 101.0)
    queue.done("a")
    assert queue.get(0.0) is None


def test_key_that_becomes_due_during_work_is_taken_after_done(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("a")
    queue.get(0.0)
    queue.add("a", 1.0)
    time.now += 1
    assert queue.get(0.0) is None
    queue.done("a")
    assert queue.get(0.0) == ("a", 101.0)


def test_clear_marks_keys_that_workers_process(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("a")
    queue.get()
    assert not queue.cleared("a")
    queue.clear()
    assert queue.cleared("a")
    queue.add("a")
    queue.done("a")
    queue.get()
    assert not queue.cleared("a")


def test_groups_take_turns_regardless_of_number_of_keys(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time, group=lambda key: key[0])
    for key in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        queue.add(key)
    queue.add("a5", lane=Lane.FIRST)
    queue.add("b3", lane=Lane.ROUTINE)
    assert take(queue) == ["a5", "a1", "b1", "c1", "a2", "b2", "a3", "a4", "b3"]


def test_group_does_not_use_more_workers_than_allowed(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time, group=lambda key: key[0], most=2)
    for key in ("a1", "a2", "a3"):
        queue.add(key)
    assert [queue.get(0.0), queue.get(0.0), queue.get(0.0)] == [("a1", 100.0), ("a2", 100.0), None]
    queue.add("b1")
    assert queue.get(0.0) == ("b1", 100.0)
    taken: list[Any] = []
    worker = threading.Thread(target=lambda: taken.append(queue.get()), daemon=True)
    worker.start()
    queue.done("a1")
    worker.join(SECONDS)
    assert taken == [("a3", 100.0)]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1000), st.booleans()), max_size=300))
def test_heap_size_is_bounded_by_number_of_keys(steps: list[tuple[int, float, bool]]) -> None:
    time, wishes = Time(), dict[int, float]()
    queue: WorkQueue[int] = WorkQueue(time)
    for key, after, takes in steps:
        queue.add(key, after)
        wishes[key] = min(wishes.get(key, float("inf")), time.now + after)
        assert len(queue._heap) <= 64 + 2 * len(queue)
        if takes:
            time.now += after / 2
            due = {key for key, at in wishes.items() if at <= time.now}
            assert set(take(queue)) == due
            wishes = {key: at for key, at in wishes.items() if key not in due}
    assert len(queue) == len(wishes)


class Wall:
    """The wall clock of the machine, which the test sets."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return START + self.offset


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def stumbling(world: World, wall: Wall) -> Iterator[Controller]:
    """A controller whose first creation of a pod fails while the wall clock is set back by an hour."""
    tries = count(1)

    class Wire:
        def __getattr__(self, verb: str) -> object:
            return getattr(world.memory, verb)

        def create(self, resource: Resource, *args: object, **kwargs: object) -> object:
            if resource == PODS and next(tries) == 1:
                wall.offset -= 3600
                raise Unavailable("create pods: no answer")
            return world.memory.create(resource, *args, **kwargs)  # type: ignore[arg-type]

    driver = Controller(Wire(), clock=wall)  # type: ignore[arg-type]
    driver.start()
    yield driver
    driver.stop()


@pytest.fixture
def world() -> World:
    return World()


def test_wall_clock_set_back_does_not_delay_retry(world: World, stumbling: Controller) -> None:
    world.submit(tfjob())
    until(lambda: len(world.pods()) == 3, SECONDS)


def test_wall_clock_set_forward_triggers_deadline(world: World, wall: Wall) -> None:
    driver = Controller(world.memory, clock=wall)
    driver.start()
    try:
        world.submit(tfjob(activeDeadlineSeconds=3600))
        until(lambda: len(world.pods()) == 3, SECONDS)
        world.run_pods()
        until(lambda: world.status().get("phase") == "Running", SECONDS)
        wall.offset += 7200
        driver.wake()  # otherwise the loop runs only every few seconds
        until(lambda: world.status().get("phase") == "Failed", SECONDS)
        assert world.status()["reason"] == "DeadlineExceeded"
    finally:
        driver.stop()


def test_status_written_by_controller_with_clock_ahead_delays_nothing(world: World, wall: Wall) -> None:
    ahead = Controller(world.memory, clock=lambda: wall() + 3600)
    world.submit(tfjob(workers=3))
    while ahead.step():
        pass
    world.run_pods()
    while ahead.step():
        pass
    assert world.status()["phase"] == "Running"
    driver = Controller(world.memory, clock=wall)
    driver.start()
    try:
        world.end_pod("mnist-worker-1", 0)
        until(lambda: world.status().get("succeeded", {}) != {}, SECONDS)
        assert world.memory.get(TFJOBS, "default", "mnist")["status"]["replicaStatuses"]["Worker"]["succeeded"] == 1
    finally:
        driver.stop()


PERIOD = 300.0


class Looks(MetricsRecorder):
    """Counts the passes of jobs."""

    def __init__(self) -> None:
        self.total = 0

    def record(self, metric: Metric, *labels: str, value: float = 1.0) -> None:
        self.total += metric is Metric.RECONCILE_SECONDS


@pytest.fixture
def looks() -> Looks:
    return Looks()


def seen(driver: Controller, looks: Looks) -> int:
    """The number of unchanged jobs that a step checks."""
    before = looks.total
    driver.step(())
    return looks.total - before


def rest(driver: Controller) -> None:
    """Run the controller until no work and no unread changes are left."""
    while driver.step():
        pass
    driver.step(())


# Routine checks of a controller


def test_jobs_are_checked_once_a_period_and_spread_over_time(world: World, looks: Looks) -> None:
    driver = Controller(
        world.memory,
        clock=world.clock,
        monotonic=world.clock,
        recorder=looks,
        settings=ControllerSettings(resync=PERIOD, resync_waiting=PERIOD),
    )
    for number in range(60):
        world.submit(tfjob(f"job-{number}", workers=50))  # waits forever
    rest(driver)
    for _ in range(3):
        found = []
        for _ in range(60):
            world.clock.now += PERIOD / 60
            found.append(seen(driver, looks))
        assert sum(found) == 60
        assert max(found) <= 12


def test_deleted_job_leaves_resync_schedules(world: World) -> None:
    settings = ControllerSettings(resync=PERIOD, resync_waiting=PERIOD)
    driver = Controller(world.memory, clock=world.clock, monotonic=world.clock, settings=settings)
    world.submit(tfjob(workers=50))
    rest(driver)
    schedules = (driver._resync, driver._resync_waiting)
    assert all(one.pause(world.clock.now, PERIOD) < PERIOD for one in schedules)
    world.memory.delete(TFJOBS, "default", "mnist")
    rest(driver)
    assert all(one.pause(world.clock.now, PERIOD) == PERIOD for one in schedules)


def test_waiting_job_is_checked_more_often_until_admitted(world: World, looks: Looks) -> None:
    settings = ControllerSettings(resync=10 * PERIOD, resync_waiting=PERIOD)
    driver = Controller(world.memory, clock=world.clock, monotonic=world.clock, recorder=looks, settings=settings)

    def within(seconds: float) -> int:
        found = 0
        for _ in range(20):
            world.clock.now += seconds / 20
            found += seen(driver, looks)
        return found

    world.submit(tfjob(workers=50))
    rest(driver)
    assert within(3 * PERIOD) == 3
    world.memory.delete(TFJOBS, "default", "mnist")
    world.submit(tfjob())
    rest(driver)
    world.run_pods()
    rest(driver)
    world.clock.now += PERIOD  # delayed writes of the status are done by now
    rest(driver)
    # The checks of the two schedules do not coincide, so three longer periods contain three checks.
    assert within(30 * PERIOD) == 3


def test_new_job_precedes_initial_checks_of_existing_jobs() -> None:
    """A new controller checks twenty jobs one by one when another job is submitted."""
    world = World(clock=RunningClock())
    for number in range(20):
        world.submit(tfjob(f"old-{number}", workers=1, ps=0, suspend=True))
    world.settle()
    for number in range(20):  # each job needs a write, but no decision
        world.memory.patch(TFJOBS, "default", f"old-{number}", {"spec": {"runPolicy": {"backoffLimit": 7}}})
    written: list[str] = []
    gate = threading.Event()

    def before(verb: str, resource: Any, namespace: Any = None, name: Any = None, *_: Any, **__: Any) -> None:
        if resource == TFJOBS and verb in ("replace", "patch"):
            written.append(str(name))
            assert gate.wait(SECONDS)

    driver = Controller(disturbed(world.memory, before), clock=world.clock, settings=ControllerSettings(workers=1))
    driver.start()
    try:
        until(lambda: driver.readings().work.depth == 19 and len(written) == 1, SECONDS)
        world.submit(tfjob("new"))
        until(lambda: driver.readings().work.depth == 20, SECONDS)
        gate.set()
        until(lambda: {f"old-{number}" for number in range(20)} < set(written), SECONDS)
    finally:
        gate.set()
        driver.stop()
    assert written[1] == "new"


# The order of queued keys


def test_lanes_are_taken_in_order_of_priority(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    for key in ("a", "b"):
        queue.add(key, lane=Lane.ROUTINE)
    for key in ("x", "y"):
        queue.add(key)
    queue.add("verdict", lane=Lane.FIRST)
    assert queue.waits(Lane.FIRST)
    assert take(queue) == ["verdict", "x", "y", "a", "b"]
    assert not queue.waits(Lane.FIRST)


def test_queued_key_moves_up_when_added_to_higher_lane(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    queue.add("a", lane=Lane.ROUTINE)
    queue.add("b", lane=Lane.ROUTINE)
    time.now += 1
    queue.add("b")
    queue.add("b", lane=Lane.ROUTINE)
    assert [queue.get(0.0), queue.get(0.0), queue.get(0.0)] == [("b", 100.0), ("a", 100.0), None]


def test_routine_keys_do_not_starve(time: Time) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    for number in range(3):
        queue.add(f"quiet-{number}", lane=Lane.ROUTINE)
    taken = []
    for number in range(100):
        queue.add(f"busy-{number}")
        queue.add(f"busier-{number}")
        key, _ = queue.get(0.0) or ("", 0.0)
        taken.append(key)
        queue.done(key)
    assert [key for key in taken if key.startswith("quiet")] == ["quiet-0", "quiet-1", "quiet-2"]
    assert taken[:5] == ["busy-0", "busier-0", "busy-1", "busier-1", "busy-2"]


# The resync schedule


@given(
    st.floats(0, 1e6),
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.floats(0.01, 400.0)), max_size=60),
)
def test_every_job_is_due_once_a_period(start: float, steps: list[tuple[str, bool, float]]) -> None:
    resync, now = ResyncSchedule(PERIOD, start), start
    since: dict[JobRef, float] = {}  # when each job was last due, or was added
    for name, comes, later in steps:
        ref = JobRef(TFJOBS, "default", name)
        if comes and ref not in since:
            resync.add(ref)
            since[ref] = now
        elif not comes:
            resync.discard(ref)
            since.pop(ref, None)
        asleep, now = later, now + later
        due = resync.due(now)
        assert len(due) == len(set(due))
        assert set(due) <= since.keys()
        since.update(dict.fromkeys(due, now))
        assert all(now - last < PERIOD * 1.01 + asleep for last in since.values())


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True), st.floats(0, 1e6))
def test_longest_allowed_pauses_reach_every_job_once_a_period(names: list[str], start: float) -> None:
    resync, now, beat = ResyncSchedule(PERIOD, start), start, 15.0
    refs = [JobRef(TFJOBS, "default", name) for name in names]
    for ref in refs:
        resync.add(ref)
    found: list[JobRef] = []
    rounds = 0
    while now < start + PERIOD * 1.01:
        pause = resync.pause(now, beat)
        assert 0 < pause <= beat
        now, rounds = now + pause, rounds + 1
        found += resync.due(now)
    assert set(found) == set(refs)
    assert rounds <= PERIOD / beat + 2 * len(refs) + 1


def test_other_kinds_are_relisted_when_server_was_restored(world: World) -> None:
    driver = Controller(world.memory, clock=world.clock, monotonic=world.clock)
    driver.informers.start()
    try:
        assert driver.informers.wait_synced(SECONDS)
        informers = driver.informers._informers
        before = {kind: informer.lists for kind, informer in informers.items()}
        informers[TFJOBS]._set_back()
        more = {kind: count + (kind != TFJOBS) for kind, count in before.items()}
        until(lambda: {kind: informer.lists for kind, informer in informers.items()} == more, SECONDS)
    finally:
        driver.stop()


def test_pods_are_relisted_before_decisions_after_outage(world: World) -> None:
    """After a restore of the server, a job and its pods can be back. Without a list, the pods count as evicted."""
    held, begun = threading.Event(), threading.Event()

    def hold(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("list", PODS) and begun.is_set():
            held.wait(SECONDS)

    driver = Controller(disturbed(world.memory, hold), clock=world.clock, monotonic=world.clock)
    driver.informers.start()
    try:
        assert driver.informers.wait_synced(SECONDS)
        pods, jobs = (driver.informers._informers[kind] for kind in (PODS, TFJOBS))
        jobs._recovered(pods.listed_at)
        assert driver.informers.synced(), "its list is younger than the outage"
        begun.set()
        jobs._recovered(pods.listed_at + 0.001)
        assert not driver.informers.synced()
        assert jobs.synced()
        world.submit(tfjob())
        ref = JobRef(TFJOBS, "default", "mnist")
        until(lambda: ref in driver._dirty, SECONDS)
        assert driver._take_in(False) == set(), "a round that had begun before takes none of it in"
        held.set()
        assert driver.informers.wait_synced(SECONDS)
        assert driver._take_in(False) == {ref}
    finally:
        held.set()
        driver.stop()


@pytest.mark.parametrize(
    ("steps", "again"),
    [
        ((), False),
        ((("wrote", 5), ("notice", 5)), False),
        ((("notice", 5), ("wrote", 5)), False),  # the watch was faster than the answer
        ((("notice", 6), ("wrote", 5)), True),
        ((("wrote", 5), ("notice", 5), ("notice", 6)), True),
        ((("wrote", 5), ("notice", 0)), True),  # gone, or a rule that has changed
        ((("wrote", 0), ("notice", 0)), True),
    ],
)
def test_own_write_of_worker_does_not_queue_key(time: Time, steps: tuple[tuple[str, int], ...], again: bool) -> None:
    queue: WorkQueue[str] = WorkQueue(time)
    assert not queue.noticed("mnist", 4)  # no worker has the key, so the caller adds it
    queue.add("mnist")
    queue.get(0.0)
    for step, version in steps:
        getattr(queue, step)("mnist", version)
    queue.done("mnist")
    queue.wrote("mnist", 9)  # an answer that came late
    assert (queue.get(0.0) is not None) is again


def test_token_bucket_allows_burst_and_then_one_token_per_interval() -> None:
    bucket = TokenBucket(interval=0.5, burst=3)
    for _ in range(3):
        assert bucket.due() <= 100.0
        bucket.take(100.0)
    assert bucket.due() == 100.5
    bucket.take(100.5)
    assert bucket.due() == 101.0
    for _ in range(3):  # unused tokens do not accumulate beyond the burst
        assert bucket.due() <= 200.0
        bucket.take(200.0)
    assert bucket.due() == 200.5

"""Looking at every job now and then: spread over a period, and never before what has changed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.driver.harness import ME, OTHER, Hands, RunningClock, World, claimed_by, disturbed, tfjob
from tests.waiting import until
from tf_dist.cluster.api import TFJOBS
from tf_dist.driver.lanes import Lanes
from tf_dist.driver.loop import Driver
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.refs import JobRef
from tf_dist.driver.resync import Resync
from tf_dist.driver.settings import DriverSettings

SECONDS = 60.0
PERIOD = 300.0


class Looks(Recorder):
    """Counts how often a job is looked at."""

    def __init__(self) -> None:
        self.total = 0

    def reconciled(self, seconds: float) -> None:
        self.total += 1


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def looks() -> Looks:
    return Looks()


def seen(driver: Driver, looks: Looks) -> int:
    """How many jobs a pass looks at to which nothing has happened."""
    before = looks.total
    driver.step(driver._queue.take())
    return looks.total - before


def rest(driver: Driver) -> None:
    """Nothing is left to do, and nothing that has changed is left to be seen."""
    while driver.step():
        pass
    driver.step(driver._queue.take())


# Of a driver


def test_every_job_is_looked_at_once_a_period_and_never_many_together(world: World, looks: Looks) -> None:
    driver = Driver(
        world.memory,
        clock=world.clock,
        monotonic=world.clock,
        recorder=looks,
        settings=DriverSettings(resync=PERIOD),
    )
    for number in range(60):
        world.submit(tfjob(f"job-{number}", workers=50))  # waits for ever
    rest(driver)
    for _ in range(3):
        found = []
        for _ in range(60):
            world.clock.now += PERIOD / 60
            found.append(seen(driver, looks))
        assert sum(found) == 60
        assert max(found) <= 12


def test_a_job_that_is_gone_is_no_reason_to_wake(world: World) -> None:
    settings = DriverSettings(resync=PERIOD)
    driver = Driver(world.memory, clock=world.clock, monotonic=world.clock, settings=settings)
    world.submit(tfjob(workers=50))
    rest(driver)
    assert driver._resync.pause(world.clock.now, PERIOD) < PERIOD
    world.memory.delete(TFJOBS, "default", "mnist")
    rest(driver)
    assert driver._resync.pause(world.clock.now, PERIOD) == PERIOD


def test_the_death_of_a_driver_is_a_reason_to_look_at_its_jobs_alone(world: World, looks: Looks) -> None:
    mandate = Hands(ME)
    driver = Driver(world.memory, clock=world.clock, monotonic=world.clock, recorder=looks, mandate=mandate)
    for number in range(20):
        world.submit(tfjob(f"mine-{number}", workers=50))
    for number in range(3):
        world.submit(claimed_by(OTHER, name=f"orphan-{number}", workers=50))
    rest(driver)
    assert seen(driver, looks) == 0
    mandate.dead = frozenset({OTHER})
    assert seen(driver, looks) == 3
    assert {world.status(f"orphan-{number}")["driver"] for number in range(3)} == {ME}


def test_what_comes_while_all_there_is_is_looked_at_is_dealt_with_first() -> None:
    """A driver that has just begun has each of twenty jobs looked at, one at a time, when another one is submitted."""
    world = World(clock=RunningClock())
    for number in range(20):
        world.submit(tfjob(f"old-{number}", workers=1, ps=0, suspend=True))
    world.settle()
    for number in range(20):  # each has something to be written, and nothing to be decided
        world.memory.patch(TFJOBS, "default", f"old-{number}", {"spec": {"runPolicy": {"backoffLimit": 7}}})
    written: list[str] = []
    gate = threading.Event()

    def before(verb: str, resource: Any, namespace: Any = None, name: Any = None, *_: Any, **__: Any) -> None:
        if resource == TFJOBS and verb in ("replace", "patch"):
            written.append(str(name))
            assert gate.wait(SECONDS)

    driver = Driver(disturbed(world.memory, before), clock=world.clock, settings=DriverSettings(workers=1))
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


# The order in which workers take what waits for them


def test_what_has_changed_goes_first_each_in_its_order() -> None:
    lanes: Lanes[str] = Lanes()
    for key in ("a", "b", "c"):
        lanes.add(key, 1.0, urgent=False)
    for key in ("x", "y"):
        lanes.add(key, 2.0, urgent=True)
    assert [lanes.take() for _ in range(5)] == [("x", 2.0), ("y", 2.0), ("a", 1.0), ("b", 1.0), ("c", 1.0)]


def test_one_that_waits_already_waits_once_and_moves_up_when_something_happens_to_it() -> None:
    lanes: Lanes[str] = Lanes()
    lanes.add("a", 1.0, urgent=False)
    lanes.add("b", 2.0, urgent=False)
    assert not lanes.add("b", 3.0, urgent=True)
    assert not lanes.add("b", 4.0, urgent=False)
    assert len(lanes) == 2
    assert [lanes.take(), lanes.take()] == [("b", 2.0), ("a", 1.0)]
    assert lanes.add("b", 5.0, urgent=False)


def test_what_can_wait_does_not_wait_for_ever_however_much_happens() -> None:
    lanes: Lanes[str] = Lanes()
    for number in range(3):
        lanes.add(f"quiet-{number}", 0.0, urgent=False)
    taken = []
    for number in range(100):
        lanes.add(f"busy-{number}", 0.0, urgent=True)
        lanes.add(f"busier-{number}", 0.0, urgent=True)
        taken.append(lanes.take()[0])
    assert [key for key in taken if key.startswith("quiet")] == ["quiet-0", "quiet-1", "quiet-2"]
    assert taken[:5] == ["busy-0", "busier-0", "busy-1", "busier-1", "busy-2"]


# When each is due


@given(
    st.floats(0, 1e6),
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.floats(0.01, 400.0)), max_size=60),
)
def test_whoever_stays_is_due_once_a_period(start: float, steps: list[tuple[str, bool, float]]) -> None:
    resync, now = Resync(PERIOD, start), start
    since: dict[JobRef, float] = {}  # when each that is there was due last, or came
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
def test_who_sleeps_as_long_as_it_may_comes_to_each_once_a_period(names: list[str], start: float) -> None:
    resync, now, beat = Resync(PERIOD, start), start, 15.0
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


def test_where_one_kind_shows_that_the_server_was_set_back_the_others_are_listed_anew(world: World) -> None:
    driver = Driver(world.memory, clock=world.clock, monotonic=world.clock)
    driver.caches.start()
    try:
        assert driver.caches.wait_synced(SECONDS)
        reflectors = driver.caches._reflectors
        before = {kind: reflector.lists for kind, reflector in reflectors.items()}
        reflectors[TFJOBS]._set_back()
        more = {kind: count + (kind != TFJOBS) for kind, count in before.items()}
        until(lambda: {kind: reflector.lists for kind, reflector in reflectors.items()} == more, SECONDS)
    finally:
        driver.stop()

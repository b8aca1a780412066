"""Admission is asked no more often than leaves the drivers time for everything else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.driver.harness import START, World, tfjob
from tests.waiting import until
from tf_dist.driver.admission import Admission
from tf_dist.driver.ledger import Known, Ledger
from tf_dist.driver.loop import Driver


class Slow:
    """A clock that goes on by a second with every job that is looked at."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def reading(self, known: list[Known]) -> Iterator[Known]:
        for entry in known:
            self.now += 1.0
            yield entry


def test_it_rests_four_times_as_long_as_it_takes() -> None:
    world, clock, ledger = World(), Slow(), Ledger()
    world.submit(tfjob("a"))
    world.submit(tfjob("b"))
    caches = world.driver.caches
    caches.refresh()
    known = [ledger.read(ref, stored) for ref, stored in caches.jobs()]
    admission = Admission(caches, world.clock, clock)
    assert (admission.wanted, admission.pause()) == (True, 0.0)
    assert admission.decide(clock.reading(known), lambda *_: True) == {entry.uid for entry in known}
    assert (admission.wanted, admission.pause() >= 8.0) == (False, True)
    clock.now += 5.0
    admission.want()
    assert (admission.wanted, admission.pause()) == (True, 3.0)
    clock.now += 5.0
    assert admission.pause() == 0.0


def test_a_decision_that_fails_is_rested_from_too() -> None:
    clock = Slow()
    admission = Admission(World().driver.caches, lambda: START, clock)

    def failing() -> Iterator[Known]:
        clock.now += 2.0
        raise ZeroDivisionError("a defect")
        yield

    with pytest.raises(ZeroDivisionError):
        admission.decide(failing(), lambda *_: True)
    assert admission.pause() == 8.0


def test_a_job_that_comes_while_admission_rests_is_decided_about_afterwards() -> None:
    """Nothing else may happen that would wake the driver."""
    world = World(cpu="64")
    driver = Driver(world.memory, clock=world.clock)
    driver.start()
    try:
        until(driver.synced, 60)
        for number in range(5):
            world.submit(tfjob(f"job-{number}", workers=1))
        until(lambda: len(world.pods()) == 10, 60)
    finally:
        driver.stop()

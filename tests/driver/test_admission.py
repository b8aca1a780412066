"""Admission is asked no more often than leaves the drivers time for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.driver.harness import START, Clock, RunningClock, World, disturbed, tfjob
from tests.waiting import until
from tf_dist.cluster.api import TFJOBS, Resource
from tf_dist.core import names
from tf_dist.core.gang.model import Admit, Wait
from tf_dist.core.gang.snapshot import Changes, Claim
from tf_dist.core.times import format_time
from tf_dist.driver.admission import Admission
from tf_dist.driver.caches import Caches
from tf_dist.driver.intents import Alone, LeaseIntents
from tf_dist.driver.lease import LeaseRef
from tf_dist.driver.ledger import Delta, Known, Ledger
from tf_dist.driver.loop import Driver
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.refs import JobRef
from tf_dist.driver.settings import DriverSettings


class Counted(Recorder):
    """Counts the gangs that could not be decided about."""

    def __init__(self) -> None:
        self.gangs = 0

    def undecidable(self, gangs: int) -> None:
        self.gangs += gangs


class Altered(Caches):
    """Caches whose changes come altered, or not at all."""

    def __init__(self, world: World, alter: Callable[[Changes], Changes]) -> None:
        super().__init__(world.memory, DriverSettings(), rung=list, room=list, recorder=Recorder())
        self._alter = alter

    def changes(self, claims: Mapping[str, Claim | None], *, whole: bool) -> Changes:
        return self._alter(super().changes(claims, whole=whole))


class Slow:
    """A clock that goes on by so many seconds while admission reads what has changed."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def reading(self, ledger: Ledger, seconds: float) -> Callable[[], Delta]:
        def read() -> Delta:
            self.now += seconds
            return ledger.changes()

        return read


@pytest.mark.parametrize(("seconds", "rests"), [(0.002, 0.008), (0.01, 0.04), (60.0, 0.1)])
def test_it_rests_four_times_as_long_as_it_takes_and_never_so_long_that_people_notice(
    seconds: float, rests: float
) -> None:
    world, clock, ledger = World(), Slow(), Ledger()
    world.submit(tfjob("a"))
    world.submit(tfjob("b"))
    caches = world.driver.caches
    caches.refresh()
    known = [ledger.read(ref, stored) for ref, stored in caches.jobs()]
    admission = Admission(caches, world.clock, clock)
    assert (admission.wanted, admission.pause()) == (True, 0.0)
    assert admission.decide(clock.reading(ledger, seconds), lambda *_: True) == [entry.ref for entry in known]
    assert (admission.wanted, admission.pause() > 3600) == (False, True)
    admission.want()
    assert (admission.wanted, admission.pause()) == (True, pytest.approx(rests))
    clock.now += rests
    assert admission.pause() == pytest.approx(0.0)


def test_the_answer_of_the_server_to_intentions_is_not_rested_from() -> None:
    world, clock, ledger = World(), Slow(), Ledger()
    world.submit(tfjob())
    caches = world.driver.caches
    caches.refresh()
    [known] = [ledger.read(ref, stored) for ref, stored in caches.jobs()]

    class Far(Alone):
        def declare(self, jobs: Mapping[str, JobRef]) -> frozenset[str]:
            clock.now += 5.0
            return super().declare(jobs)

    admission = Admission(caches, world.clock, clock)
    admission.open("epoch", Far())
    assert admission.decide(ledger.changes, lambda *_: True) == [known.ref]
    admission.want()
    assert admission.pause() == 0.0


def test_a_decision_that_fails_is_rested_from_too() -> None:
    clock = Slow()
    admission = Admission(World().driver.caches, lambda: START, clock)

    def failing() -> Delta:
        clock.now += 0.01
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError):
        admission.decide(failing, lambda *_: True)
    assert (admission.wanted, admission.pause()) == (True, pytest.approx(0.04))


def test_a_change_that_comes_while_changes_are_read_is_not_forgotten() -> None:
    """Whoever noted it only after that rings: the decision that is under way does not know of it."""
    world, ledger = World(), Ledger()
    world.submit(tfjob())
    caches = world.driver.caches
    caches.refresh()
    admission = Admission(caches, world.clock)

    def disturbed() -> Delta:
        found = ledger.changes()
        for ref, stored in caches.jobs():
            ledger.read(ref, stored)
        admission.want()
        return found

    assert admission.decide(disturbed, lambda *_: True) == []
    assert admission.wanted
    assert len(admission.decide(ledger.changes, lambda *_: True)) == 1


def test_a_place_for_a_version_that_is_gone_is_decided_anew() -> None:
    """Somebody wrote into the job between the decision and its pass; nothing that admission decides on has changed."""
    world = World()
    world.submit(tfjob())
    caches, ledger = world.driver.caches, Ledger()
    caches.refresh()
    admission = Admission(caches, world.clock)
    [(ref, stored)] = caches.jobs()
    before = ledger.read(ref, stored)
    assert admission.decide(ledger.changes, lambda *_: True) == [ref]
    assert isinstance(admission.verdict(before), Admit)
    assert not admission.outdated(before)
    body = {**world.job(), "status": {"tfDist": {"phase": "Pending", "message": "hello"}}}
    world.memory.replace(TFJOBS, "default", "mnist", body, subresource="status")
    caches.refresh()
    after = ledger.read(ref, caches.job(ref) or {})
    assert after.stake == before.stake
    assert admission.outdated(after)
    assert admission.verdict(after) is None
    assert admission.decide(ledger.changes, lambda *_: True) == [ref]
    assert isinstance(admission.verdict(after), Admit)


def test_a_place_that_is_not_written_down_as_intended_is_told_to_nobody() -> None:
    """The verdict was taken back, and the admitter still counts with it until it decides again."""
    world = World()
    world.submit(tfjob())
    caches, ledger = world.driver.caches, Ledger()
    caches.refresh()
    admission = Admission(caches, world.clock)
    [(ref, stored)] = caches.jobs()
    known = ledger.read(ref, stored)
    admission.decide(ledger.changes, lambda *_: True)
    assert isinstance(admission.verdict(known), Admit)
    admission.withdraw(known.uid)
    assert admission.verdict(known) is None
    admission.decide(ledger.changes, lambda *_: True)
    assert isinstance(admission.verdict(known), Admit)


def test_a_gang_that_cannot_be_decided_about_is_left_out_and_the_others_keep_what_they_were_given() -> None:
    """A label of a node that no dict takes fails in the middle of deciding about the one gang that asks for it."""
    world, counted, ledger = World(cpu="6"), Counted(), Ledger()

    def unhashable(seen: Changes) -> Changes:
        labels: Any = {"zone": ["a"]}
        return replace(seen, nodes={name: node and replace(node, labels=labels) for name, node in seen.nodes.items()})

    caches = Altered(world, unhashable)
    admission = Admission(caches, world.clock, recorder=counted)

    def decide() -> dict[str, Any]:
        caches.refresh()
        known = {ref.name: ledger.read(ref, stored) for ref, stored in caches.jobs()}
        admission.decide(ledger.changes, lambda *_: True)
        return {name: admission.verdict(entry) for name, entry in known.items()}

    world.submit(tfjob("first"))
    assert isinstance(decide()["first"], Admit)
    bad = tfjob("bad")
    bad["metadata"]["annotations"] = {names.TOPOLOGY: "zone", names.TOPOLOGY_REQUIRED: "true"}
    world.clock.now -= 100  # they come before the first one in their queue
    world.submit(bad)
    world.submit(tfjob("second"))
    world.submit(tfjob("third"))
    said = decide()
    assert (type(said["first"]), type(said["second"])) == (Admit, Admit)
    assert (said["bad"].reason, said["bad"].never) == ("Unreadable", True)
    assert "cannot be decided about: TypeError" in said["bad"].message
    assert said["third"].reason == "WaitingForCapacity", "what was given before is still taken"
    assert counted.gangs == 1
    assert decide()["bad"].reason == "Unreadable"


def test_a_decision_that_fails_halfway_is_begun_anew_with_all_there_is() -> None:
    """What was read of the changes for it, nobody tells a second time."""
    world, ledger, fails = World(), Ledger(), [True]
    world.submit(tfjob())

    def failing(seen: Changes) -> Changes:
        if fails and fails.pop():
            raise ZeroDivisionError("a defect")
        return seen

    caches = Altered(world, failing)
    caches.refresh()
    admission = Admission(caches, world.clock)
    [(ref, stored)] = caches.jobs()
    known = ledger.read(ref, stored)
    with pytest.raises(ZeroDivisionError):
        admission.decide(ledger.changes, lambda *_: True)
    assert admission.wanted
    assert admission.decide(ledger.changes, lambda *_: True) == [ref]
    assert isinstance(admission.verdict(known), Admit)


def postpone(world: World, name: str, until: float) -> None:
    """The job has given its place back, and tries again then."""
    memory = {"phase": "Pending", "reason": "ScheduleTimeout", "notBefore": format_time(until), "requeues": 1}
    world.memory.patch(TFJOBS, "default", name, {"status": {"tfDist": memory}}, subresource="status")


def test_whose_time_has_not_come_yet_has_no_place_though_the_clock_said_otherwise_before() -> None:
    """Room for two; the clock is 40 s ahead while the first of them comes, and is set back then."""
    world, steady = World(cpu="8"), Clock()
    world.driver = Driver(world.memory, clock=world.clock, monotonic=steady)
    world.submit(tfjob("early"))
    postpone(world, "early", world.clock.now + 50)
    world.settle()
    world.clock.now += 40
    world.submit(tfjob("other"))
    world.settle()
    world.clock.now -= 40
    postpone(world, "early", world.clock.now + 30)
    world.settle()
    world.submit(tfjob("late"))
    world.settle()
    reasons = {name: world.status(name)["reason"] for name in ("other", "early", "late")}
    assert reasons == {"other": "Admitted", "early": "ScheduleTimeout", "late": "Admitted"}


def test_a_write_between_decision_and_pass_leaves_no_job_behind() -> None:
    world, written = World(), [False]

    def write(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("replace", TFJOBS) and not written[0]:
            written[0] = True
            body = {**world.job(), "status": {"tfDist": {"phase": "Pending", "message": "hello"}}}
            world.memory.replace(TFJOBS, "default", "mnist", body, subresource="status")

    world.driver = Driver(disturbed(world.memory, write), clock=world.clock, monotonic=world.clock)
    world.submit(tfjob())
    world.step_until(lambda: written[0])
    world.clock.now += 31  # longer than the pause after a failure
    world.settle()
    assert world.status()["reason"] == "Admitted"


def test_a_job_that_comes_while_admission_rests_is_decided_about_afterwards() -> None:
    """Nothing else may happen that would wake the driver."""
    world = World(cpu="64", clock=RunningClock())
    driver = Driver(world.memory, clock=world.clock, monotonic=world.clock)
    driver.start()
    try:
        until(driver.synced, 60)
        for number in range(5):
            world.submit(tfjob(f"job-{number}", workers=1))
        until(lambda: len(world.pods()) == 10, 60)
    finally:
        driver.stop()


@pytest.fixture
def narrow() -> tuple[World, Admission, LeaseIntents]:
    """Room for three gangs, and for one job in the list of what is intended."""
    world = World(cpu="9")
    intents = LeaseIntents(world.memory, LeaseRef("default", "admissions"), lambda *_: None, room=1)
    admission = Admission(world.driver.caches, world.clock)
    assert admission.open(1, intents)
    return world, admission, intents


def decided(world: World, admission: Admission, ledger: Ledger) -> dict[str, Known]:
    """Decide on what is stored; the jobs by name."""
    world.driver.caches.refresh()
    known = {ref.name: ledger.read(ref, stored) for ref, stored in world.driver.caches.jobs()}
    admission.decide(ledger.changes, lambda *_: True)
    return known


def arrive(world: World, name: str) -> None:
    """What a job was told is written into it."""
    status = {"tfDist": {"phase": "Pending", "admission": {"at": format_time(world.clock.now)}}}
    world.memory.patch(TFJOBS, "default", name, {"status": status}, subresource="status")


def test_a_place_is_told_only_once_it_is_written_down_and_then_makes_room_for_the_next(
    narrow: tuple[World, Admission, LeaseIntents],
) -> None:
    world, admission, intents = narrow
    ledger = Ledger()
    for name in ("a", "b"):
        world.submit(tfjob(name))
        world.clock.now += 1
    known = decided(world, admission, ledger)
    assert intents.declared() == {known["a"].uid}
    assert isinstance(admission.verdict(known["a"]), Admit)
    assert admission.verdict(known["b"]) is None, "it has its place, and nobody may know that yet"
    assert admission.wanted, "the rest is to be written down soon"
    arrive(world, "a")
    known = decided(world, admission, ledger)
    assert intents.declared() == {known["b"].uid}
    assert isinstance(admission.verdict(known["b"]), Admit)
    assert not admission.wanted


def test_a_place_that_is_taken_back_makes_room_in_the_list(narrow: tuple[World, Admission, LeaseIntents]) -> None:
    world, admission, intents = narrow
    world.submit(tfjob("a"))
    known = decided(world, admission, Ledger())
    admission.withdraw(known["a"].uid)
    assert intents.declared() == frozenset()
    assert admission.wanted


def test_after_the_right_to_decide_was_won_anew_nothing_of_before_is_told(
    narrow: tuple[World, Admission, LeaseIntents],
) -> None:
    world, admission, intents = narrow
    ledger = Ledger()
    world.submit(tfjob("a"))
    known = decided(world, admission, ledger)
    assert isinstance(admission.verdict(known["a"]), Admit)
    assert not admission.open(1, intents)
    assert isinstance(admission.verdict(known["a"]), Admit)
    assert admission.open(2, intents)
    assert admission.verdict(known["a"]) is None
    assert (admission.wanted, intents.declared()) == (True, frozenset())


def test_what_another_driver_is_to_tell_is_reserved_and_not_written_down(
    narrow: tuple[World, Admission, LeaseIntents],
) -> None:
    world, admission, intents = narrow
    for name in ("a", "b", "c", "d"):
        world.submit(tfjob(name))
        world.clock.now += 1
    world.driver.caches.refresh()
    ledger = Ledger()
    known = {ref.name: ledger.read(ref, stored) for ref, stored in world.driver.caches.jobs()}
    heard = admission.decide(ledger.changes, lambda entry, _: entry.ref.name == "b")
    assert intents.declared() == {known["b"].uid}
    assert heard == [known["b"].ref, known["d"].ref], "there is room for three"
    assert admission.verdict(known["a"]) is None
    assert isinstance(admission.verdict(known["d"]), Wait)

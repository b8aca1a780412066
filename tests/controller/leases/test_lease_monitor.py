"""Which other drivers are dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.controller.harness import disturbed
from tests.controller.leases.lease_world import SHARED, Fault, Sim
from tests.waiting import until
from tf_dist.cluster.api import LEASES, Cluster
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.leases import lease
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.leadership import LeaseLeadership
from tf_dist.controller.leases.lease import LeaseRef
from tf_dist.controller.leases.lease_monitor import LeaseMonitor, delete_expired_leases
from tf_dist.core.api import names
from tf_dist.core.api.timestamps import format_micro_time
from tf_dist.errors import Forbidden

ONE, TWO = LeaseRef("default", "tf-dist-run-1"), LeaseRef("default", "tf-dist-run-2")


@pytest.fixture
def sim() -> Sim:
    return Sim()


def test_one_that_dies_is_stale_within_twenty_seconds_and_one_that_lives_never(sim: Sim) -> None:
    dying, _ = sim.hold(ONE, "one", shared=False), sim.hold(TWO, "two", shared=False)
    book = sim.watch(ONE, TWO)
    sim.run(100)
    assert book.stale() == frozenset()
    sim.tenures[dying].dead = True
    sim.run(20)
    assert book.stale() == {str(ONE)}
    sim.run(600)
    assert book.stale() == {str(ONE)}
    assert book.unknown() == frozenset()


def test_that_a_shared_one_is_dead_is_written_down_for_all(sim: Sim) -> None:
    dying = sim.hold(SHARED, "one", shared=True)
    book = sim.watch(SHARED)
    sim.run(40)
    assert dying.valid()
    sim.tenures[dying].dead = True
    sim.run(20)
    stored = sim.memory.get(LEASES, *SHARED)
    assert stored["metadata"]["annotations"] == {lease.BROKEN_BY: "watcher"}
    assert stored["spec"]["holderIdentity"] == ""
    version = stored["metadata"]["resourceVersion"]
    other = sim.watch(SHARED)
    sim.run(0.1)
    assert other.stale() == book.stale() == {str(SHARED)}, "the next one need not wait"
    sim.run(60)
    assert sim.memory.get(LEASES, *SHARED)["metadata"]["resourceVersion"] == version, "once"


def test_the_lease_of_a_single_process_is_only_read(sim: Sim) -> None:
    """A controller may write no Leases where other drivers work: other programs have theirs there, too."""
    dying = sim.hold(ONE, "one", shared=False)
    sim.run(1)
    sim.tenures[dying].dead = True
    before = sim.memory.get(LEASES, *ONE)
    clock = [0.0]
    book = LeaseMonitor(Granting(sim.memory, "get", "list"), "me", monotonic=lambda: clock[0])  # type: ignore[arg-type]
    book.watch_drivers([str(ONE)])
    while clock[0] < 40:
        clock[0] += max(book.poll(), 0.1)
    assert book.stale() == {str(ONE)}
    assert book.unknown() == frozenset()
    assert sim.memory.get(LEASES, *ONE) == before


def test_one_that_comes_back_waits_until_nobody_thinks_it_dead(sim: Sim) -> None:
    """It was away for longer than its Lease, and does not know who has seen that."""
    elector = sim.hold(ONE, "one", shared=False)
    book = sim.watch(ONE)
    sim.run(5)
    machine = sim.tenures[elector]
    machine.due = sim.now + 16
    while not book.stale():
        sim.run(0.5)
    # Its renewal comes in between two looks of the other, which goes on believing in what it saw.
    machine.due, sim.books[book].due = sim.now, sim.now + 60
    sim.run(0.1)
    assert sim.memory.get(LEASES, *ONE)["spec"]["holderIdentity"] == "one"
    assert book.stale() == {str(ONE)}
    assert not elector.valid()
    sim.run(lease.TAKEOVER_DELAY + 1)
    assert book.stale() == frozenset()
    assert elector.valid()
    assert elector.epoch == 2, "it looks at everything anew"


def test_an_answer_that_took_long_speaks_of_when_it_was_asked_for(sim: Sim) -> None:
    """The holder renewed its Lease in time, after that answer was given and before it came."""
    sim.memory.create(LEASES, ONE.namespace, lease.new_lease(ONE, "one", 15, 0, {names.DRIVER: lease.DRIVER_INLINE}))
    clock, slow = [0.0], [0.0]

    class Slow(Granting):
        def get(self, *args: Any) -> Any:
            stored = sim.memory.get(*args)
            clock[0] += slow[0]
            return stored

    book = LeaseMonitor(Slow(sim.memory), "me", monotonic=lambda: clock[0])  # type: ignore[arg-type]
    book.watch_drivers([str(ONE)])
    book.poll()
    clock[0], slow[0] = 11.5, 4.0
    book.poll()
    assert book.stale() == frozenset()
    clock[0], slow[0] = 18.0, 0.0
    book.poll()
    assert book.stale() == {str(ONE)}


def test_a_lease_that_is_no_drivers_is_never_touched(sim: Sim) -> None:
    """Any job may name it: those of other programs, too, and some of them do not renew theirs for hours."""
    foreign = {"metadata": {"name": ONE.name}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 1}}
    stored = sim.memory.create(LEASES, ONE.namespace, foreign)
    book = sim.watch(ONE)
    sim.run(60)
    assert sim.memory.get(LEASES, *ONE) == stored
    assert (book.stale(), book.unknown()) == (frozenset(), {str(ONE)})


def test_one_that_ended_well_is_stale_after_a_while(sim: Sim) -> None:
    """It deleted its Lease; but so might another client have."""
    elector = sim.hold(ONE, "one", shared=False)
    book = sim.watch(ONE)
    sim.run(5)
    sim.tenures[elector].dead = True
    elector.stop()
    sim.run(14)
    assert book.stale() == frozenset()
    sim.run(6)
    assert book.stale() == {str(ONE)}


def test_a_verdict_is_good_for_a_few_seconds_only(sim: Sim) -> None:
    book = sim.watch(ONE)
    sim.run(20)
    assert book.stale() == {str(ONE)}
    sim.books[book].due = sim.now + 60
    sim.run(lease.DEAD_VERDICT_VALID_FOR + 1)
    assert book.stale() == frozenset()


def test_without_an_answer_nobody_is_dead(sim: Sim) -> None:
    book = sim.watch(ONE)
    sim.books[book].faults.extend([Fault(lost="request")] * 100)
    sim.run(150)
    assert book.stale() == frozenset()


def test_what_is_not_asked_for_is_not_looked_at(sim: Sim) -> None:
    book = sim.watch(ONE)
    sim.run(20)
    book.watch_drivers(["embedded", str(TWO)])
    assert book.stale() == frozenset()
    sim.run(20)
    assert book.stale() == {str(TWO)}


class Slow:
    """A book of a cluster whose answers take a while, during which anything may happen."""

    def __init__(self, *refs: LeaseRef) -> None:
        self.now = 0.0
        self.memory = MemoryCluster()
        self.takes: dict[str, float] = {}
        self.meanwhile: Callable[[], object] = lambda: None
        self.book = LeaseMonitor(cast(Cluster, self), "me", monotonic=lambda: self.now)
        self.book.watch_drivers([str(ref) for ref in refs])

    def __getattr__(self, verb: str) -> Any:
        def asked(*args: Any, **how: Any) -> Any:
            if verb == "replace":
                self.meanwhile()
            try:
                return getattr(self.memory, verb)(*args, **how)
            finally:
                self.now += self.takes.get(verb, 0.0)

        return asked

    def put(self, ref: LeaseRef, holder: str, driver: str = lease.DRIVER_CONTROLLER) -> None:
        self.memory.create(LEASES, ref.namespace, lease.new_lease(ref, holder, 15, 0, {names.DRIVER: driver}))

    def at(self, now: float, **takes: float) -> frozenset[str]:
        """Look at that time; who is dead when that is done. ``takes``: seconds of each answer to a verb."""
        self.now, self.takes = now, takes
        self.book.poll()
        return self.book.stale()


def test_that_a_lease_is_absent_is_believed_for_as_long_as_that_was_known_when_it_was_asked_for() -> None:
    slow = Slow(ONE)
    for now in range(0, 14, 2):
        assert slow.at(now) == frozenset()
    assert slow.at(14.0, get=4.0) == frozenset(), "it may have come since it was asked for"
    assert slow.at(20.0, get=2.0) == {str(ONE)}
    slow.now = 20.0 + lease.DEAD_VERDICT_VALID_FOR
    assert slow.book.stale() == frozenset(), "counted from the question, not from the answer"


def test_a_list_that_took_long_speaks_of_when_it_was_asked_for() -> None:
    refs = [LeaseRef("default", f"run-{n}") for n in range(4)]
    slow = Slow(*refs)
    for ref in refs:
        slow.put(ref, "another", lease.DRIVER_INLINE)
    slow.at(0.0)
    assert slow.at(12.0, list=4.0) == frozenset()
    assert slow.at(20.0, list=3.0) == {str(ref) for ref in refs}
    slow.now = 20.0 + lease.DEAD_VERDICT_VALID_FOR
    assert slow.book.stale() == frozenset()


def test_how_long_a_lease_was_unchanged_counts_from_the_first_answer() -> None:
    """It may have been renewed between the question and the answer."""
    slow = Slow(ONE)
    slow.put(ONE, "another", lease.DRIVER_INLINE)
    slow.at(0.0, get=5.0)
    assert slow.at(19.0) == frozenset()
    assert slow.at(21.0) == {str(ONE)}


def test_one_that_was_given_back_is_not_dead_before_its_time_is_over() -> None:
    """Who takes it next needs a moment for that."""
    slow = Slow(SHARED)
    slow.put(SHARED, "")
    for now in range(0, 14, 2):
        assert slow.at(now) == frozenset()
    assert slow.at(16.0) == {str(SHARED)}


def test_one_that_is_renewed_while_it_is_broken_lives() -> None:
    slow = Slow(SHARED)
    slow.put(SHARED, "another")
    slow.at(0.0)

    def renew() -> None:
        stored = slow.memory.get(LEASES, *SHARED)
        slow.memory.replace(LEASES, *SHARED, lease.renewed_lease(stored, 15, 1.0))

    slow.meanwhile = renew
    assert slow.at(16.0) == frozenset()
    slow.meanwhile = lambda: None
    assert slow.memory.get(LEASES, *SHARED)["spec"]["holderIdentity"] == "another"
    assert slow.at(18.0) == frozenset()
    assert slow.at(34.0) == {str(SHARED)}


def test_one_that_was_broken_and_won_since_lives() -> None:
    """With any annotation that is left."""
    slow = Slow(SHARED)
    slow.put(SHARED, "another")
    patch = {"metadata": {"annotations": {lease.BROKEN_BY: "another"}}}
    slow.memory.patch(LEASES, *SHARED, patch)
    assert slow.at(0.0) == frozenset()


def test_one_that_comes_back_is_not_thought_dead_after_the_next_look() -> None:
    slow = Slow(ONE)
    slow.put(ONE, "another", lease.DRIVER_INLINE)
    slow.at(0.0)
    assert slow.at(16.0) == {str(ONE)}
    slow.memory.replace(LEASES, *ONE, lease.renewed_lease(slow.memory.get(LEASES, *ONE), 15, 1.0))
    assert slow.at(18.0) == frozenset()


def test_what_is_known_of_one_is_kept_when_another_is_asked_for_too() -> None:
    slow = Slow(ONE)
    slow.put(ONE, "another", lease.DRIVER_INLINE)
    slow.put(TWO, "another", lease.DRIVER_INLINE)
    slow.at(0.0)
    slow.now = 10.0
    slow.book.watch_drivers([str(ONE), str(TWO)])
    assert slow.at(16.0) == {str(ONE)}


class Granting:
    """Lets some verbs through and counts all."""

    def __init__(self, inner: MemoryCluster, *granted: str) -> None:
        self._inner = inner
        self.granted = granted
        self.calls: Counter[str] = Counter()

    def __getattr__(self, verb: str) -> Any:
        self.calls[verb] += 1
        if verb not in self.granted:
            raise Forbidden(f"may not {verb} leases")
        return getattr(self._inner, verb)


@pytest.mark.parametrize("granted", [(), ("get",), ("get", "list")])
def test_one_that_we_may_not_read_or_break_is_unknown(sim: Sim, granted: tuple[str, ...]) -> None:
    held = {"holderIdentity": "another", "leaseDurationSeconds": 15}
    sim.memory.create(
        LEASES, ONE.namespace, {"metadata": {"name": ONE.name, "labels": {names.DRIVER: "controller"}}, "spec": held}
    )
    clock = [0.0]
    cluster = Granting(sim.memory, *granted)
    book = LeaseMonitor(cluster, "me", monotonic=lambda: clock[0])  # type: ignore[arg-type]
    book.watch_drivers([str(ONE)])
    for _ in range(100):
        clock[0] += book.poll()
    assert book.stale() == frozenset()
    assert book.unknown() == {str(ONE)}
    assert book.poll() > 0, "it is not asked for again at once"
    clock[0] += 2
    cluster.granted = ("get", "list", "replace")
    book.poll()
    assert book.unknown() == frozenset()


def test_many_of_one_namespace_are_listed(sim: Sim) -> None:
    owners = [sim.hold(LeaseRef("default", f"run-{n}"), f"o{n}", shared=False) for n in range(6)]
    sim.run(1)
    cluster, clock = Granting(sim.memory, "get", "list", "replace"), [0.0]
    book = LeaseMonitor(cluster, "me", monotonic=lambda: clock[0])  # type: ignore[arg-type]
    # One without our label, that a list does not show.
    sim.memory.create(LEASES, "default", {"metadata": {"name": "bare"}, "spec": {"holderIdentity": "x"}})
    book.watch_drivers([*(str(owner.ref) for owner in owners), "default/bare"])
    book.poll()
    assert cluster.calls == {"list": 1, "get": 1}
    sim.tenures[owners[0]].dead = True
    for _ in range(12):
        sim.run(2)
        clock[0] += 2
        book.poll()
    assert (book.stale(), book.unknown()) == ({"default/run-0"}, {"default/bare"})


def test_a_sweep_deletes_what_dead_programs_left_behind() -> None:
    now = 1_800_000_000.0
    with MemoryCluster() as memory:
        for name, label, age in [("old", "inline", 90_000), ("young", "inline", 80_000), ("other", "controller", 9e5)]:
            body = {
                "metadata": {"name": name, "labels": {names.DRIVER: label}},
                "spec": {"renewTime": format_micro_time(now - age)},
            }
            memory.create(LEASES, "default", body)
        memory.create(LEASES, "default", {"metadata": {"name": "blank", "labels": {names.DRIVER: "inline"}}})
        assert delete_expired_leases(memory, "default", clock=lambda: now) == 1
        left = [stored["metadata"]["name"] for stored in memory.list(LEASES).items]
        assert sorted(left) == ["blank", "other", "young"]


def test_a_sweep_leaves_what_came_since_it_looked() -> None:
    now = 1_800_000_000.0
    with MemoryCluster() as memory:
        metadata = {"name": "old", "labels": {names.DRIVER: lease.DRIVER_INLINE}}
        body = {"metadata": metadata, "spec": {"renewTime": format_micro_time(now - 90_000)}}
        memory.create(LEASES, "default", body)

        def come(verb: str, *_: Any, **__: Any) -> None:
            if verb == "delete":
                memory.delete(LEASES, "default", "old")
                memory.create(LEASES, "default", {**body, "spec": {"renewTime": format_micro_time(now)}})

        assert delete_expired_leases(disturbed(memory, come), "default", clock=lambda: now) == 0
        assert [stored["metadata"]["name"] for stored in memory.list(LEASES).items] == ["old"]


def test_a_mandate_is_a_tenure_and_the_state_of_the_others() -> None:
    with MemoryCluster() as memory:
        memory.create(LEASES, SHARED.namespace, {"metadata": {"name": SHARED.name}})
        dead = lease.broken_lease({"metadata": {"name": ONE.name, "labels": {names.DRIVER: "inline"}}}, "another")
        memory.create(LEASES, ONE.namespace, dead)
        elector = LeaderElector(memory, SHARED, "me", shared=True)
        housekeeping: list[str] = []
        leadership = LeaseLeadership(
            elector, LeaseMonitor(memory, "me"), housekeeping=lambda: housekeeping.append("done")
        )
        rung: list[tuple[bool, bool]] = []
        leadership.listen(lambda: rung.append((leadership.valid(), str(ONE) in leadership.stale())))
        assert (leadership.ref, leadership.takes_over, leadership.valid(), leadership.epoch) == (
            str(SHARED),
            True,
            False,
            0,
        )
        elector.start()
        leadership.start()
        try:
            until(leadership.valid, 60)
            until(lambda: bool(rung), 60)
            assert leadership.epoch == 1
            leadership.watch_drivers([str(ONE), leadership.ref])
            until(lambda: leadership.stale() == {str(ONE)}, 60)
            until(lambda: (True, True) in rung, 60)
            until(lambda: housekeeping == ["done"], 60)
        finally:
            leadership.stop()
            elector.stop()
        assert not leadership.valid()

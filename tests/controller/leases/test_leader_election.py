"""Holding a Lease, step by step, on clocks that a test moves; and in threads, on the real one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.support import cluster_of_kubeconfig, real_kubeconfig
from tests.controller.harness import disturbed
from tests.controller.leases.lease_world import SHARED, Fault, Sim
from tests.waiting import until
from tf_dist.cluster.api import LEASES
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.controller.leases import lease
from tf_dist.controller.leases.leader_election import LeaderElector
from tf_dist.controller.leases.lease import LeaseObservation, LeaseRef, unique_lease_ref
from tf_dist.controller.observability.metrics_recorder import MetricsRecorder
from tf_dist.core.api import names
from tf_dist.core.api.timestamps import parse_time
from tf_dist.errors import Conflict, Forbidden, Throttled, Unavailable

OWN = LeaseRef("default", "tf-dist-run-1")


@pytest.fixture
def sim() -> Sim:
    return Sim()


def free_lease(sim: Sim) -> None:
    """As `tf-dist install` leaves it: there, without a holder."""
    sim.memory.create(LEASES, SHARED.namespace, {"metadata": {"name": SHARED.name}})


def holder_and_standby(sim: Sim) -> tuple[LeaderElector, LeaderElector]:
    """The first one has come three seconds ago, the second one just after it."""
    free_lease(sim)
    one = sim.hold(SHARED, "one", shared=True)
    sim.run(0.1)
    two = sim.hold(SHARED, "two", shared=True)
    sim.run(2.9)
    return one, two


@pytest.mark.parametrize(
    ("text", "ref"),
    [("a/b", LeaseRef("a", "b")), ("embedded", None), ("", None), ("/b", None), ("a/", None), ("a/b/c", None)],
)
def test_a_driver_s_name_may_be_a_lease(text: str, ref: LeaseRef | None) -> None:
    assert LeaseRef.parse(text) == ref
    assert ref is None or str(ref) == text


def test_a_lease_of_our_own_is_ours_at_once_and_gone_at_the_end(sim: Sim) -> None:
    elector = sim.hold(OWN, "me", shared=False)
    assert not elector.valid()
    sim.run(0.1)
    assert elector.valid()
    stored = sim.memory.get(LEASES, *OWN)
    assert stored["metadata"]["labels"] == {names.DRIVER: lease.DRIVER_INLINE}
    sim.run(60)
    assert elector.valid()
    assert elector.epoch == 1
    elector.stop()
    assert not elector.valid()
    assert sim.memory.list(LEASES).items == []


def test_other_clients_understand_the_lease(sim: Sim) -> None:
    sim.hold(OWN, "me", shared=False)
    sim.run(6)
    spec = sim.spec(OWN)
    assert {key: spec[key] for key in ("holderIdentity", "leaseDurationSeconds", "leaseTransitions")} == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 0,
    }
    for field in ("acquireTime", "renewTime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec[field])
    assert (parse_time(spec["renewTime"]) or 0) - (parse_time(spec["acquireTime"]) or 0) == 5


def test_it_renews_no_more_often_than_told(sim: Sim) -> None:
    sim.hold(OWN, "me", shared=False)
    sim.run(1)
    before = int(sim.memory.get(LEASES, *OWN)["metadata"]["resourceVersion"])
    sim.run(50)
    assert int(sim.memory.get(LEASES, *OWN)["metadata"]["resourceVersion"]) == before + 10


def test_a_free_lease_is_taken_at_once_and_by_one_only(sim: Sim) -> None:
    one, two = holder_and_standby(sim)
    assert (one.valid(), two.valid()) == (True, False)
    assert sim.spec()["leaseTransitions"] == 1


def test_one_that_is_given_back_is_taken_at_once(sim: Sim) -> None:
    one, two = holder_and_standby(sim)
    sim.tenures[one].dead = True
    one.stop()
    assert sim.spec()["holderIdentity"] == ""
    sim.run(2.1)
    assert two.valid()
    assert sim.spec()["leaseTransitions"] == 2


def test_one_whose_holder_died_is_taken_within_twenty_seconds(sim: Sim) -> None:
    one, two = holder_and_standby(sim)
    sim.run(28)
    sim.tenures[one].dead = True
    sim.run(10)
    assert not two.valid(), "its holder may be sure of it yet"
    sim.run(10)
    assert two.valid()


def test_the_duration_that_counts_is_the_one_in_the_lease(sim: Sim) -> None:
    held = {"holderIdentity": "another", "leaseDurationSeconds": 60}
    sim.memory.create(LEASES, SHARED.namespace, {"metadata": {"name": SHARED.name}, "spec": held})
    elector = sim.hold(SHARED, "me", shared=True)
    sim.run(59)
    assert not elector.valid()
    sim.run(3)
    assert elector.valid()


def test_a_paused_process_knows_at_once_that_it_is_not_the_holder(sim: Sim) -> None:
    one, two = holder_and_standby(sim)
    sim.tenures[one].due = sim.now + 60  # SIGSTOP
    sim.run(59)
    assert two.valid()
    assert not one.valid(), "before it does anything"
    sim.run(30)
    assert two.valid()
    assert (one.epoch, two.epoch) == (1, 1)


def test_who_paused_and_finds_nobody_else_goes_on_in_another_epoch(sim: Sim) -> None:
    elector = sim.hold(OWN, "me", shared=False)
    sim.run(3)
    sim.tenures[elector].due = sim.now + 60
    sim.run(59)
    assert not elector.valid()
    sim.run(2)
    assert not elector.valid(), "another process may have seen that its time was over"
    sim.run(lease.TAKEOVER_DELAY)
    assert elector.valid()
    assert elector.epoch == 2


def test_a_tenure_counts_from_before_its_renewal_was_sent(sim: Sim) -> None:
    """The answer took six seconds, and then the network went: others count from when the server had it."""
    elector = sim.hold(OWN, "me", shared=False)
    sim.run(4.9)
    machine = sim.tenures[elector]
    machine.faults.extend([Fault(back=6.0), *[Fault(lost="request")] * 20])
    sim.run(12.0)  # 11.9 s after it was sent
    assert elector.valid()
    assert elector.epoch == 1
    sim.run(0.2)
    assert not elector.valid()


def test_without_an_answer_a_tenure_ends_before_its_lease(sim: Sim) -> None:
    elector = sim.hold(OWN, "me", shared=False)
    sim.run(0.1)
    sim.tenures[elector].faults.extend([Fault(lost="request")] * 20)
    sim.run(11.8)
    assert elector.valid()
    sim.run(0.2)
    assert not elector.valid()
    assert "no answer" in str(elector.problem)


def test_a_lost_answer_loses_nothing(sim: Sim) -> None:
    elector = sim.hold(OWN, "me", shared=False)
    sim.run(0.1)
    sim.tenures[elector].faults.extend([Fault(lost="answer")] * 2)
    for _ in range(300):
        sim.run(0.1)
        assert elector.valid()
    assert elector.epoch == 1
    assert elector.problem is None


def test_the_answer_to_the_first_creation_may_be_lost(sim: Sim) -> None:
    elector = sim.hold(OWN, "me", shared=False)
    sim.tenures[elector].faults.extend([Fault(), Fault(lost="answer")])
    sim.run(3)
    assert elector.valid()
    elector.stop()
    assert sim.memory.list(LEASES).items == []


def test_a_lease_that_is_deleted_under_its_holder_comes_back(sim: Sim) -> None:
    one, two = holder_and_standby(sim)
    sim.delete(SHARED)
    for _ in range(60):
        sim.run(1)
        assert one.valid(), "it was sure of it all the time"
    assert not two.valid()
    assert sim.spec()["holderIdentity"] == "one"


def test_an_absent_lease_may_have_a_holder_that_is_sure_of_it_yet(sim: Sim) -> None:
    free_lease(sim)
    one = sim.hold(SHARED, "one", shared=True)
    sim.run(3)
    sim.tenures[one].faults.extend([Fault(lost="request")] * 20)
    sim.delete(SHARED)
    two = sim.hold(SHARED, "two", shared=True)
    sim.run(14)
    assert not two.valid()
    sim.run(1.9)
    assert sim.spec()["holderIdentity"] == "two"
    assert not two.valid(), "another process may think that its last holder is dead"
    sim.run(lease.TAKEOVER_DELAY)
    assert two.valid()


def test_a_broken_lease_is_won_again_but_not_used_before_nobody_believes_it_dead(sim: Sim) -> None:
    elector = sim.hold(OWN, "me", shared=False)
    sim.run(1)
    sim.tenures[elector].due = sim.now + 60
    book = sim.watch(OWN)
    sim.run(59)
    assert book.stale() == {str(OWN)}
    won = 0
    for _ in range(100):
        sim.run(0.2)
        won += str(OWN) in book.stale() and sim.spec(OWN)["holderIdentity"] == "me"
    assert elector.valid()
    assert elector.epoch == 2
    assert book.stale() == frozenset()
    assert won, "there was a time between, or this test says nothing"


# Step by step


class Bench:
    """A tenure of which a test makes every step, on a clock that it moves; ``before`` may disturb its requests."""

    def __init__(self, ref: LeaseRef = OWN, *, shared: bool = False, **more: Any) -> None:
        self.now = 0.0
        self.memory = MemoryCluster()
        self.asked: list[str] = []
        self.before: Callable[[str], object] = lambda _: None
        self.ref = ref
        wire = disturbed(self.memory, self._asked)
        self.elector = LeaderElector(wire, ref, "me", shared=shared, monotonic=lambda: self.now, **more)

    def _asked(self, verb: str, *_: Any, **__: Any) -> None:
        self.asked.append(verb)
        self.before(verb)

    def put(self, holder: str = "", **annotations: str) -> None:
        """A Lease as others left it."""
        held = {"holderIdentity": holder, "leaseDurationSeconds": 15}
        metadata = {"name": self.ref.name, "annotations": annotations}
        self.memory.create(LEASES, self.ref.namespace, {"metadata": metadata, "spec": held})

    def stored(self) -> dict[str, Any]:
        return self.memory.get(LEASES, *self.ref)

    def at(self, now: float) -> float:
        """A step at that time; seconds until the next one."""
        self.now = now
        return self.elector.step()


def test_a_tenure_that_lapsed_is_another_one_from_the_moment_on_at_which_it_was_over() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put()
    bench.at(0.0)
    bench.at(11.0)
    assert (bench.elector.epoch, bench.elector.remaining()) == (1, 12.0)
    bench.at(23.0)
    assert (bench.elector.epoch, bench.elector.remaining()) == (2, 12.0), "it was not broken: it is used at once"


def test_nothing_is_left_of_a_tenure_that_has_not_begun() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put(**{lease.BROKEN_BY: "another"})
    bench.at(1.0)
    assert bench.stored()["spec"]["holderIdentity"] == "me"
    assert (bench.elector.valid(), bench.elector.remaining()) == (False, 0.0)
    bench.now = 1.0 + lease.TAKEOVER_DELAY
    assert (bench.elector.valid(), bench.elector.remaining()) == (True, 12.0 - lease.TAKEOVER_DELAY)


def test_that_it_was_broken_is_not_forgotten_with_an_answer_that_is_lost() -> None:
    """The server has taken the write: what is read next does not show that it was broken."""
    bench = Bench(SHARED, shared=True)
    bench.put(**{lease.BROKEN_BY: "another"})

    def lost(verb: str) -> None:
        if verb == "replace":
            bench.before = lambda _: None
            stored = bench.stored()
            bench.memory.replace(LEASES, *SHARED, lease.acquired_lease(stored, "me", lease.LEASE_DURATION, 0.0))
            raise Unavailable("the answer was lost")

    bench.before = lost
    bench.at(1.0)
    assert lease.BROKEN_BY not in (bench.stored()["metadata"].get("annotations") or {})
    bench.at(2.0)
    assert not bench.elector.valid()
    bench.now = 2.0 + lease.TAKEOVER_DELAY
    assert bench.elector.valid()
    bench.at(6.0 + lease.TAKEOVER_DELAY)
    bench.at(20.0 + lease.TAKEOVER_DELAY)
    assert bench.elector.valid(), "what is settled once is settled"


@pytest.mark.parametrize(("seconds", "broken"), [(0.0, True), (lease.TAKEOVER_DELAY - 0.1, True), (7.0, False)])
def test_one_that_is_given_back_before_it_was_used_stays_broken(seconds: float, broken: bool) -> None:
    """Others go on believing for a while that its holder is dead: the next one has to wait for that, too."""
    bench = Bench(SHARED, shared=True)
    bench.put(**{lease.BROKEN_BY: "another"})
    bench.at(1.0)
    bench.now = 1.0 + seconds
    bench.elector.stop()
    assert bench.stored()["spec"]["holderIdentity"] == ""
    assert (lease.BROKEN_BY in bench.stored()["metadata"]["annotations"]) is broken


def test_one_that_is_given_back_after_an_answer_that_was_lost_stays_broken() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put(**{lease.BROKEN_BY: "another"})

    def lost(verb: str) -> None:
        if verb == "replace":
            bench.before = lambda _: None
            acquired = lease.acquired_lease(bench.stored(), "me", lease.LEASE_DURATION, 0.0)
            bench.memory.replace(LEASES, *SHARED, acquired)
            raise Unavailable("the answer was lost")

    bench.before = lost
    bench.at(1.0)
    bench.now = 60.0
    bench.elector.stop()
    assert bench.stored()["spec"]["holderIdentity"] == ""
    assert lease.BROKEN_BY in bench.stored()["metadata"]["annotations"]


def test_who_does_not_want_it_knows_all_the_same_that_its_holder_is_dead() -> None:
    wanted = [False]
    bench = Bench(SHARED, shared=True, wanted=lambda: wanted[0])
    bench.put("dead")
    for now in range(0, 20, 2):
        bench.at(now)
    assert bench.stored()["spec"]["holderIdentity"] == "dead"
    wanted[0] = True
    bench.at(20.0)
    assert bench.elector.valid()


def test_what_is_not_wanted_any_more_is_given_back_at_once() -> None:
    wanted, told = [True], list[bool]()
    bench = Bench(SHARED, shared=True, wanted=lambda: wanted[0])
    bench.elector.listen(told.append)
    bench.put()
    bench.at(0.0)
    wanted[0] = False
    bench.before = lambda verb: told.append(bench.elector.valid()) if verb == "replace" else None
    bench.at(1.0)
    assert bench.stored()["spec"]["holderIdentity"] == ""
    assert told == [True, False, False], "not after others may have it"


@pytest.mark.parametrize("fenced", [True, False])
def test_an_absent_lease_is_waited_for_unless_two_may_believe_to_hold_it(fenced: bool) -> None:
    bench = Bench(SHARED, shared=True, fenced=fenced)
    bench.at(0.0)
    assert bench.elector.valid() is fenced
    for now in range(2, 16, 2):
        bench.at(now)
    assert bool(bench.memory.list(LEASES).items) is fenced
    bench.at(16.0)
    assert bench.stored()["spec"]["holderIdentity"] == "me"
    bench.now = 16.0 + lease.TAKEOVER_DELAY
    assert bench.elector.valid()


def test_what_another_one_holds_is_not_given_back() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put()
    bench.at(0.0)
    taken = lease.acquired_lease(bench.stored(), "other", lease.LEASE_DURATION, 0.0)
    bench.memory.replace(LEASES, *SHARED, taken)
    bench.elector.stop()
    assert bench.stored()["spec"]["holderIdentity"] == "other"


def test_a_lease_that_came_in_the_place_of_ours_is_not_deleted() -> None:
    bench = Bench()
    bench.at(0.0)

    def replaced(verb: str) -> None:
        if verb == "delete":
            bench.memory.delete(LEASES, *OWN)
            bench.put("other")

    bench.before = replaced
    bench.elector.stop()
    assert bench.stored()["spec"]["holderIdentity"] == "other"


def test_who_never_wrote_asks_nothing_at_the_end() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put("other")
    bench.at(0.0)
    assert bench.asked == ["get"]
    bench.elector.stop()
    assert bench.asked == ["get"]
    assert bench.stored()["spec"]["holderIdentity"] == "other"


def test_who_holds_it_renews_without_looking() -> None:
    bench = Bench()
    bench.at(0.0)
    bench.at(5.0)
    assert bench.asked == ["get", "create", "replace"]


def test_a_tenure_that_lapsed_is_not_renewed_over_what_was_not_looked_at() -> None:
    """etcd was restored meanwhile: the version that was written last is one that another holder's Lease has now."""
    bench = Bench(SHARED, shared=True)
    bench.put()
    backup, store = bench.stored(), bench.memory._store
    bench.at(0.0)
    version = bench.stored()["metadata"]["resourceVersion"]
    store._objects[f"{LEASES.plural}.{LEASES.group}"][SHARED.namespace][SHARED.name] = backup
    store.version = int(backup["metadata"]["resourceVersion"])
    bench.memory.replace(LEASES, *SHARED, lease.acquired_lease(backup, "other", lease.LEASE_DURATION, 0.0))
    assert bench.stored()["metadata"]["resourceVersion"] == version
    bench.at(12.0)
    assert bench.stored()["spec"]["holderIdentity"] == "other"
    assert not bench.elector.valid()


@pytest.mark.parametrize("holder", ["other", ""])
def test_who_sees_that_the_lease_is_not_its_own_does_not_act_to_the_end_of_its_tenure(holder: str) -> None:
    """A person, or a restored backup, has given it to another."""
    bench = Bench(SHARED, shared=True)
    bench.put()
    bench.at(0.0)
    given = {**bench.stored(), "spec": {**bench.stored()["spec"], "holderIdentity": holder}}
    bench.memory.replace(LEASES, *SHARED, given)
    bench.at(5.0)  # its renewal fails
    assert bench.elector.valid()
    bench.at(5.2)
    assert bench.elector.valid() is (holder == "")
    assert bench.elector.epoch == (2 if holder == "" else 1), "others may have driven in between"


def test_it_looks_again_soon_where_somebody_was_faster_and_later_where_it_is_asked_to() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put()
    usual = Bench(SHARED, shared=True)
    usual.put("other")

    def faster(verb: str) -> None:
        if verb == "replace":
            raise Conflict("another client was faster")

    bench.before = faster
    assert bench.at(0.0) < usual.at(0.0) / 5

    def busy(_: str) -> None:
        raise Throttled("too many", after=9.0)

    bench.before = busy
    assert bench.at(1.0) == 9.0


class Refusing:
    """A cluster that grants nothing, until it does."""

    def __init__(self, inner: MemoryCluster) -> None:
        self._inner = inner
        self.refuses = True

    def __getattr__(self, verb: str) -> Any:
        if self.refuses:
            raise Forbidden(f'may not {verb} leases in namespace "default"', hint="grant it")
        return getattr(self._inner, verb)


class Beats(MetricsRecorder):
    def __init__(self) -> None:
        self.beats: list[bool] = []
        self.led: list[bool] = []

    def heartbeat(self, ok: bool) -> None:
        self.beats.append(ok)

    def leading(self, leads: bool) -> None:
        self.led.append(leads)


def test_what_it_may_not_do_it_says_and_tries_again(sim: Sim, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Refusing(sim.memory)
    elector = LeaderElector(cluster, OWN, shared=False, monotonic=lambda: 0.0)  # type: ignore[arg-type]  # by __getattr__
    assert elector.step() > 0
    assert elector.step() > 0
    assert "may not get leases" in str(elector.problem)
    assert [record.getMessage().count("(grant it)") for record in caplog.records] == [1], "once"
    cluster.refuses = False
    elector.step()
    assert elector.valid()
    assert elector.problem is None


def test_beats_and_changes_are_told(sim: Sim) -> None:
    beats, changes = Beats(), []
    clock = [0.0]
    elector = LeaderElector(sim.memory, OWN, shared=False, monotonic=lambda: clock[0], recorder=beats)
    elector.listen(changes.append)
    elector.step()
    clock[0] = 5.0
    elector.step()
    assert (beats.beats, beats.led, changes) == ([True, True], [True], [True])
    sim.delete(OWN)
    clock[0] = 100.0
    elector.step()
    assert (beats.beats[-1], beats.led, changes) == (False, [True, False], [True, False])


def test_an_observation_counts_what_lies_between_looks() -> None:
    def at(version: str) -> dict[str, Any]:
        return {"metadata": {"uid": "u", "resourceVersion": version}, "spec": {"leaseDurationSeconds": 10}}

    seen = LeaseObservation()
    assert seen.age(5.0) == 0.0
    seen.note(at("1"), 100.0)
    assert not seen.expired(109.9)
    assert seen.expired(110.0)
    seen.note(at("2"), 111.0)
    assert seen.age(112.0) == 1.0
    seen.note(None, 113.0)
    seen.note(None, 117.0)
    assert seen.age(117.0) == 4.0
    seen.note(None, 130.0)
    assert seen.age(130.0) == 0.0, "it may have come and gone since"


@pytest.mark.parametrize("changed", [{"renewTime": "2027-01-15T08:01:07.821860Z"}, {"holderIdentity": "two"}])
def test_a_restored_etcd_gives_a_version_twice_and_a_renewal_shows_all_the_same(changed: dict[str, str]) -> None:
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2027-01-15T08:00:34.456601Z"}
    stored = {"metadata": {"uid": "u", "resourceVersion": "84"}, "spec": spec}
    seen = LeaseObservation()
    seen.note(stored, 100.0)
    seen.note({**stored, "spec": {**spec, **changed}}, 133.0)
    assert seen.age(133.0) == 0.0


# On the real clock


def test_each_wake_is_one_look() -> None:
    """What does not come to rest would ask the server for the Lease without a pause."""
    looks: list[str] = []
    memory = MemoryCluster()
    cluster = disturbed(memory, lambda verb, *_, **__: looks.append(verb))
    elector = LeaderElector(cluster, SHARED, shared=True, wanted=lambda: False, renew_every=3600.0)
    elector.start()
    for number in range(1, 4):
        until(lambda number=number: len(looks) >= number, 60)
        elector.wake()
    until(lambda: len(looks) >= 4, 60)
    elector.stop()
    assert looks == ["get"] * 4


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.cluster)])
def cluster(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        with MemoryCluster() as memory:
            yield memory
        return
    if not real_kubeconfig():
        pytest.skip("no API server: set TF_DIST_TEST_KUBECONFIG")
    with cluster_of_kubeconfig(real_kubeconfig()) as real:
        yield real


def _holder(tenures: list[LeaderElector]) -> LeaderElector:
    """The one of them that holds the Lease, as soon as one does; AssertionError if two do."""
    found: list[LeaderElector] = []

    def look() -> bool:
        found[:] = [elector for elector in tenures if elector.valid()]
        return bool(found)

    until(look, 60)
    (holder,) = found
    return holder


def test_replicas_take_turns(cluster: Any) -> None:
    ref = unique_lease_ref("default")
    cluster.create(LEASES, ref.namespace, {"metadata": {"name": ref.name}})
    tenures = [LeaderElector(cluster, ref, f"replica-{n}", shared=True, renew_every=0.5) for n in range(3)]
    for elector in tenures:
        elector.start()
    try:
        while tenures:
            holder = _holder(tenures)
            holder.stop()
            tenures.remove(holder)
        spec = cluster.get(LEASES, *ref)["spec"]
        assert spec["leaseTransitions"] >= 3
        assert not spec.get("holderIdentity")
    finally:
        for elector in tenures:
            elector.stop()
        cluster.delete(LEASES, *ref)


def test_a_lease_of_our_own_in_a_thread(cluster: Any) -> None:
    elector = LeaderElector(cluster, unique_lease_ref("default"), shared=False, duration=4, renew_every=0.2)
    elector.start()
    try:
        assert elector.wait(60)
        first = cluster.get(LEASES, *elector.ref)["metadata"]["resourceVersion"]
        until(lambda: cluster.get(LEASES, *elector.ref)["metadata"]["resourceVersion"] != first, 60)
    finally:
        elector.stop()
    listed = cluster.list(LEASES, "default", labels=f"{names.DRIVER}={lease.DRIVER_INLINE}").items
    assert elector.ref.name not in [stored["metadata"]["name"] for stored in listed]

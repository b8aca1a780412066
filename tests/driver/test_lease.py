"""Holding a Lease, step by step, on clocks that a test moves; and in threads, on the real one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.support import cluster_of_kubeconfig, real_kubeconfig
from tests.driver.harness import disturbed
from tests.driver.lease_world import SHARED, Fault, Sim
from tests.waiting import until
from tf_dist.cluster.api import LEASES
from tf_dist.cluster.memory import MemoryCluster
from tf_dist.core import names
from tf_dist.core.times import parse_time
from tf_dist.driver import lease
from tf_dist.driver.lease import LeaseRef, Observation, own_ref
from tf_dist.driver.recorder import Recorder
from tf_dist.driver.tenure import Tenure
from tf_dist.errors import Conflict, Forbidden, Throttled, Unavailable

OWN = LeaseRef("default", "tf-dist-run-1")


@pytest.fixture
def sim() -> Sim:
    return Sim()


def free_lease(sim: Sim) -> None:
    """As `tf-dist install` leaves it: there, and nobody's."""
    sim.memory.create(LEASES, SHARED.namespace, {"metadata": {"name": SHARED.name}})


def holder_and_standby(sim: Sim) -> tuple[Tenure, Tenure]:
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
    tenure = sim.hold(OWN, "me", shared=False)
    assert not tenure.valid()
    sim.run(0.1)
    assert tenure.valid()
    stored = sim.memory.get(LEASES, *OWN)
    assert stored["metadata"]["labels"] == {names.DRIVER: lease.INLINE}
    sim.run(60)
    assert tenure.valid()
    assert tenure.epoch == 1
    tenure.stop()
    assert not tenure.valid()
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
    held = {"holderIdentity": "somebody", "leaseDurationSeconds": 60}
    sim.memory.create(LEASES, SHARED.namespace, {"metadata": {"name": SHARED.name}, "spec": held})
    tenure = sim.hold(SHARED, "me", shared=True)
    sim.run(59)
    assert not tenure.valid()
    sim.run(3)
    assert tenure.valid()


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
    tenure = sim.hold(OWN, "me", shared=False)
    sim.run(3)
    sim.tenures[tenure].due = sim.now + 60
    sim.run(59)
    assert not tenure.valid()
    sim.run(2)
    assert not tenure.valid(), "somebody may have seen that its time was over"
    sim.run(lease.SETTLE)
    assert tenure.valid()
    assert tenure.epoch == 2


def test_a_tenure_counts_from_before_its_renewal_was_sent(sim: Sim) -> None:
    """The answer took six seconds, and then the network went: others count from when the server had it."""
    tenure = sim.hold(OWN, "me", shared=False)
    sim.run(4.9)
    machine = sim.tenures[tenure]
    machine.faults.extend([Fault(back=6.0), *[Fault(lost="request")] * 20])
    sim.run(12.0)  # 11.9 s after it was sent
    assert tenure.valid()
    assert tenure.epoch == 1
    sim.run(0.2)
    assert not tenure.valid()


def test_without_an_answer_a_tenure_ends_before_its_lease(sim: Sim) -> None:
    tenure = sim.hold(OWN, "me", shared=False)
    sim.run(0.1)
    sim.tenures[tenure].faults.extend([Fault(lost="request")] * 20)
    sim.run(11.8)
    assert tenure.valid()
    sim.run(0.2)
    assert not tenure.valid()
    assert "nobody answered" in str(tenure.problem)


def test_a_lost_answer_loses_nothing(sim: Sim) -> None:
    tenure = sim.hold(OWN, "me", shared=False)
    sim.run(0.1)
    sim.tenures[tenure].faults.extend([Fault(lost="answer")] * 2)
    for _ in range(300):
        sim.run(0.1)
        assert tenure.valid()
    assert tenure.epoch == 1
    assert tenure.problem is None


def test_the_answer_to_the_first_creation_may_be_lost(sim: Sim) -> None:
    tenure = sim.hold(OWN, "me", shared=False)
    sim.tenures[tenure].faults.extend([Fault(), Fault(lost="answer")])
    sim.run(3)
    assert tenure.valid()
    tenure.stop()
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
    assert not two.valid(), "somebody may think that its last holder is dead"
    sim.run(lease.SETTLE)
    assert two.valid()


def test_a_broken_lease_is_won_again_but_not_used_before_nobody_believes_it_dead(sim: Sim) -> None:
    tenure = sim.hold(OWN, "me", shared=False)
    sim.run(1)
    sim.tenures[tenure].due = sim.now + 60
    book = sim.watch(OWN)
    sim.run(59)
    assert book.stale() == {str(OWN)}
    won = 0
    for _ in range(100):
        sim.run(0.2)
        won += str(OWN) in book.stale() and sim.spec(OWN)["holderIdentity"] == "me"
    assert tenure.valid()
    assert tenure.epoch == 2
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
        self.tenure = Tenure(wire, ref, "me", shared=shared, monotonic=lambda: self.now, **more)

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
        return self.tenure.step()


def test_a_tenure_that_lapsed_is_another_one_from_the_moment_on_at_which_it_was_over() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put()
    bench.at(0.0)
    bench.at(11.0)
    assert (bench.tenure.epoch, bench.tenure.remaining()) == (1, 12.0)
    bench.at(23.0)
    assert (bench.tenure.epoch, bench.tenure.remaining()) == (2, 12.0), "nobody has broken it: it is used at once"


def test_nothing_is_left_of_a_tenure_that_has_not_begun() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put(**{lease.BROKEN_BY: "somebody"})
    bench.at(1.0)
    assert bench.stored()["spec"]["holderIdentity"] == "me"
    assert (bench.tenure.valid(), bench.tenure.remaining()) == (False, 0.0)
    bench.now = 1.0 + lease.SETTLE
    assert (bench.tenure.valid(), bench.tenure.remaining()) == (True, 12.0 - lease.SETTLE)


def test_that_it_was_broken_is_not_forgotten_with_an_answer_that_is_lost() -> None:
    """The server has taken the write: what is read next does not show that it was broken."""
    bench = Bench(SHARED, shared=True)
    bench.put(**{lease.BROKEN_BY: "somebody"})

    def lost(verb: str) -> None:
        if verb == "replace":
            bench.before = lambda _: None
            stored = bench.stored()
            bench.memory.replace(LEASES, *SHARED, lease.acquired(stored, "me", lease.DURATION, 0.0))
            raise Unavailable("the answer was lost")

    bench.before = lost
    bench.at(1.0)
    assert lease.BROKEN_BY not in (bench.stored()["metadata"].get("annotations") or {})
    bench.at(2.0)
    assert not bench.tenure.valid()
    bench.now = 2.0 + lease.SETTLE
    assert bench.tenure.valid()
    bench.at(6.0 + lease.SETTLE)
    bench.at(20.0 + lease.SETTLE)
    assert bench.tenure.valid(), "what is settled once is settled"


def test_who_does_not_want_it_knows_all_the_same_that_its_holder_is_dead() -> None:
    wanted = [False]
    bench = Bench(SHARED, shared=True, stands=lambda: wanted[0])
    bench.put("dead")
    for now in range(0, 20, 2):
        bench.at(now)
    assert bench.stored()["spec"]["holderIdentity"] == "dead"
    wanted[0] = True
    bench.at(20.0)
    assert bench.tenure.valid()


def test_what_is_not_wanted_any_more_is_given_back_at_once() -> None:
    wanted, told = [True], list[bool]()
    bench = Bench(SHARED, shared=True, stands=lambda: wanted[0])
    bench.tenure.listen(told.append)
    bench.put()
    bench.at(0.0)
    wanted[0] = False
    bench.before = lambda verb: told.append(bench.tenure.valid()) if verb == "replace" else None
    bench.at(1.0)
    assert bench.stored()["spec"]["holderIdentity"] == ""
    assert told == [True, False, False], "not after others may have it"


@pytest.mark.parametrize("fenced", [True, False])
def test_an_absent_lease_is_waited_for_unless_two_may_believe_to_hold_it(fenced: bool) -> None:
    bench = Bench(SHARED, shared=True, fenced=fenced)
    bench.at(0.0)
    assert bench.tenure.valid() is fenced
    for now in range(2, 16, 2):
        bench.at(now)
    assert bool(bench.memory.list(LEASES).items) is fenced
    bench.at(16.0)
    assert bench.stored()["spec"]["holderIdentity"] == "me"
    bench.now = 16.0 + lease.SETTLE
    assert bench.tenure.valid()


def test_what_another_one_holds_is_not_given_back() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put()
    bench.at(0.0)
    taken = lease.acquired(bench.stored(), "other", lease.DURATION, 0.0)
    bench.memory.replace(LEASES, *SHARED, taken)
    bench.tenure.stop()
    assert bench.stored()["spec"]["holderIdentity"] == "other"


def test_a_lease_that_came_in_the_place_of_ours_is_not_deleted() -> None:
    bench = Bench()
    bench.at(0.0)

    def replaced(verb: str) -> None:
        if verb == "delete":
            bench.memory.delete(LEASES, *OWN)
            bench.put("other")

    bench.before = replaced
    bench.tenure.stop()
    assert bench.stored()["spec"]["holderIdentity"] == "other"


def test_who_never_wrote_asks_nothing_at_the_end() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put("other")
    bench.at(0.0)
    assert bench.asked == ["get"]
    bench.tenure.stop()
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
    bench.memory.replace(LEASES, *SHARED, lease.acquired(backup, "other", lease.DURATION, 0.0))
    assert bench.stored()["metadata"]["resourceVersion"] == version
    bench.at(12.0)
    assert bench.stored()["spec"]["holderIdentity"] == "other"
    assert not bench.tenure.valid()


@pytest.mark.parametrize("holder", ["other", ""])
def test_who_sees_that_the_lease_is_not_its_own_does_not_act_to_the_end_of_its_tenure(holder: str) -> None:
    """A person, or a restored backup, has given it to another."""
    bench = Bench(SHARED, shared=True)
    bench.put()
    bench.at(0.0)
    given = {**bench.stored(), "spec": {**bench.stored()["spec"], "holderIdentity": holder}}
    bench.memory.replace(LEASES, *SHARED, given)
    bench.at(5.0)  # its renewal fails
    assert bench.tenure.valid()
    bench.at(5.2)
    assert bench.tenure.valid() is (holder == "")
    assert bench.tenure.epoch == (2 if holder == "" else 1), "others may have driven in between"


def test_it_looks_again_soon_where_somebody_was_faster_and_later_where_it_is_asked_to() -> None:
    bench = Bench(SHARED, shared=True)
    bench.put()
    usual = Bench(SHARED, shared=True)
    usual.put("other")

    def faster(verb: str) -> None:
        if verb == "replace":
            raise Conflict("somebody was faster")

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


class Beats(Recorder):
    def __init__(self) -> None:
        self.beats: list[bool] = []
        self.led: list[bool] = []

    def heartbeat(self, ok: bool) -> None:
        self.beats.append(ok)

    def leading(self, leads: bool) -> None:
        self.led.append(leads)


def test_what_it_may_not_do_it_says_and_tries_again(sim: Sim, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Refusing(sim.memory)
    tenure = Tenure(cluster, OWN, shared=False, monotonic=lambda: 0.0)  # type: ignore[arg-type]  # by __getattr__
    assert tenure.step() > 0
    assert tenure.step() > 0
    assert "may not get leases" in str(tenure.problem)
    assert [record.getMessage().count("(grant it)") for record in caplog.records] == [1], "once"
    cluster.refuses = False
    tenure.step()
    assert tenure.valid()
    assert tenure.problem is None


def test_beats_and_changes_are_told(sim: Sim) -> None:
    beats, changes = Beats(), []
    clock = [0.0]
    tenure = Tenure(sim.memory, OWN, shared=False, monotonic=lambda: clock[0], recorder=beats)
    tenure.listen(changes.append)
    tenure.step()
    clock[0] = 5.0
    tenure.step()
    assert (beats.beats, beats.led, changes) == ([True, True], [True], [True])
    sim.delete(OWN)
    clock[0] = 100.0
    tenure.step()
    assert (beats.beats[-1], beats.led, changes) == (False, [True, False], [True, False])


def test_an_observation_counts_what_lies_between_looks() -> None:
    def at(version: str) -> dict[str, Any]:
        return {"metadata": {"uid": "u", "resourceVersion": version}, "spec": {"leaseDurationSeconds": 10}}

    seen = Observation()
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
    seen = Observation()
    seen.note(stored, 100.0)
    seen.note({**stored, "spec": {**spec, **changed}}, 133.0)
    assert seen.age(133.0) == 0.0


# On the real clock


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


def _holder(tenures: list[Tenure]) -> Tenure:
    """The one of them that holds the Lease, as soon as one does; AssertionError if two do."""
    found: list[Tenure] = []

    def look() -> bool:
        found[:] = [tenure for tenure in tenures if tenure.valid()]
        return bool(found)

    until(look, 60)
    (holder,) = found
    return holder


def test_replicas_take_turns(cluster: Any) -> None:
    ref = own_ref("default")
    cluster.create(LEASES, ref.namespace, {"metadata": {"name": ref.name}})
    tenures = [Tenure(cluster, ref, f"replica-{n}", shared=True, renew_every=0.5) for n in range(3)]
    for tenure in tenures:
        tenure.start()
    try:
        while tenures:
            holder = _holder(tenures)
            holder.stop()
            tenures.remove(holder)
        spec = cluster.get(LEASES, *ref)["spec"]
        assert spec["leaseTransitions"] >= 3
        assert not spec.get("holderIdentity")
    finally:
        for tenure in tenures:
            tenure.stop()
        cluster.delete(LEASES, *ref)


def test_a_lease_of_our_own_in_a_thread(cluster: Any) -> None:
    tenure = Tenure(cluster, own_ref("default"), shared=False, duration=4, renew_every=0.2)
    tenure.start()
    try:
        assert tenure.wait(60)
        first = cluster.get(LEASES, *tenure.ref)["metadata"]["resourceVersion"]
        until(lambda: cluster.get(LEASES, *tenure.ref)["metadata"]["resourceVersion"] != first, 60)
    finally:
        tenure.stop()
    listed = cluster.list(LEASES, "default", labels=f"{names.DRIVER}={lease.INLINE}").items
    assert tenure.ref.name not in [stored["metadata"]["name"] for stored in listed]

"""Leader election: single steps on a simulated clock, and threads on the real clock."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.support import cluster_of_kubeconfig, real_kubeconfig
from tests.controller.harness import disturbed
from tests.waiting import until
from tf_dist.cluster import lease
from tf_dist.cluster.api import LEASES, NAMESPACES, TFJOBS, VOLCANO_JOBS
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.lease import LeaseRef, leader_lease
from tf_dist.controller.leader_election import LeaderElector, LeaseLeadership
from tf_dist.controller.observability.metrics_interface import MetricsRecorder
from tf_dist.core.model import names
from tf_dist.core.model.timestamps import format_micro_time, parse_time
from tf_dist.errors import Conflict, Forbidden, NotFound, Throttled, Unavailable

CLUSTER = leader_lease(TFJOBS, None)
TEAM = leader_lease(TFJOBS, "team")
NOW = 1_800_000_000.0


class Candidate:
    """An elector whose steps the test runs. ``before`` can disturb its requests."""

    def __init__(self, stage: Stage, ref: LeaseRef, identity: str, **more: Any) -> None:
        self.stage, self.ref = stage, ref
        self.asked: list[str] = []
        self.before: Callable[[str], object] = lambda _: None
        wire = disturbed(stage.memory, self._asked)
        clocks = {"monotonic": lambda: stage.now, "clock": lambda: NOW + stage.now}
        self.elector = LeaderElector(wire, ref, identity, **clocks, **more)  # type: ignore[arg-type]

    def _asked(self, verb: str, _: object, namespace: str | None, *__: Any, **___: Any) -> None:
        self.asked.append(verb if namespace == self.ref.namespace else f"{verb} {namespace or 'all'}")
        self.before(verb)

    def at(self, now: float) -> float:
        """Run a step at this time, and return the seconds until the next step."""
        self.stage.now = now
        return self.elector.step()

    @property
    def valid(self) -> bool:
        return self.elector.valid()


class Stage:
    """A cluster with Leases, a clock, and candidates."""

    def __init__(self) -> None:
        self.now = 0.0
        self.memory = MemoryCluster(clock=lambda: NOW + self.now)
        self.memory.create(NAMESPACES, None, {"metadata": {"name": TEAM.namespace}})

    def cluster(self, identity: str = "me", **more: Any) -> Candidate:
        return Candidate(self, CLUSTER, identity, **more)

    def team(self, identity: str = "me", **more: Any) -> Candidate:
        return Candidate(self, TEAM, identity, wider=CLUSTER, **more)

    def put(self, ref: LeaseRef, holder: str = "", *, seconds: int = 15, renewed: float = 0.0) -> None:
        """Create a Lease of another process."""
        held = {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "renewTime": format_micro_time(NOW + renewed),
        }
        metadata = {"name": ref.name, "labels": dict(lease.LEASE_LABELS)}
        self.memory.create(LEASES, ref.namespace, {"metadata": metadata, "spec": held})

    def give(self, ref: LeaseRef, holder: str) -> None:
        """A user or a restored backup changes the holder of the Lease."""
        stored = self.memory.get(LEASES, *ref)
        given = {**stored, "spec": {**stored["spec"], "holderIdentity": holder}}
        self.memory.replace(LEASES, *ref, given)

    def holder(self, ref: LeaseRef) -> str | None:
        """The holder of the Lease, or None if the Lease does not exist."""
        try:
            return str(self.memory.get(LEASES, *ref)["spec"].get("holderIdentity", ""))
        except NotFound:
            return None


@pytest.fixture
def stage() -> Stage:
    return Stage()


# One scope


def test_absent_lease_is_acquired_immediately(stage: Stage) -> None:
    one = stage.team()
    assert not one.valid
    one.at(0.0)
    assert (one.valid, one.elector.epoch, stage.holder(TEAM)) == (True, 1, "me")


def test_lease_has_format_that_other_clients_expect(stage: Stage) -> None:
    one = stage.team()
    one.at(0.0)
    one.at(5.0)
    stored = stage.memory.get(LEASES, *TEAM)
    spec = stored["spec"]
    assert stored["metadata"]["labels"] == {names.LEADER: "controller"}
    assert {key: spec[key] for key in ("holderIdentity", "leaseDurationSeconds", "leaseTransitions")} == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 0,
    }
    for field in ("acquireTime", "renewTime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec[field])
    assert (parse_time(spec["renewTime"]) or 0) - (parse_time(spec["acquireTime"]) or 0) == 5


@pytest.mark.parametrize(("ref", "left"), [(CLUSTER, ""), (TEAM, None)])
def test_released_lease_is_acquired_immediately(stage: Stage, ref: LeaseRef, left: str | None) -> None:
    """The Lease of the cluster stays after its release. The Lease of a namespace is deleted."""
    wider = CLUSTER if ref is TEAM else None
    one, two = (Candidate(stage, ref, identity, wider=wider) for identity in ("one", "two"))
    one.at(0.0)
    two.at(1.0)
    assert (one.valid, two.valid) == (True, False)
    one.elector.stop()
    assert (one.valid, stage.holder(ref)) == (False, left)
    two.at(1.2)
    assert two.valid


def test_lease_of_dead_holder_is_acquired_after_its_duration(stage: Stage) -> None:
    stage.put(CLUSTER, "dead", seconds=60)
    one = stage.cluster()
    for now in range(0, 60, 2):
        assert 0 < one.at(now) <= 2
    assert not one.valid
    one.at(60.0)
    assert one.valid
    assert stage.memory.get(LEASES, *CLUSTER)["spec"]["leaseTransitions"] == 1


def test_leadership_counts_from_send_time_and_ends_before_lease(stage: Stage) -> None:
    one = stage.team()

    def slow(verb: str) -> None:
        stage.now += 3.0 * (verb == "create")

    one.before = slow
    one.at(10.0)
    assert one.elector.remaining() == 9.0
    stage.now = 21.9
    assert one.valid
    stage.now = 22.0
    assert (one.valid, one.elector.remaining()) == (False, 0.0)


def test_leadership_won_again_after_lapse_has_new_epoch(stage: Stage) -> None:
    one = stage.team()
    one.at(0.0)
    one.at(11.0)
    assert (one.elector.epoch, one.elector.remaining()) == (1, 12.0)
    stage.now = 40.0
    assert not one.valid
    one.at(40.0)
    assert (one.elector.epoch, one.valid) == (2, True)


def test_lost_answer_does_not_lose_leadership(stage: Stage) -> None:
    one = stage.team()

    def lost(verb: str) -> None:
        if verb == "create":
            one.before = lambda _: None
            stage.memory.create(LEASES, TEAM.namespace, lease.new_lease(TEAM, "me", 15.0, NOW))
            raise Unavailable("the answer was lost")

    one.before = lost
    one.at(0.0)
    assert "lost" in str(one.elector.problem)
    one.at(2.0)
    assert (one.valid, one.elector.epoch, one.elector.problem) == (True, 1, None)
    one.elector.stop()
    assert stage.holder(TEAM) is None


def test_holder_creates_deleted_lease_again(stage: Stage) -> None:
    one = stage.team()
    one.at(0.0)
    stage.memory.delete(LEASES, *TEAM)
    again = one.at(5.0)
    one.at(5.0 + again)
    assert (one.valid, stage.holder(TEAM), one.elector.epoch) == (True, "me", 1)


def test_leader_stops_when_another_process_holds_lease(stage: Stage) -> None:
    one = stage.team()
    one.at(0.0)
    stage.give(TEAM, "other")
    one.at(5.0)  # its renewal fails
    assert not one.valid
    one.elector.stop()
    assert stage.holder(TEAM) == "other", "what another holds is not given back"


def test_release_does_not_delete_lease_of_another_holder(stage: Stage) -> None:
    one = stage.team()
    one.at(0.0)

    def replaced(verb: str) -> None:
        if verb == "delete":
            stage.memory.delete(LEASES, *TEAM)
            stage.put(TEAM, "other")

    one.before = replaced
    one.elector.stop()
    assert stage.holder(TEAM) == "other"


def test_release_does_not_delete_lease_that_another_candidate_has_just_taken(stage: Stage) -> None:
    """The Lease has expired, so another candidate may take it between the two requests of the release."""
    one = stage.team()
    one.at(0.0)

    def taken(verb: str) -> None:
        if verb == "delete":
            stored = stage.memory.get(LEASES, *TEAM)
            stage.memory.replace(LEASES, *TEAM, lease.acquired_lease(stored, "other", 15.0, NOW))

    one.before = taken
    one.elector.stop()
    assert stage.holder(TEAM) == "other"


def test_candidate_sends_no_request_when_stopped(stage: Stage) -> None:
    stage.put(CLUSTER, "other")
    one = stage.cluster()
    one.at(0.0)
    one.elector.stop()
    assert (one.asked, stage.holder(CLUSTER)) == (["get"], "other")


def test_holder_renews_without_reading_and_checks_cluster_lease(stage: Stage) -> None:
    one = stage.team()
    one.at(0.0)
    asked, one.asked = one.asked, []
    one.at(5.0)
    system = f"get {CLUSTER.namespace}"
    assert (asked, one.asked) == ([system, "get", "create", system], ["replace", system])


def test_lapsed_leader_reads_lease_before_renewal(stage: Stage) -> None:
    """After a restore of etcd, the Lease of another holder has the version that this process wrote last."""
    stage.put(CLUSTER)
    one = stage.cluster()
    backup, store = stage.memory.get(LEASES, *CLUSTER), stage.memory._store
    one.at(0.0)
    version = stage.memory.get(LEASES, *CLUSTER)["metadata"]["resourceVersion"]
    store._objects[f"{LEASES.plural}.{LEASES.group}"][CLUSTER.namespace][CLUSTER.name] = backup
    store.version = int(backup["metadata"]["resourceVersion"])
    stage.memory.replace(LEASES, *CLUSTER, lease.acquired_lease(backup, "other", 15.0, NOW))
    assert stage.memory.get(LEASES, *CLUSTER)["metadata"]["resourceVersion"] == version
    one.at(12.0)
    assert (stage.holder(CLUSTER), one.valid) == ("other", False)


def test_unwanted_lease_is_not_acquired_and_is_released(stage: Stage) -> None:
    wanted, told = [False], list[bool]()
    stage.put(CLUSTER, "dead")
    one = stage.cluster(wanted=lambda: wanted[0])
    one.elector.listen(lambda: told.append(one.valid))
    for now in range(0, 20, 2):
        one.at(now)
    assert stage.holder(CLUSTER) == "dead"
    wanted[0] = True
    one.at(20.0)
    assert one.valid, "it has seen all the time that its holder is dead"
    wanted[0] = False
    one.before = lambda verb: told.append(one.valid) if verb == "replace" else None
    one.at(21.0)
    assert stage.holder(CLUSTER) == ""
    assert told == [True, False, False], "not after others may have it"


def test_retry_comes_soon_after_conflict_and_respects_retry_after(stage: Stage) -> None:
    stage.put(CLUSTER)
    one = stage.cluster()

    def faster(verb: str) -> None:
        if verb == "replace":
            raise Conflict("another client was faster")

    one.before = faster
    assert one.at(0.0) < 0.5

    def busy(_: str) -> None:
        raise Throttled("too many", after=9.0)

    one.before = busy
    assert one.at(1.0) == 9.0


def test_leader_keeps_lease_when_retry_after_exceeds_lease_duration(stage: Stage) -> None:
    one, other = stage.cluster(), stage.cluster("other")
    pause = one.at(0.0)
    other.at(0.0)

    def busy(_: str) -> None:
        raise Throttled("too many", after=32.0)

    one.before = other.before = busy
    pause = one.at(pause)
    assert other.at(pause) <= 15.0, "a candidate waits one Lease duration at most"
    one.before = lambda _: None
    one.at(stage.now + pause)
    assert stage.now < 12.0
    assert (one.valid, one.elector.epoch) == (True, 1)


def test_forbidden_request_is_logged_once_and_retried(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    one = stage.cluster()

    def refuse(verb: str) -> None:
        if verb == "get":
            raise Forbidden(f"may not {verb} leases", hint="grant it")

    one.before = refuse
    assert one.at(0.0) > 0
    assert one.at(2.0) > 0
    assert "may not get leases" in str(one.elector.problem)
    assert [record.getMessage().count("(grant it)") for record in caplog.records] == [1]
    one.before = lambda _: None
    one.at(4.0)
    assert (one.valid, one.elector.problem) == (True, None)


class Beats(MetricsRecorder):
    def __init__(self) -> None:
        self.beats: list[bool] = []
        self.led: list[bool] = []

    def heartbeat(self, ok: bool) -> None:
        self.beats.append(ok)

    def leading(self, lease: str, leads: bool) -> None:
        self.led.append(leads)


def test_heartbeats_and_leadership_changes_are_recorded(stage: Stage) -> None:
    beats = Beats()
    one = stage.team(recorder=beats)
    one.at(0.0)
    one.at(5.0)
    assert (beats.beats, beats.led) == ([True, True], [True])
    stage.give(TEAM, "other")
    one.at(100.0)
    assert (beats.beats[-1], beats.led) == (False, [True, False])


# A namespace and the cluster


def test_namespace_candidate_waits_while_cluster_has_leader(stage: Stage) -> None:
    stage.put(CLUSTER, "controller")
    one = stage.team()
    for now in range(0, 14, 2):
        one.at(now)
        stage.memory.replace(LEASES, *CLUSTER, lease.renewed_lease(stage.memory.get(LEASES, *CLUSTER), 15.0, NOW + now))
    assert (one.valid, stage.holder(TEAM)) == (False, None)
    assert one.elector.other_since == 0.0


def test_namespace_candidate_leads_when_cluster_lease_expires(stage: Stage) -> None:
    stage.put(CLUSTER, "dead")
    one = stage.team()
    one.at(0.0)
    one.at(14.9)
    assert not one.valid
    one.at(15.0)
    assert one.valid


def test_namespace_candidate_waits_briefly_after_cluster_lease_release(stage: Stage) -> None:
    """Usually the next replica of the controller acquires the Lease."""
    stage.put(CLUSTER, "")
    one = stage.team()
    assert 0 < one.at(0.0) <= 2.0
    assert not one.valid
    one.at(2.0)
    assert one.valid


@pytest.mark.parametrize(("error", "leads"), [(Forbidden, True), (NotFound, True), (Unavailable, False)])
def test_namespace_candidate_leads_only_after_answer_about_cluster_lease(
    stage: Stage, error: type[Exception], leads: bool
) -> None:
    one = stage.team()

    def away(verb: str) -> None:
        if verb == "get" and one.asked[-1] != "get":
            raise error("x")

    one.before = away
    one.at(0.0)
    assert one.valid is leads


def test_namespace_leader_yields_to_cluster_and_deletes_its_lease(stage: Stage) -> None:
    one, all_ = stage.team("team"), stage.cluster("cluster")
    one.at(0.0)
    pause = all_.at(1.0)
    assert (stage.holder(CLUSTER), all_.valid) == ("cluster", False), "it waits until nobody leads a namespace"
    assert 0 < pause <= 1.0
    one.at(5.0)
    assert (one.valid, stage.holder(TEAM)) == (False, None)
    all_.at(5.1)
    assert all_.valid


def test_new_cluster_leader_waits_at_most_one_lease_duration(stage: Stage) -> None:
    """The Lease of a stopped process does not prolong the wait, because the process yields before it acts again."""
    stage.put(TEAM, "stopped", renewed=0.0)
    one = stage.cluster()
    for now in range(15):
        one.at(now)
        assert not one.valid
    one.at(15.0)
    assert (one.valid, one.elector.epoch) == (True, 1)


def test_old_namespace_lease_does_not_delay_cluster_leader(stage: Stage) -> None:
    stage.put(TEAM, "killed", renewed=-90_000.0)
    one = stage.cluster()
    one.at(0.0)
    assert one.valid


def test_new_leader_reads_no_leases_of_other_names(stage: Stage) -> None:
    """A tenant can create thousands of Leases with the label, of a megabyte each."""
    for n in range(3):
        stage.put(LeaseRef(TEAM.namespace, f"forged-{n}"), "tenant")
    read: list[str] = []

    class Wire:
        def __getattr__(self, verb: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                found = getattr(stage.memory, verb)(*args, **kwargs)
                if verb == "list":
                    read.extend(one["metadata"]["name"] for one in found.items)
                return found

            return call

    elector = LeaderElector(Wire(), CLUSTER, "me", monotonic=lambda: stage.now)  # type: ignore[arg-type]
    elector.step()
    assert elector.valid()
    assert set(read) <= {CLUSTER.name}


def test_namespace_candidate_yields_to_concurrent_cluster_candidate(stage: Stage) -> None:
    """Both write their own Lease and then read the other Lease, so at least one of them sees the other."""
    one, all_ = stage.team("team"), stage.cluster("cluster")

    def meanwhile(verb: str) -> None:
        if verb == "create":
            one.before = lambda _: None
            all_.at(0.0)

    one.before = meanwhile
    one.at(0.0)
    assert not one.valid
    assert all_.valid


def test_cluster_candidate_that_may_not_list_leases_waits_lease_duration(stage: Stage) -> None:
    one = stage.cluster()

    def refuse(verb: str) -> None:
        if verb == "list":
            raise Forbidden("may not list")

    one.before = refuse
    one.at(0.0)
    one.at(10.0)
    assert not one.valid
    one.at(15.0)
    assert one.valid


# Kinds of jobs


def leadership(stage: Stage, identity: str, *kinds: Any, namespace: str | None = "team") -> LeaseLeadership:
    clocks: dict[str, Any] = {"monotonic": lambda: stage.now, "clock": lambda: NOW + stage.now}
    return LeaseLeadership(stage.memory, kinds, namespace, identity=identity, **clocks)


def test_leader_of_first_kind_leads_all_kinds(stage: Stage) -> None:
    one, two = (leadership(stage, identity, TFJOBS, VOLCANO_JOBS) for identity in ("one", "two"))
    one.step()
    two.step()
    assert (one.kinds(), two.kinds()) == ({TFJOBS, VOLCANO_JOBS}, set())
    one.stop()
    stage.now = 1.0
    two.step()
    assert two.kinds() == {TFJOBS, VOLCANO_JOBS}


def test_namespace_leads_kind_that_cluster_leader_does_not_lead(stage: Stage) -> None:
    all_ = leadership(stage, "cluster", TFJOBS, namespace=None)
    all_.step()
    one = leadership(stage, "one", TFJOBS, VOLCANO_JOBS)
    one.step()
    assert one.kinds() == set(), "the other may be its replica that takes both"
    stage.now = 2.0
    one.step()
    assert (all_.kinds(), one.kinds()) == ({TFJOBS}, {VOLCANO_JOBS})
    assert (one.remaining(TFJOBS), one.remaining(VOLCANO_JOBS) > 0) == (0.0, True)


def test_term_changes_when_kind_is_won(stage: Stage) -> None:
    one = leadership(stage, "one", TFJOBS, VOLCANO_JOBS)
    terms = [one.term]
    for elector in one.electors.values():
        elector.step()
        terms.append(one.term)
    assert len(set(terms)) == 3
    stage.now = 5.0
    one.step()
    assert one.term == terms[-1]


# On the real clock


class WithOldEtcd(MemoryCluster):
    """Kubernetes since 1.34 with etcd 3.4, which refuses watches that start with the existing objects."""

    def watch(self, *args: Any, since: str = "", **more: Any) -> Any:
        if since in ("", "0"):
            raise Unavailable("the required storage feature RequestWatchProgress is disabled")
        return super().watch(*args, since=since, **more)


@pytest.fixture(params=["memory", "old etcd", pytest.param("real", marks=pytest.mark.cluster)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param != "real":
        with WithOldEtcd() if request.param == "old etcd" else MemoryCluster() as memory:
            yield memory
        return
    if not real_kubeconfig():
        pytest.skip("no API server: set TF_DIST_TEST_KUBECONFIG")
    with cluster_of_kubeconfig(real_kubeconfig()) as real:
        yield real


def test_next_replica_acquires_released_lease_without_polling(cluster: Any) -> None:
    """The replicas watch the Lease."""
    ref, wider = LeaseRef("default", "test-turns"), LeaseRef("default", "test-turns-of-all")
    replicas = [LeaderElector(cluster, ref, f"replica-{n}", wider=wider, renew_every=100.0) for n in range(3)]
    for elector in replicas:
        elector.start()
    try:
        while replicas:
            until(lambda: any(elector.valid() for elector in replicas), 60)
            (holder,) = (elector for elector in replicas if elector.valid())
            holder.stop()
            replicas.remove(holder)
        with pytest.raises(NotFound):
            cluster.get(LEASES, *ref)
    finally:
        for elector in replicas:
            elector.stop()


def test_namespace_leader_yields_as_soon_as_cluster_has_leader(cluster: Any) -> None:
    ref, wider = LeaseRef("default", "test-yields"), LeaseRef("default", "test-yields-to")
    one = LeaderElector(cluster, ref, "one", wider=wider, renew_every=100.0, duration=1000.0)
    one.start()
    try:
        until(one.valid, 60)
        cluster.create(LEASES, wider.namespace, lease.new_lease(wider, "controller", 15.0, NOW))
        until(lambda: not any(stored["metadata"]["name"] == ref.name for stored in cluster.list(LEASES).items), 60)
        assert not one.valid()
    finally:
        one.stop()
        cluster.delete(LEASES, *wider)


class WithWatchesThatEnd(MemoryCluster):
    """A server whose watches the test can end. Real servers also end watches from time to time."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[Any] = []

    def watch(self, *args: Any, **more: Any) -> Any:
        self.streams.append(stream := super().watch(*args, **more))
        return stream


def test_lease_released_between_two_watches_is_acquired() -> None:
    """No event reports the release. The list before the next watch does."""
    ref = LeaseRef("default", "test-gap")
    with WithWatchesThatEnd() as cluster:
        cluster.create(LEASES, ref.namespace, lease.new_lease(ref, "other", 1000.0, NOW))
        candidate = LeaderElector(cluster, ref, "candidate", renew_every=5.0)
        candidate.start()
        try:
            until(lambda: cluster.streams and candidate.other_since < math.inf, 60)
            renewed = lease.renewed_lease(cluster.get(LEASES, *ref), 1000.0, NOW + 1)
            version = cluster.replace(LEASES, *ref, renewed)["metadata"]["resourceVersion"]
            until(lambda: version in candidate._seen._seen, 60)  # the watch has delivered it
            for stream in cluster.streams:
                stream.close()
            until(lambda: ref not in candidate._streams, 60)
            cluster.delete(LEASES, *ref)
            until(candidate.valid, 60)
        finally:
            candidate.stop()


def test_namespace_recovers_one_lease_duration_after_both_leaders_die(stage: Stage) -> None:
    """The candidate observes the Lease of the namespace while the Lease of the cluster is still valid."""
    stage.put(CLUSTER, "controller")
    stage.put(TEAM, "host")
    left = {ref: stage.memory.get(LEASES, *ref)["metadata"]["uid"] for ref in (CLUSTER, TEAM)}
    candidate = LeaderElector(stage.memory, TEAM, "candidate", wider=CLUSTER, monotonic=lambda: stage.now)
    candidate.start()
    try:
        until(lambda: left[CLUSTER] in candidate._wider_seen._seen and left[TEAM] in candidate._seen._seen, 60)
        stage.now = 15.5
        candidate.wake()
        until(candidate.valid, 60)
    finally:
        candidate.stop()

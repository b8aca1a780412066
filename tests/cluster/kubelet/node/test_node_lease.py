"""One agent holds a node's name: judged by what is seen, never by comparing clocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.support import exists
from tf_dist.cluster.api import LEASES, NAMESPACES, NODES
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.kubelet.node.node_lease import LEASE_NAMESPACE, NodeLease, NodeNameTaken
from tf_dist.errors import NotFound, Unavailable

SECONDS = 40.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Waits(threading.Event):
    """Its waits take no time: the clock goes on by them, and something else happens meanwhile."""

    def __init__(self, clock: Clock, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._clock = clock
        self._meanwhile = meanwhile

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        self._meanwhile()
        return self.is_set()


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as cluster:
        cluster.create(NAMESPACES, None, {"metadata": {"name": LEASE_NAMESPACE}})
        yield cluster


@pytest.fixture
def clock() -> Clock:
    return Clock()


def claim(cluster: MemoryCluster, clock: Clock, identity: str) -> NodeLease:
    return NodeLease(cluster, "n", identity, SECONDS, monotonic=clock)


def test_a_free_name_is_taken_at_once(cluster: MemoryCluster, clock: Clock) -> None:
    mine = claim(cluster, clock, "me")
    mine.take(Waits(clock))
    mine.renew(None, 5.0)
    assert clock.now == Clock.now
    lease = cluster.get(LEASES, LEASE_NAMESPACE, "n")
    assert lease["spec"] == {
        "holderIdentity": "n",
        "leaseDurationSeconds": 40,
        "renewTime": "1970-01-01T00:00:05.000000Z",
    }
    node = cluster.create(NODES, None, {"metadata": {"name": "n"}})
    mine.renew(node, 6.0)
    owner = cluster.get(LEASES, LEASE_NAMESPACE, "n")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])


def test_a_name_whose_agent_heartbeats_is_refused(cluster: MemoryCluster, clock: Clock) -> None:
    other = claim(cluster, clock, "other")
    other.renew(None, 0.0)
    due = clock.now + 10

    def heartbeat() -> None:
        if clock.now >= due:
            other.renew(None, clock.now)

    with pytest.raises(NodeNameTaken, match="another agent runs node n"):
        claim(cluster, clock, "me").take(Waits(clock, heartbeat))
    assert clock.now < due + 2


def test_a_silent_agent_is_waited_for_as_long_as_its_lease_says(cluster: MemoryCluster, clock: Clock) -> None:
    claim(cluster, clock, "other").renew(None, 10.0**9)  # its clock is far ahead: that says nothing
    mine = claim(cluster, clock, "me")
    mine.take(Waits(clock))
    assert clock.now - Clock.now >= SECONDS
    mine.renew(None, 0.0)
    assert mine.valid()


def test_the_agent_itself_comes_back_at_once(cluster: MemoryCluster, clock: Clock) -> None:
    claim(cluster, clock, "me").renew(None, 0.0)
    again = claim(cluster, clock, "me")
    again.take(Waits(clock))
    again.renew(None, 0.0)
    assert clock.now == Clock.now


def test_waiting_can_be_stopped(cluster: MemoryCluster, clock: Clock) -> None:
    claim(cluster, clock, "other").renew(None, 0.0)
    stopping = Waits(clock)
    stopping.set()
    with pytest.raises(Unavailable, match="stopped"):
        claim(cluster, clock, "me").take(stopping)


def test_an_agent_that_slept_learns_that_it_lost_its_name(cluster: MemoryCluster, clock: Clock) -> None:
    slept = claim(cluster, clock, "slept")
    slept.renew(None, 0.0)
    assert slept.valid()
    other = claim(cluster, clock, "other")
    other.take(Waits(clock))
    other.renew(None, 0.0)
    assert not slept.valid()
    with pytest.raises(NodeNameTaken):
        slept.renew(None, 0.0)
    slept.release()
    assert exists(cluster, LEASES, LEASE_NAMESPACE, "n")  # it is not its own to take away


def test_of_two_that_begin_together_one_wins(cluster: MemoryCluster, clock: Clock) -> None:
    one, two = claim(cluster, clock, "one"), claim(cluster, clock, "two")
    for each in (one, two):
        each.take(Waits(clock))
    one.renew(None, 0.0)
    with pytest.raises(NodeNameTaken):
        two.renew(None, 0.0)


def test_a_renewal_whose_answer_was_lost_is_its_own(cluster: MemoryCluster, clock: Clock) -> None:
    mine = claim(cluster, clock, "me")
    mine.renew(None, 0.0)
    claim(cluster, clock, "me").take(Waits(clock))
    lost = claim(cluster, clock, "me")
    lost.take(Waits(clock))
    lost.renew(None, 1.0)
    mine.renew(None, 2.0)
    assert mine.valid()


def test_without_renewal_the_name_is_not_surely_its_own(cluster: MemoryCluster, clock: Clock) -> None:
    mine = claim(cluster, clock, "me")
    assert not mine.valid()
    mine.renew(None, 0.0)
    clock.now += SECONDS - 1
    assert mine.valid()
    clock.now += 1
    assert not mine.valid()


def test_a_lease_that_was_taken_away_is_noticed_and_made_again(cluster: MemoryCluster, clock: Clock) -> None:
    mine = claim(cluster, clock, "me")
    mine.renew(None, 0.0)
    cluster.delete(LEASES, LEASE_NAMESPACE, "n")
    with pytest.raises(NotFound):
        mine.renew(None, 0.0)
    mine.renew(None, 0.0)
    mine.release()
    assert not exists(cluster, LEASES, LEASE_NAMESPACE, "n")


def test_a_cluster_without_leases_of_nodes(clock: Clock) -> None:
    with MemoryCluster() as cluster:
        mine = claim(cluster, clock, "me")
        mine.take(Waits(clock))
        mine.renew(None, 0.0)
        assert mine.off
        assert mine.valid()

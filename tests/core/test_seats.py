"""Which replica sits on which node."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import replicas, v1_job
from tf_dist.core.facts import Facts
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.observed import PodPhase, PodView
from tf_dist.core.seats import assigned, seats


def facts(**on: str) -> Facts:
    """``worker_0="n1"``: a pod of that replica, on that node ("": on none yet)."""
    current = {}
    for name, node in on.items():
        type_, _, index = name.partition("_")
        replica = ReplicaId(type_, int(index))
        current[replica] = PodView(
            name=name, uid=name, replica=replica, attempt="1.0.0", phase=PodPhase.PENDING, node=node
        )
    return Facts(current, (), {}, frozenset())


def job(workers: int = 4) -> Job:
    return v1_job(replicas("PS", 1), replicas("Worker", workers))


def given_to(placement: Any, there: Facts, *wanted: int) -> list[str]:
    ids = [ReplicaId("worker", index) for index in wanted]
    found = assigned(job(), placement, there, ids)
    return [found.get(one, "") for one in ids]


PLACEMENT = {"ps": {"n2": 1}, "worker": {"n1": 2, "n2": 1, "n3": 1}}


def test_the_lowest_indexes_sit_beside_the_servers_then_where_most_are() -> None:
    assert seats(job(), PLACEMENT, "worker") == ("n2", "n1", "n1", "n3")
    assert seats(job(), PLACEMENT, "ps") == ("n2",)
    assert seats(job(), PLACEMENT, "chief") == ()
    reordered = {"worker": dict(sorted(PLACEMENT["worker"].items(), reverse=True)), "ps": PLACEMENT["ps"]}
    assert seats(job(), reordered, "worker") == seats(job(), PLACEMENT, "worker")


def test_at_first_everybody_gets_the_own_seat() -> None:
    assert given_to(PLACEMENT, facts(), 0, 1, 2, 3) == ["n2", "n1", "n1", "n3"]


def test_a_replica_that_comes_back_gets_the_node_it_had() -> None:
    there = facts(worker_0="n2", worker_2="n1", worker_3="n3")
    assert given_to(PLACEMENT, there, 1) == ["n1"]
    assert given_to(PLACEMENT, facts(worker_0="n2", worker_1="n1", worker_2="n1"), 3) == ["n3"]


def test_one_whose_seat_is_taken_gets_the_one_that_is_free() -> None:
    # Worker 1 came to worker 0's seat somehow.
    there = facts(worker_1="n2", worker_2="n1", worker_3="n3")
    assert given_to(PLACEMENT, there, 0) == ["n1"]


def test_pods_without_a_node_yet_keep_their_seats() -> None:
    assert given_to(PLACEMENT, facts(worker_0="", worker_1=""), 2, 3) == ["n1", "n3"]


def test_without_a_free_seat_any_node_will_do() -> None:
    assert given_to({"worker": {"n1": 1}}, facts(), 0, 1) == ["n1", ""]
    assert given_to({"worker": {"n1": 1}}, facts(worker_0="n1"), 1) == [""]
    assert given_to({}, facts(), 0) == [""]
    # A pod beyond the placement sits on a node of it.
    assert given_to({"worker": {"n1": 1}}, facts(worker_0="n1", worker_1="n1"), 2) == [""]


NODES = st.sampled_from(("n1", "n2", "n3"))


@given(
    placement=st.dictionaries(NODES, st.integers(1, 3)),
    on=st.dictionaries(st.integers(0, 8), st.one_of(st.just(""), NODES)),
)
def test_no_node_gets_more_than_was_granted_there(placement: dict[str, int], on: dict[int, str]) -> None:
    there = facts(**{f"worker_{index}": node for index, node in on.items()})
    missing = [ReplicaId("worker", index) for index in range(9) if index not in on]
    wide = job(9)
    found = assigned(wide, {"worker": placement}, there, missing)
    bound = Counter(node for node in on.values() if node)
    for node, count in Counter(found.values()).items():
        assert bound[node] + count <= placement[node]
    assert set(found) <= set(missing)
    assert found == assigned(wide, {"worker": placement}, there, missing[::-1])
    if not on:
        assert len(found) == min(9, sum(placement.values()))
    # Whoever is made next sits where it would have sat at once, when those before have come to their seats.
    if found and not on:
        first = missing[0]
        moved = replace(there, current={**there.current, **facts(worker_0=found[first]).current})
        assert assigned(wide, {"worker": placement}, moved, missing[1:]) == {
            r: n for r, n in found.items() if r != first
        }

"""A gang starts with its minimum, and the rest starts when capacity is free. Such a gang is never shrunk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.gang.gangs import World, gang, member, message, node, placed, queue, reason, running, workers
from tf_dist.core.gang.types import AdmissionPolicy, Gang, PodSet, TopologyRequest
from tf_dist.core.model.assignment import Admit, Resize

POLICY = AdmissionPolicy(patience=900, shrink_after=30, grow_after=20)


def world(*gangs: Gang, nodes: int = 1, gpu: int = 4) -> World:
    made = World([node(f"n{i}", cpu=64, gpu=gpu, labels={"rack": f"r{i}"}) for i in range(nodes)], policy=POLICY)
    made.put(*gangs)
    return made


def sizes(found: World) -> dict[str, int]:
    return {uid: one.assigned.sizes["worker"] for uid, one in found.gangs.items() if one.assigned}


def part(name: str, on: dict[str, int], count: int, *, at: float = 0, start: int = 1, **rest: object) -> Gang:
    """A gang of ``count`` workers, of which those on these nodes have started."""
    return placed(gang(name, workers(count, start=start), at=at, **rest), {"worker": on}, at=at)


@pytest.mark.parametrize(
    ("free", "start", "expected"),
    [(4, 1, 4), (3, 1, 3), (2, 2, 2), (1, 1, 1), (1, 2, None), (2, 0, 2), (0, 0, 0)],
)
def test_gang_starts_with_all_pods_that_fit_but_not_below_minimum(free: int, start: int, expected: int | None) -> None:
    found = world(gang("a", workers(4, start=start)), gpu=free)
    verdict = found.decide(0)["a"]
    assert (verdict.sizes["worker"] if isinstance(verdict, Admit) else None) == expected


def test_gang_starts_minimum_of_each_type_and_more_pods_that_fit() -> None:
    members: list[PodSet] = [member("ps", 2, start=1, cpu=1), member("worker", 4, start=1, gpu=1)]
    found = World([node("n0", cpu=1, gpu=3)], policy=POLICY)
    found.put(gang("a", *members))
    [verdict] = found.decide(0).values()
    assert isinstance(verdict, Admit)
    assert verdict.sizes == {"ps": 1, "worker": 3}


@pytest.mark.parametrize(("priority", "sizes_then"), [(0, {"ps": 2, "worker": 1}), (5, {"ps": 1, "worker": 2})])
def test_rest_starts_by_priority_of_replica_type(priority: int, sizes_then: dict[str, int]) -> None:
    ps = member("ps", 2, start=1, gpu=1)
    found = world(gang("a", ps, replace(workers(4, start=1), priority=priority)), gpu=3)
    [verdict] = found.decide(0).values()
    assert isinstance(verdict, Admit)
    assert verdict.sizes == sizes_then
    found.put_node(node("n0", gpu=4))
    found.settle(1)
    place = found.gangs["a"].assigned
    assert place is not None
    assert place.sizes == {**sizes_then, "worker": sizes_then["worker"] + 1}


def test_rest_starts_immediately_when_capacity_is_free() -> None:
    found = world(gang("a", workers(4, start=1)), running("b", {"n0": 2}))
    found.decide(0)
    assert sizes(found) == {"a": 2, "b": 2}
    assert found.settle(5000) == []
    found.remove("b")
    [verdict] = found.decide(5001).values()
    assert isinstance(verdict, Resize)
    assert verdict.sizes == {"worker": 4}
    assert verdict.placement == {"worker": {"n0": 4}}
    assert message(verdict) == "there is capacity for 2 more worker"
    assert found.settle(9000) == []


def test_rest_uses_capacity_of_finished_replicas() -> None:
    found = world(part("a", {"n0": 2}, 4), gpu=2)
    assert found.settle(1) == []
    found.put(replace(found.gangs["a"], done={"worker": 1}, vacated={"worker": {"n0": 1}}))
    found.settle(2)
    assert sizes(found) == {"a": 3}


@pytest.mark.parametrize(
    ("a", "b", "gets"),
    [
        ({"priority": 0, "at": 0}, {"priority": 5, "at": 100}, "b"),
        ({"priority": 5, "at": 100}, {"priority": 0, "at": 0}, "a"),
        ({"priority": 0, "at": 100}, {"priority": 0, "at": 0}, "b"),
        ({"priority": 0, "at": 0}, {"priority": 0, "at": 100}, "a"),
    ],
)
def test_rest_of_several_gangs_starts_by_priority_then_age(a: dict[str, int], b: dict[str, int], gets: str) -> None:
    found = world(part("a", {"n0": 1}, 2, **a), part("b", {"n0": 1}, 2, **b), gpu=3)
    found.settle(200)
    assert sizes(found) == {"a": 1, "b": 1, gets: 2}


def test_waiting_gangs_come_before_rest_of_started_gangs() -> None:
    found = world(part("a", {"n0": 2}, 4), gang("b", workers(2), at=100))
    found.settle(100)
    assert sizes(found) == {"a": 2, "b": 2}


def test_rest_comes_before_waiting_gangs_after_patience_ends() -> None:
    found = world(part("a", {"n0": 2}, 4), running("b", {"n0": 2}))
    assert found.settle(100) == []
    found.remove("b")
    found.put(gang("c", workers(2), at=899))
    found.settle(899)
    assert sizes(found) == {"a": 2, "c": 2}
    found.remove("c")
    found.put(gang("d", workers(2), at=900))
    found.settle(900)
    assert sizes(found) == {"a": 4}


def test_rest_passes_gang_that_does_not_fit() -> None:
    found = world(part("a", {"n0": 1}, 4), running("b", {"n0": 1}), gang("c", workers(4), at=0))
    found.settle(10)
    assert sizes(found) == {"a": 3, "b": 1}


def test_rest_does_not_pass_gang_with_reservation() -> None:
    found = world(
        part("a", {"n0": 1}, 4, start=1), running("b", {"n0": 3}, estimate=5000.0), gang("c", workers(3), at=0)
    )
    found.settle(1000)
    found.put(replace(found.gangs["b"], done={"worker": 1}, vacated={"worker": {"n0": 1}}))
    found.settle(1100)
    assert sizes(found) == {"a": 1, "b": 3}


@pytest.mark.parametrize("since", [-1, 0, 500])
def test_rest_passes_reservation_that_waits_for_the_end_of_its_gang(since: float) -> None:
    """Gang a may need its rest in order to end. If gang c held capacity back from it, neither would ever continue."""
    found = world(part("a", {"n0": 2}, 4), gang("c", workers(4), at=since), gpu=4)
    found.put(running("b", {"n0": 2}))
    found.settle(2000)
    assert sizes(found) == {"a": 2, "b": 2}
    found.put(replace(found.gangs["a"], done={"worker": 1}, vacated={"worker": {"n0": 1}}))
    found.settle(2100)
    assert sizes(found) == {"a": 3, "b": 2}


def test_rest_does_not_preempt() -> None:
    found = world(part("a", {"n0": 2}, 4, priority=10), running("b", {"n0": 2}, least=1))
    assert found.settle(100_000) == []


def test_gang_preempts_only_for_its_minimum() -> None:
    found = world(
        running("a", {"n0": 3}), running("b", {"n0": 1}, at=5), gang("c", workers(4, start=1), at=9, priority=1)
    )
    verdicts = found.decide(10)
    assert {uid: reason(verdict) for uid, verdict in verdicts.items()} == {"b": "Preempt", "c": "Preempting"}


def test_started_gang_is_preempted_whole_and_never_shrunk() -> None:
    found = world(part("a", {"n0": 3}, 4), gang("b", workers(3), at=9, priority=1))
    assert reason(found.decide(10)["a"]) == "Preempt"
    equal = world(part("a", {"n0": 3}, 4), gang("b", workers(3), at=9))
    equal.settle(5000)
    assert sizes(equal) == {"a": 4}


def test_enlarged_gang_grows_to_at_least_new_minimum() -> None:
    larger = replace(part("a", {"n0": 1}, 1), members=(workers(4, start=4),))
    found = world(larger, running("b", {"n0": 1}))
    assert found.settle(100) == []
    found.remove("b")
    found.settle(200)
    assert sizes(found) == {"a": 4}


def test_rest_stays_within_quota() -> None:
    found = World([node("n0", gpu=8)], [queue("team", gpu=2, borrow=0)], POLICY)
    found.put(gang("a", workers(4, start=1), queue="team"))
    found.settle(0)
    assert sizes(found) == {"a": 2}


def test_rest_stays_in_required_domain() -> None:
    rack = TopologyRequest(label="rack", required=True)
    found = world(part("a", {"n1": 3}, 5, locality=rack), running("b", {"n1": 1}), nodes=2)
    assert found.settle(10) == []
    found.remove("b")
    found.settle(20)
    assert found.gangs["a"].assigned is not None
    assert found.gangs["a"].assigned.placement == {"worker": {"n1": 4}}


def test_gang_grows_only_after_admission_is_written() -> None:
    found = world(gang("a", workers(4, start=1)), running("b", {"n0": 2}))
    admitted = found.scheduler.cycle(0).verdicts["a"]
    assert isinstance(admitted, Admit)
    found.remove("b")
    assert found.scheduler.cycle(1).verdicts == {}
    found.put(placed(found.gangs["a"], admitted.placement))
    assert sizes(found) == {"a": 2}
    found.settle(2)
    assert sizes(found) == {"a": 4}

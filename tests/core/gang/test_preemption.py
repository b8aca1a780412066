"""Which gangs are preempted for which other gangs, and that no preemption is useless."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from tests.core.gang.gangs import World, admit, bound, gang, member, message, node, queue, reason, running, workers
from tf_dist.core.gang.messages import gang_text
from tf_dist.core.gang.types import AssignedPods, Gang
from tf_dist.core.model.assignment import Admit, Preempt, Resize, Wait
from tf_dist.core.model.gang_queue import PreemptionPolicy, Queue
from tf_dist.core.model.job import JobKey


def world(*gangs: Gang, nodes: int = 2, queues: tuple[Queue, ...] = ()) -> World:
    made = World([node(f"n{i}", gpu=4) for i in range(nodes)], queues)
    made.put(*gangs)
    return made


def victims(found: World, now: float = 100) -> list[str]:
    return sorted(uid for uid, verdict in found.decide(now).items() if isinstance(verdict, Preempt))


def test_higher_priority_gang_preempts_lower_and_is_admitted() -> None:
    found = world(
        running("low", {"n0": 4}), running("other", {"n1": 4}, priority=9), gang("high", workers(4), priority=5)
    )
    said = found.decide(1)
    assert said["low"] == Preempt(by=JobKey("ml", "high"), message="its priority is higher (5 > 0)")
    waits = said["high"]
    assert reason(waits) == "Preempting"
    assert message(waits).endswith("; position 1; starts when ml/low has released its capacity")
    assert {uid: reason(verdict) for uid, verdict in found.decide(1).items()} == {
        "high": "Admit",
        "low": "WaitingForCapacity",
    }


def test_protected_gang_is_neither_preempted_nor_shrunk() -> None:
    """Another gang is preempted even if its priority is higher. Without another victim, the new gang waits."""
    kept = running("kept", {"n0": 4}, least=1, preemptable=False)
    assert victims(world(kept, running("other", {"n1": 4}, priority=4), gang("high", workers(4), priority=5))) == [
        "other"
    ]
    said = world(kept, gang("high", workers(4), priority=5), nodes=1).decide(10**6)
    assert {uid: reason(verdict) for uid, verdict in said.items()} == {"high": "WaitingForCapacity"}


def test_gang_of_equal_priority_is_not_preempted() -> None:
    assert victims(world(running("a", {"n0": 4}), gang("b", workers(4)), nodes=1), 10**6) == []


def test_no_further_preemption_while_pods_terminate() -> None:
    low = bound(running("low", {"n0": 4}))
    other = bound(running("other", {"n1": 4}))
    full = [node(f"n{i}", gpu=4, used={"gpu": 4}) for i in range(2)]
    found = World(full)
    found.put(low, other, gang("high", workers(4), priority=5))
    [victim] = victims(found)
    found.put(replace(found.gangs[victim], assigned=None))  # the verdict is written, and its pods are being stopped
    assert victims(found) == []
    explained = found.scheduler.explain("high")
    assert reason(explained) == "Preempting"
    assert message(explained).endswith(f"starts when ml/{victim} has released its capacity")
    # No other gang takes the capacity, even if it is small and older.
    found.put(gang("small", workers(1), at=-5))
    name = "n0" if victim == "low" else "n1"
    found.put_node(node(name, gpu=4))
    found.put(replace(found.gangs[victim], bound={}))
    said = found.decide(101)
    assert said["high"] == Admit(placement={"worker": {name: 4}}, sizes={"worker": 4})
    assert reason(said["small"]) == "WaitingForCapacity"


def test_preemption_counts_existing_and_future_pods_of_victim() -> None:
    half = replace(running("low", {"n0": 4}), bound={"worker": {"n0": 2}})
    found = World([node("n0", gpu=4, used={"gpu": 2})])
    found.put(half, gang("high", workers(4), priority=5))
    assert victims(found) == ["low"]


def test_nominated_gang_comes_first_after_restart() -> None:
    """The gang that preempted others comes first, even before a later gang with a better position."""
    found = world(running("low", {"n0": 4}), gang("high", workers(4), priority=5), nodes=1)
    found.decide(1)
    found.put(gang("higher", workers(4), priority=9))
    assert found.gangs["high"].nominated
    anew = admit(found.snapshot(2))
    assert (reason(anew["high"]), reason(anew["higher"])) == ("Admit", "WaitingForCapacity")


def test_no_preemption_if_gang_would_still_not_fit() -> None:
    blocked = running("higher", {"n0": 1}, priority=9)
    assert victims(world(blocked, running("low", {"n0": 3}), gang("high", workers(4), priority=5), nodes=1)) == []


@pytest.mark.parametrize("change", [{"preempts": False}, {"queue": "meek"}])
def test_gang_or_queue_may_forbid_preemption(change: dict[str, object]) -> None:
    low = running("low", {"n0": 4}, queue=str(change.get("queue", "")))
    high = replace(gang("high", workers(4), priority=5), **change)  # type: ignore[arg-type]
    meek = queue("meek", preemption=PreemptionPolicy.NEVER)
    assert victims(world(low, high, nodes=1, queues=(meek,))) == []


def test_priority_preempts_only_within_queue() -> None:
    queues = (queue("a"), queue("b"))
    low, high = running("low", {"n0": 4}, queue="a"), gang("high", workers(4), priority=5, queue="b")
    assert victims(world(low, high, nodes=1, queues=queues)) == []


def test_victims_are_lowest_priority_then_youngest() -> None:
    found = world(
        running("middle", {"n0": 2}, priority=2, at=9),
        running("old", {"n0": 2}, at=1),
        running("young", {"n1": 2}, at=5),
        running("higher", {"n1": 2}, priority=7),
        gang("high", workers(2), priority=5),
    )
    assert victims(found) == ["young"]


def test_prefers_one_large_victim_over_two_small_victims() -> None:
    found = world(
        running("small-1", {"n0": 2}, at=50),
        running("small-2", {"n0": 2}, at=60),
        running("large", {"n1": 4}, at=1),
        gang("high", workers(4), priority=5),
    )
    assert victims(found) == ["large"]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_only_gangs_on_needed_node_are_preempted(size: int) -> None:
    """The youngest gangs are spread over all nodes. By age alone, nearly all would be preempted to empty one node."""
    each = 4 // size
    small = [running(f"r{at:02}", {f"n{at % 8}": 1}, gpu=size, at=at) for at in range(8 * each)]
    found = world(*small, gang("high", workers(1, gpu=4), priority=5), nodes=8)
    gone = victims(found)
    assert len(gone) == each
    assert len({int(uid[1:]) % 8 for uid in gone}) == 1


def test_preempted_elastic_gang_is_not_also_shrunk() -> None:
    found = world(*(running(f"r{at}", {f"n{at}": 4}, least=1, at=at) for at in range(8)), nodes=8)
    found.put(gang("high", workers(8, gpu=4), priority=5))
    said = found.decide(100)
    assert {uid: type(verdict) for uid, verdict in said.items() if uid != "high"} == {
        f"r{at}": Preempt for at in range(8)
    }


def test_capacity_of_victim_is_not_counted_twice() -> None:
    """The gang could release two pods or be preempted, but it has only 4 GPUs in total."""
    found = world(
        running("low", {"n0": 4}, least=2),
        running("top", {"n1": 4}, priority=9),
        gang("high", workers(2, gpu=3), priority=5),
    )
    assert {uid: reason(verdict) for uid, verdict in found.decide(1).items()} == {"high": "WaitingForCapacity"}


def test_elastic_gangs_shrink_before_others_are_preempted() -> None:
    found = world(
        running("whole", {"n0": 2}, at=90),
        running("elastic", {"n0": 2, "n1": 4}, least=2),
        gang("high", workers(4), priority=5),
    )
    said = found.decide(100)
    assert said["elastic"] == Resize(
        sizes={"worker": 2},
        placement={"worker": {"n1": 2}},
        message="goes from 6 to 2 worker: ml/high waits for capacity",
    )
    assert "whole" not in said
    assert reason(found.decide(100)["high"]) == "Admit"


def test_queue_reclaims_its_quota_from_borrower() -> None:
    queues = (queue("a", gpu=4, parent="all"), queue("b", gpu=4, parent="all"))
    found = world(
        running("own", {"n0": 4}, queue="b", at=1),
        running("lent", {"n1": 4}, queue="b", at=2),
        gang("mine", workers(4), queue="a"),
        queues=queues,
    )
    said = found.decide(100)
    [victim] = [uid for uid, verdict in said.items() if isinstance(verdict, Preempt)]
    assert victim == "lent"
    assert message(said["lent"]) == "its queue reclaims its own quota"
    assert reason(found.decide(100)["mine"]) == "Admit"
    assert found.settle(200) == []


@pytest.mark.parametrize(("reclaimable", "gone"), [(True, ["lent"]), (False, [])])
def test_borrowed_quota_is_kept_if_queue_is_not_reclaimable(reclaimable: bool, gone: list[str]) -> None:
    queues = (queue("a", gpu=4, parent="all"), queue("b", gpu=4, parent="all", reclaimable=reclaimable))
    found = world(
        running("own", {"n0": 4}, queue="b", at=1),
        running("lent", {"n1": 4}, queue="b", at=2),
        gang("mine", workers(4), queue="a"),
        queues=queues,
    )
    assert victims(found) == gone


@pytest.mark.parametrize(
    ("own", "lent", "gone"),
    [(False, False, ["lent"]), (True, False, ["lent"]), (False, True, ["own"]), (True, True, ["lent"])],
)
def test_borrowed_quota_is_reclaimed_from_protected_gangs_last(own: bool, lent: bool, gone: list[str]) -> None:
    """Either of the two gangs may use the borrowed quota, so only one of them is preempted."""
    found = world(
        running("own", {"n0": 4}, queue="b", at=1, preemptable=not own),
        running("lent", {"n1": 4}, queue="b", at=2, preemptable=not lent),
        gang("mine", workers(4), queue="a"),
        queues=(queue("a", gpu=4, parent="all"), queue("b", gpu=4, parent="all")),
    )
    assert victims(found) == gone


def test_protected_gang_keeps_own_quota_of_its_queue() -> None:
    found = world(
        running("own", {"n0": 4}, queue="b", preemptable=False, priority=-9),
        gang("mine", workers(4), queue="a", priority=9),
        nodes=1,
        queues=(queue("a", gpu=4, parent="all"), queue("b", gpu=4, parent="all")),
    )
    assert victims(found) == []


def test_priority_preempts_within_non_reclaimable_queue() -> None:
    closed = queue("b", gpu=4, reclaimable=False)
    low = running("low", {"n0": 4}, queue="b", least=1)
    assert victims(world(low, gang("high", workers(4), queue="b", priority=5), nodes=1, queues=(closed,))) == ["low"]


def test_surplus_in_non_reclaimable_queue_is_kept() -> None:
    def found(reclaimable: bool) -> list[str]:
        queues = (queue("a"), queue("b", reclaimable=reclaimable))
        elastic = running("elastic", {"n0": 4}, queue="b", least=1)
        waiting = gang("mine", workers(2), queue="a")
        said = world(elastic, waiting, nodes=1, queues=queues).decide(10**6)
        return [uid for uid, verdict in said.items() if isinstance(verdict, Resize)]

    assert found(True) == ["elastic"]
    assert found(False) == []


def test_gang_above_its_queue_quota_reclaims_nothing() -> None:
    queues = (queue("a", gpu=2, parent="all"), queue("b", gpu=6, parent="all"))
    found = world(running("lent", {"n0": 4, "n1": 4}, queue="b"), gang("mine", workers(4), queue="a"), queues=queues)
    assert victims(found) == []


# -- compared with all possible choices --


def some_world(dice: Random) -> tuple[World, Gang]:
    nodes = dice.randint(1, 3)
    room = {f"n{i}": 4 for i in range(nodes)}
    gangs = []
    for number in range(dice.randint(2, 6)):
        on: dict[str, int] = {}
        for _ in range(dice.randint(1, 4)):
            name = dice.choice(sorted(room))
            if room[name]:
                room[name] -= 1
                on[name] = on.get(name, 0) + 1
        if on:
            gangs.append(running(f"v{number}", on, priority=dice.choice([0, 0, 1, 2, 8]), at=number))
    wants = member("worker", dice.randint(1, 3), gpu=dice.choice([1, 2, 4]))
    high = gang("high", wants, at=50, priority=5)
    return world(*gangs, high, nodes=nodes), high


def fits(found: World, high: Gang, gone: tuple[str, ...]) -> bool:
    free = dict.fromkeys(found.nodes, 4)
    for uid, one in found.gangs.items():
        if one.assigned and uid not in gone:
            for name, count in one.assigned.placement["worker"].items():
                free[name] -= count
    [part] = high.members
    return sum(room // int(part.requests["nvidia.com/gpu"]) for room in free.values()) >= part.count


def best(found: World, high: Gang) -> tuple[int, int] | None:
    """The highest priority of the best victims, and their number. None: no preemption helps."""
    lower = [uid for uid, one in found.gangs.items() if one.assigned and one.priority < high.priority]
    choices = [
        (max(found.gangs[uid].priority for uid in gone), count)
        for count in range(1, len(lower) + 1)
        for gone in combinations(lower, count)
        if fits(found, high, gone)
    ]
    return min(choices, default=None)


def test_preemptions_are_sound_minimal_and_nearly_always_optimal() -> None:
    plans = optimal = 0
    for seed in range(600):
        found, high = some_world(Random(seed))
        if fits(found, high, ()):
            assert victims(found) == []
            continue
        bound_ = best(found, high)
        chosen = tuple(victims(found))
        assert bool(chosen) is (bound_ is not None)
        if bound_ is None:
            continue
        fresh, _ = some_world(Random(seed))
        assert fits(fresh, high, chosen)
        assert not any(fits(fresh, high, tuple(set(chosen) - {one})) for one in chosen)
        plans += 1
        optimal += (max(fresh.gangs[uid].priority for uid in chosen), len(chosen)) == bound_
    assert plans > 150
    assert optimal / plans >= 0.95


def test_gang_without_victims_waits() -> None:
    found = world(running("a", {"n0": 4}), gang("b", workers(4)), nodes=1)
    assert isinstance(found.decide(1)["b"], Wait)


def test_reclaiming_gang_does_not_borrow() -> None:
    """It first preempts lower priorities of its own queue. Otherwise, gangs would preempt each other forever."""
    pair = (queue("all"), queue("q0", gpu=4, parent="all"), queue("q1", gpu=4, parent="all"))
    found = world(nodes=4, queues=pair)
    arrivals = [
        ("j0", "q0", 1, 50),
        ("j1", "q1", 1, 50),
        ("j2", "q0", 4, 200),
        ("j3", "q1", 2, 100),
        ("j4", "q1", 4, 200),
    ]
    for now, (name, where, gpus, priority) in enumerate(arrivals):
        found.put(replace(gang(name, workers(gpus), queue=where, priority=priority), created_at=float(now)))
        rounds = found.settle(float(now))
        assert len(rounds) < 10
    assert sorted(uid for uid, one in found.gangs.items() if one.assigned) == ["j2", "j4"]


@pytest.mark.parametrize("others", range(6))
def test_gang_is_preempted_only_after_its_admission_is_written(others: int) -> None:
    """Changes of queues in the meantime do not matter."""
    found = world(gang("low", workers(4)), nodes=1)
    said = found.scheduler.cycle(1).verdicts
    assert isinstance(said["low"], Admit)
    found.put(gang("high", workers(4), priority=5))
    assert victims(found, 2) == []
    place = AssignedPods(at=1, sizes=said["low"].sizes, placement=said["low"].placement)
    found.put(replace(found.gangs["low"], assigned=place))
    for number in range(others):
        found.scheduler.cache.put_queues([queue(f"new-{number}")])
    assert victims(found, 3) == ["low"]


def test_gang_is_shrunk_only_after_its_last_verdict_is_written() -> None:
    found = world(gang("low", workers(4, least=1)), nodes=1)
    said = found.scheduler.cycle(1).verdicts
    assert isinstance(said["low"], Admit)
    found.put(gang("high", workers(1), priority=5))
    assert {uid: reason(verdict) for uid, verdict in found.scheduler.cycle(2).verdicts.items()} == {
        "high": "WaitingForCapacity"
    }
    place = AssignedPods(at=1, sizes=said["low"].sizes, placement=said["low"].placement)
    found.put(replace(found.gangs["low"], assigned=place))
    told = found.scheduler.cycle(3).verdicts["low"]
    assert isinstance(told, Resize)
    assert told.sizes == {"worker": 3}
    found.put(gang("another", workers(1), priority=5))
    assert "low" not in found.scheduler.cycle(4).verdicts
    found.put(replace(found.gangs["low"], assigned=replace(place, sizes=told.sizes, placement=told.placement)))
    told = found.scheduler.cycle(5).verdicts["low"]
    assert isinstance(told, Resize)
    assert told.sizes == {"worker": 2}


def test_messages_do_not_name_jobs_of_other_namespaces() -> None:
    """Tenants may share a queue, but must not see each other's job names."""

    def of_rival(one: Gang) -> Gang:
        return replace(one, key=JobKey("rival", f"secret-{one.uid}"))

    found = world(
        running("low", {"n0": 4}, queue="shared"),
        of_rival(running("other", {"n1": 4}, priority=9, queue="shared")),
        of_rival(gang("first", workers(8), priority=5, queue="shared")),
        gang("second", workers(8), priority=4, at=1, queue="shared"),
        gang("third", workers(8), priority=4, at=2, queue="shared"),
        queues=(queue("shared", gpu=100),),
    )
    said = {uid: message(verdict) for uid, verdict in found.decide(500).items()}
    assert "secret" not in said["second"] + said["third"]
    assert "position 3 in queue shared, behind ml/second and 1 other job" in said["third"]
    assert gang_text(found.gangs["first"], JobKey("ml", "third")) == "a job of queue shared"
    assert gang_text(found.gangs["second"], JobKey("ml", "third")) == "ml/second"

"""Which gangs are preempted for which others, and that none is in vain."""

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


def test_a_gang_of_lower_priority_gives_its_place_up_and_the_higher_one_gets_it() -> None:
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


def test_a_protected_gang_keeps_its_place_and_its_surplus() -> None:
    """Another gives its up, though of higher priority; where there is no other, the gang waits."""
    kept = running("kept", {"n0": 4}, least=1, preemptable=False)
    assert victims(world(kept, running("other", {"n1": 4}, priority=4), gang("high", workers(4), priority=5))) == [
        "other"
    ]
    said = world(kept, gang("high", workers(4), priority=5), nodes=1).decide(10**6)
    assert {uid: reason(verdict) for uid, verdict in said.items()} == {"high": "WaitingForCapacity"}


def test_equals_are_never_preempted() -> None:
    assert victims(world(running("a", {"n0": 4}), gang("b", workers(4)), nodes=1), 10**6) == []


def test_no_more_is_preempted_while_pods_are_on_their_way_out() -> None:
    low = bound(running("low", {"n0": 4}))
    other = bound(running("other", {"n1": 4}))
    full = [node(f"n{i}", gpu=4, used={"gpu": 4}) for i in range(2)]
    found = World(full)
    found.put(low, other, gang("high", workers(4), priority=5))
    [victim] = victims(found)
    found.put(replace(found.gangs[victim], assigned=None))  # it has been told, and its pods are being stopped
    assert victims(found) == []
    explained = found.scheduler.explain("high")
    assert reason(explained) == "Preempting"
    assert message(explained).endswith(f"starts when ml/{victim} has released its capacity")
    # No gang takes the room away, however small and early.
    found.put(gang("small", workers(1), at=-5))
    name = "n0" if victim == "low" else "n1"
    found.put_node(node(name, gpu=4))
    found.put(replace(found.gangs[victim], bound={}))
    said = found.decide(101)
    assert said["high"] == Admit(placement={"worker": {name: 4}}, sizes={"worker": 4})
    assert reason(said["small"]) == "WaitingForCapacity"


def test_who_goes_gives_up_pods_that_are_there_and_pods_that_are_to_come() -> None:
    half = replace(running("low", {"n0": 4}), bound={"worker": {"n0": 2}})
    found = World([node("n0", gpu=4, used={"gpu": 2})])
    found.put(half, gang("high", workers(4), priority=5))
    assert victims(found) == ["low"]


def test_a_promise_outlives_the_admitter() -> None:
    """The gang that others were preempted for comes first, before any with a better position by then."""
    found = world(running("low", {"n0": 4}), gang("high", workers(4), priority=5), nodes=1)
    found.decide(1)
    found.put(gang("higher", workers(4), priority=9))
    assert found.gangs["high"].nominated
    anew = admit(found.snapshot(2))
    assert (reason(anew["high"]), reason(anew["higher"])) == ("Admit", "WaitingForCapacity")


def test_nobody_is_preempted_in_vain() -> None:
    blocked = running("higher", {"n0": 1}, priority=9)
    assert victims(world(blocked, running("low", {"n0": 3}), gang("high", workers(4), priority=5), nodes=1)) == []


@pytest.mark.parametrize("change", [{"preempts": False}, {"queue": "meek"}])
def test_a_gang_or_its_queue_may_forbid_it(change: dict[str, object]) -> None:
    low = running("low", {"n0": 4}, queue=str(change.get("queue", "")))
    high = replace(gang("high", workers(4), priority=5), **change)  # type: ignore[arg-type]
    meek = queue("meek", preemption=PreemptionPolicy.NEVER)
    assert victims(world(low, high, nodes=1, queues=(meek,))) == []


def test_priority_counts_within_a_queue_only() -> None:
    queues = (queue("a"), queue("b"))
    low, high = running("low", {"n0": 4}, queue="a"), gang("high", workers(4), priority=5, queue="b")
    assert victims(world(low, high, nodes=1, queues=queues)) == []


def test_the_lowest_go_first_then_the_youngest() -> None:
    found = world(
        running("middle", {"n0": 2}, priority=2, at=9),
        running("old", {"n0": 2}, at=1),
        running("young", {"n1": 2}, at=5),
        running("higher", {"n1": 2}, priority=7),
        gang("high", workers(2), priority=5),
    )
    assert victims(found) == ["young"]


def test_one_large_victim_rather_than_two_small_ones() -> None:
    found = world(
        running("small-1", {"n0": 2}, at=50),
        running("small-2", {"n0": 2}, at=60),
        running("large", {"n1": 4}, at=1),
        gang("high", workers(4), priority=5),
    )
    assert victims(found) == ["large"]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_of_many_only_those_go_whose_node_is_needed(size: int) -> None:
    """The youngest are on all nodes by turns, so that nearly all would have to go before one node has room enough."""
    each = 4 // size
    small = [running(f"r{at:02}", {f"n{at % 8}": 1}, gpu=size, at=at) for at in range(8 * each)]
    found = world(*small, gang("high", workers(1, gpu=4), priority=5), nodes=8)
    gone = victims(found)
    assert len(gone) == each
    assert len({int(uid[1:]) % 8 for uid in gone}) == 1


def test_an_elastic_gang_that_must_go_is_not_told_to_become_smaller_too() -> None:
    found = world(*(running(f"r{at}", {f"n{at}": 4}, least=1, at=at) for at in range(8)), nodes=8)
    found.put(gang("high", workers(8, gpu=4), priority=5))
    said = found.decide(100)
    assert {uid: type(verdict) for uid, verdict in said.items() if uid != "high"} == {
        f"r{at}": Preempt for at in range(8)
    }


def test_what_a_gang_gives_up_is_not_counted_twice_when_all_of_it_goes() -> None:
    """It could become smaller by two, and it could go, but with both there would be no more than its 4 GPUs."""
    found = world(
        running("low", {"n0": 4}, least=2),
        running("top", {"n1": 4}, priority=9),
        gang("high", workers(2, gpu=3), priority=5),
    )
    assert {uid: reason(verdict) for uid, verdict in found.decide(1).items()} == {"high": "WaitingForCapacity"}


def test_elastic_gangs_become_smaller_before_anybody_must_go() -> None:
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
    ) or isinstance(said["elastic"], Resize)
    assert "whole" not in said
    assert reason(found.decide(100)["high"]) == "Admit"


def test_what_is_its_own_a_queue_takes_back_from_those_who_borrow() -> None:
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
def test_what_a_queue_borrowed_is_left_to_it_if_it_is_not_reclaimable(reclaimable: bool, gone: list[str]) -> None:
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
def test_borrowed_quota_is_reclaimed_from_protected_gangs_after_all_others(
    own: bool, lent: bool, gone: list[str]
) -> None:
    """Which of two gangs has what its queue borrowed is not said: only one of them has to go."""
    found = world(
        running("own", {"n0": 4}, queue="b", at=1, preemptable=not own),
        running("lent", {"n1": 4}, queue="b", at=2, preemptable=not lent),
        gang("mine", workers(4), queue="a"),
        queues=(queue("a", gpu=4, parent="all"), queue("b", gpu=4, parent="all")),
    )
    assert victims(found) == gone


def test_protected_gang_keeps_what_is_its_queues_own() -> None:
    found = world(
        running("own", {"n0": 4}, queue="b", preemptable=False, priority=-9),
        gang("mine", workers(4), queue="a", priority=9),
        nodes=1,
        queues=(queue("a", gpu=4, parent="all"), queue("b", gpu=4, parent="all")),
    )
    assert victims(found) == []


def test_within_a_queue_that_is_not_reclaimable_priority_counts() -> None:
    closed = queue("b", gpu=4, reclaimable=False)
    low = running("low", {"n0": 4}, queue="b", least=1)
    assert victims(world(low, gang("high", workers(4), queue="b", priority=5), nodes=1, queues=(closed,))) == ["low"]


def test_surplus_of_a_queue_that_is_not_reclaimable_is_its_own() -> None:
    def found(reclaimable: bool) -> list[str]:
        queues = (queue("a"), queue("b", reclaimable=reclaimable))
        elastic = running("elastic", {"n0": 4}, queue="b", least=1)
        waiting = gang("mine", workers(2), queue="a")
        said = world(elastic, waiting, nodes=1, queues=queues).decide(10**6)
        return [uid for uid, verdict in said.items() if isinstance(verdict, Resize)]

    assert found(True) == ["elastic"]
    assert found(False) == []


def test_who_borrows_takes_nothing_back() -> None:
    queues = (queue("a", gpu=2, parent="all"), queue("b", gpu=6, parent="all"))
    found = world(running("lent", {"n0": 4, "n1": 4}, queue="b"), gang("mine", workers(4), queue="a"), queues=queues)
    assert victims(found) == []


# -- against all there is to choose from --


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
    """The highest priority that must go, and how few gangs; None: no preemption helps."""
    lower = [uid for uid, one in found.gangs.items() if one.assigned and one.priority < high.priority]
    choices = [
        (max(found.gangs[uid].priority for uid in gone), count)
        for count in range(1, len(lower) + 1)
        for gone in combinations(lower, count)
        if fits(found, high, gone)
    ]
    return min(choices, default=None)


def test_plans_are_sound_minimal_and_nearly_always_the_best() -> None:
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


def test_the_text_of_a_wait_is_a_wait() -> None:
    found = world(running("a", {"n0": 4}), gang("b", workers(4)), nodes=1)
    assert isinstance(found.decide(1)["b"], Wait)


def test_who_takes_back_what_is_its_own_does_not_borrow_for_it() -> None:
    """It stops its own of lower priority first; else those it stopped would stop it, and so for ever."""
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
def test_a_gang_is_preempted_once_its_place_is_confirmed_and_not_before(others: int) -> None:
    """Changes of the queues in between do not matter."""
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


def test_a_gang_is_made_smaller_once_its_place_is_confirmed_and_not_twice_for_one_reason() -> None:
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


def test_messages_name_no_job_of_another_namespace() -> None:
    """Tenants share a queue: what the others call their jobs is theirs."""

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

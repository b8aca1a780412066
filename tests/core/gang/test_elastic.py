"""Gangs grow when no other gang waits, shrink when one waits, and start smaller instead of waiting forever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.gang.gangs import World, bound, gang, member, message, node, placed, queue, reason, running, workers
from tf_dist.core.gang.types import AdmissionPolicy, Gang, TopologyRequest
from tf_dist.core.model.assignment import Admit, Resize

POLICY = AdmissionPolicy(shrink_after=30, shrink_below_spec_after=180, grow_after=20, steady=60)


def world(*gangs: Gang, nodes: int = 2, policy: AdmissionPolicy = POLICY) -> World:
    made = World([node(f"n{i}", cpu=64, gpu=4) for i in range(nodes)], policy=policy)
    made.put(*gangs)
    return made


def sizes(found: World) -> dict[str, int]:
    return {uid: one.assigned.sizes["worker"] for uid, one in found.gangs.items() if one.assigned}


# -- starting --


def test_gang_starts_smaller_only_after_waiting() -> None:
    found = world(running("a", {"n0": 1, "n1": 2}), gang("b", workers(8, least=2), at=0))
    assert reason(found.decide(29)["b"]) == "WaitingForCapacity"
    assert found.scheduler.wake_at(29) == 30
    assert found.decide(30)["b"] == Admit(placement={"worker": {"n0": 3, "n1": 2}}, sizes={"worker": 5})


def test_gang_never_starts_below_minimum() -> None:
    found = world(running("a", {"n0": 4, "n1": 3}), gang("b", workers(8, least=2), at=0))
    assert found.settle(1000) == []


def test_only_elastic_workers_start_smaller() -> None:
    found = World([node("n0", cpu=4, gpu=4)], policy=POLICY)
    found.put(gang("b", member("ps", 2, cpu=1), member("worker", 4, cpu=1, gpu=1, least=1), at=0))
    [verdict] = found.decide(40).values()
    assert isinstance(verdict, Admit)
    assert verdict.sizes == {"ps": 2, "worker": 2}


# -- growing --


def test_gang_grows_on_its_own_nodes_when_no_gang_waited() -> None:
    found = world(running("a", {"n0": 2}, at=0, most=8))
    assert found.decide(19) == {}
    assert found.scheduler.wake_at(19) == 20
    assert found.decide(20) == {
        "a": Resize(
            sizes={"worker": 4},
            placement={"worker": {"n0": 4}},
            message="goes from 2 to 4 worker: no other gang waits for capacity",
        )
    }
    assert found.settle(1000) == []


def test_gang_below_requested_size_grows_on_other_nodes() -> None:
    found = world(running("a", {"n0": 2}, at=0, wanted=6, least=2, most=8))
    found.decide(20)
    assert found.gangs["a"].assigned is not None
    assert found.gangs["a"].assigned.placement == {"worker": {"n0": 4, "n1": 4}}


def test_gang_does_not_grow_while_another_waits_for_capacity() -> None:
    waits = gang("b", workers(8), at=0)
    assert world(running("a", {"n0": 2}, at=0, most=8), waits).settle(100) == []
    # A gang that never fits or waits for quota does not prevent growth.
    never = gang("c", workers(99), at=0)
    assert world(running("a", {"n0": 2}, at=0, most=8), never).settle(100) != []
    queued = World([node("n0", gpu=4)], [queue("team", gpu=1)], POLICY)
    queued.put(running("a", {"n0": 2}, at=0, most=8))
    queued.put(running("in", {"n0": 1}, at=0, queue="team"), gang("d", workers(1), at=0, queue="team"))
    queued.settle(100)
    assert sizes(queued) == {"a": 3, "in": 1}


@pytest.mark.parametrize(("on_n0", "grows"), [(4, True), (5, False)])
def test_gang_does_not_grow_while_its_pods_wait_for_full_node(on_n0: int, grows: bool) -> None:
    """These pods will need the free capacity of the other node."""
    found = world(running("a", {"n0": on_n0}, at=0, wanted=6, least=2, most=8))
    assert bool(found.decide(40)) is grows


def test_gang_does_not_grow_twice_within_steady_interval() -> None:
    found = world(running("a", {"n0": 2}, at=0, most=4), running("b", {"n0": 1}))
    found.settle(20)
    assert sizes(found)["a"] == 3
    found.remove("b")
    assert found.settle(50) == []
    assert found.scheduler.wake_at(50) == 80
    found.settle(80)
    assert sizes(found)["a"] == 4


def test_gang_that_saves_most_grows_first() -> None:
    found = world(
        running("short", {"n0": 1}, at=0, most=4, estimate=60),
        running("long", {"n0": 1}, at=0, most=4, estimate=6000),
        running("rest", {"n0": 1}, at=0),
        nodes=1,
    )
    found.settle(20)
    assert sizes(found) == {"short": 1, "long": 2, "rest": 1}


@pytest.mark.parametrize(
    ("one", "other", "grows"),
    [
        # (workers, requested workers, remaining seconds): the node of each gang has one free GPU.
        ((1, 1, 600), (1, 1, 601), "other"),
        ((1, 1, 601), (1, 1, 600), "one"),
        ((2, 2, 600), (3, 3, 600), "one"),  # a second worker saves more than a fourth
        ((3, 3, 600), (2, 2, 600), "other"),
        ((3, 3, 6000), (1, 1, 600), "one"),  # unless much more time can be saved
        ((1, 1, 600), (3, 3, 6000), "other"),
        ((3, 3, 1300), (1, 1, 600), "one"),
        ((3, 3, 1200), (1, 1, 600), "other"),
        ((1, 1, 10**6), (3, 4, 60), "other"),  # a gang below its requested size grows first
        ((3, 4, 60), (1, 1, 10**6), "one"),
        ((2, 3, 60), (2, 3, 600), "other"),
        ((1, 1, 600), (1, 1, 600), "one"),
    ],
)
def test_last_gpu_goes_to_gang_that_saves_most(
    one: tuple[int, int, float], other: tuple[int, int, float], grows: str
) -> None:
    """One GPU of the shared quota is left. A second worker saves 48 % of the time, a fourth 23 %."""
    wholes = [node("n0", gpu=one[0] + 1), node("n1", gpu=other[0] + 1)]
    found = World(wholes, [queue("team", gpu=one[0] + other[0] + 1)], POLICY)
    for name, node_, (size, wanted, left) in (("one", "n0", one), ("other", "n1", other)):
        found.put(running(name, {node_: size}, wanted=wanted, least=1, most=9, estimate=100 + left, queue="team"))
    before = sizes(found)
    found.settle(100)
    assert {uid for uid, size in sizes(found).items() if size > before[uid]} == {grows}


def test_gang_grows_on_node_with_most_of_its_pods() -> None:
    found = world(running("a", {"n0": 1, "n1": 2}, most=4))
    found.settle(100)
    assert found.gangs["a"].assigned is not None
    assert found.gangs["a"].assigned.placement == {"worker": {"n0": 1, "n1": 3}}


def test_shrinking_gang_does_not_grow() -> None:
    """This holds even if no gang needs the capacity anymore."""
    found = World([node("n0", gpu=8)], policy=POLICY)
    found.put(running("a", {"n0": 6}, wanted=2, most=8), gang("b", workers(4), at=0))
    assert isinstance(found.scheduler.cycle(30).verdicts["a"], Resize)
    found.remove("b")
    assert found.scheduler.cycle(60).verdicts == {}


def test_gang_that_cannot_grow_does_not_block_growth_of_others() -> None:
    found = World([node("n0", gpu=1), node("n1", gpu=3)], policy=POLICY)
    found.put(running("first", {"n0": 1}, most=9, estimate=10**6), running("second", {"n1": 1}, most=9, estimate=600))
    found.settle(100)
    assert sizes(found) == {"first": 1, "second": 3}


def test_longer_of_two_gangs_without_workers_grows() -> None:
    found = World([node("n0", cpu=8, gpu=1)], policy=POLICY)
    bare = gang("bare", member("ps", 1, cpu=1), workers(1, least=0, most=2), estimate=700)
    found.put(placed(bare, {"ps": {"n0": 1}, "worker": {}}), running("a", {"n0": 0}, wanted=1, least=0, estimate=650))
    found.settle(100)
    assert sizes(found) == {"a": 0, "bare": 1}


@pytest.mark.parametrize(
    ("locality", "placement"),
    [
        (None, {"n0": 2, "n1": 1, "m0": 1}),
        (TopologyRequest(label="rack"), {"n0": 2, "n1": 1, "m0": 1}),
        (TopologyRequest(label="rack", required=True), {"n0": 2}),
    ],
)
def test_gang_with_required_rack_does_not_grow_out_of_it(
    locality: TopologyRequest | None, placement: dict[str, int]
) -> None:
    """Growth chooses one node at a time. If a rack is required, it chooses among the nodes that the gang is on."""
    racks = {"n0": ("r0", 2), "n1": ("r0", 1), "m0": ("r1", 1)}
    found = World([node(name, gpu=gpus, labels={"rack": rack}) for name, (rack, gpus) in racks.items()], policy=POLICY)
    found.put(running("a", {"n0": 1}, wanted=4, least=1, locality=locality))
    found.settle(100)
    assert found.gangs["a"].assigned is not None
    assert found.gangs["a"].assigned.placement == {"worker": placement}


@pytest.mark.parametrize(("after", "grows"), [(19.9, False), (20.0, True)])
def test_gang_grows_only_some_time_after_last_admission(after: float, grows: bool) -> None:
    found = world(running("a", {"n0": 2}, at=0, most=4), running("b", {"n1": 1}, at=50))
    found.settle(50 + after)
    assert (sizes(found)["a"] > 2) is grows


@pytest.mark.parametrize(("saves", "grows"), [(391, False), (394, True)])
def test_growth_with_restart_must_save_three_times_its_cost(saves: float, grows: bool) -> None:
    """Growing from 3 to 4 workers saves a little less than a quarter of the time. A restart costs 30 seconds."""
    policy = AdmissionPolicy(grow_after=20, steady=60, restart_cost=30)
    found = world(running("a", {"n0": 3}, at=0, most=4, estimate=100 + saves, live=False), policy=policy)
    found.settle(100)
    assert (sizes(found)["a"] == 4) is grows


def test_gang_near_its_end_does_not_restart_to_grow() -> None:
    soon_over = running("a", {"n0": 2}, at=0, most=4, estimate=60, live=False)
    assert world(soon_over).settle(30) == []
    assert world(replace(soon_over, estimate=6000)).settle(30) != []
    assert world(replace(soon_over, live=True)).settle(30) != []


def test_gang_grows_within_quota() -> None:
    found = World([node("n0", gpu=8)], [queue("team", gpu=3)], POLICY)
    found.put(running("a", {"n0": 2}, at=0, most=8, queue="team"))
    found.settle(100)
    assert sizes(found) == {"a": 3}


# -- shrinking --


def test_gang_above_requested_size_shrinks_for_waiting_gang() -> None:
    found = world(running("a", {"n0": 4, "n1": 2}, wanted=2, most=8), gang("b", workers(4), at=0), policy=POLICY)
    assert reason(found.decide(29)["b"]) == "WaitingForCapacity"
    said = found.decide(30)
    assert said["a"] == Resize(
        sizes={"worker": 4}, placement={"worker": {"n0": 4}}, message="goes from 6 to 4 worker: ml/b waits for capacity"
    )
    assert reason(said["b"]) == "Preempting"
    assert found.decide(30)["b"] == Admit(placement={"worker": {"n1": 4}}, sizes={"worker": 4})


def test_gang_shrinks_below_spec_only_after_long_wait_and_not_below_minimum() -> None:
    found = world(running("a", {"n0": 4, "n1": 4}, least=5), gang("b", workers(3), at=0))
    assert found.settle(179) == []
    assert found.scheduler.wake_at(179) == 180
    found.settle(180)
    assert sizes(found) == {"a": 5, "b": 3}
    assert world(running("a", {"n0": 4, "n1": 4}, least=6), gang("b", workers(3), at=0)).settle(10**6) == []


@pytest.mark.parametrize(
    ("one", "other", "gives"),
    [
        # The lower priority first, even if it can release little. Then the most pods, the youngest gang, and the name.
        ({"on": 3, "priority": 1, "at": 5}, {"on": 2, "priority": 2, "at": 9}, "one"),
        ({"on": 2, "priority": 1, "at": 5}, {"on": 3, "priority": 2, "at": 9}, "one"),
        ({"on": 2, "priority": 2, "at": 9}, {"on": 3, "priority": 1, "at": 5}, "other"),
        ({"on": 2, "at": 9}, {"on": 3, "at": 5}, "other"),
        ({"on": 3, "at": 5}, {"on": 2, "at": 9}, "one"),
        ({"on": 3, "at": 5}, {"on": 3, "at": 9}, "other"),
        ({"on": 3, "at": 9}, {"on": 3, "at": 5}, "one"),
        ({"on": 3, "at": 5}, {"on": 3, "at": 5}, "one"),
    ],
)
@pytest.mark.parametrize("now", [30, 180])
def test_order_in_which_gangs_shrink(one: dict[str, int], other: dict[str, int], gives: str, now: int) -> None:
    """One pod is enough. Gangs release pods above the requested size (at 30) or above the minimum (at 180)."""
    wanted = {30: {"wanted": 1, "most": 8}, 180: {"least": 1}}[now]
    gangs = []
    for name, node_, said in (("one", "n0", one), ("other", "n1", other)):
        rest = {key: value for key, value in said.items() if key != "on"}
        gangs.append(running(name, {node_: said["on"]}, **rest, **wanted))
    made = World([node("n0", gpu=one["on"]), node("n1", gpu=other["on"])], policy=POLICY)
    made.put(*gangs, gang("waits", workers(1), at=0, priority=2))
    found = made.decide(now)
    assert [uid for uid, verdict in found.items() if isinstance(verdict, Resize)] == [gives]


@pytest.mark.parametrize(
    ("waited", "priority", "preempts", "gives"),
    [
        # Pods above the requested size go to any gang after a while, and immediately to a higher priority.
        (29, 0, True, 0),
        (30, 0, True, 1),
        (30, 0, False, 1),
        (0, 1, True, 2),
        (0, 1, False, 0),
        # Pods above the minimum go to gangs of equal priority after a long wait, and never to a lower priority.
        (179, 0, True, 1),
        (180, 0, True, 2),
        (180, -1, True, 1),
        (29, -1, True, 0),
    ],
)
def test_released_pods_depend_on_wait_and_priority(waited: float, priority: int, preempts: bool, gives: int) -> None:
    """A gang has 4 pods, requested 3 and needs at least 2. Two other gangs ask for one pod each."""
    made = World([node("n0", gpu=4)], policy=POLICY)
    made.put(running("a", {"n0": 4}, at=-1000, wanted=3, least=2, most=4))
    made.put(*(gang(f"w{at}", workers(1), at=0, priority=priority, preempts=preempts) for at in range(2)))
    made.settle(waited)
    assert sizes(made)["a"] == 4 - gives


def test_shrinking_removes_highest_indexes() -> None:
    seated = replace(
        bound(running("a", {"n0": 2, "n1": 2}, least=1, at=0)), pod_nodes={"worker": ("n1", "n0", "n1", "n0")}
    )
    found = World([node("n0", gpu=2, used={"gpu": 2}), node("n1", gpu=2, used={"gpu": 2})], policy=POLICY)
    found.put(seated, gang("b", workers(1), at=0))
    said = found.decide(200)
    assert isinstance(said["a"], Resize)
    assert said["a"].placement == {"worker": {"n1": 2, "n0": 1}}


def test_capacity_of_removed_pods_is_free_after_they_are_gone() -> None:
    full = [node("n0", gpu=4, used={"gpu": 4})]
    found = World(full, policy=POLICY)
    found.put(bound(running("a", {"n0": 4}, least=2, at=0)), gang("b", workers(2), at=0))
    found.settle(200)
    assert sizes(found) == {"a": 2}
    assert message(found.scheduler.explain("b")).endswith("starts when ml/a has released its capacity")
    found.put_node(node("n0", gpu=4, used={"gpu": 2}))
    found.put(replace(found.gangs["a"], bound={"worker": {"n0": 2}}))
    found.settle(201)
    assert sizes(found) == {"a": 2, "b": 2}


def test_gangs_do_not_resize_back_and_forth() -> None:
    found = world(running("a", {"n0": 4}, wanted=2, least=1, most=8), gang("b", workers(4, least=1), at=0), nodes=1)
    resizes = 0
    for now in range(0, 2000, 10):
        resizes += sum(isinstance(verdict, Resize) for verdicts in found.settle(now) for verdict in verdicts.values())
    assert resizes <= 2
    assert sum(sizes(found).values()) == 4


# -- DRAGON's rules as intended (two nodes with four GPUs; jobs A, B and C) --


def seed_job(name: str, least: int, count: int, most: int, at: float) -> Gang:
    return gang(name, member("ps", 1, cpu=1), member("worker", count, cpu=4, gpu=1, least=least, most=most), at=at)


def test_job_and_its_ps_share_one_node() -> None:
    found = world(seed_job("A", 4, 4, 4, 0), seed_job("B", 3, 3, 3, 1))
    said = found.decide(2)
    assert sorted(said) == ["A", "B"]
    for verdict in said.values():
        assert isinstance(verdict, Admit)
        assert list(verdict.placement["ps"]) == list(verdict.placement["worker"])


def test_job_b_starts_smaller_and_gangs_shrink_for_job_c() -> None:
    found = world(seed_job("A", 2, 4, 8, 0), seed_job("B", 2, 6, 6, 1))
    found.settle(2)
    assert sizes(found) == {"A": 4}
    found.settle(40)
    assert sizes(found) == {"A": 4, "B": 4}
    found.put(seed_job("C", 2, 2, 4, 100))
    found.settle(130)
    assert sizes(found) == {"A": 4, "B": 4}
    found.settle(280)
    assert sizes(found)["C"] == 2
    assert sum(sizes(found).values()) == 8
    assert all(sizes(found)[name] >= 2 for name in "AB")
    # After C is gone, the shrunken gangs grow again.
    found.remove("C")
    found.settle(400)
    assert sum(sizes(found).values()) == 8


def test_growing_gang_keeps_its_nodes() -> None:
    one = placed(gang("a", member("ps", 1, cpu=1), workers(1, most=3)), {"ps": {"n0": 1}, "worker": {"n0": 1}})
    found = world(one)
    found.settle(100)
    assert found.gangs["a"].assigned is not None
    assert found.gangs["a"].assigned.placement == {"ps": {"n0": 1}, "worker": {"n0": 3}}

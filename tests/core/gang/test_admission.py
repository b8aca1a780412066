"""Which gangs start, and what the others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.gang.gangs import (
    Snapshot,
    World,
    admit,
    bound,
    gang,
    member,
    message,
    node,
    placed,
    queue,
    reason,
    running,
    waiting,
    workers,
)
from tests.thorough import thorough
from tf_dist.core.gang.placement.predicates import REFUSED_NODES
from tf_dist.core.gang.scheduling import Scheduler
from tf_dist.core.gang.types import AdmissionPolicy, AssignedPods, Gang, Node, TopologyRequest
from tf_dist.core.model.assignment import Admit, Verdict, Wait
from tf_dist.core.model.gang_queue import Queue, QueueingStrategy


def judged(gangs: list[Gang], *nodes: Node, now: float = 10, queues: tuple[Queue, ...] = ()) -> dict[str, Verdict]:
    return admit(Snapshot(gangs=tuple(gangs), nodes=nodes, now=now, queues=queues))


def test_fitting_gang_is_admitted_with_full_size_and_nodes() -> None:
    found = judged([gang("a", member("worker", 2, cpu=2))], node("n", cpu=4))
    assert found == {"a": Admit(placement={"worker": {"n": 2}}, sizes={"worker": 2})}


def test_gang_waits_when_only_some_pods_fit() -> None:
    found = judged([gang("a", member("worker", 3, cpu=2))], node("n", cpu=4), node("m", cpu=4, used={"cpu": 3}))
    assert reason(found["a"]) == "WaitingForCapacity"
    assert message(found["a"]) == ("needs 3 × (cpu 2) for worker, 1 more than fit; free: cpu 5 on 2 nodes; position 1")


def test_message_says_that_members_do_not_fit_together() -> None:
    found = judged([gang("a", member("ps", 1, cpu=3), member("worker", 1, cpu=2))], node("n", cpu=9, used={"cpu": 5}))
    assert message(found["a"]) == (
        "needs 1 × (cpu 3) for ps and 1 × (cpu 2) for worker, and there is no free capacity for all of them at once; "
        "position 1"
    )


def test_smaller_gangs_pass_gang_that_does_not_fit() -> None:
    gangs = [
        gang("late", member("worker", 1, cpu=1), at=3),
        gang("large", member("worker", 4, cpu=1), at=2),
        gang("early", member("worker", 1, cpu=1), at=1),
    ]
    found = judged(gangs, node("n", cpu=4))
    assert [reason(found[name]) for name in ("early", "large", "late")] == ["Admit", "WaitingForCapacity", "Admit"]


def test_no_gang_passes_first_gang_of_strict_queue() -> None:
    gangs = [gang("large", workers(4), at=1), gang("late", workers(1), at=2)]
    strict = queue("default", order=QueueingStrategy.STRICT_FIFO)
    found = judged(gangs, node("n", gpu=4, used={"gpu": 1}), queues=(strict,))
    assert [reason(found[name]) for name in ("large", "late")] == ["WaitingForCapacity", "WaitingInQueue"]
    assert message(found["late"]) == (
        "it would fit, but its queue is served strictly in order; position 2, behind ml/large"
    )


def test_gang_that_never_fits_does_not_block_strict_queue() -> None:
    gangs = [gang("huge", workers(9), at=1), gang("small", workers(1), at=2)]
    found = judged(gangs, node("n", gpu=4), queues=(queue("default", order=QueueingStrategy.STRICT_FIFO),))
    assert [reason(found[name]) for name in ("huge", "small")] == ["NeverFits", "Admit"]


def test_order_is_priority_then_age_then_name() -> None:
    gangs = [
        gang("b", workers(4), at=1),
        gang("a", workers(4), at=1),
        gang("older", workers(4), at=0),
        gang("higher", workers(4), at=9, priority=1),
    ]
    world = World([node("n", gpu=4)])
    world.put(*gangs)
    started = []
    for now in range(10, 14):
        [uid] = [uid for uid, verdict in world.decide(now).items() if isinstance(verdict, Admit)]
        started.append(uid)
        world.remove(uid)
    assert started == ["higher", "older", "a", "b"]


def test_short_gang_passes_long_gang_for_limited_time() -> None:
    """A gang of one hour yields only to short gangs that are created within the next half hour."""
    long = gang("long", workers(4), at=0, estimate=3600)
    first = World([node("n", gpu=4)])
    first.put(long, gang("soon", workers(4), at=1000, estimate=60))
    assert reason(first.decide(1000)["soon"]) == "Admit"
    second = World([node("n", gpu=4)])
    second.put(long, gang("late", workers(4), at=3000, estimate=60))
    assert reason(second.decide(3000)["long"]) == "Admit"


def test_starving_gang_comes_first_within_its_priority() -> None:
    policy = AdmissionPolicy(starving=100)
    for now, first in ((90, "short"), (110, "long")):
        world = World([node("n", gpu=4)], policy=policy)
        world.put(gang("long", workers(4), at=0, estimate=10**6), gang("short", workers(4), at=80, estimate=1))
        assert reason(world.decide(now)[first]) == "Admit"


def test_message_names_only_first_three_gangs_ahead() -> None:
    gangs = [gang(name, member("w", 1, cpu=4), at=at) for at, name in enumerate("abcde")]
    found = judged(gangs, node("n", cpu=4, used={"cpu": 1}))
    assert message(found["e"]).endswith("; position 5, behind ml/a, ml/b, ml/c and 1 more")


def test_gang_too_large_for_empty_cluster_does_not_block_others() -> None:
    gangs = [gang("huge", member("worker", 2, gpu=8), at=1), gang("small", member("worker", 1, gpu=1), at=2)]
    found = judged(gangs, node("n", gpu=8), now=10_000)
    never = found["huge"]
    assert isinstance(never, Wait)
    assert (never.reason, never.reason.row.unreachable) == ("NeverFits", True)
    assert never.message == (
        "needs 2 × (nvidia.com/gpu 8) for worker, and even the empty cluster has only nvidia.com/gpu 8 on 1 node"
    )
    assert reason(found["small"]) == "Admit"


def ranks(found: dict[str, Verdict]) -> dict[str, int]:
    return {uid: verdict.rank for uid, verdict in found.items() if isinstance(verdict, Wait)}


def test_rank_counts_gangs_of_all_queues() -> None:
    """Queues take turns, so the second gang of one of two queues comes after about three others."""
    gangs = [
        *(gang(name, workers(4), at=at) for at, name in enumerate(("a1", "a2"))),
        *(gang(name, workers(4), at=at, queue="other") for at, name in enumerate(("b1", "b2"))),
        gang("huge", workers(9), at=4),
    ]
    found = judged(gangs, node("n", gpu=4, used={"gpu": 4}), queues=(queue("other", gpu=8),))
    assert ranks(found) == {"a1": 2, "b1": 2, "a2": 4, "b2": 4, "huge": 5}


def test_gang_that_never_fits_is_not_counted_in_positions() -> None:
    gangs = [gang("huge", workers(9), at=1), gang("a", workers(4), at=2)]
    found = judged(gangs, node("n", gpu=4, used={"gpu": 1}))
    assert message(found["a"]).endswith("; position 1")


def test_unreadable_constraints_are_reported_and_block_no_other_gang() -> None:
    odd = replace(member("w", 1, cpu=1), constraints={"nodeSelector": ["zone"]})
    found = judged([gang("odd", odd), gang("a", member("w", 1, cpu=1), at=1)], node("n", cpu=4))
    assert isinstance(found["odd"], Wait)
    assert (found["odd"].reason, found["odd"].reason.row.unreachable) == ("Unreadable", True)
    assert found["odd"].message == "w: its nodeSelector, affinity or tolerations cannot be read"
    assert reason(found["a"]) == "Admit"


@pytest.mark.parametrize(
    ("toleration", "admitted"),
    [
        ({}, False),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_gang_needs_toleration_for_tainted_node(toleration: dict[str, str], admitted: bool) -> None:
    tainted = node("n", cpu=4, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    found = judged([gang("a", member("w", 1, cpu=1, tolerations=[toleration]))], tainted)
    assert (reason(found["a"]) == "Admit") is admitted


def test_prefer_no_schedule_taint_does_not_exclude_node() -> None:
    soft = node("n", cpu=4, taints=[{"key": "old", "effect": "PreferNoSchedule"}])
    assert reason(judged([gang("a", member("w", 1, cpu=1))], soft)["a"]) == "Admit"


def test_parameter_servers_avoid_gpu_nodes_that_workers_need() -> None:
    mixed = gang("a", member("ps", 1, cpu=4), member("worker", 2, cpu=2, gpu=1))
    assert reason(judged([mixed], node("a", cpu=4, gpu=2), node("b", cpu=4))["a"]) == "Admit"


def test_message_names_required_zone() -> None:
    nodes = [node("a", gpu=2, labels={"zone": "x"}), node("b", gpu=2, labels={"zone": "y"})]
    within = gang("a", workers(3), locality=TopologyRequest(label="zone", required=True))
    assert message(judged([within], *nodes)["a"]) == (
        "needs 3 × (nvidia.com/gpu 1) for worker, "
        "and even the empty cluster has no capacity for all of them within one zone"
    )
    anywhere = gang("b", workers(3), locality=TopologyRequest(label="zone"))
    assert reason(judged([anywhere], *nodes)["b"]) == "Admit"


# -- admitted gangs --


def test_admitted_gang_keeps_capacity_for_pods_not_created_yet() -> None:
    inside = placed(gang("in", member("w", 2, cpu=1), at=9), {"w": {"n": 2}})
    found = judged([inside, gang("new", member("w", 3, cpu=1), at=1)], node("n", cpu=4))
    assert (found["in"], reason(found["new"])) == (
        Admit(placement={"w": {"n": 2}}, sizes={"w": 2}),
        "WaitingForCapacity",
    )


def test_pods_without_assigned_nodes_count_against_free_capacity() -> None:
    inside = replace(gang("in", workers(2)), assigned=AssignedPods(at=0, sizes={}, placement={}))
    assert reason(judged([inside, gang("new", workers(1))], node("n", gpu=2, used={"gpu": 1}))["new"]) == (
        "WaitingForCapacity"
    )
    assert reason(judged([inside, gang("new", workers(1))], node("n", gpu=3))["new"]) == "Admit"


@pytest.mark.parametrize(("others", "said"), [((), "WaitingForCapacity"), (("m",), "Admit")])
def test_pod_counts_on_node_that_refused_it_when_no_other_has_capacity(others: tuple[str, ...], said: str) -> None:
    """The cluster's scheduler may bind it there later, for example when a drained node is back."""
    refused = replace(workers(1), constraints={REFUSED_NODES: ["n"]})
    inside = replace(gang("in", refused), assigned=AssignedPods(at=0, sizes={}, placement={}))
    nodes = [node(name, gpu=1) for name in ("n", *others)]
    found = judged([inside, gang("new", workers(1))], *nodes)["new"]
    assert reason(found) == said
    if isinstance(found, Admit):
        assert found.placement == {"worker": {"n": 1}}, "the other one stays free for the pod that was refused here"


def test_released_capacity_goes_first_to_pods_without_assigned_nodes() -> None:
    world = World([node("n", gpu=2)])
    world.put(replace(gang("in", workers(1)), assigned=AssignedPods(at=0, sizes={}, placement={})))
    world.put(placed(gang("busy", workers(2)), {"worker": {"n": 2}}))
    world.put(gang("new", workers(1), at=1))
    assert reason(world.decide(1)["new"]) == "WaitingForCapacity"
    world.put(replace(placed(gang("busy", workers(2)), {"worker": {"n": 2}}), done={"worker": 1}))
    assert world.decide(2) == {}
    world.put(replace(placed(gang("busy", workers(2)), {"worker": {"n": 2}}), done={"worker": 2}))
    assert reason(world.decide(3)["new"]) == "Admit"


def test_pods_without_assigned_nodes_count_until_their_gang_ends() -> None:
    inside = [
        replace(gang(name, workers(1)), assigned=AssignedPods(at=0, sizes={}, placement={})) for name in ("in", "too")
    ]
    assert reason(judged([*inside, gang("new", workers(1))], node("n", gpu=3))["new"]) == "Admit"
    world = World([node("n", gpu=2)])
    world.put(*inside, gang("new", workers(1), at=1))
    assert reason(world.decide(10)["new"]) == "WaitingForCapacity"
    world.remove("in")
    assert reason(world.decide(11)["new"]) == "Admit"


def test_bound_pods_are_not_counted_twice() -> None:
    there = bound(running("in", {"n": 3}))
    assert reason(judged([there, gang("new", workers(1))], node("n", gpu=4, used={"gpu": 3}))["new"]) == "Admit"


def test_finished_replicas_use_no_capacity() -> None:
    done = replace(running("in", {"n": 3}), done={"worker": 2})
    assert reason(judged([done, gang("new", workers(3))], node("n", gpu=4))["new"]) == "Admit"


def test_returning_node_still_counts_its_assigned_pods() -> None:
    world = World([node("n", gpu=4)])
    world.put(running("in", {"n": 3}))
    world.remove_node("n")
    world.put(gang("new", workers(2)))
    assert reason(world.decide(1)["new"]) == "NeverFits"
    world.put_node(node("n", gpu=4))
    world.decide(2)
    assert reason(world.scheduler.explain("new")) == "WaitingForCapacity"


# -- quotas --


def test_quota_is_enforced_and_reported() -> None:
    gangs = [gang("a", workers(3), queue="team"), gang("b", workers(2), at=1, queue="team")]
    found = judged(gangs, node("n", gpu=8), queues=(queue("team", gpu=4),))
    assert (reason(found["a"]), reason(found["b"])) == ("Admit", "QuotaExceeded")
    assert message(found["b"]) == (
        "needs 2 nvidia.com/gpu, 1 more than the quota of queue team leaves; position 1 in queue team"
    )


def test_request_above_queue_quota_never_fits() -> None:
    verdict = judged([gang("a", workers(5), queue="team")], node("n", gpu=8), queues=(queue("team", gpu=4),))["a"]
    assert isinstance(verdict, Wait)
    assert (verdict.reason, verdict.reason.row.unreachable) == ("NeverFits", True)


def test_missing_queue_is_reported_until_it_is_created() -> None:
    world = World([node("n", gpu=8)])
    world.put(gang("a", workers(1), queue="teem"))
    assert reason(world.decide(1)["a"]) == "QueueNotFound"
    world.scheduler.cache.put_queues((queue("teem"),))
    assert reason(world.decide(2)["a"]) == "Admit"


def test_only_quotas_decide_without_access_to_nodes() -> None:
    gangs = (gang("a", workers(3), queue="team"), gang("b", workers(2), at=1, queue="team"), gang("c", workers(99)))
    found = admit(Snapshot(gangs=gangs, nodes=None, now=5, queues=(queue("team", gpu=4),)))
    assert [reason(found[uid]) for uid in "abc"] == ["Admit", "QuotaExceeded", "Admit"]
    assert found["a"] == Admit(sizes={"worker": 3})


def test_queues_are_served_by_fair_share() -> None:
    queues = (queue("a", gpu=4, parent="all"), queue("b", gpu=4, parent="all"))
    world = World([node("n", gpu=8)], queues)
    world.put(*(gang(f"a{i}", workers(2), at=i, queue="a") for i in range(4)))
    world.put(*(gang(f"b{i}", workers(2), at=9 + i, queue="b") for i in range(4)))
    started = {uid for uid, verdict in world.decide(20).items() if isinstance(verdict, Admit)}
    assert started == {"a0", "a1", "b0", "b1"}


def test_changed_queue_still_counts_running_gangs() -> None:
    world = World([node("n", gpu=8)], (queue("team", gpu=2),))
    world.put(running("in", {"n": 2}, queue="team"), gang("a", workers(2), queue="team"))
    world.scheduler.cache.put_queues((queue("team", gpu=3),))
    assert reason(world.decide(1)["a"]) == "QuotaExceeded"
    world.scheduler.cache.put_queues((queue("team", gpu=4),))
    assert reason(world.decide(2)["a"]) == "Admit"


def test_queues_without_quotas_share_capacity_of_current_nodes() -> None:
    """``a`` uses half of the GPUs. ``b`` uses a tenth of the CPUs, or all of them after the large node is gone."""
    for gone, first in ((False, "b1"), (True, "a1")):
        world = World([node("n", gpu=4, cpu=10, used={"gpu": 1}), node("large", cpu=90)], (queue("a"), queue("b")))
        world.put(running("a0", {"n": 2}, queue="a"))
        holds = gang("b0", member("w", 1, cpu=10), queue="b")
        world.put(placed(holds, {"w": {"n": 1}}))
        world.put(gang("a1", workers(1), at=5, queue="a"), gang("b1", workers(1), at=5, queue="b"))
        if gone:
            world.remove_node("large")
        assert [uid for uid, one in world.decide(10).items() if isinstance(one, Admit)] == [first]


# -- sequences of changes --


def test_gang_with_stored_admission_stops_waiting() -> None:
    scheduler = Scheduler()
    scheduler.cache.put_node(node("n", gpu=4))
    scheduler.put_gang(gang("a", workers(2)))
    assert waiting(scheduler) == ["a"]
    scheduler.put_gang(running("a", {"n": 2}))
    assert waiting(scheduler) == []
    assert scheduler.cycle(1).verdicts == {}


def test_gang_waits_until_backoff_ends() -> None:
    world = World([node("n", gpu=4)])
    world.put(gang("a", workers(1), at=0, not_before=3600))
    [verdict] = world.decide(60).values()
    assert (reason(verdict), message(verdict)) == ("Backoff", "tries again at 01:00 UTC")
    assert world.scheduler.wake_at(60) == 3600
    assert reason(world.decide(3600)["a"]) == "Admit"


def test_assumed_admission_counts_until_it_is_withdrawn() -> None:
    scheduler = Scheduler()
    scheduler.cache.put_node(node("n", gpu=4))
    first, second = gang("a", workers(3)), gang("b", workers(3), at=1)
    scheduler.put_gang(first)
    scheduler.put_gang(second)
    assert {uid: reason(v) for uid, v in scheduler.cycle(1).verdicts.items()} == {
        "a": "Admit",
        "b": "WaitingForCapacity",
    }
    assert scheduler.cycle(2).verdicts == {}
    scheduler.put_gang(first)  # the admission was not written
    scheduler.remove_gang("a")
    assert {uid: reason(v) for uid, v in scheduler.cycle(3).verdicts.items()} == {"b": "Admit"}


def test_no_new_verdicts_without_changes() -> None:
    world = World([node("n", gpu=2)])
    world.put(gang("a", workers(4, least=2)), gang("b", workers(2), at=1), gang("c", workers(1, gpu=4)))
    world.settle(1)
    assert world.scheduler.cycle(2).verdicts == {}
    with pytest.raises(KeyError):
        world.scheduler.explain("missing")
    world.scheduler.remove_gang("missing")
    world.scheduler.cache.remove_node("nowhere")


def test_never_fits_reason_follows_node_changes() -> None:
    """Clients give up on a job that never fits, so the reason must be neither missing nor outdated."""
    world = World([node("n", gpu=4, used={"gpu": 4}), node("m", gpu=4, used={"gpu": 1})])
    world.put(
        bound(running("r", {"n": 4, "m": 1})), gang("a", workers(8)), gang("b", workers(8), at=1), gang("c", workers(4))
    )
    assert {uid: reason(v) for uid, v in world.decide(1).items()} == dict.fromkeys("abc", "WaitingForCapacity")
    world.scheduler.cache.remove_node("m")
    assert {uid: reason(v) for uid, v in world.decide(2).items()} == dict.fromkeys("ab", "NeverFits")
    world.scheduler.cache.put_node(node("m", gpu=4, used={"gpu": 1}))
    assert {uid: reason(v) for uid, v in world.decide(3).items()} == dict.fromkeys("ab", "WaitingForCapacity")


def test_wait_reason_follows_queue_changes() -> None:
    world = World([node("n", gpu=4, used={"gpu": 4})], queues=[queue("speech", gpu=4)])
    world.put(gang("a", workers(4), queue="vision"))
    assert reason(world.decide(1)["a"]) == "QueueNotFound"
    said = []
    for now, queues in enumerate(([queue("vision", gpu=4)], [queue("vision", gpu=3)], []), start=2):
        world.scheduler.cache.put_queues(queues)
        said.append(reason(world.decide(now)["a"]))
    assert said == ["WaitingForCapacity", "NeverFits", "QueueNotFound"]


def test_explain_works_after_cycle_without_reasons() -> None:
    world = World([node("n", gpu=2)])
    world.put(gang("a", workers(2)), gang("b", workers(2), at=1))
    assert world.scheduler.cycle(1, reasons=False).verdicts.keys() == {"a"}
    assert isinstance(world.scheduler.explain("b"), Wait)


# -- compared with all possible placements ------------------------------------------------------------------------

NODES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=3)
MEMBERS = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=2)


def world_of(nodes: Any, members: Any) -> tuple[list[Node], Gang]:
    made = [node(f"n{i}", cpu=cpu, gpu=gpu, used={"cpu": min(used, cpu)}) for i, (cpu, gpu, used) in enumerate(nodes)]
    return made, gang("g", *(member(f"t{j}", count, cpu=cpu, gpu=gpu) for j, (count, cpu, gpu) in enumerate(members)))


def packings(pods: list[dict[str, Decimal]], room: list[dict[str, Decimal]]) -> Iterator[bool]:
    """True for every way to place all pods."""
    if not pods:
        yield True
        return
    first, *rest = pods
    for index, there in enumerate(room):
        if all(there.get(resource, 0) >= value for resource, value in first.items()):
            less = {resource: value - first.get(resource, 0) for resource, value in there.items()}
            yield from packings(rest, [*room[:index], less, *room[index + 1 :]])


def fits(one: Gang, rooms: list[dict[str, Decimal]]) -> bool:
    pods = [dict(m.requests) for m in one.members for _ in range(m.count)]
    return any(packings(pods, rooms))


@thorough(100)
@given(NODES, MEMBERS)
def test_gang_of_equal_pods_is_admitted_exactly_when_it_fits(nodes: Any, members: Any) -> None:
    made, one = world_of(nodes, members[:1])
    verdict = judged([one], *made)["g"]
    assert isinstance(verdict, Admit) is fits(one, [dict(n.free) for n in made])
    never = isinstance(verdict, Wait) and verdict.reason.row.unreachable
    assert never is not fits(one, [dict(n.allocatable) for n in made])


@pytest.mark.parametrize(("nominated", "first"), [(True, "mine"), (False, "other")])
def test_nominated_gang_comes_before_queue_with_smaller_share(nominated: bool, first: str) -> None:
    found = World([node("n0", gpu=4), node("n1", gpu=4)], [queue("a"), queue("b")])
    found.put(running("a", {"n1": 4}, queue="a"))
    found.put(
        gang("mine", workers(4), queue="a", at=5, nominated=nominated), gang("other", workers(4), queue="b", at=1)
    )
    found.put(gang("mine", workers(4), queue="a", at=5))  # the stored gang, before the nomination is written
    assert [uid for uid, verdict in found.decide(10).items() if isinstance(verdict, Admit)] == [first]

"""Quotas of queues, and the usage in the status of a queue: examples of the rules.

The properties are in ``test_quota_properties``.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.gang.quotas import GPU, need, queue, quota
from tf_dist.core.gang.queue import FairSharingIterator
from tf_dist.core.gang.quota import Quotas, QuotaShortage, exact_quantity, queue_status, queue_usage
from tf_dist.core.model.quantity import parse_quantity


def lack(quotas: Quotas, name: str, **amounts: float | str) -> QuotaShortage:
    found = quotas.lack(name, need(**amounts))
    assert found is not None
    return found


def fits(quotas: Quotas, name: str, **amounts: float | str) -> bool:
    found = quotas.fits(name, need(**amounts))
    assert found == (quotas.lack(name, need(**amounts)) is None)
    return found


def test_single_queue_is_limited_to_nominal_quota() -> None:
    quotas = Quotas([queue("a", gpu=4)])
    quotas.take("a", need(gpu=3))
    assert fits(quotas, "a", gpu=1)
    short = lack(quotas, "a", gpu=2)
    assert (short.at, short.resource, short.needed, short.missing) == ("a", GPU, 2, 1)
    assert (short.never, short.reason) == (False, "QuotaExceeded")
    assert str(short) == "needs 2 nvidia.com/gpu, 1 more than the quota of queue a leaves"


def test_resource_without_quota_is_not_limited() -> None:
    quotas = Quotas([queue("a", gpu=1)])
    quotas.take("a", need(cpu=10**6))
    assert fits(quotas, "a", cpu=10**6, gpu=1)


def test_shortage_names_resource_that_can_never_fit() -> None:
    """All CPUs of the queue may become free, but it never has so many GPUs."""
    quotas = Quotas([queue("a", cpu=8, gpu=4)])
    quotas.take("a", need(cpu=1, gpu=1))
    assert (lack(quotas, "a", cpu=8, gpu=4).resource, lack(quotas, "a", cpu=8, gpu=4).never) == ("cpu", False)
    assert (lack(quotas, "a", cpu=8, gpu=5).resource, lack(quotas, "a", cpu=8, gpu=5).never) == (GPU, True)


def test_overused_resource_does_not_block_gang_that_needs_none() -> None:
    quotas = Quotas([queue("a", gpu=1, cpu=8)])
    quotas.take("a", need(gpu=5))
    assert fits(quotas, "a", cpu=8, gpu=0)


def test_queues_share_idle_quota_under_undefined_parent() -> None:
    quotas = Quotas([queue("a", "team", gpu=4), queue("b", "team", gpu=4)])
    quotas.take("a", need(gpu=7))
    assert fits(quotas, "b", gpu=1)
    short = lack(quotas, "b", gpu=4)
    assert (short.at, short.missing, short.never, short.limit) == ("team", 3, False, 8)
    assert str(short).endswith("the quota of queue b leaves: team, which it borrows from, allows no more")
    assert quotas.borrowed("a") == need(gpu=3)
    assert set(quotas.problems) == {"a", "b"}
    assert "team" not in quotas


def test_request_above_quota_of_whole_tree_never_fits() -> None:
    quotas = Quotas([queue("a", "team", gpu=4), queue("b", "team", gpu=4)])
    short = lack(quotas, "a", gpu=9)
    assert short.never
    assert str(short) == "needs 9 nvidia.com/gpu, and queue a can never have more than 8"


def test_borrowing_limit_restricts_borrowed_quota() -> None:
    quotas = Quotas([queue("a", "team", gpu=quota(4, borrow=2)), queue("b", "team", gpu=4)])
    assert fits(quotas, "a", gpu=6)
    short = lack(quotas, "a", gpu=7)
    assert (short.at, short.limit, short.never) == ("a", 6, True)


def test_lending_limit_does_not_raise_borrowing_limit() -> None:
    quotas = Quotas([queue("a", "team", gpu=quota(4, borrow=2, lend=1)), queue("b", "team", gpu=8)])
    assert fits(quotas, "a", gpu=6)
    short = lack(quotas, "a", gpu=7)
    assert (short.at, short.limit, short.never) == ("a", 6, True)


def test_lending_limit_keeps_rest_for_its_queue() -> None:
    quotas = Quotas([queue("a", "team", gpu=4), queue("b", "team", gpu=quota(4, lend=1))])
    assert fits(quotas, "a", gpu=5)
    assert not fits(quotas, "a", gpu=6)
    quotas.take("a", need(gpu=5))
    assert fits(quotas, "b", gpu=3)
    assert lack(quotas, "b", gpu=4).missing == 1


def test_unlent_quota_is_available_when_others_overuse() -> None:
    quotas = Quotas([queue("a", "team", gpu=4), queue("b", "team", gpu=quota(4, lend=1))])
    quotas.take("a", need(gpu=20))
    assert fits(quotas, "b", gpu=3)
    assert not fits(quotas, "b", gpu=4)


def test_limits_apply_at_each_level() -> None:
    company = [
        queue("company", gpu=2),
        queue("research", "company", gpu=quota(0, borrow=3)),
        queue("vision", "research", gpu=4),
        queue("speech", "research", gpu=quota(4, lend=0)),
        queue("sales", "company", gpu=8),
    ]
    quotas = Quotas(company)
    assert fits(quotas, "vision", gpu=7)
    short = lack(quotas, "vision", gpu=8)
    assert (short.at, short.never) == ("research", True)
    quotas.take("vision", need(gpu=7))
    assert fits(quotas, "speech", gpu=4)
    assert fits(quotas, "sales", gpu=7)
    assert lack(quotas, "sales", gpu=8).at == "company"


def test_parent_queue_may_have_gangs() -> None:
    quotas = Quotas([queue("research", gpu=2), queue("vision", "research", gpu=4)])
    quotas.take("research", need(gpu=5))
    assert quotas.used("research") == need(gpu=5)
    assert fits(quotas, "vision", gpu=1)
    assert not fits(quotas, "vision", gpu=2)


def test_used_includes_children_and_borrowed_only_quota_of_parents() -> None:
    quotas = Quotas(
        [queue("top", gpu=1), queue("mid", "top"), queue("x", "mid", gpu=quota(2, lend=0)), queue("y", "mid", gpu=1)]
    )
    quotas.take("x", need(gpu=2, cpu=1))
    quotas.take("y", need(gpu=2))
    assert quotas.used("mid") == quotas.used("top") == need(gpu=4, cpu=1)
    assert quotas.borrowed("y") == quotas.borrowed("mid") == need(gpu=1)
    assert quotas.borrowed("x") == {}
    assert quotas.nominal("top") == need(gpu=4)


def test_default_queue_always_exists_and_is_used_for_empty_name() -> None:
    quotas = Quotas([])
    assert "" in quotas
    assert "default" in quotas
    assert fits(quotas, "", gpu=100)
    defined = Quotas([queue("default", gpu=1)])
    defined.take("", need(gpu=1))
    assert lack(defined, "", gpu=1).queue == "default"


def test_missing_queue_message_suggests_similar_name() -> None:
    quotas = Quotas([queue("research")])
    short = lack(quotas, "reserch", gpu=1)
    assert (short.reason, short.nearest, short.never) == ("QueueNotFound", "research", False)
    assert str(short) == "there is no queue reserch; did you mean research?"
    assert (short.missing, short.limit) == (0, 0)
    assert lack(quotas, "zzz").nearest == ""
    assert "zzz" not in quotas


def test_usage_in_deleted_queue_is_tracked() -> None:
    quotas = Quotas([queue("a", gpu=1)])
    quotas.take("gone", need(gpu=3))
    assert quotas.used("gone") == need(gpu=3)
    assert lack(quotas, "gone").reason == "QueueNotFound"
    assert quotas.names == ["a", "default"]
    quotas.give("gone", need(gpu=3))
    assert quotas.used("gone") == {}


def test_parents_of_queues_in_cycle_are_ignored() -> None:
    circle = [queue("a", "c", gpu=1), queue("b", "a", gpu=1), queue("c", "b", gpu=1), queue("d", "a", gpu=1)]
    quotas = Quotas(circle)
    assert set(quotas.problems) == {"a", "b", "c"}
    assert not fits(quotas, "b", gpu=2)
    assert fits(quotas, "d", gpu=2)


def test_parent_is_ignored_if_queue_is_its_own_parent() -> None:
    quotas = Quotas([queue("a", "a", gpu=1)])
    assert set(quotas.problems) == {"a"}
    assert fits(quotas, "a", gpu=1)


def test_queue_tree_may_be_deeper_than_recursion_limit() -> None:
    names = [f"q{number}" for number in range(3000)]
    quotas = Quotas([queue(name, parent) for name, parent in zip(names, ["", *names], strict=False)])
    quotas.take(names[-1], need(gpu=1))
    assert quotas.used(names[0]) == need(gpu=1)
    assert len(quotas.share(names[-1])) == 6000


def test_duplicate_queue_names_raise() -> None:
    with pytest.raises(ValueError, match="two queues are named a"):
        Quotas([queue("a"), queue("a")])


def test_amounts_of_any_size_are_exact() -> None:
    quotas = Quotas([queue("a", memory="1E24")])
    quotas.take("a", need(memory="0.1"))
    quotas.take("a", need(memory="0.2"))
    quotas.take("a", need(memory="999999999999999999999999"))
    assert lack(quotas, "a", memory="0.700000001").missing == Decimal("1E-9")
    assert fits(quotas, "a", memory="0.7")


# The order between queues.


def served(quotas: Quotas, wanted: dict[str, int], **each: float) -> list[str]:
    """The queues in the order of their turns. ``wanted`` has the number of gangs by queue, all of the same size."""
    left = dict(wanted)
    turns = FairSharingIterator(quotas, dict.fromkeys(left, 0))
    order = []
    while turns:
        name = turns.next()
        order.append(name)
        quotas.take(name, need(**each))
        left[name] -= 1
        if left[name]:
            turns.back(name, 0)
    return order


def test_queue_within_quota_comes_before_borrowing_queue() -> None:
    quotas = Quotas([queue("a", "team", gpu=1), queue("b", "team", gpu=4), queue("c", "team", gpu=9)])
    quotas.take("a", need(gpu=2))
    quotas.take("b", need(gpu=4))
    assert quotas.share("b") < quotas.share("a")
    assert served(quotas, {"a": 1, "b": 1}, gpu=1) == ["b", "a"]


def test_borrowed_quota_is_shared_by_weight() -> None:
    team = [queue("a", "team", weight=3), queue("b", "team"), queue("team", gpu=8)]
    order = served(Quotas(team), {"a": 8, "b": 8}, gpu=1)
    assert sorted(order[:4]) == ["a", "a", "a", "b"]
    assert order[:8].count("a") == 6


def test_share_is_largest_share_of_any_resource() -> None:
    quotas = Quotas([queue("team", gpu=10, cpu=100), queue("a", "team"), queue("b", "team")])
    quotas.take("a", need(gpu=1, cpu=40))
    quotas.take("b", need(gpu=3, cpu=1))
    assert quotas.share("b") < quotas.share("a")


def test_queues_without_quotas_share_cluster_by_weight() -> None:
    quotas = Quotas([queue("a", weight=2), queue("b")], capacity=need(gpu=9))
    order = served(quotas, {"a": 9, "b": 9}, gpu=1)
    assert order[:9].count("a") == 6


def test_parent_queues_are_compared_before_their_children() -> None:
    forest = [
        queue("research"),
        queue("sales"),
        queue("vision", "research"),
        queue("speech", "research"),
        queue("shop", "sales"),
    ]
    order = served(Quotas(forest, capacity=need(gpu=8)), {"vision": 8, "speech": 8, "shop": 8}, gpu=1)
    assert order[:8].count("shop") == 4
    assert order[:8].count("vision") == order[:8].count("speech") == 2


def test_equal_shares_are_ordered_by_tie_value_then_name() -> None:
    quotas = Quotas([queue("a"), queue("b"), queue("c")])
    turns = FairSharingIterator(quotas, {"c": 2, "b": 1, "a": 2})
    assert [turns.next() for _ in range(3)] == ["b", "a", "c"]
    assert not turns


def test_queue_of_higher_priority_is_served_first_at_any_share() -> None:
    quotas = Quotas([queue("a"), queue("b"), queue("c")], capacity=need(gpu=4))
    quotas.take("b", need(gpu=3))
    turns = FairSharingIterator(quotas, {"a": 0, "b": 0, "c": 0}, {"b": 2, "c": -1})
    assert turns.next() == "b"
    turns.back("b", 0)
    quotas.give("b", need(gpu=1))
    assert [turns.next() for _ in range(3)] == ["b", "a", "c"]


def test_released_quota_counts_in_next_turn() -> None:
    quotas = Quotas([queue("a"), queue("b")], capacity=need(gpu=4))
    quotas.take("a", need(gpu=3))
    quotas.take("b", need(gpu=1))
    turns = FairSharingIterator(quotas, {"a": 0, "b": 0})
    quotas.give("a", need(gpu=3))
    assert turns.next() == "a"


def test_queue_with_zero_quota_and_no_usage_borrows_nothing() -> None:
    quotas = Quotas([queue("a", "team", cpu=4, gpu=0)])
    quotas.take("a", need(cpu=1))
    assert quotas.share("a") == (0.0, 0.25, 0.0, 0.25)


def test_fill_is_used_share_of_quota_or_capacity() -> None:
    quotas = Quotas([queue("a", "team", gpu=4), queue("b", "team", gpu=4), queue("c")], capacity=need(cpu=8))
    quotas.take("a", need(gpu=6))
    quotas.take("c", need(cpu=2))
    assert (quotas.fill("a"), quotas.fill("b"), quotas.fill("team"), quotas.fill("c")) == (1.5, 0, 0.75, 0.25)


# Reclaiming lent quota.


def test_queue_reclaims_from_queue_above_its_quota() -> None:
    quotas = Quotas(
        [queue("a", "team", gpu=4), queue("b", "team", gpu=4), queue("c", "team", gpu=1), queue("x", gpu=9)]
    )
    quotas.take("b", need(gpu=6))
    quotas.take("c", need(gpu=1))
    assert quotas.reclaims("a", need(gpu=4), "b")
    assert not quotas.reclaims("a", need(gpu=5), "b"), "it would borrow itself"
    assert not quotas.reclaims("a", need(gpu=4), "c"), "c has only what is its own"
    assert not quotas.reclaims("a", need(cpu=4), "b"), "nothing of that is borrowed"
    assert not quotas.reclaims("x", need(gpu=4), "b"), "another tree"
    assert not quotas.reclaims("b", need(gpu=1), "b")


@pytest.mark.parametrize("victim", ["alone", "a", "deleted"])
def test_nothing_is_reclaimed_from_unrelated_queue_or_itself(victim: str) -> None:
    """The victim is in another tree, or is the queue itself, and its usage is above its lowered quota."""
    quotas = Quotas([queue("a", "team", gpu=4), queue("b", "team", gpu=4), queue("alone", gpu=2)])
    quotas.take(victim, need(gpu=6))
    wanted = need(gpu=2)
    assert not quotas.reclaims("a", wanted, victim)
    assert not quotas.entitled("a", wanted, victim)
    quotas.give(victim, need(gpu=6))
    quotas.take("b", need(gpu=6))
    assert quotas.reclaims("a", wanted, "b")


@pytest.mark.parametrize(
    ("held", "wants", "theirs", "may"),
    [(0, 4, 5, True), (0, 5, 5, False), (1, 3, 5, True), (1, 4, 5, False), (0, 4, 4, False), (2, 2, 6, True)],
)
def test_queue_reclaims_up_to_its_own_quota(held: int, wants: int, theirs: int, may: bool) -> None:
    quotas = Quotas([queue("a", "team", gpu=4), queue("b", "team", gpu=4)])
    quotas.take("a", need(gpu=held))
    quotas.take("b", need(gpu=theirs))
    assert quotas.reclaims("a", need(gpu=wants), "b") is may


def test_child_queue_reclaims_quota_of_its_parent() -> None:
    forest = [
        queue("company"),
        queue("research", "company"),
        queue("sales", "company"),
        queue("vision", "research", gpu=0),
        queue("speech", "research", gpu=4),
        queue("shop", "sales", gpu=4),
    ]
    quotas = Quotas(forest)
    quotas.take("shop", need(gpu=6))
    assert quotas.reclaims("vision", need(gpu=2), "shop"), "it borrows within its department, and that stays within"
    quotas.take("speech", need(gpu=2))
    quotas.take("vision", need(gpu=1))
    assert not quotas.reclaims("vision", need(gpu=2), "shop")
    assert not quotas.reclaims("vision", need(gpu=1), "speech")


def test_parent_and_child_reclaim_quota_from_each_other() -> None:
    quotas = Quotas([queue("research", gpu=2), queue("vision", "research", gpu=4)])
    quotas.take("research", need(gpu=3))
    assert quotas.reclaims("vision", need(gpu=4), "research")
    assert not quotas.reclaims("research", need(gpu=1), "vision")
    quotas.give("research", need(gpu=3))
    quotas.take("vision", need(gpu=6))
    assert quotas.reclaims("research", need(gpu=2), "vision")
    assert not quotas.reclaims("research", need(gpu=3), "vision")


def test_status_of_borrowing_queue() -> None:
    quotas = Quotas(
        [
            queue("research"),
            queue("vision", "research", gpu=4, memory=quota(64 << 30)),
            queue("speech", "research", gpu=4),
        ]
    )
    quotas.take("vision", need(gpu=6, memory=48 << 30, cpu="1.5", pods=7))
    assert queue_status(queue_usage(quotas, "vision", pending=2, admitted=1)) == {
        "pending": 2,
        "admitted": 1,
        "used": {"cpu": "1500m", "memory": "48Gi", GPU: "6", "pods": "7"},
        "borrowed": {GPU: "2"},
        "usage": "nvidia.com/gpu 6/4, cpu 1500m, memory 48Gi/64Gi",
        "share": "150%",
    }
    above = queue_status(queue_usage(quotas, "research", pending=0, admitted=0))
    assert (above["usage"], above["share"]) == ("nvidia.com/gpu 6/8, cpu 1500m, memory 48Gi/64Gi", "75%")


def test_status_of_invalid_queue_has_message_and_no_usage() -> None:
    quotas = Quotas([queue("a", "b"), queue("b", "a")])
    status = queue_status(queue_usage(quotas, "a", pending=0, admitted=0))
    assert status.pop("message").startswith("its parents lead back to itself (b)")
    assert status == {"pending": 0, "admitted": 0, "used": {}, "borrowed": {}, "usage": "", "share": "0%"}


@pytest.mark.parametrize(
    ("value", "resource", "text"),
    [
        ("68719476736", "memory", "64Gi"),
        ("68719476737", "memory", "68719476737"),
        ("1099511627776", "memory", "1Ti"),
        ("1536", "hugepages-2Mi", "1536"),
        ("2048", "ephemeral-storage", "2Ki"),
        ("4", GPU, "4"),
        ("10", "cpu", "10"),
        ("1.50", "cpu", "1500m"),
        ("0.0000001", "cpu", "0.0000001"),
    ],
)
def test_formatted_amounts_use_readable_units(value: str, resource: str, text: str) -> None:
    assert exact_quantity(Decimal(value), resource) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.decimals(0, 10**15, places=6), st.sampled_from(["cpu", "memory", GPU]))
def test_formatted_amounts_parse_to_same_value(value: Decimal, resource: str) -> None:
    assert parse_quantity(exact_quantity(value, resource)) == value

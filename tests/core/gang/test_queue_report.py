"""How a queue stands, in its status."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.gang.quotas import GPU, need, queue, quota
from tf_dist.core.gang.queue_report import exactly, facts, queue_status
from tf_dist.core.gang.queues import Quotas
from tf_dist.core.quantity import parse_quantity


def test_the_status_of_a_queue_that_borrows() -> None:
    quotas = Quotas(
        [
            queue("research"),
            queue("vision", "research", gpu=4, memory=quota(64 << 30)),
            queue("speech", "research", gpu=4),
        ]
    )
    quotas.take("vision", need(gpu=6, memory=48 << 30, cpu="1.5", pods=7))
    assert queue_status(facts(quotas, "vision", pending=2, admitted=1)) == {
        "pending": 2,
        "admitted": 1,
        "used": {"cpu": "1500m", "memory": "48Gi", GPU: "6", "pods": "7"},
        "borrowed": {GPU: "2"},
        "usage": "nvidia.com/gpu 6/4, cpu 1500m, memory 48Gi/64Gi",
        "share": "150%",
    }
    above = queue_status(facts(quotas, "research", pending=0, admitted=0))
    assert (above["usage"], above["share"]) == ("nvidia.com/gpu 6/8, cpu 1500m, memory 48Gi/64Gi", "75%")


def test_a_queue_that_holds_nothing_and_one_that_is_wrong() -> None:
    quotas = Quotas([queue("a", "b"), queue("b", "a")])
    status = queue_status(facts(quotas, "a", pending=0, admitted=0))
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
def test_amounts_are_easy_to_read(value: str, resource: str, text: str) -> None:
    assert exactly(Decimal(value), resource) == text


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.decimals(0, 10**15, places=6), st.sampled_from(["cpu", "memory", GPU]))
def test_amounts_say_exactly_what_they_are(value: Decimal, resource: str) -> None:
    assert parse_quantity(exactly(value, resource)) == value

"""Who drives a job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dist.core.api import names
from tf_dist.core.api.status_codec import MEMORY_CONDITION
from tf_dist.core.reconciler.ownership import driver_of, may_drive

ME = "team/tf-dist-run-1"
OTHER = "tf-dist-system/tf-dist-controller"


def job(status: Any = None, **annotations: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "status": status}


def carrier(text: str) -> dict[str, str]:
    return {"type": MEMORY_CONDITION, "status": "Unknown", "message": text}


@pytest.mark.parametrize(
    ("stored", "driver"),
    [
        ({}, ""),
        (job(), ""),
        (job({"tfDist": {}}), ""),
        (job({"tfDist": {"driver": OTHER}}), OTHER),
        (job(**{names.DRIVER: ME}), ME),
        (job({"tfDist": {"phase": "Pending"}}, **{names.DRIVER: ME}), ME),
        (job({"tfDist": {"driver": OTHER}}, **{names.DRIVER: ME}), OTHER),
        # Where the definition of the kind prunes the memory, it is in a condition.
        (job({"conditions": [carrier(json.dumps({"driver": OTHER}))]}, **{names.DRIVER: ME}), OTHER),
        (job({"conditions": [carrier("not json")]}, **{names.DRIVER: ME}), ME),
        (job({"conditions": [carrier("[1]")]}), ""),
        # Never in metadata, which every user may write who may write a job.
        (job({"conditions": []}, **{names.DRIVER: ME, "tf-dist.dev/memory": json.dumps({"driver": OTHER})}), ME),
        # What should not have been written names no owner.
        (job({"tfDist": {"driver": 7}}), ""),
        (job({"tfDist": "nonsense"}), ""),
        (job("nonsense"), ""),
        (job([]), ""),
        ({"metadata": {"annotations": None}, "status": None}, ""),
        ({"metadata": None}, ""),
    ],
)
def test_the_driver_of_a_job(stored: dict[str, Any], driver: str) -> None:
    assert driver_of(stored) == driver


@pytest.mark.parametrize(
    ("driver", "stale", "takes_over", "may"),
    [
        (ME, (), False, True),
        (ME, (), True, True),
        ("", (), True, True),
        ("", (), False, False),
        (OTHER, (), True, False),
        (OTHER, (OTHER,), True, True),
        (OTHER, (OTHER,), False, False),
        (OTHER, ("team/another",), True, False),
        ("embedded", ("embedded",), True, False),
    ],
)
def test_who_may_drive(driver: str, stale: tuple[str, ...], takes_over: bool, may: bool) -> None:
    assert may_drive(driver, ME, stale, takes_over=takes_over) is may


REFS = st.sampled_from(["", "embedded", "a/x", "a/y", "b/x"])


@given(driver=REFS, one=REFS, two=REFS, takers=st.tuples(st.booleans(), st.booleans()), stale=st.frozensets(REFS))
def test_a_job_with_a_living_driver_is_driven_by_no_other(
    driver: str, one: str, two: str, takers: tuple[bool, bool], stale: frozenset[str]
) -> None:
    """Two drivers that both may drive a job have both to win it, unless one of them has it already and is dead."""
    pairs = zip((one, two), takers, strict=True)
    drivers = {me for me, takes in pairs if may_drive(driver, me, stale, takes_over=takes)}
    if driver and driver not in stale:
        assert drivers <= {driver}


@given(driver=REFS, me=REFS, stale=st.frozensets(REFS))
def test_who_takes_nothing_over_drives_its_own_only(driver: str, me: str, stale: frozenset[str]) -> None:
    assert may_drive(driver, me, stale, takes_over=False) == (driver == me != "")

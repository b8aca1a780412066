"""How many replicas a job has: within which bounds, and what follows where it has been granted another number."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import START, replicas, v1_job, v1alpha1_job, volcano_job
from tests.core.strategies import JOBS
from tf_dist.core import render
from tf_dist.core.gang.model import Admit, Resize
from tf_dist.core.model import Counting, Job, Scheduling, SuccessRule, TFConfigStyle
from tf_dist.core.report import ready_text
from tf_dist.core.situation import members
from tf_dist.core.sizes import bounds, foreseen, granted, grows_live, largest, must_restart, sizes_of
from tf_dist.core.status import Admission, Counts, Phase, Status
from tf_dist.core.tf_config import tf_config


def placed(**sizes: int) -> Status:
    return Status(admission=Admission(START, sizes=sizes))


def elastic(least: int = 1, count: int = 3, most: int = 6, **fields: Any) -> Job:
    worker = replicas("Worker", count, min_replicas=least, max_replicas=most)
    fields.setdefault("scheduling", Scheduling(min_available=least + 1))
    return v1_job(replicas("PS", 1), worker, **fields)


def numbers(job: Job, status: Status) -> list[int]:
    return [spec.replicas for spec in granted(job, status).replica_specs]


def test_a_job_without_a_place_or_without_sizes_is_what_its_document_says() -> None:
    job = elastic()
    assert granted(job, Status()) is job
    assert granted(job, placed()) is job
    assert granted(job, placed(ps=1, worker=3)) is job
    waits_again = Status(last_sizes={"worker": 2, "ps": 1})
    assert granted(job, waits_again) is job


def test_it_has_what_it_was_granted_less_when_the_document_says_less() -> None:
    assert numbers(elastic(), placed(ps=1, worker=2)) == [1, 2]
    assert numbers(elastic(), placed(ps=1, worker=6)) == [1, 6]
    assert numbers(elastic(most=4), placed(ps=1, worker=6)) == [1, 4]
    assert numbers(v1_job(), placed(ps=1, worker=5)) == [1, 2]


def test_a_type_that_came_later_is_not_held_back() -> None:
    job = v1_job(replicas("PS", 1), replicas("Worker", 2), replicas("Evaluator", 1))
    assert numbers(job, placed(ps=1, worker=1)) == [1, 1, 1]


def test_after_its_end_it_still_has_the_size_it_had() -> None:
    running = replace(placed(ps=1, worker=2), phase=Phase.RUNNING)
    over = running.to(Phase.FAILED, START, "PodFailed", "it failed")
    assert over.admission is None
    assert numbers(elastic(), over) == [1, 2]


def test_what_a_verdict_will_make_of_it_and_the_most_it_may_ever_be() -> None:
    job, status = elastic(), placed(ps=1, worker=2)
    resize = Resize(sizes={"worker": 5}, placement={}, message="")

    def workers(found: Job) -> int:
        return found.replica_specs[1].replicas

    assert workers(foreseen(job, status, resize)) == 5
    assert workers(foreseen(job, Status(), Admit(sizes={"worker": 1, "ps": 1}))) == 1
    assert workers(foreseen(job, status, Admit())) == 2
    assert workers(foreseen(job, status, None)) == 2
    assert workers(largest(job)) == 6


def test_tf_config_services_and_success_follow() -> None:
    job = elastic(success=(SuccessRule(type="worker"),))
    two = granted(job, placed(ps=1, worker=2))
    five = granted(job, placed(ps=1, worker=5))
    assert set(render.services(two)) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    assert len(render.services(five)) == 6
    config = json.loads(tf_config(five, five.replicas[-1]) or "")
    assert (len(config["cluster"]["worker"]), config["task"]["index"]) == (5, 4)
    assert len(members(two, "worker", None)) == 2
    status = replace(placed(ps=1, worker=2), counts={"worker": Counts(running=2, ready=2)})
    assert ready_text(job, status) == "2/2"


def test_nobody_waits_for_more_than_there_are() -> None:
    job = volcano_job(replicas("ps", 1), replicas("worker", 4), min_available=5)
    job = replace(job, counting=Counting(min_available=5, min_success=4))
    small = granted(job, placed(ps=1, worker=2))
    assert small.counting == Counting(min_available=3, min_success=3)
    assert small.scheduling.min_available == 3
    assert [spec.min_replicas for spec in small.replica_specs] == [1, 2]


@given(JOBS, st.dictionaries(st.sampled_from(("ps", "worker", "chief", "master", "x")), st.integers(0, 9)))
def test_granting_twice_is_granting_once_and_nothing_is_needed_that_is_not_there(job: Job, sizes: Any) -> None:
    once = granted(job, placed(**sizes))
    assert granted(once, placed(**sizes)) == once
    assert once.scheduling.min_available <= max(job.scheduling.min_available, 0)
    for asked, spec in zip(job.replica_specs, once.replica_specs, strict=True):
        assert spec.replicas <= asked.most
        assert spec.min_replicas <= max(spec.replicas, 0)
    if sizes:
        assert once.scheduling.min_available <= max(len(once.replicas), job.scheduling.min_available)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (v1_job(), {"ps": (1, 1), "worker": (2, 2)}),
        (elastic(1, 3, 6), {"ps": (1, 1), "worker": (1, 6)}),
        # The gang's own minimum says more than those of its types: workers make it up.
        (elastic(1, 4, 4, scheduling=Scheduling(min_available=4)), {"ps": (1, 1), "worker": (3, 4)}),
        # It says less: workers may be missing, the first and the servers may not.
        (v1_job(replicas("PS", 2), replicas("Worker", 3), scheduling=Scheduling(min_available=3)), {"worker": (1, 3)}),
        (v1_job(replicas("PS", 2), replicas("Worker", 3), scheduling=Scheduling(min_available=1)), {"worker": (1, 3)}),
        (
            v1_job(replicas("Chief", 1), replicas("Worker", 0), scheduling=Scheduling(min_available=1)),
            {"chief": (1, 1), "worker": (0, 0)},
        ),
        # However few of them a task asks for, all parameter servers are needed.
        (
            volcano_job(replicas("ps", 2, min_replicas=1), replicas("worker", 4, min_replicas=2), min_available=3),
            {"ps": (2, 2), "worker": (1, 4)},
        ),
        (volcano_job(replicas("task", 6), min_available=4), {"task": (4, 6)}),
        (v1alpha1_job(), {"master": (1, 1), "worker": (1, 1), "ps": (2, 2)}),
    ],
)
def test_bounds(job: Job, expected: dict[str, tuple[int, int]]) -> None:
    found = bounds(job)
    assert {type_: found[type_] for type_ in expected} == expected


@given(JOBS)
def test_bounds_are_bounds_and_reach_the_minimum_of_the_gang(job: Job) -> None:
    found = bounds(job)
    for spec in job.replica_specs:
        least, most = found[spec.type]
        assert 0 <= least <= spec.replicas <= most
    needed = min(job.scheduling.min_available, len(job.replicas))
    assert sum(least for least, _ in found.values()) >= needed


SERVED = {"ps": 1, "worker": 2}
ALONE = {"worker": 2}


@pytest.mark.parametrize(
    ("style", "before", "after", "expected"),
    [
        (TFConfigStyle.V1, SERVED, {"ps": 1, "worker": 2}, False),
        (TFConfigStyle.V1, SERVED, {"ps": 1, "worker": 3}, True),
        (TFConfigStyle.V1, SERVED, {"ps": 1, "worker": 1}, False),
        (TFConfigStyle.V1, ALONE, {"worker": 1}, True),
        (TFConfigStyle.V1, {"ps": 2, "worker": 2}, {"ps": 1, "worker": 2}, True),
        (TFConfigStyle.V1ALPHA1, SERVED, {"ps": 1, "worker": 1}, False),
        (TFConfigStyle.VOLCANO, SERVED, {"ps": 1, "worker": 3}, True),
        (TFConfigStyle.SPARSE, SERVED, {"ps": 1, "worker": 9}, False),
        (TFConfigStyle.SPARSE, SERVED, {"ps": 1, "worker": 1}, False),
        (TFConfigStyle.SPARSE, SERVED, {"ps": 2, "worker": 2}, True),
        (TFConfigStyle.NONE, SERVED, {"ps": 2, "worker": 9}, False),
    ],
)
def test_who_can_go_on_among_others(
    style: TFConfigStyle, before: dict[str, int], after: dict[str, int], expected: bool
) -> None:
    specs = [replicas(type_, count) for type_, count in after.items()]
    assert must_restart(v1_job(*specs, tf_config=style), before, after) is expected


@pytest.mark.parametrize(
    ("style", "expected"),
    [(TFConfigStyle.SPARSE, True), (TFConfigStyle.V1, False), (TFConfigStyle.NONE, True)],
)
def test_who_grows_live(style: TFConfigStyle, expected: bool) -> None:
    assert grows_live(elastic(tf_config=style)) is expected


def test_tasks_that_are_nothing_to_tensorflow_are_in_nobodys_configuration() -> None:
    job = volcano_job(replicas("ps", 1), replicas("worker", 1), replicas("watcher", 3), tf_config=TFConfigStyle.VOLCANO)
    assert not must_restart(job, {**sizes_of(job), "watcher": 1}, sizes_of(job))

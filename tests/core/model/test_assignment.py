"""Replica counts: their bounds, and the effects of an admitted size.

The assignment of replicas to nodes.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import START, replicas, services_by_name, v1_job, v1alpha1_job, volcano_job
from tests.core.strategies import JOBS
from tf_dist.core.model.assignment import (
    Admit,
    Resize,
    admitted_with,
    current_job,
    grows_live,
    minimum_met,
    possible_replicas,
    replica_bounds,
    replica_counts,
    replica_nodes,
    resize_restarts,
    start_counts,
    startable_replicas,
    waiting_replicas,
)
from tf_dist.core.model.context import PodClassification, matching_replicas
from tf_dist.core.model.job import CompletionByCounts, Job, ReplicaId, Scheduling, SuccessRule, TFConfigStyle
from tf_dist.core.model.pods import PodPhase, PodView
from tf_dist.core.model.status import Admission, Counts, Phase, Status
from tf_dist.core.podbuilder.tf_config import build_tf_config, cluster_hosts
from tf_dist.core.reconciler.job_objects import assign_nodes, waiting_for_leaving_pods
from tf_dist.core.reconciler.status_writer import ready_text


def placed(**sizes: int) -> Status:
    return Status(admission=Admission(START, sizes=sizes))


def elastic(least: int = 1, count: int = 3, most: int = 6, **fields: Any) -> Job:
    worker = replicas("Worker", count, min_replicas=least, max_replicas=most)
    fields.setdefault("scheduling", Scheduling(min_available=least + 1))
    return v1_job(replicas("PS", 1), worker, **fields)


def numbers(job: Job, status: Status) -> list[int]:
    return [spec.replicas for spec in current_job(job, status).replica_specs]


def test_job_without_admitted_sizes_is_unchanged() -> None:
    job = elastic()
    assert current_job(job, Status()) is job
    assert current_job(job, placed()) is job
    assert current_job(job, placed(ps=1, worker=3)) is job
    waits_again = Status(last_sizes={"worker": 2, "ps": 1})
    assert current_job(job, waits_again) is job


def test_admitted_size_is_bounded_by_spec() -> None:
    assert numbers(elastic(), placed(ps=1, worker=2)) == [1, 2]
    assert numbers(elastic(), placed(ps=1, worker=6)) == [1, 6]
    assert numbers(elastic(most=4), placed(ps=1, worker=6)) == [1, 4]
    assert numbers(v1_job(), placed(ps=1, worker=5)) == [1, 2]


def test_type_added_after_admission_has_size_of_spec() -> None:
    job = v1_job(replicas("PS", 1), replicas("Worker", 2), replicas("Evaluator", 1))
    assert numbers(job, placed(ps=1, worker=1)) == [1, 1, 1]


def test_finished_job_keeps_last_size() -> None:
    running = replace(placed(ps=1, worker=2), phase=Phase.RUNNING)
    over = running.with_phase(Phase.FAILED, START, "PodFailed", "it failed")
    assert over.admission is None
    assert numbers(elastic(), over) == [1, 2]


def test_current_job_takes_size_from_verdict() -> None:
    job, status = elastic(), placed(ps=1, worker=2)
    resize = Resize(sizes={"worker": 5}, placement={}, message="")

    def workers(found: Job) -> int:
        return found.replica_specs[1].replicas

    assert workers(current_job(job, status, resize)) == 5
    assert workers(current_job(job, Status(), Admit(sizes={"worker": 1, "ps": 1}))) == 1
    assert workers(current_job(job, status, Admit())) == 2
    assert workers(current_job(job, status, None)) == 2
    assert len(possible_replicas(job)) == 7


def test_tf_config_services_and_success_follow_admitted_size() -> None:
    job = elastic(success=(SuccessRule(type="worker"),))
    two = current_job(job, placed(ps=1, worker=2))
    five = current_job(job, placed(ps=1, worker=5))
    assert set(services_by_name(two)) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    assert len(services_by_name(five)) == 6
    config = json.loads(build_tf_config(five, five.replicas[-1], cluster_hosts(five)) or "")
    assert (len(config["cluster"]["worker"]), config["task"]["index"]) == (5, 4)
    assert len(matching_replicas(two, "worker", None)) == 2
    status = replace(placed(ps=1, worker=2), counts={"worker": Counts(running=2, ready=2)})
    assert ready_text(two, status) == "2/3"


def test_minimums_are_lowered_to_admitted_size() -> None:
    job = volcano_job(replicas("ps", 1), replicas("worker", 4), min_available=5)
    job = replace(job, counting=CompletionByCounts(min_success=4))
    small = current_job(job, placed(ps=1, worker=2))
    assert small.counting == CompletionByCounts(min_success=3)
    assert small.scheduling.min_available == 3
    assert [spec.min_replicas for spec in small.replica_specs] == [1, 2]


@given(JOBS, st.dictionaries(st.sampled_from(("ps", "worker", "chief", "master", "x")), st.integers(0, 9)))
def test_current_job_is_idempotent_and_minimums_fit_its_size(job: Job, sizes: Any) -> None:
    once = current_job(job, placed(**sizes))
    assert current_job(once, placed(**sizes)) == once
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
        # The gang's minimum exceeds the sum of its types' minimums: workers fill the gap.
        (elastic(1, 4, 4, scheduling=Scheduling(min_available=4)), {"ps": (1, 1), "worker": (3, 4)}),
        # A smaller minimum is not a size.
        (v1_job(replicas("PS", 2), replicas("Worker", 3), scheduling=Scheduling(min_available=3)), {"worker": (3, 3)}),
        (v1_job(replicas("PS", 2), replicas("Worker", 3), scheduling=Scheduling(min_available=1)), {"worker": (3, 3)}),
        (
            v1_job(replicas("Chief", 1), replicas("Worker", 0), scheduling=Scheduling(min_available=1)),
            {"chief": (1, 1), "worker": (0, 0)},
        ),
        # Nor is the minimum of a task.
        (
            volcano_job(replicas("ps", 2, min_available=1), replicas("worker", 4, min_available=2), min_available=3),
            {"ps": (2, 2), "worker": (4, 4)},
        ),
        (
            volcano_job(replicas("ps", 2, min_replicas=1), replicas("worker", 4, min_replicas=2), min_available=3),
            {"ps": (2, 2), "worker": (2, 4)},
        ),
        (volcano_job(replicas("task", 6), min_available=4), {"task": (6, 6)}),
        (v1alpha1_job(), {"master": (1, 1), "worker": (1, 1), "ps": (2, 2)}),
    ],
)
def test_replica_bounds(job: Job, expected: dict[str, tuple[int, int]]) -> None:
    found = replica_bounds(job)
    assert {type_: found[type_] for type_ in expected} == expected


def tasks(wanted: int | None = None, **counts: tuple[int, int]) -> Job:
    """A Volcano Job of tasks with (replicas, minAvailable) each."""
    specs = [replicas(name, count, min_available=least) for name, (count, least) in counts.items()]
    return volcano_job(*specs, min_available=sum(least for _, least in counts.values()) if wanted is None else wanted)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (v1_job(), {"ps": 1, "worker": 2}),
        # The minimums of the tasks as written, including 0.
        (tasks(ps=(1, 1), worker=(4, 2)), {"ps": 1, "worker": 2}),
        (tasks(ps=(2, 1), worker=(4, 0)), {"ps": 1, "worker": 0}),
        (tasks(a=(2, 0), b=(2, 0)), {"a": 0, "b": 0}),
        # The job's minimum exceeds their sum.
        (tasks(5, ps=(2, 1), worker=(4, 2)), {"ps": 2, "worker": 3}),
        (tasks(6, ps=(2, 1), worker=(4, 2)), {"ps": 2, "worker": 4}),
        # A minimum below the sum of the tasks' minimums overrides them: any pods count, parameter servers come first.
        (tasks(1, worker=(4, 4)), {"worker": 1}),
        (tasks(3, worker=(4, 4), ps=(2, 2)), {"ps": 2, "worker": 1}),
        (tasks(1, ps=(1, 1), worker=(4, 4)), {"ps": 1, "worker": 0}),
        (
            v1_job(replicas("PS", 1), replicas("Worker", 4), scheduling=Scheduling(min_available=1)),
            {"ps": 1, "worker": 0},
        ),
        (
            v1_job(
                replicas("Evaluator", 1),
                replicas("Worker", 4),
                replicas("Chief", 1),
                scheduling=Scheduling(min_available=3),
            ),
            {"evaluator": 0, "worker": 2, "chief": 1},
        ),
        # An elastic job starts with the size that it may be resized to.
        (elastic(1, 3, 6), {"ps": 1, "worker": 1}),
        (elastic(2, 3, 6), {"ps": 1, "worker": 2}),
    ],
)
def test_gang_start_counts(job: Job, expected: dict[str, int]) -> None:
    assert start_counts(job) == expected


@pytest.mark.parametrize(
    ("job", "have", "expected"),
    [
        (tasks(1, worker=(4, 4)), {"worker": 1}, True),
        (tasks(1, worker=(4, 4)), {}, False),
        (tasks(ps=(1, 1), worker=(4, 2)), {"ps": 1, "worker": 2}, True),
        (tasks(ps=(1, 1), worker=(4, 2)), {"worker": 4}, False),
        (tasks(2, ps=(1, 1), worker=(4, 2)), {"worker": 2}, True),
        (tasks(5, ps=(1, 1), worker=(4, 2)), {"ps": 1, "worker": 3}, False),
        (tasks(a=(2, 0)), {}, True),
        (v1_job(), {"ps": 1, "worker": 1}, False),
        (v1_job(), {"ps": 1, "worker": 2}, True),
    ],
)
def test_minimum_of_gang(job: Job, have: dict[str, int], expected: bool) -> None:
    assert minimum_met(job, have) is expected


@given(JOBS)
def test_gang_starts_with_its_minimum_within_smallest_size(job: Job) -> None:
    found, bounds = start_counts(job), replica_bounds(job)
    assert all(0 <= count <= bounds[type_][0] for type_, count in found.items())
    if job.scheduling.min_available <= len(job.replicas):
        assert minimum_met(job, found)


def test_minimum_does_not_change_size() -> None:
    job = tasks(1, worker=(4, 4))
    status = Status(admission=admitted_with(Admission(START), job, {"worker": 2}))
    assert numbers(job, status) == [4]
    assert current_job(job, status).counting == CompletionByCounts()
    assert startable_replicas(job, status) == {ReplicaId("worker", 0), ReplicaId("worker", 1)}
    assert waiting_replicas(job, status) == 2
    assert current_job(job, Status(), Admit(sizes={"worker": 2})).replicas == job.replicas


def test_admission_of_elastic_job_sets_sizes() -> None:
    smaller = admitted_with(Admission(START), elastic(2, 4, 6), {"ps": 1, "worker": 3})
    assert (smaller.sizes, smaller.started) == ({"ps": 1, "worker": 3}, {})
    assert smaller.admitted_sizes == {"ps": 1, "worker": 3}


def test_succeeded_replicas_use_no_admitted_capacity() -> None:
    job = tasks(1, worker=(4, 4))
    place = admitted_with(Admission(START), job, {"worker": 3})
    done = frozenset({ReplicaId("worker", 0), ReplicaId("worker", 3)})
    assert startable_replicas(job, Status(admission=place, succeeded=done)) == done | {ReplicaId("worker", 1)}


@given(JOBS)
def test_bounds_contain_replicas_of_spec_and_reach_minimum_of_gang(job: Job) -> None:
    found = replica_bounds(job)
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
def test_resize_restarts_replicas_if_tf_config_changes(
    style: TFConfigStyle, before: dict[str, int], after: dict[str, int], expected: bool
) -> None:
    specs = [replicas(type_, count) for type_, count in after.items()]
    assert resize_restarts(v1_job(*specs, tf_config=style), before, after) is expected


@pytest.mark.parametrize(
    ("style", "expected"),
    [(TFConfigStyle.SPARSE, True), (TFConfigStyle.V1, False), (TFConfigStyle.NONE, True)],
)
def test_job_grows_without_restart_if_tf_config_allows(style: TFConfigStyle, expected: bool) -> None:
    assert grows_live(elastic(tf_config=style)) is expected


def test_resizing_task_outside_tf_config_does_not_restart_job() -> None:
    job = volcano_job(replicas("ps", 1), replicas("worker", 1), replicas("watcher", 3), tf_config=TFConfigStyle.VOLCANO)
    assert not resize_restarts(job, {**replica_counts(job), "watcher": 1}, replica_counts(job))


def facts(**on: str) -> PodClassification:
    """``worker_0="n1"``: a pod of that replica on that node ("": not on a node yet)."""
    current = {}
    for name, node in on.items():
        type_, _, index = name.partition("_")
        replica = ReplicaId(type_, int(index))
        current[replica] = PodView(
            name=name, uid=name, replica=replica, attempt="1.0.0", phase=PodPhase.PENDING, node=node
        )
    return PodClassification(current, (), {}, frozenset())


def job(workers: int = 4) -> Job:
    return v1_job(replicas("PS", 1), replicas("Worker", workers))


def given_to(placement: Any, there: PodClassification, *wanted: int) -> list[str]:
    ids = [ReplicaId("worker", index) for index in wanted]
    found = assign_nodes(job(), placement, there, ids)
    return [found.get(one, "") for one in ids]


PLACEMENT = {"ps": {"n2": 1}, "worker": {"n1": 2, "n2": 1, "n3": 1}}


def test_lowest_indexes_get_nodes_of_servers_then_largest_nodes() -> None:
    assert replica_nodes(job(), PLACEMENT, "worker") == ("n2", "n1", "n1", "n3")
    assert replica_nodes(job(), PLACEMENT, "ps") == ("n2",)
    assert replica_nodes(job(), PLACEMENT, "chief") == ()
    reordered = {"worker": dict(sorted(PLACEMENT["worker"].items(), reverse=True)), "ps": PLACEMENT["ps"]}
    assert replica_nodes(job(), reordered, "worker") == replica_nodes(job(), PLACEMENT, "worker")


def test_new_pods_get_their_own_nodes() -> None:
    assert given_to(PLACEMENT, facts(), 0, 1, 2, 3) == ["n2", "n1", "n1", "n3"]


def test_recreated_replica_gets_its_former_node() -> None:
    there = facts(worker_0="n2", worker_2="n1", worker_3="n3")
    assert given_to(PLACEMENT, there, 1) == ["n1"]
    assert given_to(PLACEMENT, facts(worker_0="n2", worker_1="n1", worker_2="n1"), 3) == ["n3"]


def test_replica_whose_node_is_taken_gets_free_node() -> None:
    # Worker 1 runs on the node of worker 0.
    there = facts(worker_1="n2", worker_2="n1", worker_3="n3")
    assert given_to(PLACEMENT, there, 0) == ["n1"]


def test_pods_without_node_keep_their_assigned_nodes() -> None:
    assert given_to(PLACEMENT, facts(worker_0="", worker_1=""), 2, 3) == ["n1", "n3"]


def test_replica_without_free_assigned_node_is_not_pinned() -> None:
    assert given_to({"worker": {"n1": 1}}, facts(), 0, 1) == ["n1", ""]
    assert given_to({"worker": {"n1": 1}}, facts(worker_0="n1"), 1) == [""]
    assert given_to({}, facts(), 0) == [""]
    # A pod beyond the placement runs on one of its nodes.
    assert given_to({"worker": {"n1": 1}}, facts(worker_0="n1", worker_1="n1"), 2) == [""]


@pytest.mark.parametrize(
    ("placement", "there", "leaving", "waits"),
    [
        pytest.param({"n1": 1}, facts(), "n1", [0], id="its node is full until that pod is gone"),
        pytest.param({"n1": 2}, facts(), "n1", [1], id="there is room for one"),
        pytest.param({"n1": 1, "n2": 1}, facts(), "n2", [1], id="only that node"),
        pytest.param({"n1": 2}, facts(worker_0="n1"), "n1", [1], id="with one that stays"),
        pytest.param({"n1": 2}, facts(worker_0=""), "n1", [1], id="with one that has not come to its node yet"),
        pytest.param({"n1": 1}, facts(worker_0="n1"), "n2", [], id="a node that was not granted"),
        pytest.param({"n1": 1}, facts(), "", [], id="it has no node"),
        pytest.param({}, facts(), "n1", [], id="nothing was granted by name"),
    ],
)
def test_replicas_wait_for_pods_that_leave_their_nodes(
    placement: dict[str, int], there: PodClassification, leaving: str, waits: list[int]
) -> None:
    gone = ReplicaId("worker", 3)
    pod = PodView(name="old", uid="old", replica=gone, attempt="1.0.0", phase=PodPhase.RUNNING, node=leaving)
    missing = [one for one in (ReplicaId("worker", 0), ReplicaId("worker", 1)) if one not in there.current]
    granted = {"worker": placement} if placement else {}
    found = waiting_for_leaving_pods(job(2), granted, replace(there, stale=(pod,)), missing)
    assert found == {ReplicaId("worker", index) for index in waits}


NODES = st.sampled_from(("n1", "n2", "n3"))


@given(
    placement=st.dictionaries(NODES, st.integers(1, 3)),
    on=st.dictionaries(st.integers(0, 8), st.one_of(st.just(""), NODES)),
)
def test_no_node_gets_more_replicas_than_assigned(placement: dict[str, int], on: dict[int, str]) -> None:
    there = facts(**{f"worker_{index}": node for index, node in on.items()})
    missing = [ReplicaId("worker", index) for index in range(9) if index not in on]
    wide = job(9)
    found = assign_nodes(wide, {"worker": placement}, there, missing)
    bound = Counter(node for node in on.values() if node)
    for node, count in Counter(found.values()).items():
        assert bound[node] + count <= placement[node]
    assert set(found) <= set(missing)
    assert found == assign_nodes(wide, {"worker": placement}, there, missing[::-1])
    if not on:
        assert len(found) == min(9, sum(placement.values()))
    # Once the first pod is on its node, the others still get the same nodes.
    if found and not on:
        first = missing[0]
        moved = replace(there, current={**there.current, **facts(worker_0=found[first]).current})
        assert assign_nodes(wide, {"worker": placement}, moved, missing[1:]) == {
            r: n for r, n in found.items() if r != first
        }

"""Pods of an earlier attempt that are still on nodes: they do not belong to the job's current admission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.core import builders
from tests.core.builders import START, replicas, template, v1_job
from tests.core.gang.gangs import reason
from tests.core.gang.stored import admitter_of, container, node, verdicts
from tf_dist.core.gang.types import AdmissionConfig, AdmissionRequest, PriorityClass
from tf_dist.core.model.assignment import Admit, Verdict
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import Admission, Attempts, Phase, Status
from tf_dist.core.podbuilder.replica_pod import require_node

RULES = AdmissionConfig(priorities={"high": PriorityClass(100)})


def job(name: str, workers: int, cpu: int, priority: str = "") -> Job:
    body = {"name": "tensorflow", "image": "tf", **container(cpu=str(cpu))}
    made = v1_job(replicas("worker", workers, template=template(containers=[body])), name=name)
    return replace(made, scheduling=replace(made.scheduling, priority_class=priority))


def nodes(**cpus: int) -> list[dict[str, Any]]:
    return [
        {**node(name), "status": {"allocatable": {"cpu": str(cpu), "pods": "9"}, "conditions": []}}
        for name, cpu in cpus.items()
    ]


def pods(of: Job, *on: str, attempt: str) -> list[dict[str, Any]]:
    """The workers of an attempt of the job, on these nodes."""
    made = [builders.pod(of, f"worker-{index}", attempt=attempt) for index in range(len(on))]
    return [{**pod, "spec": {**pod["spec"], "nodeName": name}} for pod, name in zip(made, on, strict=True)]


def admitted(on: Mapping[str, int], phase: Phase = Phase.PENDING) -> Status:
    """The status of a job with these assigned nodes, in its second attempt."""
    place = Admission(START, sizes={"worker": sum(on.values())}, placement={"worker": on})
    return Status(phase=phase, attempts=Attempts(2), admission=place)


def decided(
    jobs: Mapping[str, tuple[Job, Status]], there: list[Any], *, late: float = 0.0, **cpus: int
) -> dict[str, Verdict]:
    """The verdicts by job name. The jobs are created one second apart, and all of them ``late`` seconds late."""
    claims = [AdmissionRequest(of, status, START + late + at) for at, (of, status) in enumerate(jobs.values())]
    found = verdicts(admitter_of(claims, nodes(**cpus), there, config=RULES), START + 9)
    return {name: found[of.uid] for name, (of, _) in jobs.items()}


def test_new_node_stays_assigned_while_earlier_pods_are_elsewhere() -> None:
    again, other = job("again", 1, 1), job("other", 3, 1)
    jobs = {"again": (again, admitted({"n1": 1})), "other": (other, Status())}
    found = decided(jobs, pods(again, "n3", attempt="1.0.0"), n1=3, n3=1)
    assert isinstance(found["again"], Admit)
    assert reason(found["other"]) != "Admit"


def test_abandoned_pod_on_lost_node_does_not_count_as_its_replacement() -> None:
    """The abandoned pod stays bound to n3. Its replacement may go to any node, and keeps its capacity on n1."""
    lost, other = job("lost", 1, 2), job("other", 2, 1)
    status = admitted({})
    attempts = Attempts(2, pods={ReplicaId("worker", 0): 1})
    assert status.admission
    place = replace(status.admission, sizes={"worker": 1})
    jobs = {"lost": (lost, replace(status, attempts=attempts, admission=place)), "other": (other, Status())}
    found = decided(jobs, pods(lost, "n3", attempt="2.0.0"), n1=3)
    assert reason(found["other"]) == Reason.WAITING_FOR_CAPACITY
    assert isinstance(decided(jobs, pods(lost, "n1", attempt="2.0.1"), n1=4)["other"], Admit)


@pytest.mark.parametrize("attempt", ["2", "2.0", "2.x.1", "x.0.1", ""])
def test_pod_with_unreadable_attempt_counts_as_current(attempt: str) -> None:
    there, other = job("there", 1, 1), job("other", 3, 1)
    jobs = {"there": (there, admitted({"n1": 1})), "other": (other, Status())}
    assert isinstance(decided(jobs, pods(there, "n3", attempt=attempt), n1=3, n3=1)["other"], Admit)


def test_current_pod_on_another_node_frees_assigned_node() -> None:
    there, other = job("there", 1, 1), job("other", 3, 1)
    jobs = {"there": (there, admitted({"n1": 1})), "other": (other, Status())}
    found = decided(jobs, pods(there, "n3", attempt="2.0.1"), n1=3, n3=1)
    assert isinstance(found["other"], Admit)


@pytest.mark.parametrize(
    ("phase", "place"),
    [
        (Phase.PENDING, {"n1": 2}),
        (Phase.RESTARTING, {"n1": 2}),
        (Phase.RESTARTING, {"n1": 1}),  # one pod was created without affinity, and was bound to n1 anyway
    ],
)
def test_restarted_job_on_same_node_is_counted_once(phase: Phase, place: dict[str, int]) -> None:
    again, other = job("again", 2, 1), job("other", 2, 1)
    status = admitted(place, phase)
    assert status.admission
    status = replace(status, admission=replace(status.admission, sizes={"worker": 2}))
    jobs = {"again": (again, status), "other": (other, Status())}
    found = decided(jobs, pods(again, "n1", "n1", attempt="1.0.0"), n1=4)
    assert isinstance(found["other"], Admit)


@pytest.mark.parametrize("here", ["", "n1"])
def test_capacity_of_pod_that_may_still_be_bound_is_not_free(here: str) -> None:
    """The scheduler may bind pods of a preempted gang until they are deleted. No other gang gets their capacity."""
    gone, first, other = job("gone", 2, 1), job("first", 2, 1, "high"), job("other", 2, 1)
    requeued = Status(phase=Phase.PENDING, reason="Preempted", attempts=Attempts(2))
    waits = Status(phase=Phase.PENDING, reason=Reason.PREEMPTING)
    there = pods(gone, here, here, attempt="1.0.0")
    for pod in there:
        require_node(pod["spec"], "n1")
    jobs = {"first": (first, waits), "gone": (gone, requeued), "other": (other, Status())}
    found = decided(jobs, there, n1=2)
    assert reason(found["first"]) == Reason.PREEMPTING
    assert "Admit" not in {reason(found["gone"]), reason(found["other"])}
    assert reason(decided(jobs, [], n1=2)["first"]) == "Admit"


@pytest.mark.parametrize("late", [0.0, 20.0])
def test_preempted_capacity_stays_reserved_after_gang_is_readmitted(late: float) -> None:
    """b fits after the earlier pods of c have left n1. d would take n2 and n3, and must wait for b.

    ``late``: how far the clock was set back since the jobs were created.
    """
    b, c, d = job("b", 3, 2, "high"), job("c", 2, 1), job("d", 2, 2)
    waits = Status(phase=Phase.PENDING, reason=Reason.PREEMPTING)
    jobs = {"b": (b, waits), "c": (c, admitted({"n1": 1, "n2": 1})), "d": (d, Status())}
    found = decided(jobs, pods(c, "n1", "n1", attempt="1.0.0"), late=late, n1=3, n2=3, n3=2)
    assert {name: reason(verdict) for name, verdict in found.items()} == {
        "b": Reason.PREEMPTING,
        "c": "Admit",
        "d": "Reserved",
    }
    gone = decided(jobs, [], late=late, n1=3, n2=3, n3=2)
    assert {name: reason(verdict) for name, verdict in gone.items()} == {
        "b": "Admit",
        "c": "Admit",
        "d": "WaitingForCapacity",
    }

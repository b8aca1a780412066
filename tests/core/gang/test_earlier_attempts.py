"""Pods of an earlier attempt that are still on nodes: they go, and are no pods of the place that their job has now."""

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
    """Its workers on these nodes, made by an attempt."""
    made = [builders.pod(of, f"worker-{index}", attempt=attempt) for index in range(len(on))]
    return [{**pod, "spec": {**pod["spec"], "nodeName": name}} for pod, name in zip(made, on, strict=True)]


def admitted(on: Mapping[str, int], phase: Phase = Phase.PENDING) -> Status:
    """A job that has this place, and is at its second attempt."""
    place = Admission(START, sizes={"worker": sum(on.values())}, placement={"worker": on})
    return Status(phase=phase, attempts=Attempts(2), admission=place)


def decided(
    jobs: Mapping[str, tuple[Job, Status]], there: list[Any], *, late: float = 0.0, **cpus: int
) -> dict[str, Verdict]:
    """The verdicts by the names of the jobs; each was created a second after the one before, ``late`` seconds late."""
    claims = [AdmissionRequest(of, status, START + late + at) for at, (of, status) in enumerate(jobs.values())]
    found = verdicts(admitter_of(claims, nodes(**cpus), there, config=RULES), START + 9)
    return {name: found[of.uid] for name, (of, _) in jobs.items()}


def test_the_new_place_is_kept_while_pods_of_an_earlier_attempt_are_elsewhere() -> None:
    again, other = job("again", 1, 1), job("other", 3, 1)
    jobs = {"again": (again, admitted({"n1": 1})), "other": (other, Status())}
    found = decided(jobs, pods(again, "n3", attempt="1.0.0"), n1=3, n3=1)
    assert isinstance(found["again"], Admit)
    assert reason(found["other"]) != "Admit"


def test_a_pod_that_was_given_up_on_a_node_that_is_gone_takes_no_room_of_the_one_that_follows_it() -> None:
    """It was sent to n3 and waits there for ever; its replica may come anywhere now, and keeps its room on n1."""
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
def test_a_pod_whose_attempt_cannot_be_read_is_one_of_the_place(attempt: str) -> None:
    there, other = job("there", 1, 1), job("other", 3, 1)
    jobs = {"there": (there, admitted({"n1": 1})), "other": (other, Status())}
    assert isinstance(decided(jobs, pods(there, "n3", attempt=attempt), n1=3, n3=1)["other"], Admit)


def test_pods_of_the_present_attempt_are_those_of_the_place_wherever_they_came_to() -> None:
    there, other = job("there", 1, 1), job("other", 3, 1)
    jobs = {"there": (there, admitted({"n1": 1})), "other": (other, Status())}
    found = decided(jobs, pods(there, "n3", attempt="2.0.1"), n1=3, n3=1)
    assert isinstance(found["other"], Admit)


@pytest.mark.parametrize(
    ("phase", "place"),
    [
        (Phase.PENDING, {"n1": 2}),
        (Phase.RESTARTING, {"n1": 2}),
        (Phase.RESTARTING, {"n1": 1}),  # a pod was unpinned, and came to n1 all the same
    ],
)
def test_a_job_that_starts_again_where_its_pods_are_takes_the_room_once(phase: Phase, place: dict[str, int]) -> None:
    again, other = job("again", 2, 1), job("other", 2, 1)
    status = admitted(place, phase)
    assert status.admission
    status = replace(status, admission=replace(status.admission, sizes={"worker": 2}))
    jobs = {"again": (again, status), "other": (other, Status())}
    found = decided(jobs, pods(again, "n1", "n1", attempt="1.0.0"), n1=4)
    assert isinstance(found["other"], Admit)


@pytest.mark.parametrize("here", ["", "n1"])
def test_the_room_of_a_pod_that_may_yet_be_bound_is_not_free(here: str) -> None:
    """The scheduler may bind pods of a preempted gang until they are deleted: no other gang gets their room."""
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
def test_the_room_that_a_preempted_gang_leaves_is_kept_though_it_has_another_place_by_now(late: float) -> None:
    """b fits once the earlier pods of c have left n1; d, which would take n2 and n3, must wait for it.

    ``late``: by how much the clock has been set back since they came.
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

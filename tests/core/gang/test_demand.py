from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.core.builders import START, replicas, template, v1_job
from tf_dist.core.gang.demand import members, requests
from tf_dist.core.gang.snapshot import Claim, snapshot
from tf_dist.core.model import Job, ReplicaId
from tf_dist.core.status import Admission, Phase, Status


def container(restart: str = "", **values: str) -> dict[str, Any]:
    body: dict[str, Any] = {"resources": {"requests": values}}
    return {**body, "restartPolicy": restart} if restart else body


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({}, None),
        ({"containers": [{}]}, None),
        ({"containers": [container(cpu="1"), container(cpu="500m")]}, "1.5"),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, "2"),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}, "1"),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container(cpu="2")]}, "3"),
        ({"containers": [container(cpu="4")], "initContainers": [container(cpu="3")]}, "4"),
        ({"containers": [container(cpu="1")], "initContainers": [container("Always", cpu="2")]}, "3"),
        (
            {"containers": [container(cpu="1")], "initContainers": [container("Always", cpu="2"), container(cpu="3")]},
            "5",
        ),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, "1.25"),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_adds_up(spec: Any, cpu: str | None) -> None:
    expected = {"pods": Decimal(1)} | ({} if cpu is None else {"cpu": Decimal(cpu)})
    assert requests(spec) == expected


def job() -> Job:
    pod = template(containers=[container(cpu="1")])
    return v1_job(replicas("PS", 1, template=pod), replicas("Worker", 2, template=pod))


def test_a_gang_asks_for_its_replicas_less_those_that_have_room_already() -> None:
    assert [(m.type, m.count) for m in members(job())] == [("ps", 1), ("worker", 2)]
    assert [(m.type, m.count) for m in members(job(), {"ps": 1, "worker": 1})] == [("worker", 1)]


def node(name: str = "n", *, ready: str = "True", unschedulable: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": unschedulable},
        "status": {"allocatable": {"cpu": "8", "pods": "10"}, "conditions": [{"type": "Ready", "status": ready}]},
    }


def pod(on: str | None = "n", phase: str = "Running", owner: str = "", type_: str = "worker") -> dict[str, Any]:
    labels = {"tf-dist.dev/job-uid": owner, "tf-dist.dev/replica-type": type_} if owner else None
    spec = {"containers": [container(cpu="1")]} | ({"nodeName": on} if on else {})
    return {"metadata": {"name": "p", "labels": labels}, "spec": spec, "status": {"phase": phase}}


def free(*pods: Any) -> Decimal:
    return snapshot([], [node()], pods).nodes[0].free["cpu"]


def test_pods_on_a_node_take_their_room_until_they_have_ended() -> None:
    assert free() == 8
    assert free(pod(), pod(phase="Pending")) == 6
    assert free(pod(phase="Succeeded"), pod(phase="Failed"), pod(on=None)) == 8


def test_nodes_that_take_no_pods_are_left_out() -> None:
    nodes = [node("a"), node("b", ready="Unknown"), node("c", unschedulable=True), {"metadata": {"name": "bare"}}]
    assert [n.name for n in snapshot([], nodes, []).nodes] == ["a", "bare"]


ADMITTED = Status(phase=Phase.RUNNING, admission=Admission(START))


def asked(status: Status, *pods: Any) -> list[tuple[str, int]]:
    made = snapshot([Claim(job(), status, START)], [node()], pods)
    return [(m.type, m.count) for gang in made.gangs for m in gang.members]


def test_an_admitted_gang_asks_for_the_pods_that_no_node_has_yet() -> None:
    there = [pod(owner="uid-mnist"), pod(on=None, owner="uid-mnist"), pod(owner="another")]
    assert asked(ADMITTED, *there) == [("ps", 1), ("worker", 1)]
    assert asked(Status(), *there) == [("ps", 1), ("worker", 2)]


def test_replicas_that_are_done_need_no_room() -> None:
    done = Status(phase=Phase.RUNNING, admission=Admission(START), succeeded=frozenset({ReplicaId("worker", 1)}))
    assert asked(done) == [("ps", 1), ("worker", 1)]


@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.FAILED, Phase.ABORTED, Phase.COMPLETING])
def test_a_job_that_is_not_live_asks_for_nothing(phase: Phase) -> None:
    assert asked(Status(phase=phase)) == []

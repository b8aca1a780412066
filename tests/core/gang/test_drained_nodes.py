"""Replicas of drained nodes: admission assigns other nodes to them immediately, and holds these nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core import builders
from tests.core.builders import START, replicas, template, v1_job
from tests.core.gang.gangs import reason
from tests.core.gang.stored import admitter_of, container, node
from tf_dist.core.gang.admission import AdmissionChanges, Admitter
from tf_dist.core.gang.types import NO_ADMISSION_CONFIG, AdmissionConfig, AdmissionRequest
from tf_dist.core.model import names
from tf_dist.core.model.assignment import Admit, Resize
from tf_dist.core.model.gang_queue import Queue, Quota
from tf_dist.core.model.job import Job, ReplicaId
from tf_dist.core.model.status import Admission, Attempts, Phase, Status

RESTARTED = Attempts(1, pods={ReplicaId("worker", 0): 1, ReplicaId("worker", 1): 1})
LIMITED = AdmissionConfig(queues=(Queue(name="default", quotas={"cpu": Quota(nominal=2, borrowing_limit=0)}),))
TAINT = {"key": "maintenance", "effect": "NoExecute"}


def job(name: str, workers: int = 2, **annotations: str) -> Job:
    body = {"name": "tensorflow", "image": "tf", **container(cpu="1")}
    made = v1_job(replicas("worker", workers, template=template(containers=[body])), name=name)
    return replace(made, annotations=annotations)


def running(attempts: Attempts = RESTARTED, **place: int) -> Status:
    admission = Admission(START, sizes={"worker": sum(place.values())}, placement={"worker": place}, complete=START)
    return Status(phase=Phase.RUNNING, attempts=attempts, admission=admission)


def nodes(*closed: str, **cpus: int) -> list[dict[str, Any]]:
    found = [node(name, unschedulable=name in closed) for name in cpus]
    for one in found:
        one["status"]["allocatable"]["cpu"] = str(cpus[one["metadata"]["name"]])
    return found


def pods(of: Job, *on: str, attempt: str = "1.0.0", deleting: bool = False) -> list[dict[str, Any]]:
    made = [builders.pod(of, f"worker-{index}", attempt=attempt) for index in range(len(on))]
    for pod, name in zip(made, on, strict=True):
        pod["spec"]["nodeName"] = name
        if deleting:
            pod["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    return made


def admitter(
    jobs: list[tuple[Job, Status]], there: list[Any], cluster: list[Any], config: AdmissionConfig = NO_ADMISSION_CONFIG
) -> Admitter:
    claims = [AdmissionRequest(of, status, START + at) for at, (of, status) in enumerate(jobs)]
    return admitter_of(claims, cluster, there, config=config)


DRAINED, OTHER = job("drained"), job("other")
"""Each has two pods of one CPU."""


@pytest.mark.parametrize(
    ("attempts", "there"),
    [
        (Attempts(1), pods(DRAINED, "n1", "n1", deleting=True)),
        (RESTARTED, pods(DRAINED, "n1", "n1", deleting=True)),
        (RESTARTED, pods(DRAINED, "n1", "n1")),
        (RESTARTED, []),
    ],
)
def test_replicas_of_drained_node_get_nodes_before_waiting_gangs(attempts: Attempts, there: list[Any]) -> None:
    """This holds from the deletion of their pods until the pods exist again."""
    status = running(attempts, n1=2)
    asked = admitter([(OTHER, Status()), (DRAINED, status)], there, nodes("n1", n1=2, n2=2), LIMITED)
    before = asked.queue_usages()["default"].used
    found = asked.cycle(START).verdicts
    assert isinstance(moved := found[DRAINED.uid], Resize)
    assert (moved.sizes, moved.placement) == ({"worker": 2}, {"worker": {"n2": 2}})
    assert moved.message == "2 worker cannot go to n1, which accepts no pods now; assigned instead: n2"
    assert reason(found[OTHER.uid]) == "QuotaExceeded"
    # After the status is written, the nodes are held and nothing else changes, even if the old pods still exist.
    request = AdmissionRequest(DRAINED, running(attempts, n2=2), START)
    asked.update(AdmissionChanges(jobs={DRAINED.uid: request}))
    assert asked.cycle(START).verdicts == {}
    assert asked.queue_usages()["default"].used == before
    asked.update(AdmissionChanges(config=NO_ADMISSION_CONFIG))
    assert asked.cycle(START).verdicts == {}
    assert reason(asked.explain(OTHER.uid)) == "WaitingForCapacity"


@pytest.mark.parametrize(
    "there", [pods(DRAINED, "n1", "n1", attempt="1.0.1"), pods(DRAINED, "n1", "n3", attempt="1.0.1")]
)
def test_running_pods_stay_on_cordoned_node(there: list[Any]) -> None:
    place = {name: sum(pod["spec"]["nodeName"] == name for pod in there) for name in ("n1", "n3")}
    status = running(**{name: count for name, count in place.items() if count})
    asked = admitter([(DRAINED, status)], there, nodes("n1", n1=2, n2=2, n3=2))
    assert asked.cycle(START).verdicts == {}


def test_only_replicas_without_current_pods_move() -> None:
    status = running(Attempts(1, pods={ReplicaId("worker", 1): 1}), n1=2)
    there = pods(DRAINED, "n1", "n1")
    asked = admitter([(DRAINED, status)], there, nodes("n1", n1=2, n2=2))
    assert isinstance(moved := asked.cycle(START).verdicts[DRAINED.uid], Resize)
    assert moved.placement == {"worker": {"n1": 1, "n2": 1}}


def test_taint_closes_node_like_cordon() -> None:
    cluster = nodes(n1=2, n2=2)
    cluster[0]["spec"]["taints"] = [TAINT]
    asked = admitter([(DRAINED, running(n1=2))], [], cluster)
    assert isinstance(moved := asked.cycle(START).verdicts[DRAINED.uid], Resize)
    assert moved.placement == {"worker": {"n2": 2}}


def test_replicas_that_do_not_all_fit_hold_capacity_without_nodes() -> None:
    small = job("small", workers=1)
    asked = admitter([(small, Status()), (DRAINED, running(n1=2))], [], nodes("n1", n1=2, n2=1))
    found = asked.cycle(START).verdicts
    assert isinstance(moved := found[DRAINED.uid], Resize)
    assert moved.placement == {}
    assert moved.message.endswith("the cluster's scheduler may choose any")
    assert reason(found[small.uid]) == "WaitingForCapacity"


@pytest.mark.parametrize(("free", "admitted"), [(2, False), (3, True)])
def test_pods_without_nodes_hold_capacity_when_partial_gang_is_completed(free: int, admitted: bool) -> None:
    floating, small, partial = job("floating", workers=1), job("small", workers=1), job("partial")
    partial = replace(partial, scheduling=replace(partial.scheduling, min_available=1))
    anywhere = Admission(START - 5_000, sizes={"worker": 1}, complete=START - 5_000)
    started = Admission(
        START - 50_000,
        sizes={"worker": 2},
        started={"worker": 1},
        placement={"worker": {"n1": 1}},  # its pod is not bound yet
        resized=START - 50_000,
    )
    jobs = [(floating, Status(admission=anywhere)), (partial, Status(admission=started)), (small, Status())]
    found = admitter(jobs, [], nodes(n1=1, n2=free)).cycle(START).verdicts
    assert isinstance(rest := found[partial.uid], Resize)
    assert rest.placement == {"worker": {"n1": 1, "n2": 1}}
    assert isinstance(found[small.uid], Admit) == admitted


def test_admission_does_not_move_replicas_with_required_topology() -> None:
    gang = job("gang", **{names.TOPOLOGY: "zone", names.TOPOLOGY_REQUIRED: "true"})
    asked = admitter([(gang, running(n1=2))], [], nodes("n1", n1=2, n2=2))
    assert asked.cycle(START).verdicts == {}


def test_gang_moves_when_node_closes_before_pods_exist() -> None:
    """If the node closes before the admission is written, the gang moves after the write."""
    cluster = {one["metadata"]["name"]: one for one in nodes(n1=2, n2=2)}
    closed = {one["metadata"]["name"]: one for one in nodes("n1", n1=2, n2=2)}
    asked = admitter([(DRAINED, running(n1=2))], [], list(cluster.values()))
    assert asked.cycle(START).verdicts == {}
    asked.update(AdmissionChanges(nodes=closed))
    assert isinstance(moved := asked.cycle(START).verdicts[DRAINED.uid], Resize)
    assert moved.placement == {"worker": {"n2": 2}}

    asked = admitter([(DRAINED, Status())], [], [cluster["n1"]])
    assert isinstance(asked.cycle(START).verdicts[DRAINED.uid], Admit)
    asked.update(AdmissionChanges(nodes=closed))
    assert asked.cycle(START + 1).verdicts == {}
    asked.update(AdmissionChanges(jobs={DRAINED.uid: AdmissionRequest(DRAINED, running(n1=2), START)}))
    assert isinstance(moved := asked.cycle(START + 2).verdicts[DRAINED.uid], Resize)
    assert moved.placement == {"worker": {"n2": 2}}
    asked.update(
        AdmissionChanges(jobs={DRAINED.uid: AdmissionRequest(DRAINED, running(n2=2), START)}, nodes={"n2": None})
    )
    assert isinstance(moved := asked.cycle(START + 3).verdicts[DRAINED.uid], Resize)
    assert moved.placement == {}

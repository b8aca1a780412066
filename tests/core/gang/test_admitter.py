"""The admitter as a controller uses it: assumed admissions, and cycles in parts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.core.builders import START
from tests.core.gang.gangs import World, gang, reason, workers
from tests.core.gang.gangs import node as small_node
from tests.core.gang.stored import admitter_of, job, node, pod
from tests.core.gang.test_admission_properties import POLICY, QUEUES, some_gang, some_node
from tf_dist.core.gang.admission import AdmissionChanges
from tf_dist.core.gang.types import NO_ADMISSION_CONFIG, AdmissionRequest
from tf_dist.core.model.assignment import Admit, Verdict, Wait, with_replica_counts
from tf_dist.core.model.job import JobKey
from tf_dist.core.model.status import Admission, Phase, Status


def request(name: str, status: Status | None = None) -> AdmissionRequest:
    """A job of three pods with one CPU each. The node has eight CPUs."""
    return AdmissionRequest(replace(job(), uid=name, key=JobKey("default", name)), status or Status(), START)


def written(verdict: Verdict) -> Status:
    assert isinstance(verdict, Admit)
    return Status(phase=Phase.RUNNING, admission=Admission(START, verdict.placement, sizes=verdict.sizes))


def test_admission_is_assumed_until_job_is_updated() -> None:
    admitter = admitter_of([request("a"), request("b"), request("c")], [node()])
    found = admitter.cycle(START + 1).verdicts
    assert {uid: reason(verdict) for uid, verdict in found.items()} == {
        "a": "Admit",
        "b": "Admit",
        "c": "WaitingForCapacity",
    }
    admitter.update(AdmissionChanges(pods={"leaving": pod("n", phase="Failed", owner="a")}))
    assert not admitter.cycle(START + 2).verdicts
    admitter.update(AdmissionChanges(jobs={"a": request("a", written(found["a"])), "b": request("b")}))
    assert reason(admitter.cycle(START + 3).verdicts["b"]) == "Admit", "what was assumed of b is forgotten"


def test_unwritten_admission_is_reverted() -> None:
    admitter = admitter_of(
        [request("a"), request("b")], [{**node(), "status": {"allocatable": {"cpu": "3", "pods": "9"}}}]
    )
    assert reason(admitter.cycle(START + 1).verdicts["a"]) == "Admit"
    assert admitter.wake_at(START + 1) > START + 1
    admitter.revert("a")
    assert admitter.wake_at(START + 1) == START + 1
    assert reason(admitter.cycle(START + 2).verdicts["a"]) == "Admit"
    admitter.update(AdmissionChanges(jobs={"a": None}))
    assert reason(admitter.cycle(START + 3).verdicts["b"]) == "Admit"


@pytest.mark.parametrize(
    "changes",
    [
        AdmissionChanges(nodes={"m": node("m")}),
        AdmissionChanges(nodes={"n": None}),
        AdmissionChanges(pods={"x": pod("n")}),
        AdmissionChanges(pods={"x": pod(None, owner="a")}),
        AdmissionChanges(pods={"x": pod("away", owner="a")}),
        AdmissionChanges(jobs={"a": None}),
        AdmissionChanges(config=replace(NO_ADMISSION_CONFIG, queues=())),
        AdmissionChanges(resource_quotas={}),
    ],
    ids=["new node", "lost node", "pod", "pod of a job", "pod on an unknown node", "no job", "queues", "quotas"],
)
def test_decides_immediately_after_any_change(changes: AdmissionChanges) -> None:
    admitter = admitter_of([request("a")], [node()])
    admitter.cycle(START + 1)
    assert admitter.wake_at(START + 2) > START + 2
    admitter.update(changes)
    assert admitter.wake_at(START + 2) == START + 2


def test_gang_gets_new_reason_when_backoff_ends() -> None:
    """This also holds if the previous decision was just before."""
    full = [{**node(), "status": {"allocatable": {"cpu": "2", "pods": "9"}}}]
    admitter = admitter_of([request("a", Status(not_before=START + 60))], full)
    assert reason(admitter.cycle(START + 59).verdicts["a"]) == "Backoff"
    assert admitter.wake_at(START + 59) == START + 60
    assert reason(admitter.cycle(START + 60).verdicts["a"]) == "NeverFits"


@pytest.mark.parametrize("whole", [True, False])
def test_reset_keeps_assumed_admissions(whole: bool) -> None:
    a, b = request("a"), request("b")
    admitter = admitter_of([a], [{**node(), "status": {"allocatable": {"cpu": "3", "pods": "9"}}}])
    admitter.cycle(START + 1)
    admitter.reset()
    nodes = {"n": {**node(), "status": {"allocatable": {"cpu": "3", "pods": "9"}}}}
    admitter.update(AdmissionChanges(jobs={"a": a, "b": b} if whole else {"b": b}, nodes=nodes, whole=whole))
    assert {uid: reason(verdict) for uid, verdict in admitter.cycle(START).verdicts.items()} == {
        "b": "WaitingForCapacity"
    }
    assert isinstance(admitter.explain("a"), Admit)


def test_job_whose_decision_fails_is_skipped_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unhashable(str):
        __hash__ = None  # type: ignore[assignment]

    bad = replace(job(), uid="bad", key=JobKey("default", "bad"))
    bad = replace(bad, annotations={"tf-dist.dev/topology": "zone", "tf-dist.dev/topology-required": "true"})
    broken = node()
    broken["metadata"]["labels"] = {"zone": Unhashable("a")}
    admitter = admitter_of([AdmissionRequest(bad, Status(), START), request("good")], [broken])
    found = admitter.cycle(START + 1)
    assert {uid: reason(verdict) for uid, verdict in found.verdicts.items()} == {"bad": "Unreadable", "good": "Admit"}
    assert [type(error) for error in found.failed.values()] == [TypeError]
    assert not admitter.cycle(START + 2).failed
    mended = replace(bad, annotations={})
    admitter.update(AdmissionChanges(jobs={"bad": AdmissionRequest(mended, Status(), START)}))
    assert reason(admitter.cycle(START + 3).verdicts["bad"]) == "Admit"


def test_cycle_stops_at_limit_and_reports_more_work() -> None:
    world = World([small_node("n", gpu=4)])
    world.put(*(gang(f"g{number}", workers(1), at=number) for number in range(6)))
    parts = [world.scheduler.cycle(10, limit=2) for _ in range(3)]
    assert [sorted(part.verdicts) for part in parts] == [["g0", "g1"], ["g2", "g3"], ["g4", "g5"]]
    assert [part.more for part in parts] == [True, True, False]
    assert all(isinstance(verdict, Wait) for verdict in parts[2].verdicts.values())
    assert world.scheduler.wake_at(10) > 10


@pytest.mark.parametrize("seed", range(20))
def test_cycle_in_parts_admits_same_gangs_as_whole_cycle(seed: int) -> None:
    """With equal shares and no reservations, the order of admissions is the same. The last part decides the rest."""
    dice = Random(seed)
    nodes = [some_node(dice, f"n{number}") for number in range(4)]
    gangs = [some_gang(dice, f"g{number}", 100.0) for number in range(30)]
    whole, parts = World(nodes, QUEUES, POLICY), World(nodes, QUEUES, POLICY)
    for world in (whole, parts):
        world.put(*gangs)
    expected = {uid: one for uid, one in whole.scheduler.cycle(101).verdicts.items() if isinstance(one, Admit)}
    found: dict[str, Verdict] = {}
    while True:
        decisions = parts.scheduler.cycle(101, limit=1)
        found |= decisions.verdicts
        if not decisions.more:
            break
    assert {uid: one for uid, one in found.items() if isinstance(one, Admit)} == expected


@pytest.mark.parametrize("deleting", [True, False])
def test_capacity_of_deleted_pods_without_gang_is_waited_for(deleting: bool) -> None:
    """As for pods of preempted gangs. Otherwise, a smaller gang would start first, and then be preempted."""
    left = pod("n", owner="former", cpu="7")
    left["metadata"]["ownerReferences"][0]["name"] = "former"
    left["metadata"] |= {"deletionTimestamp": "2030-01-01T00:00:00Z"} if deleting else {}
    large = replace(request("large"), job=with_replica_counts(request("large").job, {"ps": 1, "worker": 9}))
    small = replace(request("small"), created_at=START + 1)
    admitter = admitter_of([large, small], [node("n"), node("m")], [left])
    found = admitter.cycle(START + 2).verdicts
    assert reason(found["large"]) == "WaitingForCapacity"
    assert reason(found["small"]) == ("Reserved" if deleting else "Admit")
    if deleting:
        admitter.update(AdmissionChanges(pods={"0": None}))
        assert reason(admitter.cycle(START + 3).verdicts["large"]) == "Admit"

"""Incrementally updated snapshots equal new snapshots."""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import START
from tests.core.gang.stored import ADMITTED, admitter_of, job, node, pod, seen
from tf_dist.core.gang.admission import AdmissionChanges
from tf_dist.core.gang.types import AdmissionRequest
from tf_dist.core.model.quantity import parse_quantity

NODES = [node("n"), node("m"), node("l", unschedulable=True)]
CLAIMS = [AdmissionRequest(job(), ADMITTED, START)]
PODS = st.none() | st.builds(
    pod,
    on=st.sampled_from(["n", "m", "l", "gone", None]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    owner=st.sampled_from(["", "uid-mnist", "uid-of-another"]),
    type_=st.sampled_from(["worker", "ps"]),
    index=st.integers(0, 2),
    cpu=st.sampled_from(["1", "3", "500m"]),
)


def taken(pods: Iterable[Any], node: str) -> Decimal:
    """The CPUs that unfinished pods of a node request."""
    there = (pod for pod in pods if pod["spec"].get("nodeName") == node)
    living = (pod for pod in there if pod["status"]["phase"] not in ("Succeeded", "Failed"))
    requests = (pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in living)
    return sum((parse_quantity(one) for one in requests), Decimal(0))


@given(st.lists(st.tuples(st.integers(0, 4), PODS), max_size=30), st.randoms(use_true_random=False), st.integers(1, 9))
def test_incremental_updates_equal_new_admitter(steps: list[tuple[int, Any]], dice: random.Random, often: int) -> None:
    admitter, pods, untold = admitter_of(CLAIMS, NODES), dict[str, Any](), set[str]()
    for number, (name, new) in enumerate(steps):
        pods[str(name)] = new
        untold.add(str(name))
        if number % often == 0:
            told = sorted(untold)
            dice.shuffle(told)  # informers report changes from several threads
            admitter.update(AdmissionChanges(pods={uid: pods[uid] for uid in told}))
            admitter.refresh()
            untold.clear()
            there = [one for one in pods.values() if one is not None]
            found = seen(admitter)
            assert found == seen(admitter_of(CLAIMS, NODES, there))
            for node in found.nodes.values():
                assert node.free["cpu"] == node.allocatable["cpu"] - taken(there, node.name)


def test_unchanged_objects_keep_identity() -> None:
    admitter = admitter_of(CLAIMS, NODES, [pod("n", owner="uid-mnist", index=0)])
    before = seen(admitter)
    admitter.update(AdmissionChanges(pods={"other": pod("m")}, jobs={claim.job.uid: claim for claim in CLAIMS}))
    admitter.refresh()
    after = seen(admitter)
    assert after.nodes["n"] is before.nodes["n"]
    assert after.nodes["m"].free["cpu"] == before.nodes["m"].free["cpu"] - 1
    assert after.gangs["uid-mnist"] is before.gangs["uid-mnist"]
    admitter.update(AdmissionChanges(pods={"another": pod("n", owner="uid-mnist", index=1)}))
    admitter.refresh()
    assert seen(admitter).gangs["uid-mnist"].bound == {"worker": {"n": 2}}


def test_complete_update_removes_missing_objects() -> None:
    admitter = admitter_of(CLAIMS, NODES, [pod("n"), pod("m")])
    admitter.update(AdmissionChanges(jobs={}, nodes={"n": node("n")}, pods={"1": pod("n")}, whole=True))
    admitter.refresh()
    assert seen(admitter) == seen(admitter_of([], [node("n")], [pod("n")]))


def test_unbound_pod_counts_as_created_without_job_change() -> None:
    [claim] = CLAIMS
    admitter = admitter_of(CLAIMS, NODES, resource_quotas={claim.job.key.namespace: ()})
    assert sum(seen(admitter).gangs["uid-mnist"].created.values()) == 0
    admitter.update(AdmissionChanges(pods={"a": pod(None, owner="uid-mnist", index=0)}))
    admitter.refresh()
    assert sum(seen(admitter).gangs["uid-mnist"].created.values()) == 1

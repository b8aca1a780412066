"""Snapshots that are kept up to date say what one taken from scratch says."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import START
from tests.core.gang.gangs import Follower
from tests.core.gang.stored import ADMITTED, job, node, pod
from tf_dist.core.gang.resources.resource_quota import ResourceQuotas
from tf_dist.core.gang.snapshot import AdmissionRequest, SnapshotBuilder, build_snapshot

NODES = [node("n"), node("m"), node("l", unschedulable=True)]
CLAIMS = [AdmissionRequest(job(), ADMITTED, START)]
PODS = st.none() | st.builds(
    pod,
    on=st.sampled_from(["n", "m", "l", "gone", None]),
    phase=st.sampled_from(["Pending", "Running", "Failed"]),
    owner=st.sampled_from(["", "uid-mnist", "uid-of-another"]),
    type_=st.sampled_from(["worker", "ps"]),
    index=st.integers(0, 2),
)


@given(st.lists(st.tuples(st.integers(0, 4), PODS), max_size=30), st.randoms(use_true_random=False), st.integers(1, 9))
def test_it_is_the_same_as_from_scratch(steps: list[tuple[int, Any]], dice: random.Random, often: int) -> None:
    seen, pods, untold = Follower(), {}, []
    for number, (name, new) in enumerate(steps):
        untold.append((pods.get(name), new))
        pods[name] = new
        if number % often == 0:
            dice.shuffle(untold)  # reflector and writers tell of changes from threads of their own
            for old, now in untold:
                seen.seen.change(old, now)
            untold.clear()
            there = [one for one in pods.values() if one is not None]
            assert seen.snapshot(CLAIMS, NODES) == build_snapshot(CLAIMS, NODES, there)


def test_what_has_not_changed_is_the_very_same() -> None:
    seen = Follower()
    seen.seen.change(None, pod("n", owner="uid-mnist", index=0))
    before = {one.name: one for one in seen.snapshot(CLAIMS, NODES).nodes or ()}
    assert not seen.seen.update({}).nodes
    seen.seen.change(None, pod("m"))
    found = seen.seen.update({claim.job.uid: claim for claim in CLAIMS})
    assert (set(found.nodes), set(found.gangs)) == ({"m"}, set())
    assert found.nodes["m"] is not None
    assert found.nodes["m"].free["cpu"] == before["m"].free["cpu"] - 1
    seen.seen.change(None, pod("n", owner="uid-mnist", index=1))
    assert set(seen.seen.update({}).gangs) == {"uid-mnist"}


def test_a_pod_without_a_node_counts_in_the_quota_of_its_namespace_though_its_job_has_not_changed() -> None:
    seen = SnapshotBuilder()
    [claim] = CLAIMS
    bounds: ResourceQuotas = {claim.job.key.namespace: ()}
    first = seen.update({claim.job.uid: claim}, bounds=bounds).gangs[claim.job.uid]
    seen.change(None, pod(None, owner="uid-mnist", index=0))
    second = seen.update({}, bounds=bounds).gangs[claim.job.uid]
    assert first
    assert second
    assert (sum(first.created.values()), sum(second.created.values())) == (0, 1)

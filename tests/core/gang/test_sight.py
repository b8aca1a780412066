"""Snapshots that are kept up to date say what one taken from scratch says."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.core.gang.test_demand import ADMITTED, START, job, node, pod
from tf_dist.core.gang.snapshot import Claim, Snapshots, snapshot

NODES = [node("n"), node("m"), node("l", unschedulable=True)]
CLAIMS = [Claim(job(), ADMITTED, START)]
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
    seen, pods, untold = Snapshots(), {}, []
    for number, (name, new) in enumerate(steps):
        untold.append((pods.get(name), new))
        pods[name] = new
        if number % often == 0:
            dice.shuffle(untold)  # reflector and writers tell of changes from threads of their own
            for old, now in untold:
                seen.change(old, now)
            untold.clear()
            there = [one for one in pods.values() if one is not None]
            assert seen.take(CLAIMS, NODES, now=START) == snapshot(CLAIMS, NODES, there, now=START)


def test_what_has_not_changed_is_the_very_same() -> None:
    seen = Snapshots()
    seen.change(None, pod("n", owner="uid-mnist", index=0))
    first = seen.take(CLAIMS, NODES)
    seen.change(None, pod("m"))
    second = seen.take(CLAIMS, NODES)
    assert second.gangs[0] is first.gangs[0]
    one, other = ({n.name: n for n in taken.nodes or ()} for taken in (first, second))
    assert other["n"] is one["n"]
    assert other["m"].free["cpu"] == one["m"].free["cpu"] - 1

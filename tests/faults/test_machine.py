"""With any order of faults, crashes and user actions, the rules hold, and all jobs end once the cluster is calm.

A schedule is drawn from a seed and runs the production code in virtual time (``tests/faults/runner.py``), so it can be
repeated: ``python -m tests.faults --from SEED --shorten``. ``TF_DIST_FAULT_RUNS`` is the number of schedules. Their
seeds start at 0, or at ``TF_DIST_FAULT_SEED`` (``drawn``: at a seed from the current time).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.proxy import Kind

RUNS = int(os.environ.get("TF_DIST_FAULT_RUNS") or 12)
SEED = os.environ.get("TF_DIST_FAULT_SEED") or "0"
FIRST = time.time_ns() // 1000 % 1_000_000_000 if SEED == "drawn" else int(SEED)
ROOT = Path(__file__).parents[2]


def run_in_process(first: int, count: int) -> dict[str, float]:
    """Run this number of schedules in a separate process, and return the counts of events."""
    command = [sys.executable, "-m", "tests.faults", "--from", str(first), "--count", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


_HARD = (Kind.LOSE, Kind.LATE, Kind.HANG, Kind.STALE)
# The minimum counts of events in twelve schedules and in thirty schedules. Without these events, the machine would not
# test anything.
AT_ONCE = {
    "admitted": 20,
    "Completed": 10,
    "Failed": 3,
    "ended DeadlineExceeded": 1,
    "restart PodFailed": 3,
    "resized": 1,
    "lease won": 30,
    "CLUSTER to NAMESPACE": 3,
    "NAMESPACE to CLUSTER": 1,
    "handed over": 3,
    "fault REFUSE": 5,
    "v1": 10,
    "v1alpha1": 1,
    "volcano": 3,
}
OFTEN = AT_ONCE | {
    "admitted": 30,
    "Completed": 20,
    "Failed": 5,
    "restart PodFailed": 5,
    "lease won": 80,
    "CLUSTER to CLUSTER": 5,
    "CLUSTER to NAMESPACE": 5,
    "NAMESPACE to CLUSTER": 5,
    "NAMESPACE to NAMESPACE": 5,
    "fault REFUSE": 10,
    "v1alpha1": 3,
}
SELDOM = (
    *("restart Preempted", "drained", "nodes lost", "etcd restored", "died after a write", "stopped after a write"),
    *("installed", "uninstalled", "upgraded", "leases deleted", "RUN to NAMESPACE", "RUN to CLUSTER"),
    *(f"fault {one.name}" for one in _HARD),
)


@pytest.mark.timeout(600 + 3 * RUNS)
def test_all_schedules_keep_rules_and_complete() -> None:
    counts = run_in_process(FIRST, RUNS)
    assert counts["schedules"] == RUNS
    expected = OFTEN if RUNS >= 30 else AT_ONCE if RUNS >= 12 else {}
    assert {what: counts.get(what, 0) for what, least in expected.items() if counts.get(what, 0) < least} == {}
    if RUNS >= 300:
        assert [what for what in SELDOM if not counts.get(what)] == []


def test_same_seed_gives_same_counts() -> None:
    counts = [run_in_process(7, 1) for _ in range(2)]
    for one in counts:
        del one["seconds"]
    assert counts[0] == counts[1]

"""A gang that would fit on cordoned or unready nodes waits for them. Its reason is not NeverFits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.gang.gangs import message, reason
from tests.core.gang.stored import admitter_of, job, node, verdicts
from tf_dist.core.gang.admission import AdmissionChanges
from tf_dist.core.gang.types import AdmissionRequest
from tf_dist.core.model.assignment import Verdict
from tf_dist.core.model.status import Status

CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
OTHERS = {"key": "team", "value": "vision", "effect": "NoSchedule"}
NOT_EVEN = "no node accepts pods now; n (cordoned) would not help"
CLAIM = AdmissionRequest(job(), Status(), 0.0)  # three pods with one CPU each; a node has eight CPUs


def away(name: str = "n", *taints: dict[str, str], cpu: str = "8", **state: Any) -> dict[str, Any]:
    found = node(name, **state)
    found["spec"]["taints"] = list(taints)
    found["status"]["allocatable"]["cpu"] = cpu
    return found


def verdict(*nodes: dict[str, Any]) -> Verdict:
    (found,) = verdicts(admitter_of([CLAIM], nodes)).values()
    return found


@pytest.mark.parametrize(
    ("nodes", "why", "said"),
    [
        ([away("n", CORDONED, unschedulable=True)], "NodesUnavailable", "n (cordoned)"),
        ([away("n", NOT_READY, ready="False")], "NodesUnavailable", "n (not ready)"),
        ([away("n", NOT_READY, ready="Unknown", unschedulable=True)], "NodesUnavailable", "n (not ready)"),
        (
            [away("n", NOT_READY, ready="False", cpu="1"), away("m", CORDONED, unschedulable=True, cpu="2")],
            "NodesUnavailable",
            "m (cordoned), n (not ready)",
        ),
        ([away("m", cpu="2"), away("n", CORDONED, unschedulable=True)], "NodesUnavailable", "n (cordoned)"),
        # The gang does not fit even with that node.
        ([away("n", CORDONED, unschedulable=True, cpu="2")], "NeverFits", NOT_EVEN),
        ([away("n", CORDONED, OTHERS, unschedulable=True)], "NeverFits", NOT_EVEN),
        (
            [away("m", cpu="1"), away("n", CORDONED, unschedulable=True, cpu="1")],
            "NeverFits",
            "no capacity for all of them at once; n (cordoned) would not help",
        ),
        ([], "NeverFits", "the cluster has no node"),
    ],
)
def test_wait_reason_depends_on_unavailable_nodes(nodes: list[dict[str, Any]], why: str, said: str) -> None:
    found = verdict(*nodes)
    assert reason(found) == why
    assert message(found).endswith(said)


def test_gang_is_admitted_if_another_node_is_available() -> None:
    assert reason(verdict(away("m"), away("n", CORDONED, unschedulable=True))) == "Admit"


def test_reason_follows_node_changes_until_node_returns() -> None:
    admitter = admitter_of([CLAIM])
    steps = [
        (away("n", CORDONED, unschedulable=True), "NodesUnavailable", "n (cordoned)"),
        (away("n", NOT_READY, ready="False"), "NodesUnavailable", "n (not ready)"),
        (None, "NeverFits", "the cluster has no node"),
        (away("n", NOT_READY, ready="False"), "NodesUnavailable", "n (not ready)"),
        (away(), "Admit", ""),
    ]
    for number, (raw, why, said) in enumerate(steps):
        admitter.update(AdmissionChanges(nodes={"n": raw}))
        found = admitter.cycle(float(number)).verdicts.get(CLAIM.job.uid) or admitter.explain(CLAIM.job.uid)
        assert reason(found) == why, number
        assert not said or message(found).endswith(said)

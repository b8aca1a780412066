"""The policies that can be compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tf_dist.simulate.engine import Policy
from tf_dist.simulate.placement import node_after_node, packed, spread
from tf_dist.simulate.policies.auto_scale import AutoScale
from tf_dist.simulate.policies.dragon import Dragon
from tf_dist.simulate.policies.kube_scheduler import TIMEOUT, KubeScheduler
from tf_dist.simulate.policies.queueing import BestEffortFifo, EasyBackfill, Fifo
from tf_dist.simulate.scenario import Scenario


def _ours(scenario: Scenario) -> Policy:
    from tf_dist.simulate.policies.tf_dist_admission import TfDistAdmission

    return TfDistAdmission(scenario)


def faithful(scenario: Scenario) -> Policy:
    """tf-dist's admission, with every job as a document that ``reconcile`` handles. Same results, but much slower."""
    from tf_dist.simulate.policies.tf_dist_reconcile import TfDistReconcile

    return TfDistReconcile(scenario)


POLICIES: Final[dict[str, Callable[[Scenario], Policy]]] = {
    "default": lambda scenario: KubeScheduler(scenario.seed),
    "default+timeout": lambda scenario: KubeScheduler(scenario.seed, timeout=TIMEOUT),
    "gang": lambda scenario: BestEffortFifo(spread),
    "gang+locality": lambda scenario: BestEffortFifo(node_after_node),
    "auto-scale": lambda scenario: AutoScale(),
    "dragon": lambda scenario: Dragon(),
    "fifo": lambda scenario: Fifo(packed),
    "skip": lambda scenario: BestEffortFifo(packed),
    "easy": lambda scenario: EasyBackfill(packed),
    "ours": _ours,
}
"""In this order: kube-scheduler without and with a timeout for stalled jobs; gangs without and with locality; the
scaling rules of tf-operator-Dragon and of DRAGON v2; strict first in, first out; the same with skipping; EASY
backfilling; tf-dist's admission."""

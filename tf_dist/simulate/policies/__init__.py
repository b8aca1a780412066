"""The policies that can be compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tf_dist.simulate.engine import Policy
from tf_dist.simulate.model import Scenario
from tf_dist.simulate.placing import packed, seeded, spread
from tf_dist.simulate.policies.dragon import Dragon
from tf_dist.simulate.policies.kube import TIMEOUT, PodByPod
from tf_dist.simulate.policies.queueing import Easy, Fifo, Skip
from tf_dist.simulate.policies.seed import Seed


def _ours(scenario: Scenario) -> Policy:
    from tf_dist.simulate.policies.ours import Ours

    return Ours(scenario)


def faithful(scenario: Scenario) -> Policy:
    """tf-dist's own, with every job a document that goes through ``reconcile``: the same, and much slower."""
    from tf_dist.simulate.policies.faithful import Faithful

    return Faithful(scenario)


POLICIES: Final[dict[str, Callable[[Scenario], Policy]]] = {
    "default": lambda scenario: PodByPod(scenario.seed),
    "default+timeout": lambda scenario: PodByPod(scenario.seed, timeout=TIMEOUT),
    "gang": lambda scenario: Skip(spread),
    "gang+locality": lambda scenario: Skip(seeded),
    "seed": lambda scenario: Seed(),
    "dragon": lambda scenario: Dragon(),
    "fifo": lambda scenario: Fifo(packed),
    "skip": lambda scenario: Skip(packed),
    "easy": lambda scenario: Easy(packed),
    "ours": _ours,
}
"""kube-scheduler pod by pod, without and with a time limit on stalling; all or nothing; that with locality; the seed's
scaling rules; those of DRAGON v2; first in first out, strictly; with skipping; EASY backfilling; tf-dist's own."""

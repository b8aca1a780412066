"""Disruptions: pods that the cluster, or a person, took away. They are no failures of the program.

They spend nothing of ``backoffLimit`` or ``maxRetry``, are counted apart and by cause, and have a bound of their own
(annotation ``tf-dist.dev/max-disruptions``), so that a controller that deletes every new pod does not do so for ever.
Reasons are those of the pod condition ``DisruptionTarget`` and of pods that a kubelet has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tf_dist.core.model import Job

EXCEEDED: Final = "MaxDisruptionsExceeded"
DELETED: Final = "Deleted"
NODE_LOST: Final = "NodeLost"
# A controller sets the condition with a reason of its own.
OTHER: Final = "DisruptionTarget"

# Where a job does not say how many it takes: a drain may take every pod of it, and long jobs see many drains.
_PER_REPLICA: Final = 10
_AT_LEAST: Final = 100

CONDITION_REASONS: Final[Mapping[str, str]] = {
    "EvictionByEvictionAPI": "was evicted{node} through the Eviction API",
    "PreemptionByScheduler": "was preempted{node} by the cluster's scheduler",
    "DeletionByTaintManager": "was evicted{node}, whose taints it does not tolerate (any more)",
    "DeletionByPodGC": "was removed{node} by the garbage collector of pods: the node is gone, or out of service",
    "TerminationByKubelet": "was ended{node} by the kubelet",
}
_TEXTS: Final[Mapping[str, str]] = {
    **CONDITION_REASONS,
    DELETED: "was deleted{node}, not by tf-dist",
    NODE_LOST: "is lost{node}",
    OTHER: "was disrupted{node}",
}


@dataclass(frozen=True, slots=True)
class Disruption:
    """What took a pod away: the reason in a word, what was said about it, and the node it was on ("": unknown)."""

    reason: str
    message: str = ""
    node: str = ""

    def __str__(self) -> str:
        """``was evicted from node n1 through the Eviction API``."""
        where = f" with node {self.node}" if self.reason == NODE_LOST else f" from node {self.node}"
        where = where if self.node else ""
        known = _TEXTS.get(self.reason)
        # Any other reason is the words of a kubelet, or of who else writes statuses of pods.
        text = known.format(node=where) if known else f"was evicted{where} ({self.reason})"
        said = " ".join(self.message.split())
        return f"{text} ({said})" if said else text


def limit(job: Job) -> int:
    """How many disruptions the job may go through."""
    said = job.run_policy.max_disruptions
    return max(_AT_LEAST, _PER_REPLICA * len(job.replicas)) if said is None else said


def counted(disruptions: Mapping[str, int]) -> str:
    """``2 × EvictionByEvictionAPI, 1 × Deleted``, the most frequent first."""
    ranked = sorted(disruptions.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} × {reason}" for reason, count in ranked)

"""Pods on nodes that have not been ready for longer than the pods tolerate: they count as lost with their node.

A cluster's taint manager deletes them at that time; where there is none, or it is late, the job does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tf_dist.core.disruptions import NODE_LOST, Disruption
from tf_dist.core.model import Job
from tf_dist.core.observed import Observed, PodView
from tf_dist.core.times import format_time, round_time
from tf_dist.core.untyped import mappings, number

_TAINTS: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
# What an API server adds to pods that say nothing (DefaultTolerationSeconds).
_TOLERATED: Final = 300.0
# Seconds that a taint manager has to do it itself.
_LATER: Final = 10.0


def pods_of(job: Job, observed: Observed) -> tuple[PodView, ...]:
    """The pods, those marked that are lost with their node by now."""
    if not observed.unready:
        return observed.pods
    return tuple(_marked(job, observed, pod) for pod in observed.pods)


def times(job: Job, observed: Observed) -> Iterator[float]:
    """When pods will be lost, if their nodes do not come back."""
    for pod in observed.pods if observed.unready else ():
        due = _lost_at(job, observed, pod)
        if due is not None:
            yield due


def _marked(job: Job, observed: Observed, pod: PodView) -> PodView:
    due = _lost_at(job, observed, pod)
    if due is None or observed.now < due:
        return pod
    since = observed.unready[pod.node].since
    said = f"not ready since {format_time(since)}" if since is not None else ""
    return replace(pod, node_lost=True, disruption=Disruption(NODE_LOST, said, pod.node))


def _lost_at(job: Job, observed: Observed, pod: PodView) -> float | None:
    node, spec = observed.unready.get(pod.node), job.spec(pod.replica.type)
    if node is None or node.since is None or spec is None or pod.finished or pod.deleting or pod.node_lost:
        return None
    tolerated = _tolerated((spec.template.get("spec") or {}).get("tolerations"))
    return None if tolerated is None else round_time(node.since + tolerated + _LATER)


def _tolerated(tolerations: object) -> float | None:
    """Seconds that a pod stays on a node which is not ready; None: for ever."""
    found = [one for one in mappings(tolerations) if _speaks_of_it(one)]
    if not found:
        return _TOLERATED
    limits = [seconds for one in found if (seconds := number(one.get("tolerationSeconds"))) is not None]
    return float(max(0, min(limits))) if limits else None


def _speaks_of_it(toleration: Mapping[str, Any]) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    every = not key and toleration.get("operator") == "Exists"
    return (every or key in _TAINTS) and effect in (None, "", "NoExecute")

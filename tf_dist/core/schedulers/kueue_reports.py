"""What Kueue is told about a job, in the status of its Workload: that it has stopped, that all its pods are ready.

These are two of the duties of a job's controller in Kueue (kubernetes-sigs/kueue, ``pkg/controller/jobframework``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tf_dist.core.actions import Update
from tf_dist.core.model import Document
from tf_dist.core.schedulers import gangs
from tf_dist.core.situation import Situation
from tf_dist.core.times import format_time
from tf_dist.core.untyped import mapping, mappings, text

Condition = dict[str, Any]

# After these evictions a Workload stands in its queue again at once; after others Kueue says when.
_AT_ONCE: Final = frozenset({"Preempted", "NodeFailures"})


def reports(key: str, workload: Document, s: Situation) -> Iterator[Update]:
    """What there is to tell now; nothing, if it has been told."""
    status = mapping(workload.get("status"))
    told: list[Condition] = []
    fields: dict[str, Any] = {}
    if gangs.holds(workload, "Evicted"):
        gone = all(pod.finished for pod in (*s.facts.stale, *s.facts.current.values()))
        if s.status.admission is None and gone and gangs.holds(workload, "QuotaReserved"):
            told, fields = _given_back(workload), {"admission": None}
    elif s.status.admission is not None and _ready(s) and not gangs.holds(workload, "PodsReady"):
        told = [_condition("PodsReady", True, "Started", "all pods of the job are ready or have succeeded")]
    if told:
        conditions = _with(mappings(status.get("conditions")), told, workload, s.now)
        # Written over what was seen and nothing else: Kueue may have gone on meanwhile.
        metadata = {"resourceVersion": workload["metadata"]["resourceVersion"]}
        patch = {"metadata": metadata, "status": {"conditions": conditions, **fields}}
        yield Update(key, workload["metadata"]["name"], patch, "status")


def _ready(s: Situation) -> bool:
    total = s.facts.total()
    return total.ready + total.succeeded >= len(s.job.replicas) > 0


def _given_back(workload: Document) -> list[Condition]:
    """No pod is left: the quota is free, and the Workload may be queued again."""
    evicted = gangs.condition(workload, "Evicted")
    message, reason = str(evicted.get("message") or ""), str(evicted.get("reason") or "Pending")
    again = _condition("Requeued", reason in _AT_ONCE, reason, message)
    reserved = _condition("QuotaReserved", False, "Pending", message)
    return [again, reserved, _condition("Admitted", False, "NoReservation", "The workload has no reservation")]


def _condition(type_: str, value: bool, reason: str, message: str) -> Condition:
    return {"type": type_, "status": "True" if value else "False", "reason": reason, "message": message}


def _with(stored: Any, told: list[Condition], workload: Document, now: float) -> list[Condition]:
    """All conditions, those that are told in place of what was said before."""
    listed = {text(one.get("type")): dict(one) for one in stored}
    generation = workload["metadata"].get("generation")
    for one in told:
        before = listed.get(one["type"], {})
        since = before.get("lastTransitionTime") if before.get("status") == one["status"] else None
        extra = {} if generation is None else {"observedGeneration": generation}
        listed[one["type"]] = {**one, "lastTransitionTime": since or format_time(now), **extra}
    return list(listed.values())

"""Kueue: a Workload of ``kueue.x-k8s.io`` that is admitted before there is any pod, as for a suspended job.

Kueue takes in any kind of job for which somebody makes a Workload (its documentation, "Custom Workloads"). Whoever does
so is to it what its own job controllers are: stops the job when the Workload is evicted, then gives the quota back, and
says when all pods are ready. Grouping plain pods instead would have them all made, gated, while the job waits. Sources:
kubernetes-sigs/kueue, ``apis/kueue/v1beta2`` and ``pkg/controller/jobframework``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tf_dist.core.actions import Update
from tf_dist.core.gang.model import Admit, Preempt, Verdict, Wait
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.core.model import Document, Job
from tf_dist.core.schedulers import gangs, kueue_pods, kueue_priority, kueue_reports
from tf_dist.core.schedulers.kueue_pods import FLAVOR
from tf_dist.core.schedulers.kueue_priority import PRIORITY
from tf_dist.core.schedulers.model import DEACTIVATED, QUEUE_REFUSED, Body, Scheduler
from tf_dist.core.schedulers.served import Api, Served
from tf_dist.core.situation import Situation
from tf_dist.core.untyped import mapping, mappings

WORKLOAD: Final = Api(group="kueue.x-k8s.io", kind="Workload", plural="workloads", versions=("v1beta2", "v1beta1"))

# The queue of whoever names none, as Kueue's own defaulting has it.
_QUEUE: Final = "default"
_JOB_UID: Final = "kueue.x-k8s.io/job-uid"

# What Kueue calls a wait -> what it is called here. Others are waits for room.
_REASONS: Final = {
    "NoMatchingFlavor": "NeverFits",
    "ExceedsMaxQuota": "NeverFits",
    "Misconfigured": QUEUE_REFUSED,
    "Inadmissible": QUEUE_REFUSED,
    "Suspended": QUEUE_REFUSED,
}


def _queue(job: Job) -> str:
    return job.scheduling.queue or _QUEUE


def _wanted(s: Situation, served: Served) -> Iterator[Body]:
    if _lacks_class(s, served):
        return
    spec: Body = {"queueName": _queue(s.job), "podSets": kueue_pods.pod_sets(s.job)}
    spec |= kueue_priority.priority(s.job, served, served.versions[WORKLOAD.key])
    workload = gangs.body(s.job, served, WORKLOAD, gangs.object_name(s.job), spec)
    workload["metadata"]["labels"][_JOB_UID] = s.job.uid
    yield workload


def _lacks_class(s: Situation, served: Served) -> str:
    """The priority class without which it does not queue up, "" for none; a Workload that is there keeps its own."""
    there = gangs.found(s, WORKLOAD, gangs.object_name(s.job))
    return kueue_priority.missing_class(s.job, served) if there is None and s.status.admission is None else ""


def _updates(s: Situation, served: Served, there: Document, wanted: Body) -> Iterator[Update]:
    """While it waits it follows the job; what has been admitted stays as it is. Then there is something to report."""
    if not gangs.holds(there, "QuotaReserved"):
        spec = mapping(there.get("spec"))
        new = {"queueName": wanted["spec"]["queueName"]}
        # Only sizes are compared: the server completes pod templates, and leaves out minimums it has no feature for.
        if kueue_pods.counts(spec) != kueue_pods.counts(wanted["spec"]):
            new["podSets"] = wanted["spec"]["podSets"]
        if "podSets" in new or spec.get("queueName") != new["queueName"]:
            yield Update(WORKLOAD.key, there["metadata"]["name"], {"spec": new})
    yield from kueue_reports.reports(WORKLOAD.key, there, s)


def _verdict(s: Situation, served: Served) -> Verdict | None:
    there = gangs.found(s, WORKLOAD, gangs.object_name(s.job))
    if s.status.admission is not None:
        return _taken_back(there)
    queue = f"Kueue's queue {_queue(s.job)}"
    if name := _lacks_class(s, served):
        text = f"its {PRIORITY.kind} {name} is not there, or tf-dist may not see it"
        return Wait(reason=QUEUE_REFUSED, message=f"waits to get into {queue}: {text}")
    if there is None or (gangs.holds(there, "Evicted") and gangs.holds(there, "QuotaReserved")):
        return None  # nothing to wait for yet: its pods have to stop first
    if gangs.holds(there, "Admitted"):
        lacking = kueue_pods.missing_flavors(there, served)
        if not lacking:
            return Admit(sizes=kueue_pods.admitted_sizes(there))
        text = f"it is admitted, but its resource flavor {', '.join(lacking)} is not there"
        return Wait(reason=QUEUE_REFUSED, message=f"waits in {queue}: {text}")
    return _wait(there, queue)


def _taken_back(there: Document | None) -> Preempt | None:
    if there is None:
        return Preempt(by=None, message="its Workload in Kueue was deleted")
    if gangs.holds(there, "Evicted"):
        return Preempt(by=None, message=f"Kueue evicted it: {_message(gangs.condition(there, 'Evicted'))}")
    if not gangs.holds(there, "Admitted"):
        return Preempt(by=None, message="Kueue took its admission back")
    return None


def _wait(there: Document, queue: str) -> Wait:
    spec, status = mapping(there.get("spec")), mapping(there.get("status"))
    if spec.get("active") is False:
        text = "its Workload is deactivated (spec.active is false)"
        return Wait(reason=DEACTIVATED, message=f"waits in {queue}: {text}")
    reserved = gangs.condition(there, "QuotaReserved")
    if gangs.holds(there, "QuotaReserved"):
        checks = [one for one in mappings(status.get("admissionChecks")) if one.get("state") != "Ready"]
        text = "its quota is reserved; " + ("; ".join(map(_check, checks)) or "it is about to be admitted")
        return Wait(reason="WaitingInQueue", message=f"waits in {queue}: {text}")
    text = _message(reserved) or "Kueue has not looked at its Workload yet (is it running?)"
    if at := mapping(status.get("requeueState")).get("requeueAt"):
        text += f"; it is queued again at {at}"
    reason = _REASONS.get(str(reserved.get("reason")), "WaitingInQueue")
    return Wait(reason=reason, message=f"waits in {queue}: {text}", never=reason == "NeverFits")


def _check(check: Document) -> str:
    message = f" ({check['message']})" if check.get("message") else ""
    return f"waits for admission check {check.get('name')}{message}"


def _message(condition: Any) -> str:
    return str(condition.get("message") or condition.get("reason") or "")


def _takes_pods(s: Situation, served: Served) -> bool:
    there = gangs.found(s, WORKLOAD, gangs.object_name(s.job))
    if s.status.admission is None or there is None or _taken_back(there) is not None:
        return False
    return not kueue_pods.missing_flavors(there, served)


KUEUE: Final = Scheduler(
    name=GangScheduler.KUEUE,
    # Kueue before 0.5 has no priority classes of its own, and roles of old no right to see them.
    apis=((WORKLOAD, FLAVOR, PRIORITY), (WORKLOAD, FLAVOR)),
    pods_first=False,
    wanted=_wanted,
    updates=_updates,
    verdict=_verdict,
    takes_pods=_takes_pods,
    decorate=lambda s, served, replica, pod: kueue_pods.decorate(
        gangs.found(s, WORKLOAD, gangs.object_name(s.job)) or {}, served, replica, pod
    ),
)

"""Kubernetes' own gang scheduling (KEP-4671): its objects have been others in every release so far.

From 1.36 on a PodGroup of ``scheduling.k8s.io`` says how many pods belong together, and a pod names it in
``spec.schedulingGroup``; in 1.35 a Workload did, and ``spec.workloadRef`` named that. Which of them a cluster serves
decides. A PodGroup's conditions never go back, so every run of a job has one of its own. Sources: kubernetes/api,
``scheduling/v1beta1`` and ``v1alpha1``; kubernetes/enhancements, KEP-4671 and KEP-5710 (preemption).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tf_dist.core.actions import Update
from tf_dist.core.gang.model import Preempt, Verdict
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.core.model import Document, ReplicaId
from tf_dist.core.schedulers import gangs, pods
from tf_dist.core.schedulers.model import Body, Scheduler
from tf_dist.core.schedulers.served import Api, Served
from tf_dist.core.situation import Situation

_GROUP: Final = "scheduling.k8s.io"
POD_GROUP: Final = Api(
    group=_GROUP, kind="PodGroup", plural="podgroups", versions=("v1beta1", "v1", "v1alpha3", "v1alpha2")
)
WORKLOAD: Final = Api(group=_GROUP, kind="Workload", plural="workloads", versions=("v1alpha1",))

# From v1beta1 on a group has a priority of its own, its size may change, and it may be preempted as a whole only.
_MATURE: Final = frozenset({"v1beta1", "v1"})
_POD_GROUP_NAME: Final = "gang"
# What the condition was called first, and what it is called since.
_SCHEDULED: Final = ("PodGroupInitiallyScheduled", "PodGroupScheduled")


def _api(served: Served) -> Api:
    return POD_GROUP if POD_GROUP.key in served.versions else WORKLOAD


def _name(s: Situation) -> str:
    return gangs.object_name(s.job, s.status.attempts.job)


def _policy(s: Situation) -> Body:
    return {"gang": {"minCount": gangs.min_member(s.job)}}


def _wanted(s: Situation, served: Served) -> Iterator[Body]:
    api = _api(served)
    spec: Body
    if api is WORKLOAD:
        group = s.job.dialect.value.partition("/")[0]
        owner = {"apiGroup": group, "kind": s.job.dialect.kind, "name": s.job.key.name}
        spec = {"controllerRef": owner, "podGroups": [{"name": _POD_GROUP_NAME, "policy": _policy(s)}]}
    else:
        spec = {"schedulingPolicy": _policy(s)}
        if served.versions[api.key] in _MATURE:
            spec["disruptionMode"] = {"all": {}}
            class_ = gangs.priority_class(s.job)
            spec |= {"priorityClassName": class_} if class_ else {}
    yield gangs.body(s.job, served, api, _name(s), spec)


def _updates(s: Situation, served: Served, there: Document, wanted: Body) -> Iterator[Update]:
    """Of a group that is there only the size may change, and that only where the API has come of age."""
    if _api(served) is WORKLOAD or served.versions[POD_GROUP.key] not in _MATURE:
        return
    size = {"spec": {"schedulingPolicy": wanted["spec"]["schedulingPolicy"]}}
    yield from gangs.brought_up(POD_GROUP, there, size)


def _verdict(s: Situation, served: Served) -> Verdict | None:
    there = gangs.found(s, _api(served), _name(s))
    if s.status.admission is not None:
        return _preempted(there) or pods.resized(s)
    return None if there is None else pods.placed(s) or pods.waiting(s, "the cluster's scheduling queue", _said(there))


def _preempted(there: Document | None) -> Preempt | None:
    """Whether the scheduler is about to take the gang's nodes for another one: its pods go, all of them."""
    target: Any = {} if there is None else gangs.condition(there, "DisruptionTarget")
    if target.get("status") != "True":
        return None
    return Preempt(by=None, message=str(target.get("message") or target.get("reason") or ""))


def _said(there: Document) -> str:
    for type_ in _SCHEDULED:
        scheduled = gangs.condition(there, type_)
        if scheduled.get("status") == "False":
            return str(scheduled.get("message") or "")
    return ""


def _decorate(s: Situation, served: Served, replica: ReplicaId, pod: Body) -> None:
    if _api(served) is WORKLOAD:
        pod["spec"]["workloadRef"] = {"name": _name(s), "podGroup": _POD_GROUP_NAME}
    else:
        pod["spec"]["schedulingGroup"] = {"podGroupName": _name(s)}


NATIVE: Final = Scheduler(
    name=GangScheduler.WORKLOAD,
    apis=((POD_GROUP,), (WORKLOAD,)),
    pods_first=True,
    wanted=_wanted,
    updates=_updates,
    verdict=_verdict,
    takes_pods=lambda s, served: gangs.found(s, _api(served), _name(s)) is not None,
    decorate=_decorate,
)

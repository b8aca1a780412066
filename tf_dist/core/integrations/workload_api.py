"""Kubernetes' own gang scheduling (KEP-4671), with the objects of each release.

From Kubernetes 1.36 on, a PodGroup of ``scheduling.k8s.io`` has the number of pods, and a pod names it in
``spec.schedulingGroup``. In 1.35, the object is a Workload, which a pod names in ``spec.workloadRef``. The integration
uses the kind that the cluster serves. A PodGroup's conditions are never reset, so every run of a job has its own
PodGroup. Sources: kubernetes/api, ``scheduling/v1beta1`` and ``v1alpha1``; kubernetes/enhancements, KEP-4671 and
KEP-5710 (preemption).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tf_dist.core.integrations import interface
from tf_dist.core.integrations.interface import Body
from tf_dist.core.model.assignment import Preempt, Verdict
from tf_dist.core.model.context import ApiResource, Integration, ReconcileContext, ServedApis, Update
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Document, ReplicaId, priority_class

_GROUP: Final = "scheduling.k8s.io"
POD_GROUP: Final = ApiResource(
    group=_GROUP, kind="PodGroup", plural="podgroups", versions=("v1beta1", "v1", "v1alpha3", "v1alpha2")
)
WORKLOAD: Final = ApiResource(group=_GROUP, kind="Workload", plural="workloads", versions=("v1alpha1",))

# From v1beta1 on, a group has a priority, its size may change, and the scheduler can preempt it only as a whole.
_MATURE: Final = frozenset({"v1beta1", "v1"})
_POD_GROUP_NAME: Final = "gang"
# The first name of the condition, and its later name.
_SCHEDULED: Final = ("PodGroupInitiallyScheduled", "PodGroupScheduled")


def _api(served: ServedApis) -> ApiResource:
    return POD_GROUP if POD_GROUP.key in served.versions else WORKLOAD


def _name(s: ReconcileContext) -> str:
    return interface.object_name(s.job, s.status.attempts.job)


def _policy(s: ReconcileContext) -> Body:
    return {"gang": {"minCount": interface.min_member(s.job)}}


def _wanted(s: ReconcileContext, served: ServedApis) -> Iterator[Body]:
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
            class_ = priority_class(s.job)
            spec |= {"priorityClassName": class_} if class_ else {}
    yield interface.integration_object(s.job, served, api, _name(s), spec)


def _updates(s: ReconcileContext, served: ServedApis, there: Document, wanted: Body) -> Iterator[Update]:
    """Updates of a group. Only its size may change, and only from v1beta1 on."""
    if _api(served) is WORKLOAD or served.versions[POD_GROUP.key] not in _MATURE:
        return
    size = {"schedulingPolicy": wanted["spec"]["schedulingPolicy"]}
    yield from interface.spec_updates(s, served, there, {**wanted, "spec": size})


def _verdict(s: ReconcileContext, served: ServedApis) -> Verdict | None:
    there = interface.find_object(s, _api(served), _name(s))
    if s.status.admission is not None:
        return _preempted(there) or interface.resize_verdict(s)
    if there is None:
        return None
    return interface.bound_verdict(s) or interface.wait_verdict(s, "the cluster's scheduling queue", _said(there))


def _preempted(there: Document | None) -> Preempt | None:
    """The preemption of the gang by the scheduler, after which all its pods are deleted; None: it is not preempted."""
    target: Any = {} if there is None else interface.find_condition(there, "DisruptionTarget")
    if target.get("status") != "True":
        return None
    return Preempt(by=None, message=str(target.get("message") or target.get("reason") or ""))


def _said(there: Document) -> str:
    for type_ in _SCHEDULED:
        scheduled = interface.find_condition(there, type_)
        if scheduled.get("status") == "False":
            return str(scheduled.get("message") or "")
    return ""


def _decorate(s: ReconcileContext, served: ServedApis, replica: ReplicaId, pod: Body) -> None:
    if _api(served) is WORKLOAD:
        pod["spec"]["workloadRef"] = {"name": _name(s), "podGroup": _POD_GROUP_NAME}
    else:
        pod["spec"]["schedulingGroup"] = {"podGroupName": _name(s)}


WORKLOAD_API: Final = Integration(
    name=GangScheduler.WORKLOAD,
    apis=((POD_GROUP,), (WORKLOAD,)),
    pods_first=True,
    wanted=_wanted,
    updates=_updates,
    verdict=_verdict,
    takes_pods=lambda s, served: interface.find_object(s, _api(served), _name(s)) is not None,
    decorate=_decorate,
)

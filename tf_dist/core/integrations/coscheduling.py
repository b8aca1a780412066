"""Coscheduling: a PodGroup of ``scheduling.x-k8s.io``, and pods that a kube-scheduler with that plugin binds together.

The plugin has no admission before pods exist. It counts pods by their label, so the pods are created after the PodGroup
and wait without nodes. Sources: kubernetes-sigs/scheduler-plugins, ``apis/scheduling/v1alpha1`` for the types, and
``pkg/coscheduling`` for the plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tf_dist.core.integrations import interface
from tf_dist.core.integrations.interface import Body
from tf_dist.core.model.assignment import Verdict
from tf_dist.core.model.context import ApiResource, Integration, ReconcileContext, ServedApis
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import ReplicaId

POD_GROUP: Final = ApiResource(group="scheduling.x-k8s.io", kind="PodGroup", plural="podgroups", versions=("v1alpha1",))

_LABEL: Final = "scheduling.x-k8s.io/pod-group"


def _wanted(s: ReconcileContext, served: ServedApis) -> Iterator[Body]:
    spec: Body = {
        "minMember": interface.min_member(s.job, served.priorities),
        "minResources": interface.min_resources(s.job, served.priorities),
    }
    if s.job.scheduling.timeout:
        spec["scheduleTimeoutSeconds"] = int(s.job.scheduling.timeout)
    yield interface.integration_object(s.job, served, POD_GROUP, interface.object_name(s.job), spec)


def _there(s: ReconcileContext) -> bool:
    return interface.find_object(s, POD_GROUP, interface.object_name(s.job)) is not None


def _verdict(s: ReconcileContext, served: ServedApis) -> Verdict | None:
    if s.status.admission is not None:
        return interface.resize_verdict(s)
    if not _there(s):
        return None
    return interface.bound_verdict(s) or interface.wait_verdict(s, "the queue of coscheduling", "")


def _decorate(s: ReconcileContext, served: ServedApis, replica: ReplicaId, pod: Body) -> None:
    pod["metadata"]["labels"][_LABEL] = interface.object_name(s.job)


COSCHEDULING: Final = Integration(
    name=GangScheduler.COSCHEDULING,
    apis=((POD_GROUP,),),
    pods_first=True,
    wanted=_wanted,
    updates=interface.spec_updates,
    verdict=_verdict,
    takes_pods=lambda s, _: _there(s),
    decorate=_decorate,
    # The name in the project's own chart. A scheduler that a pod template names has precedence.
    scheduler_name="scheduler-plugins-scheduler",
)

"""Coscheduling: a PodGroup of ``scheduling.x-k8s.io``, and pods that a kube-scheduler with that plugin binds together.

The plugin looks at pods only, and counts them by their label; nothing lets a gang in before. So its pods are created as
soon as its PodGroup is there, and wait without nodes. Types: kubernetes-sigs/scheduler-plugins,
``apis/scheduling/v1alpha1``; what the plugin does with them: ``pkg/coscheduling``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tf_dist.core.actions import Update
from tf_dist.core.gang.model import Verdict
from tf_dist.core.gang_scheduler import GangScheduler
from tf_dist.core.model import Document, ReplicaId
from tf_dist.core.schedulers import gangs, pods
from tf_dist.core.schedulers.model import Body, Scheduler
from tf_dist.core.schedulers.served import Api, Served
from tf_dist.core.situation import Situation

POD_GROUP: Final = Api(group="scheduling.x-k8s.io", kind="PodGroup", plural="podgroups", versions=("v1alpha1",))

_LABEL: Final = "scheduling.x-k8s.io/pod-group"
# What the project's own chart calls it; a job that names another one in its pod templates has that.
_SCHEDULER: Final = "scheduler-plugins-scheduler"


def _wanted(s: Situation, served: Served) -> Iterator[Body]:
    spec: Body = {"minMember": gangs.min_member(s.job), "minResources": gangs.min_resources(s.job)}
    if s.job.scheduling.timeout:
        spec["scheduleTimeoutSeconds"] = int(s.job.scheduling.timeout)
    yield gangs.body(s.job, served, POD_GROUP, gangs.object_name(s.job), spec)


def _updates(s: Situation, served: Served, there: Document, wanted: Body) -> Iterator[Update]:
    yield from gangs.brought_up(POD_GROUP, there, wanted)


def _there(s: Situation) -> bool:
    return gangs.found(s, POD_GROUP, gangs.object_name(s.job)) is not None


def _verdict(s: Situation, served: Served) -> Verdict | None:
    if s.status.admission is not None:
        return pods.resized(s)
    return None if not _there(s) else pods.placed(s) or pods.waiting(s, "the queue of coscheduling", "")


def _decorate(s: Situation, served: Served, replica: ReplicaId, pod: Body) -> None:
    pod["metadata"]["labels"][_LABEL] = gangs.object_name(s.job)
    pod["spec"].setdefault("schedulerName", _SCHEDULER)


COSCHEDULING: Final = Scheduler(
    name=GangScheduler.COSCHEDULING,
    apis=((POD_GROUP,),),
    pods_first=True,
    wanted=_wanted,
    updates=_updates,
    verdict=_verdict,
    takes_pods=lambda s, _: _there(s),
    decorate=_decorate,
)

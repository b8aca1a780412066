"""Volcano: a PodGroup of ``scheduling.volcano.sh``, and pods that its scheduler binds together.

Volcano admits a gang by its PodGroup (phase Inqueue), and expects its pods only then, so that a full cluster is not
flooded with pending pods. Volcano's own job controller also waits for the phase. Sources: volcano-sh/apis,
``pkg/apis/scheduling/v1beta1`` for types and phases; volcano-sh/volcano, ``pkg/scheduler/api/job_info.go`` for how a
pod names its group and its task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tf_dist.core.integrations import interface
from tf_dist.core.integrations.interface import Body
from tf_dist.core.model.assignment import Verdict, Wait
from tf_dist.core.model.context import ApiResource, Integration, ReconcileContext, ServedApis
from tf_dist.core.model.fieldpath import mapping, text
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Dialect, Document, Job, ReplicaId, ReplicaSpec, priority_class
from tf_dist.core.model.reasons import Reason

POD_GROUP: Final = ApiResource(
    group="scheduling.volcano.sh", kind="PodGroup", plural="podgroups", versions=("v1beta1",)
)

_GROUP_NAME: Final = "scheduling.k8s.io/group-name"
_TASK: Final = "volcano.sh/task-spec"
# The annotations of a job that its PodGroup gets: those with this prefix, such as preemptable, and the waiting time.
_PREFIX: Final = "volcano.sh/"
_WAITING_TIME: Final = "sla-waiting-time"
_QUEUE: Final = "default"
# Phases in which the gang is not admitted.
_OUTSIDE: Final = frozenset({"", "Pending"})


def _task(job: Job, spec: ReplicaSpec) -> str:
    """Volcano's name of a replica type, which a Volcano Job's pods have in a label."""
    return spec.name if job.dialect is Dialect.VOLCANO else spec.type


def _task_minimums(job: Job, served: ServedApis) -> dict[str, int]:
    """The minimum of each task of the job (``getMinTaskMember``); for a TFJob, the minimums at its start.

    Volcano ignores them if the job's minimum is less than their sum (``CheckTaskReady``).
    """
    start = interface.min_counts(job, served.priorities)
    return {
        _task(job, spec): start[spec.type] if spec.min_available is None else spec.min_available
        for spec in job.replica_specs
        if spec.type in start
    }


def _queue(job: Job) -> str:
    return job.scheduling.queue or _QUEUE


def _wanted(s: ReconcileContext, served: ServedApis) -> Iterator[Body]:
    for_group = {
        key: value for key, value in s.job.annotations.items() if key.startswith(_PREFIX) or key == _WAITING_TIME
    }
    spec: Body = {
        "minMember": interface.min_member(s.job, served.priorities),
        "minTaskMember": _task_minimums(s.job, served),
        "minResources": interface.min_resources(s.job, served.priorities),
    }
    # For the default queue, omit the field: Volcano may have another default for the namespace.
    if _queue(s.job) != _QUEUE:
        spec["queue"] = _queue(s.job)
    if name := priority_class(s.job):
        spec["priorityClassName"] = name
    yield interface.integration_object(s.job, served, POD_GROUP, interface.object_name(s.job), spec, for_group)


def _group(s: ReconcileContext) -> Document | None:
    return interface.find_object(s, POD_GROUP, interface.object_name(s.job))


def _phase(group: Document) -> str:
    return text(mapping(group.get("status")).get("phase"))


def _verdict(s: ReconcileContext, served: ServedApis) -> Verdict | None:
    if s.status.admission is not None:
        return interface.resize_verdict(s)
    group = _group(s)
    if group is None:
        return None
    if (bound := interface.bound_verdict(s)) is not None:
        return bound
    queue = f"Volcano's queue {_queue(s.job)}"
    if not _phase(group):
        text = "Volcano has not processed its PodGroup yet (is its scheduler running?)"
        return Wait(reason=Reason.WAITING_IN_QUEUE, message=f"waits in {queue}: {text}")
    said = _said(group)
    if _phase(group) in _OUTSIDE and not s.facts.current:
        where = f"kubectl describe {POD_GROUP.plural}.{POD_GROUP.group} {interface.object_name(s.job)} tells more"
        text = said or f"Volcano has no capacity for its PodGroup yet ({where})"
        return Wait(reason=Reason.WAITING_IN_QUEUE, message=f"waits in {queue}: {text}")
    return interface.wait_verdict(s, queue, said)


def _said(group: Document) -> str:
    unschedulable = interface.find_condition(group, "Unschedulable")
    return str(unschedulable.get("message") or "") if unschedulable.get("status") == "True" else ""


def _takes_pods(s: ReconcileContext, served: ServedApis) -> bool:
    group = _group(s)
    return group is not None and _phase(group) not in _OUTSIDE


def _decorate(s: ReconcileContext, served: ServedApis, replica: ReplicaId, pod: Body) -> None:
    spec = s.job.spec(replica.type)
    annotations: dict[str, Any] = pod["metadata"].setdefault("annotations", {})
    annotations[_GROUP_NAME] = interface.object_name(s.job)
    if spec is not None:
        annotations[_TASK] = _task(s.job, spec)


VOLCANO: Final = Integration(
    name=GangScheduler.VOLCANO,
    apis=((POD_GROUP,),),
    pods_first=True,
    wanted=_wanted,
    updates=interface.spec_updates,
    verdict=_verdict,
    takes_pods=_takes_pods,
    decorate=_decorate,
    scheduler_name="volcano",
)

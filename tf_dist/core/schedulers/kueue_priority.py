"""The priority of a Kueue Workload: of Kueue's own WorkloadPriorityClass if the job names one, else of its pods' class.

A WorkloadPriorityClass orders the queue and says nothing to the scheduler of pods. Sources: kubernetes-sigs/kueue, its
documentation "Workload Priority Class"; ``pkg/controller/jobframework`` for which of the two comes first.
"""

from __future__ import annotations

from typing import Final

from tf_dist.core.model import Job
from tf_dist.core.schedulers import gangs
from tf_dist.core.schedulers.model import Body
from tf_dist.core.schedulers.served import Api, Served
from tf_dist.core.untyped import number

PRIORITY: Final = Api(
    group="kueue.x-k8s.io",
    kind="WorkloadPriorityClass",
    plural="workloadpriorityclasses",
    versions=("v1beta2", "v1beta1"),
    namespaced=False,
)

# The label with which a job of Kueue's own integrations names its class.
_LABEL: Final = "kueue.x-k8s.io/priority-class"


def missing_class(job: Job, served: Served) -> str:
    """The WorkloadPriorityClass that the job names and that nobody can see; "" if there is no such."""
    name = job.labels.get(_LABEL, "")
    seen = served.supposed or (PRIORITY.key, name) in served.shared
    return "" if seen else name


def priority(job: Job, served: Served, version: str) -> Body:
    """The fields of the Workload; of a class that is not there Kueue is told nothing.

    A class goes with its value, or Kueue refuses it.
    """
    name = job.labels.get(_LABEL, "")
    if name:
        there = served.shared.get((PRIORITY.key, name))
        value = None if there is None else number(there.get("value")) or 0
        return _fields(PRIORITY.group, PRIORITY.kind, name, value, version)
    name = gangs.priority_class(job)
    return _fields("scheduling.k8s.io", "PriorityClass", name, served.priorities.get(name), version)


def _fields(group: str, kind: str, name: str, value: int | None, version: str) -> Body:
    if value is None:
        return {}
    if version == "v1beta1":
        return {"priorityClassName": name, "priorityClassSource": f"{group}/{kind.lower()}", "priority": value}
    return {"priorityClassRef": {"group": group, "kind": kind, "name": name}, "priority": value}

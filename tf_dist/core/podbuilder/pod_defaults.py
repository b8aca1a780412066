"""What a pod has of the fields beside its containers where its template says nothing: the job's, or its peers'.

A template's own word stands in every format. What a job says of all its pods fills the others: ``schedulerName``
(volcano-sh/volcano ``pkg/controllers/job/job_controller_util.go``, and v1alpha1), and a Volcano Job's
``priorityClassName`` (the same). The ``priorityClass`` of a TFJob v1 is its PodGroup's and not its pods'
(kubeflow/training-operator ``pkg/controller.v1/common/job.go``).
"""

from __future__ import annotations

from typing import Any, Final

from tf_dist.core.model.fieldpath import list_items, mapping
from tf_dist.core.model.job import Dialect, Job, ReplicaSpec

Body = dict[str, Any]

# What a pod needs to be let in, to be placed and to get its image: a server that no template describes needs it, too.
_OF_PEERS: Final = (
    "schedulerName",
    "priorityClassName",
    "preemptionPolicy",
    "imagePullSecrets",
    "serviceAccountName",
    "runtimeClassName",
    "tolerations",
)


def fill_pod_defaults(job: Job, body: Body) -> None:
    """Fill what the pod's template says nothing about with what the job says of all pods."""
    priority = job.scheduling.priority_class if job.dialect is Dialect.VOLCANO else ""
    for field, value in (("schedulerName", job.scheduling.scheduler_name), ("priorityClassName", priority)):
        if value and not body.get(field):
            body[field] = value


def fill_from_peers(job: Job, spec: ReplicaSpec, body: Body) -> None:
    """Fill what a generated server's template says nothing about with what the job's other templates say."""
    peers = [other.pod_spec for other in _peers(job, spec)]
    for field in _OF_PEERS:
        found = next((peer[field] for peer in peers if peer.get(field)), None)
        if found and not body.get(field):
            body[field] = found


def pull_policy_of_peers(job: Job, spec: ReplicaSpec) -> str:
    """The pull policy of the containers that train; "" if none has one."""
    containers = (
        mapping(one)
        for other in _peers(job, spec)
        for one in list_items(other.pod_spec.get("containers"))
        if mapping(one).get("name") == other.container
    )
    return str(next((one["imagePullPolicy"] for one in containers if one.get("imagePullPolicy")), ""))


def _peers(job: Job, spec: ReplicaSpec) -> list[ReplicaSpec]:
    """The job's other specs that have a template of the user's: the one that leads first, then as written."""
    leading = {rule.type for rule in job.success}
    others = [other for other in job.replica_specs if other is not spec and not other.server_image]
    return sorted(others, key=lambda other: other.type not in leading)

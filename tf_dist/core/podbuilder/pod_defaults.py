"""Defaults of pod fields other than containers, from the job or from its other templates. A template's own value has
precedence in every format.

Settings of the job for all its pods fill missing values: ``schedulerName``
(volcano-sh/volcano ``pkg/controllers/job/job_controller_util.go``, and v1alpha1), and a Volcano Job's
``priorityClassName`` (the same). The ``priorityClass`` of a TFJob v1 belongs to its PodGroup, not to its pods
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
    """Fill missing fields of the pod's template with the job's settings for all pods."""
    priority = job.scheduling.priority_class if job.dialect is Dialect.VOLCANO else ""
    for field, value in (("schedulerName", job.scheduling.scheduler_name), ("priorityClassName", priority)):
        if value and not body.get(field):
            body[field] = value


def fill_from_peers(job: Job, spec: ReplicaSpec, body: Body) -> None:
    """Fill missing fields of a generated server's template from the job's other templates."""
    peers = [other.pod_spec for other in _peers(job, spec)]
    for field in _OF_PEERS:
        found = next((peer[field] for peer in peers if peer.get(field)), None)
        if found and not body.get(field):
            body[field] = found


def pull_policy_of_peers(job: Job, spec: ReplicaSpec) -> str:
    """The pull policy of the training containers; "" if none has one."""
    containers = (
        mapping(one)
        for other in _peers(job, spec)
        for one in list_items(other.pod_spec.get("containers"))
        if mapping(one).get("name") == other.container
    )
    return str(next((one["imagePullPolicy"] for one in containers if one.get("imagePullPolicy")), ""))


def _peers(job: Job, spec: ReplicaSpec) -> list[ReplicaSpec]:
    """The job's other specs with a user's template: the leading one first, then in written order."""
    leading = {rule.type for rule in job.success}
    others = [other for other in job.replica_specs if other is not spec and not other.server_image]
    return sorted(others, key=lambda other: other.type not in leading)

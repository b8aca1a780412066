"""Whose the definitions of a cluster are: tf-dist's, Volcano's or Kubeflow's."""

from __future__ import annotations

from typing import Final

from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.errors import Forbidden, NotFound, Rejected

PART_OF: Final = "app.kubernetes.io/part-of"
TF_DIST: Final = "tf-dist"
VOLCANO_JOBS: Final = "jobs.batch.volcano.sh"
_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


def definition(cluster: Cluster, name: str) -> Object | None:
    """The definition of that name; None where there is none."""
    try:
        return cluster.get(_DEFINITIONS, None, name)
    except NotFound:
        return None


def is_ours(definition: Object) -> bool:
    """Whether tf-dist may replace it: its label says so."""
    return (definition["metadata"].get("labels") or {}).get(PART_OF) == TF_DIST


def leave_to_volcano(cluster: Cluster, name: str) -> None:
    """Rejected when a Job would be driven here beside Volcano's controller. Who may not look is not stopped."""
    try:
        there = definition(cluster, VOLCANO_JOBS)
    except Forbidden:
        return
    if there is not None and not is_ours(there):
        raise Rejected(
            f"Job {name} is Volcano's to drive: the cluster has its definition {VOLCANO_JOBS}",
            hint="hand it over: tf-dist submit; or make it a TFJob: tf-dist convert FILE --to kubeflow.org/v1",
        )

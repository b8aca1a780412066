"""Kinds of other gang schedulers, with permissive schemas, and functions that act as those schedulers."""

from __future__ import annotations

from typing import Any

from tf_dist.cluster.api import Cluster, Object, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS

VOLCANO_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
COSCHEDULING_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
NATIVE_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups")
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", namespaced=False)
WORKLOAD_PRIORITIES = Resource(
    "kueue.x-k8s.io", "v1beta2", "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False
)

_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition(resource: Resource) -> Object:
    """A CustomResourceDefinition that accepts any content."""
    schema = {"type": "object", "properties": {"spec": _ANYTHING, "status": _ANYTHING, "value": {"type": "integer"}}}
    version: dict[str, Any] = {"name": resource.version, "served": True, "storage": True}
    version |= {"schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind}
    metadata: dict[str, Any] = {"name": f"{resource.plural}.{resource.group}"}
    if resource.group.endswith(".k8s.io"):
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": resource.group,
            "names": {**names, "listKind": f"{resource.kind}List"},
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
    }


def define(cluster: Cluster, *resources: Resource) -> None:
    """Install these kinds."""
    for resource in resources:
        cluster.create(CRDS, None, definition(resource))


def gang_object(cluster: Cluster, resource: Resource, namespace: str = "default") -> Object:
    """The only object of this kind."""
    [found] = cluster.list(resource, namespace).items
    return found


def tell(cluster: Cluster, resource: Resource, namespace: str = "default", **status: Any) -> None:
    """The scheduler writes these fields into the status of the only object of this kind."""
    found = gang_object(cluster, resource, namespace)
    body = {**found, "status": {**(found.get("status") or {}), **status}}
    cluster.replace(resource, namespace, found["metadata"]["name"], body, subresource="status")

"""The Services of a job, its disruption budget, and its other objects except pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import list_items
from tf_dist.core.model.job import Dialect, Job, ReplicaId, ReplicaSpec, ServiceStyle
from tf_dist.core.podbuilder import volcano_plugins
from tf_dist.core.podbuilder.replica_pod import PORT_NAME

if TYPE_CHECKING:
    from tf_dist.core.podbuilder.replica_pod import Body

BUDGET: Final = "PodDisruptionBudget"


ObjectKey = tuple[str, str]
"""Kind and name."""


def job_objects(job: Job) -> dict[ObjectKey, Callable[[], Body]]:
    """The functions that build each object of the job except pods, in the order of creation.

    For existing objects, only the key is needed.
    """
    plugins = volcano_plugins.plugin_objects(job) if job.dialect is Dialect.VOLCANO else {}
    return {**plugins, **_services(job)}


def build_objects(job: Job) -> list[Body]:
    """All objects of the job except pods, in the order of creation."""
    return [make() for make in job_objects(job).values()]


def _services(job: Job) -> dict[ObjectKey, Callable[[], Body]]:
    match job.services:
        case ServiceStyle.NONE:
            return {}
        case ServiceStyle.PER_JOB:
            return {("Service", job.key.name): partial(_job_service, job)}
        case ServiceStyle.PER_REPLICA:
            return {
                ("Service", names.replica_name(job, replica)): partial(_replica_service, job, spec, replica)
                for spec in job.replica_specs
                for replica in spec.ids
            }


# Jobs with more replicas get headless services: cluster addresses are scarce (GKE has 4,096 of them by default).
MOST_ADDRESSES: Final = 100


def are_headless(job: Job) -> bool:
    """Whether the Services of replicas are headless.

    The name of a Service with a cluster address resolves as soon as the Service exists, before its pod has an address.
    The name of a headless Service does not resolve until then. If a peer resolves the name too early, a DNS cache
    repeats the negative answer for up to 30 seconds.
    """
    asked = job.annotations.get(names.SERVICES) == "headless"
    return asked or sum(spec.most for spec in job.replica_specs) > MOST_ADDRESSES


def has_headless_names(job: Job) -> bool:
    """Whether replicas use names that do not exist before their pods have addresses."""
    per_replica = job.services is ServiceStyle.PER_REPLICA
    return len(job.replicas) > 1 and (are_headless(job) if per_replica else job.services is ServiceStyle.PER_JOB)


def _replica_service(job: Job, spec: ReplicaSpec, replica: ReplicaId) -> Body:
    labels = names.replica_labels(job, spec, replica.index)
    selector = {key: labels[key] for key in (names.JOB_UID, names.REPLICA_TYPE, names.REPLICA_INDEX)}
    headless = are_headless(job)
    ports = _ports(job, spec) if headless else _all_ports(job, spec)
    return _service(job, names.replica_name(job, replica), labels, selector, ports, headless=headless)


def _job_service(job: Job) -> Body:
    selector = {names.JOB_UID: job.uid}
    ports = [] if job.dialect is Dialect.VOLCANO else _ports(job, job.replica_specs[0])
    publish = job.dialect is not Dialect.VOLCANO or job.plugins.publish_not_ready
    return _service(job, job.key.name, names.job_labels(job), selector, ports, publish=publish)


def _service(
    job: Job,
    name: str,
    labels: Mapping[str, str],
    selector: Mapping[str, str],
    ports: list[Body],
    *,
    publish: bool = True,
    headless: bool = True,
) -> Body:
    # TensorFlow servers connect to each other before any of them is ready, so their names must resolve before that.
    spec: Body = {"selector": dict(selector), "publishNotReadyAddresses": publish}
    if headless:
        spec["clusterIP"] = "None"
    if ports:
        spec["ports"] = ports
    return {"apiVersion": "v1", "kind": "Service", "metadata": names.object_metadata(job, name, labels), "spec": spec}


def _all_ports(job: Job, spec: ReplicaSpec) -> list[Body]:
    """The ports of the Service, including the ports that other containers of the pod declare.

    Unlike the address of a pod, a cluster address forwards only the Service's ports.
    """
    ports = _ports(job, spec)
    taken = {(port["port"], port.get("protocol", "TCP")) for port in ports}
    for container in (*list_items(spec.pod_spec.get("containers")), *list_items(spec.pod_spec.get("initContainers"))):
        for port in list_items(container.get("ports")):
            number, protocol = port["containerPort"], port.get("protocol") or "TCP"
            if (number, protocol) not in taken:
                taken.add((number, protocol))
                ports.append({"name": f"{protocol.lower()}-{number}", "port": number, "protocol": protocol})
    return ports


def _ports(job: Job, spec: ReplicaSpec) -> list[Body]:
    """The published ports. v1 publishes every port of the training container, other formats only TensorFlow's port."""
    own = {"name": PORT_NAME[job.dialect], "port": spec.port, "targetPort": spec.port}
    if job.dialect is not Dialect.TFJOB_V1:
        return [own]
    containers = spec.pod_spec.get("containers") or ()
    declared = next((c.get("ports") or () for c in containers if c.get("name") == spec.container), ())
    others = [
        {
            "name": p.get("name") or f"port-{p['containerPort']}",
            "port": p["containerPort"],
            **({"protocol": p["protocol"]} if p.get("protocol") else {}),
        }
        for p in declared
        if p.get("name") != own["name"]
    ]
    return [own, *others]


def budget_names(job: Job) -> tuple[str, ...]:
    """The name of the job's PodDisruptionBudget, if it has a budget. A single pod is not a gang and has none."""
    return (f"tf-job-pdb-{job.key.name}",) if job.disruption_budget and len(job.replicas) > 1 else ()


def build_budgets(job: Job) -> list[Body]:
    """The job's disruption budget, if it has a budget. As in tf-operator, the budget forbids evictions of its pods."""
    spec = {"minAvailable": len(job.replicas), "selector": {"matchLabels": {names.JOB_UID: job.uid}}}
    return [
        {
            "apiVersion": "policy/v1",
            "kind": BUDGET,
            "metadata": names.object_metadata(job, name, names.job_labels(job)),
            "spec": spec,
        }
        for name in budget_names(job)
    ]

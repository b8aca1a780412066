"""The objects that a job consists of in a cluster: what ``tf-dist plan`` prints and what a driver creates.

Bodies are new dicts; the templates they are made from are never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from tf_dist.core import affinity, names, ps_server, volcano_plugins
from tf_dist.core.model import Dialect, Job, ReplicaId, ReplicaSpec, ServiceStyle, TFConfigStyle
from tf_dist.core.tf_config import Addresses, tf_config

Body = dict[str, Any]

PORT_NAME: Final[Mapping[Dialect, str]] = {
    Dialect.TFJOB_V1: "tfjob-port",
    Dialect.TFJOB_V1ALPHA1: "tf-port",
    Dialect.VOLCANO: "tfjob-port",
}

# These steer tf-dist itself; the others of its annotations (as the working directory) are meant for the pods.
_NOT_FOR_PODS: Final = frozenset(
    {
        names.SUSPEND,
        names.RESUME_ATTEMPT,
        names.MIN_WORKERS,
        names.MAX_WORKERS,
        names.TOPOLOGY,
        names.TOPOLOGY_REQUIRED,
        names.EXPECTED_DURATION,
        names.MAX_DISRUPTIONS,
        names.RECOVERY_TIMEOUT,
        names.GANG_SCHEDULER,
        "tf-dist.dev/services",
    }
)


def owner_reference(job: Job) -> Body:
    """The reference by which everything a job made is deleted with it."""
    return {
        "apiVersion": job.dialect.value,
        "kind": job.dialect.kind,
        "name": job.key.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _metadata(job: Job, name: str, labels: Mapping[str, str]) -> Body:
    return {
        "name": name,
        "namespace": job.key.namespace,
        "labels": dict(labels),
        "ownerReferences": [owner_reference(job)],
    }


def pod(job: Job, replica: ReplicaId, attempt: str, addresses: Addresses | None = None, node: str = "") -> Body:
    """The pod of a replica for an attempt (``Attempts.label``); KeyError for a type the job does not have.

    ``node``: the one that admission has found for it ("": any). The cluster's scheduler still does the binding.
    """
    spec = job.spec(replica.type)
    if spec is None:
        raise KeyError(replica.type)
    template = spec.template.get("metadata") or {}
    own = {**names.replica_labels(job, spec, replica.index), names.ATTEMPT: attempt}
    metadata = _metadata(job, names.pod_name(job, replica, attempt), {**(template.get("labels") or {}), **own})
    annotations = {**(template.get("annotations") or {}), **_annotations(job)}
    if annotations:
        metadata["annotations"] = annotations
    body = _pod_spec(job, spec, replica, addresses or {})
    if node:
        affinity.pin(body, node)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def _annotations(job: Job) -> dict[str, str]:
    ours = ((k, v) for k, v in job.annotations.items() if k.startswith(names.ANNOTATION_PREFIX))
    return {key: value for key, value in ours if key not in _NOT_FOR_PODS}


def _pod_spec(job: Job, spec: ReplicaSpec, replica: ReplicaId, addresses: Addresses) -> Body:
    body: Body = copy.deepcopy(dict(spec.template.get("spec") or {}))
    body["restartPolicy"] = spec.pod_restart_policy
    if job.scheduling.scheduler_name:
        body.setdefault("schedulerName", job.scheduling.scheduler_name)
    if spec.server_image:
        server = ps_server.container(job, spec, replica.index, addresses)
        body["containers"] = [*(body.get("containers") or []), server]
    if job.services is ServiceStyle.PER_JOB:
        body.setdefault("hostname", names.replica_name(job, replica))
        body.setdefault("subdomain", job.key.name)
    if job.dialect is Dialect.TFJOB_V1:
        _add_port(job, spec, body)
    _add_tf_config(job, spec, body, tf_config(job, replica, addresses))
    if job.dialect is Dialect.VOLCANO:
        volcano_plugins.apply(job, replica, body)
    return body


def _add_port(job: Job, spec: ReplicaSpec, body: Body) -> None:
    """The v1 defaulter gives the training container its port; services and users' probes rely on the name."""
    for container in body.get("containers") or []:
        ports = container.get("ports") or []
        if container["name"] == spec.container and not any(p.get("name") == PORT_NAME[job.dialect] for p in ports):
            container["ports"] = [*ports, {"name": PORT_NAME[job.dialect], "containerPort": spec.port}]


def _add_tf_config(job: Job, spec: ReplicaSpec, body: Body, value: str | None) -> None:
    if value is None:
        return
    everywhere = job.tf_config is TFConfigStyle.VOLCANO
    for container in body.get("containers") or []:
        if everywhere or container["name"] == spec.container:
            container["env"] = [*(container.get("env") or []), {"name": "TF_CONFIG", "value": value}]


def services(job: Job) -> dict[str, Body]:
    """The headless services of a job, by name."""
    match job.services:
        case ServiceStyle.NONE:
            return {}
        case ServiceStyle.PER_JOB:
            return {job.key.name: _job_service(job)}
        case ServiceStyle.PER_REPLICA:
            replicas = ((spec, index) for spec in job.replica_specs for index in range(spec.replicas))
            bodies = (_replica_service(job, spec, index) for spec, index in replicas)
            return {body["metadata"]["name"]: body for body in bodies}


def service_names(job: Job) -> tuple[str, ...]:
    """The names of ``services``, without the cost of making them."""
    match job.services:
        case ServiceStyle.NONE:
            return ()
        case ServiceStyle.PER_JOB:
            return (job.key.name,)
        case ServiceStyle.PER_REPLICA:
            return tuple(names.replica_name(job, replica) for replica in job.replicas)


def _replica_service(job: Job, spec: ReplicaSpec, index: int) -> Body:
    labels = names.replica_labels(job, spec, index)
    selector = {key: labels[key] for key in (names.JOB_UID, names.REPLICA_TYPE, names.REPLICA_INDEX)}
    name = names.replica_name(job, ReplicaId(spec.type, index))
    return _service(job, name, labels, selector, _ports(job, spec))


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
) -> Body:
    # TensorFlow servers look for each other before any of them is ready, so their names must be there by then.
    spec: Body = {"clusterIP": "None", "selector": dict(selector), "publishNotReadyAddresses": publish}
    if ports:
        spec["ports"] = ports
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job, name, labels), "spec": spec}


def _ports(job: Job, spec: ReplicaSpec) -> list[Body]:
    """v1 publishes every port of the training container; the others only TensorFlow's."""
    own = {"name": PORT_NAME[job.dialect], "port": spec.port, "targetPort": spec.port}
    if job.dialect is not Dialect.TFJOB_V1:
        return [own]
    containers = (spec.template.get("spec") or {}).get("containers") or ()
    declared = next((c.get("ports") or () for c in containers if c.get("name") == spec.container), ())
    others = [
        {"name": p.get("name") or f"port-{p['containerPort']}", "port": p["containerPort"]}
        for p in declared
        if p.get("name") != own["name"]
    ]
    return [own, *others]


def objects(job: Job) -> list[Body]:
    """Everything but pods, in the order of creation."""
    extra = volcano_plugins.objects(job, _metadata) if job.dialect is Dialect.VOLCANO else []
    return [*extra, *services(job).values()]


def object_names(job: Job) -> tuple[tuple[str, str], ...]:
    """(kind, name) of ``objects``, cheaply: looked at in every pass."""
    extra = volcano_plugins.object_names(job) if job.dialect is Dialect.VOLCANO else ()
    return (*extra, *(("Service", name) for name in service_names(job)))

"""The pods of a job. Bodies are new dicts; templates are never changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import list_items
from tf_dist.core.model.job import Dialect, Job, ReplicaId, ReplicaSpec, ServiceStyle, TFConfigStyle
from tf_dist.core.model.pods import REQUIRED_AFFINITY
from tf_dist.core.podbuilder import ps_server, volcano_plugins
from tf_dist.core.podbuilder.tf_config import ClusterHosts, build_tf_config, cluster_hosts

Body = dict[str, Any]


def require_node(spec: Body, node: str) -> None:
    """Require ``node`` by the pod's node affinity, in addition to its own requirements.

    The terms of a node selector are alternatives, so the rule is added to each term. A term without rules matches no
    node, and stays unchanged.
    """
    if spec.get("nodeName"):
        return
    rule = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = dict(spec.get("affinity") or {})
    nodes = dict(affinity.get("nodeAffinity") or {})
    required = nodes.get(REQUIRED_AFFINITY)
    terms = required.get("nodeSelectorTerms") or [] if required else [{"matchExpressions": []}]
    narrowed = [_narrowed(term, rule) if _rules(term) or not required else term for term in terms]
    spec["affinity"] = {
        **affinity,
        "nodeAffinity": {**nodes, REQUIRED_AFFINITY: {**(required or {}), "nodeSelectorTerms": narrowed}},
    }


def _rules(term: Body) -> list[Any]:
    return [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]


def _narrowed(term: Body, rule: Body) -> Body:
    kept = {key: value for key, value in term.items() if value}
    return {**kept, "matchFields": [*(term.get("matchFields") or ()), rule]}


PORT_NAME: Final[Mapping[Dialect, str]] = {
    Dialect.TFJOB_V1: "tfjob-port",
    Dialect.TFJOB_V1ALPHA1: "tf-port",
    Dialect.VOLCANO: "tfjob-port",
}

# Annotations for tf-dist itself. Its other annotations, such as the working directory, are for the pods.
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
        names.STARTUP_TIMEOUT,
        names.GANG_SCHEDULER,
        names.EVALUATOR_IN_CLUSTER,
        names.SERVICES,
    }
)


def build_pod(
    job: Job,
    replica: ReplicaId,
    attempt: str,
    hosts: ClusterHosts | None = None,
    node: str = "",
    *,
    retries: int = 0,
    deadline: int | None = None,
) -> Body:
    """The pod of a replica for an attempt (``Attempts.label``); KeyError for a type that the job does not have.

    ``hosts``: the addresses of the whole job (None: cluster DNS names). ``node``: the assigned node ("": any node). The
    cluster's scheduler still binds the pod. ``retries``: the retries of the job so far (``Status.retries``).
    ``deadline``: seconds after which the kubelet ends the pod, unless its template has a shorter deadline (None:
    never).
    """
    spec = job.spec(replica.type)
    if spec is None:
        raise KeyError(replica.type)
    template = spec.template.get("metadata") or {}
    own = {**names.replica_labels(job, spec, replica.index), names.ATTEMPT: attempt}
    labels = {**(template.get("labels") or {}), **own}
    metadata = names.object_metadata(job, names.pod_name(job, replica, attempt), labels)
    ours = (one for one in job.annotations.items() if one[0].startswith(names.ANNOTATION_PREFIX))
    annotations = {**(template.get("annotations") or {}), **{k: v for k, v in ours if k not in _NOT_FOR_PODS}}
    if job.dialect is Dialect.VOLCANO:
        metadata["labels"] |= volcano_plugins.pod_labels(job)
        annotations |= volcano_plugins.pod_annotations(job, spec, replica.index, attempt, retries)
    if annotations:
        metadata["annotations"] = annotations
    body = _pod_spec(job, spec, replica, cluster_hosts(job) if hosts is None else hosts)
    if node:
        require_node(body, node)
    if deadline is not None:
        body["activeDeadlineSeconds"] = min(deadline, body.get("activeDeadlineSeconds") or deadline)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def _pod_spec(job: Job, spec: ReplicaSpec, replica: ReplicaId, hosts: ClusterHosts) -> Body:
    body: Body = _copied(dict(spec.pod_spec))
    body["restartPolicy"] = spec.pod_restart_policy
    if spec.server_image:
        server = ps_server.ps_server_container(job, spec, replica.index, hosts)
        body["containers"] = [*(body.get("containers") or []), server]
        ps_server.fill_from_peers(job, spec, body)
    # The job's values for all pods, unless a template has its own value (volcano-sh/volcano
    # ``pkg/controllers/job/job_controller_util.go``, and v1alpha1). The ``priorityClass`` of a TFJob v1 belongs to its
    # PodGroup, not to its pods (kubeflow/training-operator ``pkg/controller.v1/common/job.go``).
    priority = job.scheduling.priority_class if job.dialect is Dialect.VOLCANO else ""
    for field, value in (("schedulerName", job.scheduling.scheduler_name), ("priorityClassName", priority)):
        if value and not body.get(field):
            body[field] = value
    if job.services is ServiceStyle.PER_JOB:
        body["hostname"], body["subdomain"] = names.pod_host(job, replica)
    if job.dialect is Dialect.TFJOB_V1:
        _add_port(job, spec, body)
    _add_tf_config(job, spec, body, build_tf_config(job, replica, hosts))
    if job.dialect is Dialect.VOLCANO:
        volcano_plugins.apply_plugins(job, replica, body)
    _split_batches(spec, body)
    # Let a failing container leave the end of its log in its status, unless its template sets otherwise, because the
    # job's clean-up policy may delete the pod and its log soon afterwards.
    for container in (*(body.get("initContainers") or ()), *(body.get("containers") or ())):
        if container.get("terminationMessagePolicy") is None:
            container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    return body


def _copied(value: Any) -> Any:
    """A copy of JSON, five times as fast as ``copy.deepcopy``, because every pod of a gang is copied."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _add_port(job: Job, spec: ReplicaSpec, body: Body) -> None:
    """Add the port of the training container, as the v1 defaulter does. Services and users' probes rely on its name."""
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


def _split_batches(spec: ReplicaSpec, body: Mapping[str, Any]) -> None:
    """Divide the batches of a job of the DRAGON fork (``total-number``) among its workers, at least one for each.

    The original replaces the eighth argument of the first replica type with ``--num_batches=<total ÷ workers>``, even
    if it is another flag. Here, the flag ``--num_batches`` of the training container is replaced.
    """
    if not spec.batches:
        return
    share = str(max(1, spec.batches // max(1, spec.replicas)))
    for container in list_items(body.get("containers")):
        if container["name"] == spec.container and list_items(container.get("args")):
            container["args"] = _with_share(container["args"], share)


def _with_share(arguments: list[str], share: str) -> list[str]:
    """The arguments with another value in ``--num_batches=N`` or ``--num_batches N``."""
    result = list(arguments)
    for at, argument in enumerate(arguments):
        flag = names.BATCHES_FLAG.fullmatch(argument)
        if flag is not None and "=" in argument:
            result[at] = f"{flag[1]}={share}"
        elif flag is not None and at + 1 < len(arguments):
            result[at + 1] = share
    return result

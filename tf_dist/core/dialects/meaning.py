"""What a job means, whatever format said it: two jobs with equal meanings run alike.

Converting is judged by this alone: what differs between the job that was and the one that came out is what was lost, so
that nothing can be forgotten in a list kept by hand. Names of tasks, addresses and the wording of policies are not part
of the meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core.dialects.shape import TF_CONTAINER, TF_PORT_NAME
from tf_dist.core.model import Document, Job, ReplicaSpec, Role, ServiceStyle, TFConfigStyle
from tf_dist.core.policy_model import Action, Event, Rule
from tf_dist.core.untyped import at, items, mapping

UNLIMITED: Final = 1_000_000
"""So many restarts are as good as no limit: Volcano cannot say "unlimited"."""

EXIT_SAMPLES: Final[tuple[tuple[int | None, bool], ...]] = (
    *((code, False) for code in (1, 2, 126, 127, 128, 130, 134, 135, 137, 138, 139, 143, 200, 255, None)),
    (137, True),
)
"""(exit code, killed for memory): both ends of every class that some dialect makes, and every common signal."""

Key = tuple[str, str]
"""(aspect, replica role); the role is "" for what concerns the job."""


def answer(job: Job, spec: ReplicaSpec, event: Event, exit_: tuple[int | None, bool] | None = None) -> Action:
    """What the job does when this happens to a replica of this spec: its own rows first, then the job's."""
    for rule in (*spec.rules, *job.rules):
        fits = event in rule.events and (exit_ is None or exit_ in rule.codes) and not rule.timeout
        if fits and (rule.index is None or spec.replicas == 1):
            return Action.FAIL_JOB if rule.action is Action.TERMINATE_JOB else rule.action
    return Action.RESTART_POD if event in (Event.POD_EVICTED, Event.NODE_LOST) else Action.IGNORE


def answer_failed(job: Job, spec: ReplicaSpec, code: int | None, out_of_memory: bool = False) -> Action:
    """What the job does when a replica of this spec fails."""
    return answer(job, spec, Event.POD_FAILED, (code, out_of_memory))


def meaning(job: Job) -> dict[Key, Any]:
    """Every aspect of a job that a format could say differently."""
    found = {(aspect, ""): value for aspect, value in _job_meaning(job)}
    for spec in job.replica_specs:
        role = role_of(spec)
        found |= {(aspect, role): value for aspect, value in _spec_meaning(job, spec)}
    return found


def role_of(spec: ReplicaSpec) -> str:
    """The role under which a spec is compared: a Master and a Chief are two, a task of no role keeps its name."""
    return spec.role.value or spec.name


def _job_meaning(job: Job) -> Iterator[tuple[str, Any]]:
    policy, scheduling = job.run_policy, job.scheduling
    limit = policy.max_restarts
    limited = limit is not None and limit < UNLIMITED
    yield "success", success(job)
    yield "minSuccess", job.counting.min_success if job.counting else None
    yield "cleanPods", policy.clean_pods
    yield "maxRestarts", limit if limited else None
    in_place = any(spec.pod_restart_policy != "Never" for spec in job.replica_specs)
    yield "countInPlace", policy.container_restarts_count and limited and in_place
    yield "deadline", policy.active_deadline
    yield "ttl", policy.ttl
    yield "suspend", policy.suspend
    yield "minAvailable", scheduling.min_available
    yield "queue", scheduling.queue or "default"
    yield "priority", scheduling.priority_class
    yield "scheduler", scheduling.scheduler_name
    yield "timeout", scheduling.timeout
    yield "managedElsewhere", job.managed_elsewhere
    yield "tfConfig", _tf_config(job)
    yield "indexVariables", job.plugins.env
    yield "hostFiles", job.plugins.svc and job.tf_config is not TFConfigStyle.VOLCANO
    yield "services", job.services is ServiceStyle.NONE


def success(job: Job) -> frozenset[tuple[str, int | None]]:
    """(role, index) of what makes the job succeed; index None: all of them. Volcano says it with a policy."""
    roles = {spec.type: spec for spec in job.replica_specs}
    rules = {
        (role_of(roles[rule.type]), None if roles[rule.type].replicas == 1 else rule.index)
        for rule in job.success
        if rule.type in roles
    }
    completing = {
        (role_of(spec), None)
        for spec in job.replica_specs
        if answer(job, spec, Event.TASK_COMPLETED) is Action.COMPLETE_JOB
    }
    return frozenset(rules | completing)


def _tf_config(job: Job) -> str:
    if job.tf_config is TFConfigStyle.SPARSE:
        return "sparse"
    alone = sum(spec.replicas for spec in job.replica_specs) == 1
    return "dense" if alone or job.tf_config is not TFConfigStyle.NONE else "none"


def _spec_meaning(job: Job, spec: ReplicaSpec) -> Iterator[tuple[str, Any]]:
    yield "replicas", spec.replicas
    yield "minReplicas", spec.min_replicas
    yield "maxReplicas", spec.most
    yield "port", spec.port
    yield "server", spec.server_image
    yield "template", plain_template(job, spec)
    yield "depends", spec.depends
    judged = any(rule.type == spec.type for rule in job.success) and spec.last_exit_counts
    yield "restartsWhenDone", spec.pod_restart_policy == "Always" and not judged
    yield "failed", tuple(answer_failed(job, spec, *sample) for sample in EXIT_SAMPLES)
    yield "evicted", (answer(job, spec, Event.POD_EVICTED), answer(job, spec, Event.NODE_LOST))
    failed = answer(job, spec, Event.TASK_FAILED)
    yield "taskFailed", (failed, spec.container_restarts) if failed is not Action.IGNORE else None
    yield "unknown", answer(job, spec, Event.UNKNOWN)
    yield "late", tuple(rule for rule in (*spec.rules, *job.rules) if rule.timeout)
    yield "byIndex", _by_index(job, spec)


def _by_index(job: Job, spec: ReplicaSpec) -> tuple[Rule, ...]:
    """Rows for one replica among several."""
    return tuple(rule for rule in (*spec.rules, *job.rules) if rule.index is not None) if spec.replicas > 1 else ()


def plain_template(job: Job, spec: ReplicaSpec) -> Document:
    """The template with the job's volumes in it and without what the formats say outside of it."""
    template = with_claims(spec.template, job.volumes, job.key.name)
    pod = {key: value for key, value in mapping(template.get("spec")).items() if key not in _OUTSIDE}
    pod["containers"] = [_plain_container(one, spec) for one in items(pod.get("containers"))]
    metadata = {key: value for key, value in mapping(template.get("metadata")).items() if value}
    return {"metadata": metadata, "spec": pod}


_OUTSIDE: Final = ("restartPolicy", "schedulerName")


def _plain_container(container: Mapping[str, Any], spec: ReplicaSpec) -> Document:
    if container.get("name") != spec.container:
        return container
    plain = {key: value for key, value in container.items() if key != "ports"}
    ports = [port for port in items(container.get("ports")) if at(port, "name") != TF_PORT_NAME]
    return {**plain, "name": TF_CONTAINER, **({"ports": ports} if ports else {})}


def with_claims(template: Document, volumes: tuple[Document, ...], job: str) -> Document:
    """The template with a job's claims mounted in every container, as the Volcano dialect runs it."""
    if not volumes:
        return template
    pod = mapping(template.get("spec"))
    names = [f"{job}-volume-{index}" for index in range(len(volumes))]
    claims = [
        {"name": name, "persistentVolumeClaim": {"claimName": volume["volumeClaimName"]}}
        for name, volume in zip(names, volumes, strict=True)
    ]
    mounts = [{"name": name, "mountPath": volume["mountPath"]} for name, volume in zip(names, volumes, strict=True)]
    mounted = [
        {**one, "volumeMounts": [*items(one.get("volumeMounts")), *mounts]} for one in items(pod.get("containers"))
    ]
    return {**template, "spec": {**pod, "containers": mounted, "volumes": [*items(pod.get("volumes")), *claims]}}


def has_role(spec: ReplicaSpec) -> bool:
    """Whether the replicas are something to TensorFlow, so that a TFJob can have them."""
    return spec.role is not Role.OTHER

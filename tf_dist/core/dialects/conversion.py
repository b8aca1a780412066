"""Conversion of a Volcano Job or a TFJob of an older format to a TFJob ``kubeflow.org/v1``, with the losses.

The losses are computed as the difference in semantics between the source and the result, so they do not depend on a
hand-written list. Names of tasks, addresses and the wording of policies are not part of the semantics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tf_dist.core.dialects.common_schema import (
    SERVICES_ANNOTATION,
    SUSPEND_ANNOTATION,
    TF_CONTAINER,
    TF_PORT,
    TF_PORT_NAME,
    replica_path,
    without_none,
)
from tf_dist.core.dialects.parsing import Parsed, parse
from tf_dist.core.dialects.volcano_annotations import AFFINITY, PREEMPTABLE, SLA
from tf_dist.core.model.assignment import start_counts
from tf_dist.core.model.fieldpath import FieldPath, format_field_path, list_items, mapping, value_at
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import (
    Action,
    Dialect,
    Document,
    Event,
    Job,
    ReplicaSpec,
    Role,
    ServiceStyle,
    TFConfigStyle,
)
from tf_dist.core.model.names import MAX_WORKERS, MIN_WORKERS
from tf_dist.errors import InvalidJob, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A converted document."""

    document: dict[str, Any]
    lost: tuple[Problem, ...] = ()
    """The losses, with their paths in the original."""


def convert(document: Any, *, strict: bool = True) -> Conversion:
    """A job as a TFJob ``kubeflow.org/v1``; InvalidJob if it is invalid, or if no TFJob can express it.

    ``strict``: as in ``parse``, which accepts the result. ``lost`` lists how the result would run differently.
    """
    source = parse(document, strict=strict)
    if source.job.dialect is Dialect.TFJOB_V1:
        return Conversion(document=source.document)
    _refuse(source.job)
    source = replace(source, job=_self_contained(source.job))
    written = _tfjob(source.job, source.document)
    result = parse(written, strict=strict)
    return Conversion(document=written, lost=tuple(_losses(source, result.job)))


def _self_contained(job: Job) -> Job:
    """The job with its claims in the templates, as the Volcano dialect runs it.

    The name of Volcano's scheduler is removed, because a TFJob would use this scheduler, unless the gang scheduler is
    Volcano.
    """
    if job.dialect is not Dialect.VOLCANO:
        return job
    idle = "" if job.scheduling.gang is GangScheduler.VOLCANO else GangScheduler.VOLCANO.value
    claims = {f"{job.key.name}-volume-{index}": volume for index, volume in enumerate(job.volumes)}
    specs = tuple(replace(spec, template=_own_template(spec.template, claims, idle)) for spec in job.replica_specs)
    named = job.scheduling.scheduler_name
    scheduling = replace(job.scheduling, scheduler_name="" if named == idle else named)
    return replace(job, replica_specs=specs, scheduling=scheduling, volumes=())


def _own_template(template: Document, claims: Mapping[str, Document], idle: str) -> Document:
    pod = dict(mapping(template.get("spec")))
    if pod.get("schedulerName") == idle:
        del pod["schedulerName"]
    if claims:
        mounts = [{"name": name, "mountPath": claim["mountPath"]} for name, claim in claims.items()]
        volumes = [
            {"name": name, "persistentVolumeClaim": {"claimName": claim["volumeClaimName"]}}
            for name, claim in claims.items()
        ]
        pod["containers"] = [
            {**one, "volumeMounts": [*list_items(one.get("volumeMounts")), *mounts]}
            for one in list_items(pod.get("containers"))
        ]
        pod["volumes"] = [*list_items(pod.get("volumes")), *volumes]
    return {**template, "spec": pod}


def _refuse(job: Job) -> None:
    """Raise InvalidJob if no replica has a TensorFlow role, or if replicas run the standard server.

    In both cases, the result would be useless.
    """
    problems = []
    if not any(map(has_role, job.replica_specs)):
        hint = "name the tasks ps, worker, chief or evaluator"
        problems.append(Problem("spec.tasks", "no task is a TensorFlow role, and a TFJob has no other tasks", hint))
    for spec in job.replica_specs:
        if spec.server_image:
            path = format_field_path((*role_path(job, role_of(spec)), "template"))
            hint = f"write a container named {TF_CONTAINER!r} that starts a tf.distribute.Server"
            problems.append(Problem(path, f"{Dialect.TFJOB_V1} has no standard parameter server", hint))
    if problems:
        raise InvalidJob(problems)


# -- writing --

_V1_KEYS: Final[Mapping[Role, str]] = {
    Role.CHIEF: "Chief",
    Role.MASTER: "Master",
    Role.PS: "PS",
    Role.WORKER: "Worker",
    Role.EVALUATOR: "Evaluator",
}
_FATAL: Final = (Action.FAIL_JOB, Action.ABORT_JOB, Action.COMPLETE_JOB)


def _tfjob(job: Job, source: Document) -> dict[str, Any]:
    policy, scheduling = job.run_policy, job.scheduling
    total = sum(spec.replicas for spec in job.replica_specs if has_role(spec))
    gang = without_none(
        minAvailable=scheduling.min_available if scheduling.min_available < total else None,
        queue=scheduling.queue or None,
        priorityClass=scheduling.priority_class or None,
    )
    run = without_none(
        cleanPodPolicy=policy.clean_pods.value,
        backoffLimit=policy.max_restarts if _is_limited(job) else None,
        ttlSecondsAfterFinished=policy.ttl,
        suspend=True if policy.suspend else None,
        schedulingPolicy=gang or None,
    )
    all_workers = success_criteria(job) == {(Role.WORKER.value, None)}
    many = any(spec.role is Role.WORKER and spec.replicas > 1 for spec in job.replica_specs)
    spec = without_none(
        runPolicy=run,
        successPolicy="AllWorkers" if all_workers and many else None,
        tfReplicaSpecs={_V1_KEYS[one.role]: _replicas(job, one) for one in job.replica_specs if has_role(one)},
    )
    dialect = Dialect.TFJOB_V1
    return {"apiVersion": dialect.value, "kind": dialect.kind, "metadata": _metadata(job, source, total), "spec": spec}


def _metadata(job: Job, source: Document, total: int) -> dict[str, Any]:
    """The user's part of the metadata, with the bounds of the workers.

    The minimum of workers is kept if the gang's minimum agrees with it.
    """
    given = mapping(source.get("metadata"))
    kept = {key: given[key] for key in ("name", "generateName", "namespace", "labels") if given.get(key)}
    ours = (SUSPEND_ANNOTATION, SERVICES_ANNOTATION, MIN_WORKERS, MAX_WORKERS)
    annotations = {key: value for key, value in mapping(given.get("annotations")).items() if key not in ours}
    worker = next((spec for spec in job.replica_specs if spec.role is Role.WORKER), None)
    if worker is not None:
        least = total - worker.replicas + worker.min_replicas
        if 0 < worker.min_replicas < worker.replicas and least == job.scheduling.min_available:
            annotations[MIN_WORKERS] = str(worker.min_replicas)
        if worker.most != worker.replicas:
            annotations[MAX_WORKERS] = str(worker.most)
    return {**kept, **({"annotations": annotations} if annotations else {})}


def _replicas(job: Job, spec: ReplicaSpec) -> dict[str, Any]:
    """The replicas of a role. In a TFJob, the priority class of a Volcano Job belongs into the pods."""
    written = _template(spec)
    priority = job.scheduling.priority_class if job.dialect is Dialect.VOLCANO else ""
    pod = without_none(priorityClassName=priority or None, schedulerName=job.scheduling.scheduler_name or None)
    template = {**written, "spec": {**pod, **written["spec"]}}
    return {"replicas": spec.replicas, "restartPolicy": _restart_policy(job, spec), "template": template}


def _restart_policy(job: Job, spec: ReplicaSpec) -> str:
    """The restart policy that is closest to the job's actions after a failure and after a kill."""
    own, killed = (action_for_failure(job, spec, code) for code in (1, 143))
    if own is Action.RESTART_POD:
        return "Always" if spec.pod_restart_policy == "Always" else "OnFailure"
    return "ExitCode" if killed is Action.RESTART_POD and own in _FATAL else "Never"


def _template(spec: ReplicaSpec) -> dict[str, Any]:
    """The pod template with settings that other formats have elsewhere: the port, and the container's name."""
    pod = {key: value for key, value in spec.pod_spec.items() if key != "restartPolicy"}
    pod["containers"] = [
        _container(one, spec) if one.get("name") == spec.container else one for one in list_items(pod.get("containers"))
    ]
    return {**spec.template, "spec": pod}


def _container(container: Mapping[str, Any], spec: ReplicaSpec) -> dict[str, Any]:
    """The training container, with the name and the port of a TFJob."""
    ports = list(list_items(container.get("ports")))
    if all(value_at(port, "name") != TF_PORT_NAME for port in ports) and spec.port != TF_PORT:
        ports.append({"name": TF_PORT_NAME, "containerPort": spec.port})
    return {**container, "name": TF_CONTAINER, **({"ports": ports} if ports else {})}


# -- semantics --

_UNLIMITED: Final = 1_000_000
"""A limit of restarts from this number on means no limit, which Volcano cannot express otherwise."""

EXIT_SAMPLES: Final[tuple[tuple[int | None, bool], ...]] = (
    *((code, False) for code in (1, 2, 126, 127, 128, 130, 134, 135, 137, 138, 139, 143, 200, 255, None)),
    (137, True),
)
"""(exit code, out of memory): both ends of every class of exit codes in any dialect, and every common signal."""

Key = tuple[str, str]
"""(aspect, replica role); the role is "" for aspects of the job."""


def _is_limited(job: Job) -> bool:
    return job.run_policy.max_restarts is not None and job.run_policy.max_restarts < _UNLIMITED


def action_for(job: Job, spec: ReplicaSpec, event: Event, exit_: tuple[int | None, bool] | None = None) -> Action:
    """The action on an event of a replica of this spec. The spec's rules have precedence over the job's rules."""
    for rule in (*spec.rules, *job.rules):
        fits = event in rule.events and (exit_ is None or exit_ in rule.codes) and not rule.timeout
        if fits and (rule.index is None or spec.replicas == 1):
            return Action.FAIL_JOB if rule.action is Action.TERMINATE_JOB else rule.action
    return Action.RESTART_POD if event in (Event.POD_EVICTED, Event.NODE_LOST) else Action.IGNORE


def action_for_failure(job: Job, spec: ReplicaSpec, code: int | None, out_of_memory: bool = False) -> Action:
    """The action on a failure of a replica of this spec."""
    return action_for(job, spec, Event.POD_FAILED, (code, out_of_memory))


def job_semantics(job: Job) -> dict[Key, Any]:
    """Every aspect of a job that the formats can express differently."""
    found = {(aspect, ""): value for aspect, value in _job_semantics(job)}
    for spec in job.replica_specs:
        role = role_of(spec)
        found |= {(aspect, role): value for aspect, value in _spec_semantics(job, spec)}
    return found


def role_of(spec: ReplicaSpec) -> str:
    """The role under which a spec is compared. Master and Chief differ; a task without a role keeps its name."""
    return spec.role.value or spec.name


def _job_semantics(job: Job) -> Iterator[tuple[str, Any]]:
    policy, scheduling = job.run_policy, job.scheduling
    limited = _is_limited(job)
    yield "success", success_criteria(job)
    yield "minSuccess", job.counting.min_success if job.counting else None
    yield "cleanPods", policy.clean_pods
    yield "maxRestarts", policy.max_restarts if limited else None
    in_place = any(spec.pod_restart_policy != "Never" for spec in job.replica_specs)
    yield "countInPlace", policy.container_restarts_count and limited and in_place
    yield "ttl", policy.ttl
    yield "suspend", policy.suspend
    yield "minAvailable", scheduling.min_available
    yield "queue", scheduling.queue or "default"
    yield "priority", scheduling.priority_class
    yield "tfConfig", _tf_config(job)
    yield "indexVariables", job.plugins.env
    yield "hostFiles", job.plugins.svc and job.tf_config is not TFConfigStyle.VOLCANO
    yield "sshKeys", job.plugins.ssh is not None
    yield "patience", scheduling.patience
    yield "preemptable", scheduling.preemptable
    yield "nodeTopology", scheduling.topology
    yield "services", job.services is ServiceStyle.NONE


def success_criteria(job: Job) -> frozenset[tuple[str, int | None]]:
    """(role, index) of the replicas that decide the job's success; index None: all. Volcano uses policies for it."""
    roles = {spec.type: spec for spec in job.replica_specs}
    rules = {
        (role_of(roles[rule.type]), None if roles[rule.type].replicas == 1 else rule.index)
        for rule in job.success
        if rule.type in roles
    }
    completing = {
        (role_of(spec), None)
        for spec in job.replica_specs
        if action_for(job, spec, Event.TASK_COMPLETED) is Action.COMPLETE_JOB
    }
    return frozenset(rules | completing)


def _tf_config(job: Job) -> str:
    if job.tf_config is TFConfigStyle.SPARSE:
        return "sparse"
    alone = sum(spec.replicas for spec in job.replica_specs) == 1
    return "dense" if alone or job.tf_config is not TFConfigStyle.NONE else "none"


def _spec_semantics(job: Job, spec: ReplicaSpec) -> Iterator[tuple[str, Any]]:
    yield "replicas", spec.replicas
    yield "minReplicas", spec.min_replicas
    yield "minAvailable", start_counts(job)[spec.type]
    yield "maxReplicas", spec.most
    yield "port", spec.port
    yield "scheduler", value_at(spec.template, "spec", "schedulerName") or job.scheduling.scheduler_name
    yield "template", _plain_template(job, spec)
    yield "depends", spec.depends
    judged = any(rule.type == spec.type for rule in job.success) and spec.last_exit_counts
    yield "restartsWhenDone", spec.pod_restart_policy == "Always" and not judged
    yield "failed", tuple(action_for_failure(job, spec, *sample) for sample in EXIT_SAMPLES)
    yield "evicted", (action_for(job, spec, Event.POD_EVICTED), action_for(job, spec, Event.NODE_LOST))
    failed = action_for(job, spec, Event.TASK_FAILED)
    yield "taskFailed", (failed, spec.container_restarts) if failed is not Action.IGNORE else None
    yield "unknown", action_for(job, spec, Event.UNKNOWN)
    yield "late", tuple(rule for rule in (*spec.rules, *job.rules) if rule.timeout)
    rules = (*spec.rules, *job.rules) if spec.replicas > 1 else ()
    yield "byIndex", tuple(rule for rule in rules if rule.index is not None)


def _plain_template(job: Job, spec: ReplicaSpec) -> Document:
    """The template without the settings that formats express elsewhere."""
    pod = {key: value for key, value in spec.pod_spec.items() if key not in ("restartPolicy", "schedulerName")}
    if pod.get("priorityClassName") == job.scheduling.priority_class:
        pod.pop("priorityClassName", None)
    pod["containers"] = [_plain_container(one, spec) for one in list_items(pod.get("containers"))]
    metadata = {key: value for key, value in mapping(spec.template.get("metadata")).items() if value}
    return {"metadata": metadata, "spec": pod}


def _plain_container(container: Mapping[str, Any], spec: ReplicaSpec) -> Document:
    if container.get("name") != spec.container:
        return container
    plain = {key: value for key, value in container.items() if key != "ports"}
    ports = [port for port in list_items(container.get("ports")) if value_at(port, "name") != TF_PORT_NAME]
    return {**plain, "name": TF_CONTAINER, **({"ports": ports} if ports else {})}


def has_role(spec: ReplicaSpec) -> bool:
    """Whether the replicas have a TensorFlow role, which a TFJob requires."""
    return spec.role is not Role.OTHER


# -- losses --


def role_path(job: Job, role: str) -> FieldPath:
    """The path of a role in a document of this job."""
    return replica_path(job, [role_of(spec) for spec in job.replica_specs].index(role))


class _Aspect(NamedTuple):
    """An aspect of a job that the formats can express differently."""

    consequence: str
    """The consequence of a difference in the result."""
    volcano: str = ""
    """The field of the aspect in a Volcano Job, or in a task."""
    v1alpha1: str = ""
    """The field of the aspect in a TFJob v1alpha1, or in an entry of its replicas."""


_NOTES: Final = "metadata.annotations"
ASPECTS: Final[Mapping[str, _Aspect]] = {
    "success": _Aspect("the job would succeed at another moment", "spec.policies", "spec.terminationPolicy.chief"),
    "minSuccess": _Aspect("this number of successes no longer ends the job", "spec.minSuccess"),
    "cleanPods": _Aspect("other pods would remain after the end of the job", v1alpha1="spec.cleanupPodPolicy"),
    "maxRestarts": _Aspect("restarts would have another limit", "spec.maxRetry"),
    "countInPlace": _Aspect("restarts by the kubelet would be counted differently", "spec.maxRetry"),
    "ttl": _Aspect("the finished job would be kept for another time", "spec.ttlSecondsAfterFinished"),
    "suspend": _Aspect("the job would not be suspended"),
    "minAvailable": _Aspect(
        "another number of replicas would have to start together", "spec.minAvailable", "spec.min-instance"
    ),
    "queue": _Aspect("the job would wait in another queue", "spec.queue"),
    "priority": _Aspect("the job would have another priority", "spec.priorityClassName"),
    "scheduler": _Aspect("another scheduler would place the pods", "spec.schedulerName", "spec.schedulerName"),
    "tfConfig": _Aspect("the replicas would get another TF_CONFIG", "spec.plugins"),
    "indexVariables": _Aspect("VK_TASK_INDEX and VC_TASK_INDEX would not be set", "spec.plugins.env"),
    "hostFiles": _Aspect("the host files in /etc/volcano would not exist", "spec.plugins.svc"),
    "sshKeys": _Aspect("the keys of the ssh plugin would not exist", "spec.plugins.ssh"),
    "patience": _Aspect("capacity would be reserved for the job after another time", f'{_NOTES}["{SLA[0]}"]'),
    "preemptable": _Aspect("other rules would decide whether the job can be preempted", f'{_NOTES}["{PREEMPTABLE}"]'),
    "nodeTopology": _Aspect("the replicas would not be kept on one node", f'{_NOTES}["{AFFINITY}"]'),
    "services": _Aspect("the replicas would get services, or none", "spec.plugins"),
    "replicas": _Aspect("there would be another number of replicas"),
    "maxReplicas": _Aspect("the job would grow to another number of these replicas"),
    "minReplicas": _Aspect("another number of these replicas would have to start together", "minAvailable"),
    "port": _Aspect("the replicas would listen on another port", v1alpha1="tfPort"),
    "template": _Aspect("the pods would differ"),
    "depends": _Aspect("the replicas would not wait for the tasks they depend on", "dependsOn"),
    "restartsWhenDone": _Aspect("a completed container would be treated differently"),
    "failed": _Aspect("failed replicas would be treated differently", "policies"),
    "evicted": _Aspect("evicted replicas would be treated differently", "policies"),
    "taskFailed": _Aspect("many restarts in place would be treated differently", "policies"),
    "unknown": _Aspect("an unknown state of the gang would be treated differently", "policies"),
    "late": _Aspect("policies with a timeout cannot be expressed", "policies"),
    "byIndex": _Aspect("settings of one replica among several cannot be expressed"),
}


def _losses(source: Parsed, result: Job) -> Iterator[Problem]:
    """All aspects of the source job that the converted job lacks."""
    before, after = job_semantics(source.job), job_semantics(result)
    gone = {role_of(spec) for spec in source.job.replica_specs} - {role for _, role in after}
    for role in sorted(gone):
        path = format_field_path(role_path(source.job, role))
        yield Problem(path, f"{result.dialect} has no {role} replicas: they are left out", "keep the job as it is")
    for key, value in before.items():
        if key[1] not in gone and after.get(key) != value:
            difference = _difference(key[0], value, after.get(key))
            yield Problem(_path(source.job, key), ASPECTS[key[0]].consequence, difference)
    for spec in source.job.replica_specs:
        if has_role(spec) and spec.container != TF_CONTAINER:
            path = format_field_path((*role_path(source.job, role_of(spec)), "template", "spec", "containers"))
            yield Problem(path, f"the container {spec.container!r} is now named {TF_CONTAINER!r}")
    yield from _unread(source)


def _path(job: Job, key: Key) -> str:
    aspect, role = key
    where = ASPECTS[aspect].volcano if job.dialect is Dialect.VOLCANO else ASPECTS[aspect].v1alpha1
    if not role:
        return where or "spec"
    path = format_field_path(role_path(job, role))
    of_role = where and not where.startswith(("spec.", "metadata."))
    return f"{path}.{where}" if of_role else path


def _difference(aspect: str, before: Any, after: Any) -> str:
    """The two values, if they are short."""
    if aspect == "failed":
        return _exits(before, after)
    if isinstance(before, bool):
        return ""
    if isinstance(before, (int, float, str)) and isinstance(after, (int, float, str, type(None))):
        return f"it is {before}, and would be {'not set' if after in (None, '') else after}"
    return ""


def _exits(before: Sequence[Action], after: Sequence[Action]) -> str:
    """The sample exit codes for which the action differs."""
    groups: dict[tuple[Action, Action], list[str]] = {}
    for (code, memory), old, new in zip(EXIT_SAMPLES, before, after, strict=True):
        name = "out of memory" if memory else "unknown" if code is None else str(code)
        groups.setdefault((old, new), []).append(name)
    said = []
    for (old, new), names in groups.items():
        which = "any exit" if len(names) == len(EXIT_SAMPLES) else f"exit {', '.join(names)}"
        if old is not new:
            said.append(f"{old} -> {new} for {which}")
    return "; ".join(said)


_NOT_IN_THE_JOB: Final[Mapping[Dialect, tuple[str, ...]]] = {
    Dialect.TFJOB_V1ALPHA1: ("batch-size", "modelName", "total-number", "tensorboard"),
    Dialect.VOLCANO: ("networkTopology", "runningEstimate"),
}


def _unread(source: Parsed) -> Iterator[Problem]:
    """Fields of the document that tf-dist does not use, and that are therefore not part of the job."""
    spec = source.document["spec"]
    for key in _NOT_IN_THE_JOB[source.job.dialect]:
        if spec.get(key):
            yield Problem(format_field_path(("spec", key)), "is left out: a TFJob has no such field")
    for index, task in enumerate(list_items(spec.get("tasks"))):
        if value_at(task, "topologyPolicy") not in (None, "none"):
            yield Problem(f"spec.tasks[{index}].topologyPolicy", "is left out: a TFJob has no such field")

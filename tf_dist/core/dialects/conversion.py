"""Conversion of a Volcano Job or a TFJob of an older format to a TFJob ``kubeflow.org/v1``, with the losses.

The loss is computed as the difference in semantics between the source and the result, so no list by hand can miss
anything. Names of tasks, addresses and the wording of policies are not part of the semantics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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
    """The losses, by the path in the original."""


def convert(document: Any, *, strict: bool = True) -> Conversion:
    """A job as a TFJob ``kubeflow.org/v1``; InvalidJob if it is invalid, or if no TFJob can express it.

    ``strict``: as for ``parse``, which accepts the result. ``lost`` lists how the result would run differently.
    """
    source = parse(document, strict=strict)
    if source.job.dialect is Dialect.TFJOB_V1:
        return Conversion(document=source.document)
    _refuse(source.job)
    source = replace(source, job=_without_idle_scheduler(source.job))
    written = _tfjob(source.job, source.document)
    result = parse(written, strict=strict)
    return Conversion(document=written, lost=tuple(_losses(source, result.job)))


def _without_idle_scheduler(job: Job) -> Job:
    """Remove the name of Volcano's scheduler from a job whose pods tf-dist places, because a TFJob would use it."""
    if job.dialect is not Dialect.VOLCANO or job.scheduling.gang is GangScheduler.VOLCANO:
        return job
    specs = tuple(replace(spec, template=_without_volcano(spec.template)) for spec in job.replica_specs)
    named = job.scheduling.scheduler_name
    scheduling = replace(job.scheduling, scheduler_name="" if named == GangScheduler.VOLCANO else named)
    return replace(job, replica_specs=specs, scheduling=scheduling)


def _without_volcano(template: Document) -> Document:
    spec = mapping(template.get("spec"))
    if spec.get("schedulerName") != GangScheduler.VOLCANO:
        return template
    return {**template, "spec": {key: value for key, value in spec.items() if key != "schedulerName"}}


def _refuse(job: Job) -> None:
    """Raise if no replica has a TensorFlow role, or replicas run the standard server, because the result
    would be useless.
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
    """The user's part of the metadata, with the bounds of the workers. The minimum is kept if that of the
    gang agrees.
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
    """The replicas of a role. The priority class of a Volcano Job is written into its pods, because a TFJob
    needs it there.
    """
    written = _template(job, spec)
    priority = job.scheduling.priority_class if job.dialect is Dialect.VOLCANO else ""
    pod = without_none(priorityClassName=priority or None, schedulerName=job.scheduling.scheduler_name or None)
    template = {**written, "spec": {**pod, **written["spec"]}}
    return {"replicas": spec.replicas, "restartPolicy": _restart_policy(job, spec), "template": template}


def _restart_policy(job: Job, spec: ReplicaSpec) -> str:
    """The restart policy that is nearest to the job's actions after a failure and after a kill."""
    own, killed = (action_for_failure(job, spec, code) for code in (1, 143))
    if own is Action.RESTART_POD:
        return "Always" if spec.pod_restart_policy == "Always" else "OnFailure"
    return "ExitCode" if killed is Action.RESTART_POD and own in _FATAL else "Never"


def _template(job: Job, spec: ReplicaSpec) -> dict[str, Any]:
    """The pod template with settings that the source has elsewhere: claims, port, the container's name."""
    template = with_claims(spec.template, job.volumes, job.key.name)
    pod = {key: value for key, value in mapping(template.get("spec")).items() if key != "restartPolicy"}
    pod["containers"] = [
        _container(one, spec) if one.get("name") == spec.container else one for one in list_items(pod.get("containers"))
    ]
    return {**template, "spec": pod}


def _container(container: Mapping[str, Any], spec: ReplicaSpec) -> dict[str, Any]:
    """The container that trains, with its name and the port under which every format finds it."""
    ports = list(list_items(container.get("ports")))
    if all(value_at(port, "name") != TF_PORT_NAME for port in ports) and spec.port != TF_PORT:
        ports.append({"name": TF_PORT_NAME, "containerPort": spec.port})
    return {**container, "name": TF_CONTAINER, **({"ports": ports} if ports else {})}


# -- semantics --

_UNLIMITED: Final = 1_000_000
"""From this number of restarts on, there is no limit. Volcano cannot express that otherwise."""

EXIT_SAMPLES: Final[tuple[tuple[int | None, bool], ...]] = (
    *((code, False) for code in (1, 2, 126, 127, 128, 130, 134, 135, 137, 138, 139, 143, 200, 255, None)),
    (137, True),
)
"""(exit code, killed for memory): both ends of every class of exit codes in any dialect, and every common signal."""

Key = tuple[str, str]
"""(aspect, replica role); the role is "" for aspects of the job."""


def _is_limited(job: Job) -> bool:
    return job.run_policy.max_restarts is not None and job.run_policy.max_restarts < _UNLIMITED


def action_for(job: Job, spec: ReplicaSpec, event: Event, exit_: tuple[int | None, bool] | None = None) -> Action:
    """The action on an event of a replica of this spec: by its own rows first, then the job's."""
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
    """(role, index) of the replicas whose success is the job's; index None: all. Volcano has a policy for it."""
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
    yield "template", plain_template(job, spec)
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


def plain_template(job: Job, spec: ReplicaSpec) -> Document:
    """The template with the job's volumes, without the settings that formats express elsewhere."""
    template = with_claims(spec.template, job.volumes, job.key.name)
    pod = {key: value for key, value in mapping(template.get("spec")).items() if key not in _OUTSIDE}
    if pod.get("priorityClassName") == job.scheduling.priority_class:
        pod.pop("priorityClassName", None)
    pod["containers"] = [_plain_container(one, spec) for one in list_items(pod.get("containers"))]
    metadata = {key: value for key, value in mapping(template.get("metadata")).items() if value}
    return {"metadata": metadata, "spec": pod}


_OUTSIDE: Final = ("restartPolicy", "schedulerName")


def _plain_container(container: Mapping[str, Any], spec: ReplicaSpec) -> Document:
    if container.get("name") != spec.container:
        return container
    plain = {key: value for key, value in container.items() if key != "ports"}
    ports = [port for port in list_items(container.get("ports")) if value_at(port, "name") != TF_PORT_NAME]
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
        {**one, "volumeMounts": [*list_items(one.get("volumeMounts")), *mounts]}
        for one in list_items(pod.get("containers"))
    ]
    return {**template, "spec": {**pod, "containers": mounted, "volumes": [*list_items(pod.get("volumes")), *claims]}}


def has_role(spec: ReplicaSpec) -> bool:
    """Whether the replicas have a TensorFlow role, so that a TFJob can have them."""
    return spec.role is not Role.OTHER


# -- losses --


def role_path(job: Job, role: str) -> FieldPath:
    """The path of a role in a document of this job."""
    return replica_path(job, [role_of(spec) for spec in job.replica_specs].index(role))


CONSEQUENCES: Final[Mapping[str, str]] = {
    "success": "the job would succeed at another moment",
    "minSuccess": "this number of successes no longer ends the job",
    "cleanPods": "other pods would remain after the end of the job",
    "maxRestarts": "restarts would have another limit",
    "countInPlace": "restarts by the kubelet would be counted differently",
    "ttl": "the finished job would be kept for another time",
    "suspend": "the job would not be suspended",
    "minAvailable": "another number of replicas would have to start together",
    "queue": "the job would wait in another queue",
    "priority": "the job would have another priority",
    "scheduler": "another scheduler would place the pods",
    "tfConfig": "the replicas would get another TF_CONFIG",
    "indexVariables": "VK_TASK_INDEX and VC_TASK_INDEX would not be set",
    "hostFiles": "the host files in /etc/volcano would not exist",
    "sshKeys": "the keys of the ssh plugin would not exist",
    "patience": "capacity would be reserved for the job after another time",
    "preemptable": "other rules would decide whether the job can be preempted",
    "nodeTopology": "the replicas would not be kept on one node",
    "services": "the replicas would get services, or none",
    "replicas": "there would be another number of replicas",
    "maxReplicas": "the job would grow to another number of these replicas",
    "minReplicas": "another number of these replicas would have to start together",
    "port": "the replicas would listen on another port",
    "template": "the pods would differ",
    "depends": "the replicas would not wait for the tasks they depend on",
    "restartsWhenDone": "a completed container would be treated differently",
    "failed": "failed replicas would be treated differently",
    "evicted": "evicted replicas would be treated differently",
    "taskFailed": "many restarts in place would be treated differently",
    "unknown": "an unknown state of the gang would be treated differently",
    "late": "policies with a timeout cannot be expressed",
    "byIndex": "settings of one replica among several cannot be expressed",
}

_PATHS: Final[Mapping[Dialect, Mapping[str, FieldPath]]] = {
    Dialect.TFJOB_V1ALPHA1: {
        "success": ("spec", "terminationPolicy", "chief"),
        "cleanPods": ("spec", "cleanupPodPolicy"),
        "minAvailable": ("spec", "min-instance"),
        "scheduler": ("spec", "schedulerName"),
        "port": ("tfPort",),
    },
    Dialect.VOLCANO: {
        "success": ("spec", "policies"),
        "minSuccess": ("spec", "minSuccess"),
        "maxRestarts": ("spec", "maxRetry"),
        "countInPlace": ("spec", "maxRetry"),
        "ttl": ("spec", "ttlSecondsAfterFinished"),
        "minAvailable": ("spec", "minAvailable"),
        "queue": ("spec", "queue"),
        "priority": ("spec", "priorityClassName"),
        "scheduler": ("spec", "schedulerName"),
        "indexVariables": ("spec", "plugins", "env"),
        "hostFiles": ("spec", "plugins", "svc"),
        "sshKeys": ("spec", "plugins", "ssh"),
        "patience": ("metadata", "annotations", SLA[0]),
        "preemptable": ("metadata", "annotations", PREEMPTABLE),
        "nodeTopology": ("metadata", "annotations", AFFINITY),
        "services": ("spec", "plugins"),
        "tfConfig": ("spec", "plugins"),
        "minReplicas": ("minAvailable",),
        "depends": ("dependsOn",),
        "failed": ("policies",),
        "evicted": ("policies",),
        "late": ("policies",),
        "taskFailed": ("policies",),
        "unknown": ("policies",),
    },
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
            yield Problem(_path(source.job, key), CONSEQUENCES[key[0]], _difference(key[0], value, after.get(key)))
    for spec in source.job.replica_specs:
        if has_role(spec) and spec.container != TF_CONTAINER:
            path = format_field_path((*role_path(source.job, role_of(spec)), "template", "spec", "containers"))
            yield Problem(path, f"the container {spec.container!r} is now named {TF_CONTAINER!r}")
    yield from _unread(source)


def _path(job: Job, key: Key) -> str:
    aspect, role = key
    where = _PATHS[job.dialect].get(aspect, ())
    if not role:
        return format_field_path(where or ("spec",))
    of_job = where[:1] in (("spec",), ("metadata",))
    return format_field_path((*role_path(job, role), *(() if of_job else where)))


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
    """The exit codes for which the action differs, of those that represent their classes."""
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
    """Fields of the document that tf-dist does not use, so that the job does not have them."""
    spec = source.document["spec"]
    for key in _NOT_IN_THE_JOB[source.job.dialect]:
        if spec.get(key):
            yield Problem(format_field_path(("spec", key)), "is left out: a TFJob has no such field")
    for index, task in enumerate(list_items(spec.get("tasks"))):
        if value_at(task, "topologyPolicy") not in (None, "none"):
            yield Problem(f"spec.tasks[{index}].topologyPolicy", "is left out: a TFJob has no such field")

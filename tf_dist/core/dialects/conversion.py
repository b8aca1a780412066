"""Conversion of a document to another format, with a report of what could not be carried over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tf_dist.core.dialects import emit
from tf_dist.core.dialects.common_schema import TF_CONTAINER
from tf_dist.core.dialects.emit import EXIT_SAMPLES, Key, has_role, job_semantics, role_of
from tf_dist.core.dialects.parsing import Parsed, parse
from tf_dist.core.dialects.volcano_extensions.scheduler_annotations import AFFINITY, PREEMPTABLE, SLA
from tf_dist.core.model.fieldpath import FieldPath, format_field_path, list_items, mapping, value_at
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import Action, Dialect, Document, Job, ReplicaSpec
from tf_dist.errors import InvalidJob, Problem


def replica_path(job: Job, role: str) -> FieldPath:
    """The path of a role in a document of this job."""
    index, spec = next(found for found in enumerate(job.replica_specs) if role_of(found[1]) == role)
    match job.dialect:
        case Dialect.TFJOB_V1:
            return ("spec", "tfReplicaSpecs", spec.name)
        case Dialect.TFJOB_V1ALPHA1:
            return ("spec", "replicaSpecs", index)
        case Dialect.VOLCANO:
            return ("spec", "tasks", index)


CONSEQUENCES: Final[Mapping[str, str]] = {
    "success": "the job would succeed at another moment",
    "minSuccess": "so many successes no longer end the job",
    "cleanPods": "other pods would be left when the job has ended",
    "maxRestarts": "restarts would be limited differently",
    "countInPlace": "restarts by the kubelet would be counted differently",
    "deadline": "the job would have another deadline",
    "ttl": "the finished job would be kept for another time",
    "suspend": "the job would not be suspended as it is",
    "minAvailable": "another number of replicas would have to be there at once",
    "queue": "the job would wait in another queue",
    "priority": "the job would have another priority",
    "scheduler": "another scheduler would place the pods",
    "timeout": "the gang would wait another time for its pods to be scheduled",
    "managedElsewhere": "the job would be run here, not by MultiKueue",
    "tfConfig": "the replicas would get another TF_CONFIG",
    "indexVariables": "VK_TASK_INDEX and VC_TASK_INDEX would not be set",
    "hostFiles": "the host files in /etc/volcano would not be there",
    "sshKeys": "the keys of the ssh plugin would not be there",
    "patience": "room would be reserved for the job after another time",
    "preemptable": "another job could take its place, or could not",
    "nodeTopology": "the replicas would not be kept on one node",
    "services": "the replicas would get services, or none",
    "replicas": "there would be another number of replicas",
    "maxReplicas": "the job would grow to another number of these replicas",
    "minReplicas": "another number of these replicas would have to be there at once",
    "port": "the replicas would listen on another port",
    "server": "the standard parameter server would be another",
    "template": "the pods would differ",
    "depends": "the replicas would not wait for the tasks they depend on",
    "restartsWhenDone": "a container that is done would be treated differently",
    "failed": "failed replicas would be treated differently",
    "evicted": "evicted replicas would be treated differently",
    "taskFailed": "many restarts in place would be treated differently",
    "unknown": "an unknown state of the gang would be treated differently",
    "late": "policies with a timeout cannot be said",
    "byIndex": "what holds for one replica of several cannot be said",
}

_PATHS: Final[Mapping[Dialect, Mapping[str, FieldPath]]] = {
    Dialect.TFJOB_V1: {
        "success": ("spec", "successPolicy"),
        "cleanPods": ("spec", "runPolicy", "cleanPodPolicy"),
        "maxRestarts": ("spec", "runPolicy", "backoffLimit"),
        "countInPlace": ("spec", "runPolicy", "backoffLimit"),
        "deadline": ("spec", "runPolicy", "activeDeadlineSeconds"),
        "ttl": ("spec", "runPolicy", "ttlSecondsAfterFinished"),
        "suspend": ("spec", "runPolicy", "suspend"),
        "minAvailable": ("spec", "runPolicy", "schedulingPolicy", "minAvailable"),
        "queue": ("spec", "runPolicy", "schedulingPolicy", "queue"),
        "priority": ("spec", "runPolicy", "schedulingPolicy", "priorityClass"),
        "timeout": ("spec", "runPolicy", "schedulingPolicy", "scheduleTimeoutSeconds"),
        "managedElsewhere": ("spec", "runPolicy", "managedBy"),
        "tfConfig": ("spec", "enableDynamicWorker"),
        "failed": ("restartPolicy",),
        "restartsWhenDone": ("restartPolicy",),
    },
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


def conversion_losses(source: Parsed, result: Job) -> Iterator[Problem]:
    """Everything of the source job that the converted job does not have."""
    before, after = job_semantics(source.job), _renamed(job_semantics(result), source.job, result)
    gone = {role_of(spec) for spec in source.job.replica_specs} - {role for _, role in after}
    for role in sorted(gone):
        path = format_field_path(replica_path(source.job, role))
        yield Problem(path, f"{result.dialect} has no {role} replicas: they are left out", "keep the job as it is")
    for key, value in before.items():
        if key[1] not in gone and after.get(key) != value:
            yield Problem(_path(source.job, key), CONSEQUENCES[key[0]], _difference(key[0], value, after.get(key)))
    yield from _renames(source.job, result)
    yield from _unread(source)


def _renamed(found: Mapping[Key, Any], source: Job, result: Job) -> dict[Key, Any]:
    """The semantics with the leader under its former name: v1alpha1 calls every leader MASTER; reported once."""
    old, new = (_leader(job) for job in (source, result))
    if old is None or new is None or old.role is new.role:
        return dict(found)
    renamed = {
        (aspect, old.role.value if role == new.role.value else role): value for (aspect, role), value in found.items()
    }
    renamed["success", ""] = frozenset(
        (old.role.value if role == new.role.value else role, index) for role, index in found["success", ""]
    )
    return renamed


def _leader(job: Job) -> ReplicaSpec | None:
    return next((spec for spec in job.replica_specs if spec.role.leads), None)


def _renames(source: Job, result: Job) -> Iterator[Problem]:
    old, new = _leader(source), _leader(result)
    if old and new and old.role is not new.role:
        message = f"its type in TF_CONFIG would be {new.role.value!r}, not {old.role.value!r}"
        yield Problem(
            format_field_path(replica_path(source, old.role.value)),
            message,
            "TensorFlow 2 knows chief, TensorFlow 1 master",
        )
    for spec in source.replica_specs:
        if has_role(spec) and spec.container != TF_CONTAINER:
            path = format_field_path((*replica_path(source, role_of(spec)), "template", "spec", "containers"))
            yield Problem(path, f"the container {spec.container!r} is now named {TF_CONTAINER!r}")


def _path(job: Job, key: Key) -> str:
    aspect, role = key
    where = _PATHS[job.dialect].get(aspect, ())
    if not role:
        return format_field_path(where or ("spec",))
    of_job = where[:1] in (("spec",), ("metadata",))
    return format_field_path((*replica_path(job, role), *(() if of_job else where)))


def _difference(aspect: str, before: Any, after: Any) -> str:
    """The two values, where they are short enough to read."""
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
    Dialect.TFJOB_V1: (),
    Dialect.TFJOB_V1ALPHA1: ("batch-size", "modelName", "total-number", "tensorboard"),
    Dialect.VOLCANO: ("networkTopology", "runningEstimate"),
}


def _unread(source: Parsed) -> Iterator[Problem]:
    """Fields of the document that tf-dist does not use, so that the job does not have them."""
    spec = source.document["spec"]
    for key in _NOT_IN_THE_JOB[source.job.dialect]:
        if spec.get(key):
            yield Problem(format_field_path(("spec", key)), "is left out: the other format has no place for it")
    if value_at(spec, "runPolicy", "schedulingPolicy", "minResources"):
        yield Problem("spec.runPolicy.schedulingPolicy.minResources", "is left out: tf-dist adds up requests")
    for index, task in enumerate(list_items(spec.get("tasks"))):
        if value_at(task, "topologyPolicy") not in (None, "none"):
            yield Problem(f"spec.tasks[{index}].topologyPolicy", "is left out: the other format has no place for it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A converted document; ``lost``: what it lost, by the path in the original."""

    document: dict[str, Any]
    lost: tuple[Problem, ...] = ()


_WRITERS: Final[Mapping[Dialect, Callable[[Job, Document], dict[str, Any]]]] = {
    Dialect.TFJOB_V1: emit.emit_kubeflow_v1,
    Dialect.TFJOB_V1ALPHA1: emit.emit_kubeflow_v1alpha1,
    Dialect.VOLCANO: emit.emit_volcano,
}


def convert(document: Any, to: Dialect, *, strict: bool = True) -> Conversion:
    """Convert a document to another format; InvalidJob if it is invalid, or cannot be expressed there (roles, names).

    ``strict``: as for ``parse``, which accepts the result. Where it would run differently from the original,
    ``lost`` says how.
    """
    source = parse(document, strict=strict)
    if source.job.dialect is to:
        return Conversion(document=source.document)
    _refuse(source.job, to)
    source = replace(source, job=_without_idle_scheduler(source.job))
    written = _WRITERS[to](source.job, source.document)
    result = parse(written, strict=strict)
    return Conversion(document=written, lost=tuple(conversion_losses(source, result.job)))


def _without_idle_scheduler(job: Job) -> Job:
    """A Volcano Job whose pods tf-dist places does not name Volcano's scheduler: in other formats that name holds."""
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


def _refuse(job: Job, to: Dialect) -> None:
    """Raise if nothing sensible would be left: no replica can be expressed there, or they run our server."""
    problems = []
    if to is not Dialect.VOLCANO and not any(map(has_role, job.replica_specs)):
        hint = "name the tasks ps, worker, chief or evaluator"
        problems.append(Problem("spec.tasks", f"no task is a TensorFlow role, and {to} has nothing else", hint))
    for spec in job.replica_specs:
        if spec.server_image:
            path = format_field_path((*replica_path(job, role_of(spec)), "template"))
            hint = f"write a container named {TF_CONTAINER!r} that starts a tf.distribute.Server"
            problems.append(Problem(path, f"{to} has no standard parameter server", hint))
    if problems:
        raise InvalidJob(problems)

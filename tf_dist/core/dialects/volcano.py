"""``batch.volcano.sh/v1alpha1`` Job: the defaults of Volcano's mutating webhook, and the job it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.dialects import elastic, volcano_plugins, volcano_policies
from tf_dist.core.dialects.shape import TF_CONTAINER, TF_PORT, RawTemplate, container_names, named_port
from tf_dist.core.dialects.volcano_plugins import TensorFlowPlugin
from tf_dist.core.dialects.volcano_schema import Spec, Task, VolcanoJob, task_name
from tf_dist.core.model import (
    CleanPodPolicy,
    Counting,
    Dependency,
    Dialect,
    Document,
    Job,
    ReplicaSpec,
    Role,
    RunPolicy,
    Scheduling,
    ServiceStyle,
    TFConfigStyle,
)
from tf_dist.core.untyped import at, items, mapping

MAX_RETRY: Final = 3
QUEUE: Final = "default"
_BY_NAME: Final = {role.value: role for role in Role if role is not Role.OTHER}


def templates(document: Document) -> Iterator[RawTemplate]:
    """The raw templates of a document, whatever else is wrong with it."""
    for index, task in enumerate(items(at(document, "spec", "tasks"))):
        if at(task, "template") is not None:
            count = at(task, "replicas")
            number = count if type(count) is int else 0
            place = ("spec", "tasks", index, "template")
            yield RawTemplate(place, task["template"], number)


def defaulted(document: Document) -> dict[str, Any]:
    """The document as Volcano's webhook makes it; unchanged parts are shared with the original.

    ``schedulerName`` stays out: its default is not the document's but the webhook's configuration.
    """
    result = dict(document)
    spec = result.get("spec")
    if not isinstance(spec, Mapping):
        return result
    filled = dict(spec)
    filled["queue"] = _or(filled.get("queue"), QUEUE)
    filled["maxRetry"] = _or(filled.get("maxRetry"), MAX_RETRY)
    if isinstance(tasks := filled.get("tasks"), list):
        filled["tasks"] = [_defaulted_task(task, index) for index, task in enumerate(tasks)]
        filled["minAvailable"] = _or(filled.get("minAvailable"), _least(filled["tasks"]))
    if "tensorflow" in mapping(plugins := filled.get("plugins")) and "svc" not in mapping(plugins):
        filled["plugins"] = {**mapping(plugins), "svc": []}
    result["spec"] = filled
    return result


def _or(value: object, default: str | int) -> object:
    """The default for what is not there, or is the zero of its type, as Go has it; what is wrong stays to be seen."""
    return default if value is None or (type(value) is type(default) and not value) else value


def _defaulted_task(task: object, index: int) -> object:
    if not isinstance(task, Mapping):
        return task
    filled = dict(task)
    filled["name"] = _or(filled.get("name"), f"default{index}")
    filled["maxRetry"] = _or(filled.get("maxRetry"), MAX_RETRY)
    if filled.get("minAvailable") is None:
        filled["minAvailable"] = filled.get("replicas") or 0
    spec = at(filled.get("template"), "spec")
    if at(spec, "hostNetwork") is True:
        filled["template"] = {**filled["template"], "spec": {**spec, "dnsPolicy": "ClusterFirstWithHostNet"}}
    return filled


def _least(tasks: list[object]) -> int:
    """The pods that must run at once, where the tasks say it."""
    counts = (at(task, "minAvailable") for task in tasks)
    return sum(count for count in counts if type(count) is int)


def build(job: VolcanoJob) -> Job:
    """The job that a defaulted and checked document means."""
    spec = job.spec
    tensorflow = volcano_plugins.tensorflow(spec)
    played = volcano_plugins.plugins(spec)
    most = elastic.bound(job.metadata.annotations, names.MAX_WORKERS)
    specs = tuple(_replica_spec(task, index, tensorflow, most) for index, task in enumerate(spec.tasks))
    lonely = len(specs) == 1 and specs[0].most == 1
    return Job(
        dialect=Dialect.VOLCANO,
        key=job.metadata.key,
        uid=job.metadata.uid or "",
        labels=job.metadata.labels or {},
        annotations=job.metadata.annotations or {},
        replica_specs=specs,
        rules=volcano_policies.rules(spec.policies),
        counting=Counting(min_available=_min_available(spec), min_success=spec.min_success),
        run_policy=RunPolicy(
            clean_pods=CleanPodPolicy.RUNNING,
            # Volcano counts attempts: the first is no restart.
            max_restarts=(spec.max_retry or MAX_RETRY) - 1,
            container_restarts_count=False,
            ttl=spec.ttl_seconds_after_finished,
            suspend=job.metadata.suspended,
        ),
        scheduling=Scheduling(
            min_available=_min_available(spec),
            queue=spec.queue or QUEUE,
            priority_class=spec.priority_class_name or "",
            scheduler_name=spec.scheduler_name or "",
        ),
        tf_config=TFConfigStyle.VOLCANO if tensorflow and not lonely else TFConfigStyle.NONE,
        services=ServiceStyle.PER_JOB if played.svc else ServiceStyle.NONE,
        plugins=played,
        volumes=tuple(
            {"mountPath": volume.mount_path, "volumeClaimName": volume.volume_claim_name}
            for volume in spec.volumes or ()
        ),
    )


def _min_available(spec: Spec) -> int:
    return spec.min_available or sum(task.least for task in spec.tasks)


def _roles(tensorflow: TensorFlowPlugin | None) -> Mapping[str, Role]:
    return tensorflow.roles if tensorflow else _BY_NAME


def worker_task(spec: Spec) -> int | None:
    """Which task are the workers; None if none is."""
    roles = _roles(volcano_plugins.tensorflow(spec))
    names = [task_name(task, index) for index, task in enumerate(spec.tasks)]
    return next((index for index, name in enumerate(names) if roles.get(name) is Role.WORKER), None)


def _replica_spec(task: Task, index: int, tensorflow: TensorFlowPlugin | None, most: int | None) -> ReplicaSpec:
    name = task_name(task, index)
    role = _roles(tensorflow).get(name, Role.OTHER)
    container = _container(task.template)
    policy = at(task.template, "spec", "restartPolicy")
    retries = task.max_retry or MAX_RETRY
    return ReplicaSpec(
        name=name,
        type=name,
        role=role,
        replicas=task.count,
        min_replicas=task.least,
        max_replicas=most if role is Role.WORKER else None,
        template=task.template,
        container=container,
        port=named_port(task.template, container, tensorflow.port if tensorflow else TF_PORT),
        pod_restart_policy=policy if isinstance(policy, str) else "Always",
        rules=volcano_policies.rules(task.policies),
        depends=_dependency(task),
        container_restarts=None if retries < 0 else retries,
    )


def _dependency(task: Task) -> Dependency | None:
    depends = task.depends_on
    if depends is None or not depends.name:
        return None
    return Dependency(on=tuple(depends.name), any=depends.iteration == "any")


def _container(template: Document) -> str:
    """The container that trains: the one named ``tensorflow``, else the first."""
    names = [name for name in container_names(template) if isinstance(name, str)]
    return TF_CONTAINER if TF_CONTAINER in names else next(iter(names), "")

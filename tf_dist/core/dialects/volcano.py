"""``batch.volcano.sh/v1alpha1`` Job: the defaults of Volcano's webhook, validation, updates, and conversion to a job.

The rules are those of Volcano's validating webhook. An unsupported setting is an error if the job would run differently
without it, otherwise a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tf_dist.core.dialects import common_annotations, volcano_policies
from tf_dist.core.dialects.common_schema import (
    TF_CONTAINER,
    TF_PORT,
    check_label,
    check_metadata,
    check_pod_names,
    container_names,
    named_port,
)
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.dialects.pod_template import require_container
from tf_dist.core.dialects.volcano_extensions import job_plugins, scheduler_annotations
from tf_dist.core.dialects.volcano_extensions.job_plugins import TensorFlowPlugin
from tf_dist.core.dialects.volcano_schema import MAX_TASKS, Spec, Task, VolcanoJob, task_name
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, suggestion, value_at
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import (
    CleanPodPolicy,
    CompletionByCounts,
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
from tf_dist.core.model.names import GANG_SCHEDULER, MAX_WORKERS, MIN_WORKERS
from tf_dist.core.model.wording import counted
from tf_dist.errors import Problem

DEFAULT_MAX_RETRY: Final = 3
DEFAULT_QUEUE: Final = "default"
_BY_NAME: Final = {role.value: role for role in Role if role is not Role.OTHER}


def default_spec(spec: Document) -> Document:
    """The spec with the defaults of Volcano's webhook.

    ``schedulerName`` is left out, because its default is part of the webhook's configuration.
    """
    filled = dict(spec)
    filled["queue"] = _or(filled.get("queue"), DEFAULT_QUEUE)
    filled["maxRetry"] = _or(filled.get("maxRetry"), DEFAULT_MAX_RETRY)
    if isinstance(tasks := filled.get("tasks"), list):
        filled["tasks"] = [_defaulted_task(task, index) for index, task in enumerate(tasks)]
        filled["minAvailable"] = _or(filled.get("minAvailable"), _least(filled["tasks"]))
    if "tensorflow" in mapping(plugins := filled.get("plugins")) and "svc" not in mapping(plugins):
        filled["plugins"] = {**mapping(plugins), "svc": []}
    return filled


def _or(value: object, default: str | int) -> object:
    """The default for a missing value or the zero value of its type, as in Go. Wrong values stay, and are reported."""
    return default if value is None or (type(value) is type(default) and not value) else value


def _defaulted_task(task: object, index: int) -> object:
    if not isinstance(task, Mapping):
        return task
    filled = dict(task)
    filled["name"] = _or(filled.get("name"), f"default{index}")
    filled["maxRetry"] = _or(filled.get("maxRetry"), DEFAULT_MAX_RETRY)
    if filled.get("minAvailable") is None:
        filled["minAvailable"] = filled.get("replicas") or 0
    spec = value_at(filled.get("template"), "spec")
    if value_at(spec, "hostNetwork") is True:
        filled["template"] = {**filled["template"], "spec": {**spec, "dnsPolicy": "ClusterFirstWithHostNet"}}
    return filled


def _least(tasks: list[object]) -> int:
    """The sum of the tasks' minAvailable."""
    counts = (value_at(task, "minAvailable") for task in tasks)
    return sum(count for count in counts if type(count) is int)


def build(job: VolcanoJob) -> Job:
    """The job of a checked document with defaults."""
    spec = job.spec
    tensorflow = job_plugins.tensorflow_plugin(spec.plugins)
    plugins = job_plugins.job_plugins(spec.plugins)
    bounds = tuple(common_annotations.worker_bound(job.metadata.annotations, key) for key in (MIN_WORKERS, MAX_WORKERS))
    specs = tuple(_replica_spec(task, index, tensorflow, bounds) for index, task in enumerate(spec.tasks))
    single = len(specs) == 1 and specs[0].most == 1
    return Job(
        dialect=Dialect.VOLCANO,
        key=job.metadata.key,
        uid=job.metadata.uid or "",
        labels=job.metadata.labels or {},
        annotations=job.metadata.annotations or {},
        replica_specs=specs,
        rules=volcano_policies.policy_rules(spec.policies),
        counting=CompletionByCounts(min_available=_min_available(spec, specs), min_success=spec.min_success),
        run_policy=RunPolicy(
            resume_keeps_succeeded=True,
            clean_pods=CleanPodPolicy.RUNNING,
            # Volcano counts attempts: the first is not a restart.
            max_restarts=(spec.max_retry or DEFAULT_MAX_RETRY) - 1,
            container_restarts_count=False,
            failures_count_together=True,
            ttl=spec.ttl_seconds_after_finished,
            suspend=job.metadata.suspended,
        ),
        scheduling=Scheduling(
            min_available=_min_available(spec, specs),
            queue=spec.queue or DEFAULT_QUEUE,
            priority_class=spec.priority_class_name or "",
            scheduler_name=spec.scheduler_name or "",
            patience=scheduler_annotations.sla_waiting_time(job.metadata.annotations or {}),
            preemptable=scheduler_annotations.is_preemptable(
                job.metadata.annotations or {}, job.metadata.labels or {}, [task.template for task in spec.tasks]
            ),
            topology=scheduler_annotations.preferred_topology(
                job.metadata.annotations or {}, [one.name for one in specs]
            ),
        ),
        tf_config=TFConfigStyle.VOLCANO if tensorflow and not single else TFConfigStyle.NONE,
        services=ServiceStyle.PER_JOB if plugins.svc else ServiceStyle.NONE,
        plugins=plugins,
        volumes=tuple(
            {"mountPath": volume.mount_path, "volumeClaimName": volume.volume_claim_name}
            for volume in spec.volumes or ()
        ),
    )


def _min_available(spec: Spec, specs: Sequence[ReplicaSpec]) -> int:
    """The gang's minimum; for an elastic job, at most its smallest size."""
    written = spec.min_available or sum(task.least for task in spec.tasks)
    elastic = any(one.min_replicas < one.replicas for one in specs)
    return min(written, sum(one.min_replicas for one in specs)) if elastic else written


def _roles(tensorflow: TensorFlowPlugin | None) -> Mapping[str, Role]:
    return tensorflow.roles if tensorflow else _BY_NAME


def worker_task(spec: Spec) -> int | None:
    """The index of the task of workers, or None."""
    roles = _roles(job_plugins.tensorflow_plugin(spec.plugins))
    names = [task_name(task, index) for index, task in enumerate(spec.tasks)]
    return next((index for index, name in enumerate(names) if roles.get(name) is Role.WORKER), None)


def _replica_spec(
    task: Task, index: int, tensorflow: TensorFlowPlugin | None, bounds: tuple[int | None, ...]
) -> ReplicaSpec:
    name = task_name(task, index)
    role = _roles(tensorflow).get(name, Role.OTHER)
    names = [name for name in container_names(task.template) if isinstance(name, str)]
    container = TF_CONTAINER if TF_CONTAINER in names else next(iter(names), "")
    policy = value_at(task.template, "spec", "restartPolicy")
    retries = task.max_retry or DEFAULT_MAX_RETRY
    least, most = bounds if role is Role.WORKER else (None, None)
    smallest = min(task.count, least or task.count)
    return ReplicaSpec(
        name=name,
        type=name,
        role=role,
        replicas=task.count,
        min_replicas=smallest,
        max_replicas=most,
        min_available=task.least if least is None else min(task.least, smallest),
        template=task.template,
        container=container,
        # The plugin writes its own port into every address, not the ports that containers name.
        port=tensorflow.port if tensorflow else named_port(task.template, container, TF_PORT),
        pod_restart_policy=policy if isinstance(policy, str) else "Always",
        rules=volcano_policies.policy_rules(task.policies),
        depends=_dependency(task),
        container_restarts=None if retries < 0 else retries,
    )


def _dependency(task: Task) -> Dependency | None:
    depends = task.depends_on
    if depends is None or not depends.name:
        return None
    return Dependency(on=tuple(depends.name), any=depends.iteration == "any")


def validate(job: VolcanoJob, out: FieldErrors) -> None:
    """Check all rules about our own keys."""
    spec = job.spec
    names = [task_name(task, index) for index, task in enumerate(spec.tasks)]
    svc = job_plugins.job_plugins(spec.plugins).svc
    # The svc plugin makes a service of the job's name, and a service's name starts with a letter.
    named = check_metadata(job.metadata, out, letter_first=svc)
    labels = [check_label(name, ("spec", "tasks", index, "name"), out) for index, name in enumerate(names)]
    if named and all(labels):
        most = common_annotations.worker_bound(job.metadata.annotations, MAX_WORKERS) or 0
        worker = worker_task(spec)
        counts = (max(task.count, most) if index == worker else task.count for index, task in enumerate(spec.tasks))
        check_pod_names(job.metadata, zip(names, counts, strict=True), out)
    _check_tasks(spec, names, out)
    _check_dependencies(spec.tasks, names, out)
    _check_gang(spec, out)
    _check_elastic(job, out)
    _check_volumes(spec, out)
    _check_not_done(spec, out)
    plugins = job_plugins.job_plugins(spec.plugins)
    job_plugins.check_plugins(spec.plugins, names, out)
    if out.advice and (job.metadata.annotations or {}).get(GANG_SCHEDULER) != GangScheduler.VOLCANO:
        templates_ = [task.template for task in spec.tasks]
        scheduler_annotations.check_annotations(job.metadata.annotations or {}, templates_, names, out)
    if out.advice:
        job_plugins.advise_missing_plugins(plugins, names, [task.template for task in spec.tasks], out)
    if out.advice:
        volcano_policies.advise_restarts_of_success(spec, names, out)
    volcano_policies.check_policies(spec.policies, ("spec", "policies"), out)
    for index, task in enumerate(spec.tasks):
        volcano_policies.check_policies(task.policies, ("spec", "tasks", index, "policies"), out)
        if out.advice:
            volcano_policies.advise_restarts(task, spec, ("spec", "tasks", index), out)


def _check_tasks(spec: Spec, names: Sequence[str], out: FieldErrors) -> None:
    if not spec.tasks:
        out.error(("spec", "tasks"), "at least one task is required")
    elif len(spec.tasks) > MAX_TASKS:
        out.error(("spec", "tasks"), f"{len(spec.tasks)} tasks are more than {MAX_TASKS}", "make it several jobs")
    elif spec.total == 0 and not out.partial:
        out.error(("spec", "tasks"), "there are no replicas at all: nothing would run")
    for index, task in enumerate(spec.tasks):
        place: FieldPath = ("spec", "tasks", index)
        if names.index(names[index]) != index:
            out.error((*place, "name"), f"a second task named {names[index]!r}")
        if task.replicas is None and not out.partial:
            out.warn((*place, "replicas"), "is missing, and Volcano reads that as 0", "write the number of replicas")
        if task.min_available is not None and task.min_available > task.count and not out.partial:
            out.error(
                (*place, "minAvailable"),
                f"{task.min_available} of {names[index]} must run at once, but there are {task.count}",
                f"write {task.count} or less",
            )
        require_container(task.template, (*place, "template"), out)
        if task.partition_policy is not None:
            out.error(
                (*place, "partitionPolicy"), "tf-dist does not divide tasks into partitions", "make tasks of them"
            )
        if task.topology_policy not in (None, "none"):
            out.warn((*place, "topologyPolicy"), "tf-dist does not place by NUMA node; this is not used")


def _check_dependencies(tasks: Sequence[Task], names: Sequence[str], out: FieldErrors) -> None:
    known: dict[str, list[str]] = {}
    for index, task in enumerate(tasks):
        wanted = (task.depends_on and task.depends_on.name) or []
        for name in wanted:
            if name not in names:
                place = ("spec", "tasks", index, "dependsOn", "name")
                out.error(place, f"there is no task {name!r}", suggestion(name, names))
        known.setdefault(names[index], [name for name in wanted if name in names])
    if circle := _find_cycle(known):
        index = names.index(circle[0])
        out.error(("spec", "tasks", index, "dependsOn"), f"waits for itself: {' -> '.join((*circle, circle[0]))}")


def _find_cycle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """A cycle in the graph, in order; empty if there is none. (Iterative, because a document may be deep.)"""
    done: set[str] = set()
    for start in edges:
        path, branches = [start], [iter(edges[start])]
        while branches and start not in done:
            follower = next((name for name in branches[-1] if name not in done), None)
            if follower is None:
                branches.pop()
                done.add(path.pop())
            elif follower in path:
                return path[path.index(follower) :]
            else:
                path.append(follower)
                branches.append(iter(edges[follower]))
    return []


def _check_gang(spec: Spec, out: FieldErrors) -> None:
    if out.partial:
        return
    if spec.min_available is not None and spec.min_available > spec.total > 0:
        out.error(
            ("spec", "minAvailable"),
            f"{counted(spec.min_available, 'pod')} must run at once, but the tasks have {spec.total}: "
            "it could never start",
            f"write {spec.total} or less, or leave it out",
        )
    if spec.min_success is not None and spec.min_success > spec.total:
        out.error(
            ("spec", "minSuccess"), f"{counted(spec.min_success, 'pod')} must succeed, but the tasks have {spec.total}"
        )


def _check_elastic(job: VolcanoJob, out: FieldErrors) -> None:
    """Check the annotations for fewer and for more workers."""
    index = worker_task(job.spec)
    task = None if index is None else job.spec.tasks[index]
    where = "there are none" if index is None else f"spec.tasks[{index}].replicas"
    common_annotations.check_worker_bounds(job.metadata.annotations, task.count if task else None, where, out)


def _check_volumes(spec: Spec, out: FieldErrors) -> None:
    paths: set[str] = set()
    for index, volume in enumerate(spec.volumes or ()):
        place: FieldPath = ("spec", "volumes", index)
        path = volume.mount_path
        if not path or ":" in path or not path.startswith("/"):
            out.error((*place, "mountPath"), f"{path!r} must be absolute and without ':'")
        if path in paths:
            out.error((*place, "mountPath"), f"{path!r} is mounted twice")
        paths.add(path)
        if volume.volume_claim is not None and volume.volume_claim_name:
            out.error(place, "has both volumeClaim and volumeClaimName", "keep volumeClaimName")
        elif volume.volume_claim is not None:
            out.error(
                (*place, "volumeClaim"),
                "tf-dist does not create claims, and without one the data that the job writes would be lost",
                "make the PersistentVolumeClaim yourself and write its name as volumeClaimName",
            )
        elif not volume.volume_claim_name and not out.partial:
            out.error((*place, "volumeClaimName"), MISSING)


def _check_not_done(spec: Spec, out: FieldErrors) -> None:
    if spec.queue == "root":
        out.error(("spec", "queue"), "jobs cannot be put into the root queue", "name one below it")
    if spec.network_topology is None:
        return
    topology = mapping(spec.network_topology)
    if topology.get("mode") not in (None, "hard", "soft"):
        out.error(("spec", "networkTopology", "mode"), f"unknown value {topology['mode']!r}", "known: hard, soft")
    if topology.get("highestTierAllowed") is not None and topology.get("highestTierName") is not None:
        out.error(("spec", "networkTopology"), "has both highestTierAllowed and highestTierName", "keep one of them")
    out.warn(("spec", "networkTopology"), "tf-dist does not know Volcano's tiers; this is not used")


_FREE: Final = frozenset({"minAvailable", "priorityClassName"})
_FREE_OF_TASK: Final = frozenset({"replicas", "minAvailable"})
_KEEP: Final = "undo the change, or delete the job and submit it again"
_MAY_CHANGE: Final = "minAvailable, priorityClassName, and a task's replicas and minAvailable"


def update_problems(old: Document, new: Document) -> tuple[Problem, ...]:
    """The forbidden changes of an update of a job, by path.

    Defaults count as written. By the rules of Volcano's webhook, only the minimum, the replicas of tasks and their
    minimums, and the priority class may change.
    """
    before, after = (default_spec(mapping(document.get("spec"))) for document in (old, new))
    return tuple(_update_problems(before, after))


def _update_problems(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[Problem]:
    for key in _changed(before, after, _FREE | {"tasks"}):
        yield _immutable(f"spec.{key}")
    tasks = list_items(before.get("tasks")), list_items(after.get("tasks"))
    if len(tasks[0]) != len(tasks[1]):
        message = f"job updates may not add or remove tasks: there were {len(tasks[0])}, and now {len(tasks[1])}"
        yield Problem("spec.tasks", message, _KEEP)
        return
    for index, (one, other) in enumerate(zip(*tasks, strict=True)):
        for key in _changed(mapping(one), mapping(other), _FREE_OF_TASK):
            yield _immutable(f"spec.tasks[{index}].{key}")


def _changed(before: Mapping[str, object], after: Mapping[str, object], free: frozenset[str]) -> list[str]:
    keys = dict.fromkeys((*before, *after))
    return [key for key in keys if key not in free and (before.get(key) or None) != (after.get(key) or None)]


def _immutable(path: str) -> Problem:
    return Problem(path, f"cannot be changed after the job is created; these can be changed: {_MAY_CHANGE}", _KEEP)

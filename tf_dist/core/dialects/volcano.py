"""``batch.volcano.sh/v1alpha1`` Job (Volcano 1.15): schema, defaults, validation, updates, and conversion to a job.

The defaults are those of Volcano's webhook. The rules are those of Volcano's validating webhook, and those that Volcano
leaves to its controller. An unsupported setting is an error if the job would run differently without it, otherwise a
warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tf_dist.core.dialects import common_annotations, volcano_annotations, volcano_plugins
from tf_dist.core.dialects.common_schema import (
    INT32_MAX,
    TF_CONTAINER,
    TF_PORT,
    Count,
    Envelope,
    Int32,
    Positive,
    ReplicaCount,
    SchemaModel,
    Seconds,
    Template,
    check_label,
    check_metadata,
    check_pod_names,
    container_names,
    named_port,
)
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.dialects.pod_template import require_container
from tf_dist.core.dialects.volcano_plugins import TensorFlowPlugin
from tf_dist.core.model.fieldpath import FieldPath, list_items, mapping, suggestion, value_at
from tf_dist.core.model.gang_scheduler import GangScheduler
from tf_dist.core.model.job import (
    Action,
    CleanPodPolicy,
    CompletionByCounts,
    Dependency,
    Dialect,
    Document,
    Event,
    ExitCodes,
    Job,
    ReplicaSpec,
    Role,
    Rule,
    RunPolicy,
    Scheduling,
    ServiceStyle,
    TFConfigStyle,
)
from tf_dist.core.model.names import GANG_SCHEDULER, MAX_WORKERS, MIN_WORKERS
from tf_dist.core.model.timestamps import parse_go_duration
from tf_dist.core.model.wording import counted
from tf_dist.errors import Problem

# -- schema --

DEFAULT_MAX_RETRY: Final = 3
DEFAULT_QUEUE: Final = "default"
_BY_NAME: Final = {role.value: role for role in Role if role is not Role.OTHER}
MAX_TASKS = 256
"""The maximum number of tasks. An API server compares each task with all other tasks."""


class Policy(SchemaModel):
    """A lifecycle policy: an action for an event or an exit code."""

    action: str | None = None
    """The action."""
    event: str | None = None
    """An event."""
    events: list[str] | None = None
    """Several events."""
    exit_code: Int32 | None = None
    """An exit code."""
    timeout: str | None = None
    """The time after the event, such as 10m."""


class DependsOn(SchemaModel):
    """The tasks that must be running before this task starts."""

    name: list[str] | None = None
    """The names of the tasks."""
    iteration: Literal["any", "all"] | None = None
    """Whether any or all of the tasks must run."""


class Task(SchemaModel):
    """One group of equal pods."""

    name: str | None = None
    """The name; default: default0, default1, …"""
    replicas: ReplicaCount | None = None
    """The number of pods; default: 0."""
    min_available: Count | None = None
    """The number of pods that must be admitted together; default: all."""
    template: Template
    """The pods to run, as in any workload."""
    policies: list[Policy] | None = None
    """The actions on events and exit codes."""
    topology_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] | None = None
    """Not used."""
    max_retry: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    """The number of restarts after which the task fails; -1: no limit."""
    depends_on: DependsOn | None = None
    """The tasks that must run before this task starts."""
    partition_policy: Any = None
    """Not used."""

    @property
    def count(self) -> int:
        """The number of replicas. Volcano reads a missing number as 0."""
        return self.replicas or 0

    @property
    def least(self) -> int:
        """The number of pods that must be admitted together."""
        return self.count if self.min_available is None else self.min_available


class Volume(SchemaModel):
    """A claim mounted into every pod of the job."""

    mount_path: str
    """Where the claim is mounted."""
    volume_claim_name: str | None = None
    """The name of the claim."""
    volume_claim: dict[str, Any] | None = None
    """Not used: tf-dist does not create claims."""


class Spec(SchemaModel):
    """The job."""

    scheduler_name: str | None = None
    """The scheduler of the pods."""
    min_available: Count | None = None
    """The number of pods that must be admitted together."""
    volumes: list[Volume] | None = None
    """Claims that are mounted in every pod."""
    tasks: list[Task]
    """The groups of pods."""
    policies: list[Policy] | None = None
    """The actions on events and exit codes, for all tasks."""
    plugins: dict[str, list[str] | None] | None = None
    """Plugins of Volcano, with their arguments."""
    running_estimate: Any = None
    """Not used."""
    queue: str | None = None
    """The queue in which the job waits."""
    max_retry: Count | None = None
    """The number of attempts; default: 3."""
    ttl_seconds_after_finished: Seconds | None = None
    """How long the job is kept after its end, in seconds."""
    priority_class_name: str | None = None
    """A PriorityClass. It decides which job is admitted first, and which job is preempted."""
    min_success: Positive | None = None
    """The number of successful pods with which the job succeeds."""
    network_topology: Any = None
    """Not used."""

    @property
    def total(self) -> int:
        """The number of pods of the job."""
        return sum(task.count for task in self.tasks)


class VolcanoJob(Envelope):
    """A document of this dialect."""

    spec: Spec


def task_name(task: Task, index: int) -> str:
    """A task's name. Volcano names tasks without a name ``default0``, ``default1``, …"""
    return task.name or f"default{index}"


# -- defaults, and conversion to a job --


def default_spec(spec: Document) -> Document:
    """The spec with the defaults of Volcano's webhook.

    ``schedulerName`` has no default here, because its default is part of the webhook's configuration.
    """
    filled = dict(spec)
    filled["queue"] = _or(filled.get("queue"), DEFAULT_QUEUE)
    filled["maxRetry"] = _or(filled.get("maxRetry"), DEFAULT_MAX_RETRY)
    if isinstance(tasks := filled.get("tasks"), list):
        filled["tasks"] = [_defaulted_task(task, index) for index, task in enumerate(tasks)]
        minimums = (value_at(task, "minAvailable") for task in filled["tasks"])
        least = sum(count for count in minimums if type(count) is int)
        filled["minAvailable"] = _or(filled.get("minAvailable"), least)
    if "tensorflow" in mapping(plugins := filled.get("plugins")) and "svc" not in mapping(plugins):
        filled["plugins"] = {**mapping(plugins), "svc": []}
    return filled


def _or(value: object, default: str | int) -> object:
    """The default for a missing value or the zero value of its type, as in Go. Wrong values are kept and reported."""
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


def build(job: VolcanoJob) -> Job:
    """The job of a checked document with defaults."""
    spec = job.spec
    tensorflow = volcano_plugins.tensorflow_plugin(spec.plugins)
    plugins = volcano_plugins.job_plugins(spec.plugins)
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
        rules=policy_rules(spec.policies),
        counting=CompletionByCounts(min_success=spec.min_success),
        run_policy=RunPolicy(
            resume_keeps_succeeded=True,
            clean_pods=CleanPodPolicy.RUNNING,
            # Volcano counts attempts. The first attempt is not a restart.
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
            patience=volcano_annotations.sla_waiting_time(job.metadata.annotations or {}),
            preemptable=volcano_annotations.is_preemptable(
                job.metadata.annotations or {}, job.metadata.labels or {}, [task.template for task in spec.tasks]
            ),
            topology=volcano_annotations.preferred_topology(
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


def _replica_spec(
    task: Task, index: int, tensorflow: TensorFlowPlugin | None, bounds: tuple[int | None, ...]
) -> ReplicaSpec:
    name = task_name(task, index)
    role = _roles(tensorflow).get(name, Role.OTHER)
    names = [name for name in container_names(task.template) if isinstance(name, str)]
    container = TF_CONTAINER if TF_CONTAINER in names else next(iter(names), "")
    policy = value_at(task.template, "spec", "restartPolicy")
    retries, after = task.max_retry or DEFAULT_MAX_RETRY, task.depends_on
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
        # The plugin writes its own port into every address, not the ports of containers.
        port=tensorflow.port if tensorflow else named_port(task.template, container, TF_PORT),
        pod_restart_policy=policy if isinstance(policy, str) else "Always",
        rules=policy_rules(task.policies),
        depends=Dependency(on=tuple(after.name), any=after.iteration == "any") if after and after.name else None,
        container_restarts=None if retries < 0 else retries,
    )


# -- validation --


def validate(job: VolcanoJob, out: FieldErrors) -> None:
    """Check all rules about the keys of this format."""
    spec = job.spec
    names = [task_name(task, index) for index, task in enumerate(spec.tasks)]
    plugins = volcano_plugins.job_plugins(spec.plugins)
    # The svc plugin creates a Service with the job's name, and a Service's name starts with a letter.
    named = check_metadata(job.metadata, out, letter_first=plugins.svc)
    labels = [check_label(name, ("spec", "tasks", index, "name"), out) for index, name in enumerate(names)]
    roles = _roles(volcano_plugins.tensorflow_plugin(spec.plugins))
    worker = next((index for index, name in enumerate(names) if roles.get(name) is Role.WORKER), None)
    if named and all(labels):
        most = common_annotations.worker_bound(job.metadata.annotations, MAX_WORKERS) or 0
        counts = (max(task.count, most) if index == worker else task.count for index, task in enumerate(spec.tasks))
        check_pod_names(job.metadata, zip(names, counts, strict=True), out)
    _check_tasks(spec, names, out)
    _check_dependencies(spec.tasks, names, out)
    _check_gang(spec, out)
    workers = None if worker is None else spec.tasks[worker].count
    where = "there are none" if worker is None else f"spec.tasks[{worker}].replicas"
    common_annotations.check_worker_bounds(job.metadata.annotations, workers, where, out)
    _check_volumes(spec, out)
    _check_not_done(spec, out)
    volcano_plugins.check_plugins(spec.plugins, names, out)
    if out.advice and (job.metadata.annotations or {}).get(GANG_SCHEDULER) != GangScheduler.VOLCANO:
        templates_ = [task.template for task in spec.tasks]
        volcano_annotations.check_annotations(job.metadata.annotations or {}, templates_, names, out)
    if out.advice:
        volcano_plugins.advise_missing_plugins(plugins, names, [task.template for task in spec.tasks], out)
    if out.advice:
        advise_restarts_of_success(spec, names, out)
    check_policies(spec.policies, ("spec", "policies"), out)
    for index, task in enumerate(spec.tasks):
        check_policies(task.policies, ("spec", "tasks", index, "policies"), out)
        if out.advice:
            advise_restarts(task, spec, ("spec", "tasks", index), out)


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
            message = f"{task.min_available} of {names[index]} must run at once, but there are {task.count}"
            out.error((*place, "minAvailable"), message, f"write {task.count} or less")
        require_container(task.template, (*place, "template"), out)
        if task.partition_policy is not None:
            message = "tf-dist does not divide tasks into partitions"
            out.error((*place, "partitionPolicy"), message, "make tasks of them")
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
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        circle = [str(name) for name in reversed(error.args[1])]
        index = names.index(circle[0])
        out.error(("spec", "tasks", index, "dependsOn"), f"waits for itself: {' -> '.join(circle)}")


def _check_gang(spec: Spec, out: FieldErrors) -> None:
    if out.partial:
        return
    if spec.min_available is not None and spec.min_available > spec.total > 0:
        message = f"{counted(spec.min_available, 'pod')} must run at once, but the tasks have {spec.total}"
        hint = f"write {spec.total} or less, or leave it out"
        out.error(("spec", "minAvailable"), f"{message}: it could never start", hint)
    if spec.min_success is not None and spec.min_success > spec.total:
        message = f"{counted(spec.min_success, 'pod')} must succeed, but the tasks have {spec.total}"
        out.error(("spec", "minSuccess"), message)


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

    A default is equal to a written value. As in Volcano's webhook, only the minimum, the replicas of tasks and their
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


# -- lifecycle policies --

ANY_EVENT: Final = "*"
UNREACHABLE_EVENT: Final = "JobUpdated"
"""An event that Volcano accepts and never emits."""

EVENTS: Final = ("*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated")
ACTIONS: Final = ("AbortJob", "RestartJob", "RestartTask", "RestartPod", "TerminateJob", "CompleteJob", "ResumeJob")
_INTERNAL_EVENTS: Final = ("OutOfSync", "CommandIssued", "PodRunning")
_INTERNAL_ACTIONS: Final = ("SyncJob", "EnqueueJob", "SyncQueue", "OpenQueue", "CloseQueue")


def events_of(policy: Policy) -> tuple[str, ...]:
    """The distinct events that a policy names."""
    return tuple(dict.fromkeys([*([policy.event] if policy.event else []), *(policy.events or ())]))


def policy_rules(policies: Sequence[Policy] | None) -> tuple[Rule, ...]:
    """The rules of checked policies, in order: the first matching rule applies."""
    return tuple(rule for policy in policies or () for rule in _rules(policy))


def _rules(policy: Policy) -> Iterator[Rule]:
    action = Action(policy.action or "")
    timeout = (policy.timeout and parse_go_duration(policy.timeout)) or 0.0
    if policy.exit_code is not None:
        codes = ExitCodes(ranges=((policy.exit_code, policy.exit_code),))
        yield Rule(events=frozenset({Event.POD_FAILED}), action=action, codes=codes, timeout=timeout)
        return
    named = events_of(policy)
    events = set(Event) if ANY_EVENT in named else {Event(name) for name in named if name != UNREACHABLE_EVENT}
    if not timeout:
        events.discard(Event.POD_PENDING)
    if events:
        yield Rule(events=frozenset(events), action=action, timeout=timeout)


def check_policies(policies: Sequence[Policy] | None, loc: FieldPath, out: FieldErrors) -> None:
    """Check a list of policies: each policy, then duplicates."""
    for index, policy in enumerate(policies or ()):
        _check_policy(policy, (*loc, index), out)
    _check_twice(policies or (), loc, out)


def _check_policy(policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    named = events_of(policy)
    if named and policy.exit_code is not None:
        out.error(loc, "names both an event and an exitCode", "split it into two policies")
    elif not named and policy.exit_code is None and not out.partial:
        out.error(loc, "names neither an event nor an exitCode", f"events: {', '.join(EVENTS)}")
    if policy.exit_code == 0:
        out.error((*loc, "exitCode"), "0 means success, and policies do not react to it", "use event: TaskCompleted")
    _check_action(policy, loc, out)
    for name in named:
        _check_event(name, policy, (*loc, "event" if name == policy.event else "events"), out)
    if policy.timeout and parse_go_duration(policy.timeout) is None:
        hint = f"write {policy.timeout}s" if policy.timeout.isdecimal() else "such as 90s, 10m or 1h30m"
        out.error((*loc, "timeout"), f"{policy.timeout!r} is not a duration", hint)


def _check_action(policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    place = (*loc, "action")
    if not policy.action:
        if not out.partial:
            out.error(place, MISSING, f"known: {', '.join(ACTIONS)}")
    elif policy.action == "RestartPartition":
        out.error(place, "tf-dist does not know partitions, and would restart nothing", "RestartTask or RestartPod")
    elif policy.action in _INTERNAL_ACTIONS:
        message = f"{policy.action} is internal to Volcano and cannot be used in a policy"
        out.error(place, message, f"known: {', '.join(ACTIONS)}")
    elif policy.action not in ACTIONS:
        out.error(place, f"unknown action {policy.action!r}", suggestion(policy.action, ACTIONS))


def _check_event(name: str, policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    if name in _INTERNAL_EVENTS:
        out.error(loc, f"{name} is internal to Volcano; a policy cannot react to it", f"known: {', '.join(EVENTS)}")
    elif name not in EVENTS:
        out.error(loc, f"unknown event {name!r}", suggestion(name, EVENTS))
    elif name == UNREACHABLE_EVENT:
        out.warn(loc, "JobUpdated never happens: Volcano accepts it and does not emit it")
    elif name == Event.POD_PENDING and not policy.timeout:
        out.warn(loc, "PodPending without a timeout never fires", "add the time: timeout: 10m")


def _check_twice(policies: Sequence[Policy], loc: FieldPath, out: FieldErrors) -> None:
    seen: set[str | int] = set()
    for index, policy in enumerate(policies):
        named = events_of(policy)
        for name in named:
            if name in seen:
                out.error((*loc, index), f"event {name} already has a policy", "the first one wins: keep one of them")
        if policy.exit_code in seen:
            message = f"exit code {policy.exit_code} already has a policy"
            out.error((*loc, index, "exitCode"), message, "keep one of them")
        seen.update(named, () if policy.exit_code is None else (policy.exit_code,))
    others = sorted({name for policy in policies for name in events_of(policy)} - {ANY_EVENT})
    if ANY_EVENT in seen and others:
        message = f"'*' is every event, so {', '.join(others)} cannot have a policy in addition"
        out.error(loc, message, "name the events one by one, or keep only the policy for '*'")


def advise_restarts(task: Task, spec: Spec, loc: FieldPath, out: FieldErrors) -> None:
    """Warn about restart policies of a template with which pods do not end as the lifecycle policies expect."""
    policy = value_at(task.template, "spec", "restartPolicy")
    place = (*loc, "template", "spec", "restartPolicy")
    if policy is None:
        message = "is not set; the default of Kubernetes is Always, and a completed pod starts again"
        out.warn(place, message, "write Never")
    own = _handled_events(task.policies)
    if policy in (None, "Always") and Event.TASK_COMPLETED in own | _handled_events(spec.policies):
        out.warn(place, "with Always no pod ever completes, so the policy for TaskCompleted never fires", "write Never")
    if policy in (None, "Always", "OnFailure") and Event.POD_FAILED in own:
        why = f"with {policy or 'Always'} the kubelet restarts a container in place"
        out.warn(place, f"{why}; the PodFailed policy hardly fires", "write Never")
    if policy == "Never" and Event.TASK_FAILED in own:
        message = "TaskFailed counts restarts in place; with Never there are none, and its policy never fires"
        out.warn(place, message, "write OnFailure, or a policy for PodFailed")


_RESTARTS: Final = frozenset({Action.RESTART_JOB.value, Action.RESTART_TASK.value, Action.RESTART_POD.value})


def advise_restarts_of_success(spec: Spec, names: Sequence[str], out: FieldErrors) -> None:
    """Warn about policies that restart a task after its success. The restarts repeat until maxRetry is reached."""
    tasks: dict[FieldPath, list[str]] = {}
    for index, task in enumerate(spec.tasks):
        if value_at(task.template, "spec", "restartPolicy") in (None, "Always"):
            continue  # its pods never succeed; another check warns about that
        own: FieldPath = ("spec", "tasks", index, "policies")
        lists = ((own, task.policies), (("spec", "policies"), spec.policies))
        listed = [((*place, at), one) for place, policies in lists for at, one in enumerate(policies or ())]
        answers = {ANY_EVENT, Event.TASK_COMPLETED.value}
        found = next(((at, one) for at, one in listed if not answers.isdisjoint(events_of(one))), None)
        if found is not None and found[1].action in _RESTARTS:
            tasks.setdefault((*found[0], "action"), []).append(names[index])
    for place, named in tasks.items():
        message = f"restarts {' and '.join(named)} whenever all its pods have succeeded, until maxRetry is spent"
        hint = "write CompleteJob for TaskCompleted, and restart on PodFailed or PodEvicted"
        out.warn(place, f"{message}; then the job has failed", hint)


def _handled_events(policies: Sequence[Policy] | None) -> set[str]:
    """The events to which a list of policies reacts."""
    return {name for policy in policies or () for name in events_of(policy)}

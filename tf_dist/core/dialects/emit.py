"""Documents of each format emitted from a job, and the semantics by which two jobs are compared.

The loss of a conversion is the difference in semantics between source and result, so no list kept by hand can miss
anything. Names of tasks, addresses and the wording of policies are not part of the semantics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core.dialects.common_schema import (
    SERVICES_ANNOTATION,
    SUSPEND_ANNOTATION,
    TF_CONTAINER,
    TF_PORT,
    TF_PORT_NAME,
    without_none,
)
from tf_dist.core.model.assignment import start_counts
from tf_dist.core.model.fieldpath import list_items, mapping, value_at
from tf_dist.core.model.job import (
    Action,
    Dialect,
    Document,
    Event,
    Job,
    ReplicaSpec,
    Role,
    Rule,
    ServiceStyle,
    TFConfigStyle,
)
from tf_dist.core.model.names import MAX_WORKERS, MIN_WORKERS, QUEUE

UNLIMITED: Final = 1_000_000
"""Restarts that stand for no limit: Volcano cannot say "unlimited"."""

EXIT_SAMPLES: Final[tuple[tuple[int | None, bool], ...]] = (
    *((code, False) for code in (1, 2, 126, 127, 128, 130, 134, 135, 137, 138, 139, 143, 200, 255, None)),
    (137, True),
)
"""(exit code, killed for memory): both ends of every class that some dialect makes, and every common signal."""

Key = tuple[str, str]
"""(aspect, replica role); the role is "" for what concerns the job."""


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
    """Every aspect of a job that formats can express differently."""
    found = {(aspect, ""): value for aspect, value in _job_semantics(job)}
    for spec in job.replica_specs:
        role = role_of(spec)
        found |= {(aspect, role): value for aspect, value in _spec_semantics(job, spec)}
    return found


def role_of(spec: ReplicaSpec) -> str:
    """The role under which a spec is compared: a Master and a Chief are two, a task of no role keeps its name."""
    return spec.role.value or spec.name


def _job_semantics(job: Job) -> Iterator[tuple[str, Any]]:
    policy, scheduling = job.run_policy, job.scheduling
    limit = policy.max_restarts
    limited = limit is not None and limit < UNLIMITED
    yield "success", success_criteria(job)
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
    yield "timeout", scheduling.timeout
    yield "managedElsewhere", job.managed_elsewhere
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
    yield "server", spec.server_image
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
    yield "byIndex", _by_index(job, spec)


def _by_index(job: Job, spec: ReplicaSpec) -> tuple[Rule, ...]:
    """Rows for one replica among several."""
    return tuple(rule for rule in (*spec.rules, *job.rules) if rule.index is not None) if spec.replicas > 1 else ()


def plain_template(job: Job, spec: ReplicaSpec) -> Document:
    """The template with the job's volumes in it, without what formats express outside of it."""
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


_V1_KEYS: Final[Mapping[Role, str]] = {
    Role.CHIEF: "Chief",
    Role.MASTER: "Master",
    Role.PS: "PS",
    Role.WORKER: "Worker",
    Role.EVALUATOR: "Evaluator",
}
_LONGEST_LABEL: Final = 63
_SIGNALS: Final = (130, 134, 135, 137, 138, 139, 143)
"""Exit codes of programs killed by a signal; Volcano wants each by itself."""

_FATAL: Final = (Action.FAIL_JOB, Action.ABORT_JOB, Action.COMPLETE_JOB)


def emit_metadata(
    source: Document, *, suspended: bool = False, bounds: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The user's part of the metadata; suspension and the bounds of workers in the form of the new format."""
    given = mapping(source.get("metadata"))
    kept = {key: given[key] for key in ("name", "generateName", "namespace", "labels") if given.get(key)}
    ours = (SUSPEND_ANNOTATION, SERVICES_ANNOTATION, MIN_WORKERS, MAX_WORKERS)
    annotations = {key: value for key, value in mapping(given.get("annotations")).items() if key not in ours}
    annotations |= bounds or {}
    if suspended:
        annotations[SUSPEND_ANNOTATION] = "true"
    return {**kept, **({"annotations": annotations} if annotations else {})}


def emit_kubeflow_v1(job: Job, source: Document) -> dict[str, Any]:
    """A ``kubeflow.org/v1`` TFJob."""
    policy, scheduling = job.run_policy, job.scheduling
    total = sum(spec.replicas for spec in job.replica_specs if has_role(spec))
    gang = without_none(
        minAvailable=scheduling.min_available if scheduling.min_available < total else None,
        queue=scheduling.queue or None,
        priorityClass=scheduling.priority_class or None,
        scheduleTimeoutSeconds=scheduling.timeout,
    )
    run = without_none(
        cleanPodPolicy=policy.clean_pods.value,
        backoffLimit=_limit(job),
        activeDeadlineSeconds=policy.active_deadline,
        ttlSecondsAfterFinished=policy.ttl,
        suspend=True if policy.suspend else None,
        schedulingPolicy=gang or None,
    )
    all_workers = success_criteria(job) == {(Role.WORKER.value, None)}
    many = any(spec.role is Role.WORKER and spec.replicas > 1 for spec in job.replica_specs)
    spec = without_none(
        runPolicy=run,
        successPolicy="AllWorkers" if all_workers and many else None,
        enableDynamicWorker=True if job.tf_config is TFConfigStyle.SPARSE else None,
        tfReplicaSpecs={_V1_KEYS[one.role]: _v1_replicas(job, one) for one in job.replica_specs if has_role(one)},
    )
    return _document(Dialect.TFJOB_V1, emit_metadata(source, bounds=_least(job) | _most(job)), spec)


def _workers(job: Job) -> ReplicaSpec | None:
    return next((spec for spec in job.replica_specs if spec.role is Role.WORKER), None)


def _least(job: Job) -> dict[str, str]:
    """The minimum of workers, where the gang's minimum agrees."""
    worker, total = _workers(job), sum(spec.replicas for spec in job.replica_specs if has_role(spec))
    if worker is None or not 0 < worker.min_replicas < worker.replicas:
        return {}
    needed = total - worker.replicas + worker.min_replicas
    return {MIN_WORKERS: str(worker.min_replicas)} if needed == job.scheduling.min_available else {}


def _most(job: Job) -> dict[str, str]:
    worker = _workers(job)
    return {} if worker is None or worker.most == worker.replicas else {MAX_WORKERS: str(worker.most)}


def _limit(job: Job) -> int | None:
    limit = job.run_policy.max_restarts
    return limit if limit is not None and limit < UNLIMITED else None


def _v1_replicas(job: Job, spec: ReplicaSpec) -> dict[str, Any]:
    written = _template(job, spec, None)
    scheduler = {"schedulerName": job.scheduling.scheduler_name} if job.scheduling.scheduler_name else {}
    template = {**written, "spec": {**_pod_priority(job), **scheduler, **written["spec"]}}
    return {"replicas": spec.replicas, "restartPolicy": _v1_policy(job, spec), "template": template}


def _pod_priority(job: Job) -> dict[str, str]:
    """A Volcano Job's priority class is its pods', too; the other formats say that in templates alone."""
    named = job.scheduling.priority_class if job.dialect is Dialect.VOLCANO else ""
    return {"priorityClassName": named} if named else {}


def _v1_policy(job: Job, spec: ReplicaSpec) -> str:
    """The restart policy nearest to what the job does when a replica fails by itself, and when it is killed."""
    own, killed = (action_for_failure(job, spec, code) for code in (1, 143))
    if own is Action.RESTART_POD:
        return "Always" if spec.pod_restart_policy == "Always" else "OnFailure"
    if killed is Action.RESTART_POD and own in _FATAL:
        return "ExitCode"
    return "Never"


def emit_kubeflow_v1alpha1(job: Job, source: Document) -> dict[str, Any]:
    """A ``kubeflow.org/v1alpha1`` TFJob."""
    specs = [spec for spec in job.replica_specs if _v1alpha1_type(spec.role)]
    worker = next((spec for spec in specs if spec.role is Role.WORKER), None)
    elastic = worker is not None and (0 < worker.min_replicas < worker.replicas or worker.most > worker.replicas)
    spec = without_none(
        replicaSpecs=[_v1alpha1_replicas(job, spec) for spec in specs],
        terminationPolicy={"chief": _chief(job, specs)},
        schedulerName=job.scheduling.scheduler_name or None,
        cleanupPodPolicy=job.run_policy.clean_pods.value,
    )
    if worker is not None and elastic:
        spec |= {"min-instance": worker.min_replicas, "max-instance": worker.most}
    head = emit_metadata(source, suspended=job.run_policy.suspend)
    if 0 < len(job.scheduling.queue) <= _LONGEST_LABEL:
        head["labels"] = {**head.get("labels", {}), QUEUE: job.scheduling.queue}
    return _document(Dialect.TFJOB_V1ALPHA1, head, spec)


def _v1alpha1_type(role: Role) -> str:
    """MASTER for any leader; "" for roles that v1alpha1 does not know."""
    return "MASTER" if role.leads else {Role.PS: "PS", Role.WORKER: "WORKER"}.get(role, "")


def _chief(job: Job, specs: list[ReplicaSpec]) -> dict[str, Any]:
    """The replica whose end is the job's: the leader, else the worker the job names, else the first there is."""
    leader = next((spec for spec in specs if spec.role.leads), None)
    leader = leader or next((spec for spec in specs if spec.role is Role.WORKER), None) or next(iter(specs), None)
    named = [rule.index for rule in job.success if leader and rule.type == leader.type and rule.index is not None]
    kind = _v1alpha1_type(leader.role) if leader else "MASTER"
    return {"replicaName": kind, "replicaIndex": next(iter(named), 0)}


def _v1alpha1_replicas(job: Job, spec: ReplicaSpec) -> dict[str, Any]:
    written = _template(job, spec, spec.pod_restart_policy)
    return {
        "tfReplicaType": _v1alpha1_type(spec.role),
        "replicas": spec.replicas,
        "tfPort": spec.port,
        "template": {**written, "spec": {**_pod_priority(job), **written["spec"]}},
    }


def emit_volcano(job: Job, source: Document) -> dict[str, Any]:
    """A ``batch.volcano.sh/v1alpha1`` Job with the tensorflow plugin."""
    policy, scheduling = job.run_policy, job.scheduling
    limit = _limit(job)
    # The plugin calls every leader chief, not by its task's name.
    roles = {"chief" if one.role.leads else one.role.value: one.type for one in job.replica_specs if has_role(one)}
    spec = without_none(
        minAvailable=scheduling.min_available,
        queue=scheduling.queue or None,
        priorityClassName=scheduling.priority_class or None,
        schedulerName=scheduling.scheduler_name or None,
        maxRetry=(UNLIMITED if limit is None else limit) + 1,
        ttlSecondsAfterFinished=policy.ttl,
        plugins={"svc": [], "tensorflow": [f"--{role}={task}" for role, task in roles.items()]},
        tasks=[_task(job, one) for one in job.replica_specs],
    )
    return _document(
        Dialect.VOLCANO, emit_metadata(source, suspended=policy.suspend, bounds=_least(job) | _most(job)), spec
    )


def _least_of_task(job: Job, spec: ReplicaSpec) -> int:
    """Its own minimum; a gang without a minimum says so in its tasks: a job's minAvailable of 0 is none given."""
    if spec.min_available is not None:
        return spec.min_available
    return spec.min_replicas if job.scheduling.min_available else 0


def _task(job: Job, spec: ReplicaSpec) -> dict[str, Any]:
    return {
        "name": spec.type,
        "replicas": spec.replicas,
        "minAvailable": _least_of_task(job, spec),
        "policies": _policies(job, spec),
        "template": _template(job, spec, _volcano_pod_policy(job, spec)),
    }


def _volcano_pod_policy(job: Job, spec: ReplicaSpec) -> str:
    """Policies see pods that have failed and completed: where they decide, the kubelet may not restart in place."""
    if any(action_for_failure(job, spec, *exit_) is not Action.RESTART_POD for exit_ in EXIT_SAMPLES):
        return "Never"
    decides = any(rule.type == spec.type for rule in job.success)
    return "OnFailure" if decides and spec.pod_restart_policy == "Always" else spec.pod_restart_policy


def _policies(job: Job, spec: ReplicaSpec) -> list[dict[str, Any]]:
    """Volcano policies in the order that counts: exact exit codes before the event that covers them all."""
    own, killed = (action_for_failure(job, spec, code) for code in (1, 143))
    listed: list[dict[str, Any]] = []
    if own is not killed and killed is Action.RESTART_POD:
        listed += [{"exitCode": code, "action": "RestartPod"} for code in _SIGNALS]
    if own is Action.RESTART_POD:
        listed.append({"event": "PodFailed", "action": "RestartPod"})
    elif own is Action.FAIL_JOB:
        listed.append({"event": "PodFailed", "action": "TerminateJob"})
    if action_for(job, spec, Event.POD_EVICTED) is Action.RESTART_POD:
        listed.append({"event": "PodEvicted", "action": "RestartPod"})
    if any(rule.type == spec.type and (rule.index is None or spec.replicas == 1) for rule in job.success):
        listed.append({"event": "TaskCompleted", "action": "CompleteJob"})
    return listed


def _template(job: Job, spec: ReplicaSpec, restart_policy: str | None) -> dict[str, Any]:
    """The pod template with what the source has elsewhere: claims, restart policy, port, the container's name."""
    template = with_claims(spec.template, job.volumes, job.key.name)
    pod = {key: value for key, value in mapping(template.get("spec")).items() if key != "restartPolicy"}
    listed = [
        _container(one, spec) if one.get("name") == spec.container else one for one in list_items(pod.get("containers"))
    ]
    pod["containers"] = listed
    return {**template, "spec": {**pod, **({"restartPolicy": restart_policy} if restart_policy else {})}}


def _container(container: Mapping[str, Any], spec: ReplicaSpec) -> dict[str, Any]:
    """The container that trains, with its name and the port under which every format finds it."""
    ports = list(list_items(container.get("ports")))
    if all(value_at(port, "name") != TF_PORT_NAME for port in ports) and spec.port != TF_PORT:
        ports.append({"name": TF_PORT_NAME, "containerPort": spec.port})
    return {**container, "name": TF_CONTAINER, **({"ports": ports} if ports else {})}


def _document(dialect: Dialect, head: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": dialect.value, "kind": dialect.kind, "metadata": head, "spec": spec}

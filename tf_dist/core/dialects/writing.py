"""From a job to a document of another format: as much as it can say. What it cannot is found by comparing meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tf_dist.core.dialects.meaning import EXIT_SAMPLES, UNLIMITED, answer, answer_failed, has_role, success, with_claims
from tf_dist.core.dialects.shape import (
    SERVICES_ANNOTATION,
    SUSPEND_ANNOTATION,
    TF_CONTAINER,
    TF_PORT,
    TF_PORT_NAME,
    without_none,
)
from tf_dist.core.model import Dialect, Document, Job, ReplicaSpec, Role, TFConfigStyle
from tf_dist.core.names import MAX_WORKERS, MIN_WORKERS, QUEUE
from tf_dist.core.policy_model import Action, Event
from tf_dist.core.untyped import at, items, mapping

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


def metadata(source: Document, *, suspended: bool = False, bounds: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The user's part of the metadata; whether the job is suspended, and how few and how many workers it may have
    (``bounds``), is said in the way of its new format.
    """
    given = mapping(source.get("metadata"))
    kept = {key: given[key] for key in ("name", "generateName", "namespace", "labels") if given.get(key)}
    ours = (SUSPEND_ANNOTATION, SERVICES_ANNOTATION, MIN_WORKERS, MAX_WORKERS)
    annotations = {key: value for key, value in mapping(given.get("annotations")).items() if key not in ours}
    annotations |= bounds or {}
    if suspended:
        annotations[SUSPEND_ANNOTATION] = "true"
    return {**kept, **({"annotations": annotations} if annotations else {})}


def tfjob_v1(job: Job, source: Document) -> dict[str, Any]:
    """A ``kubeflow.org/v1`` TFJob."""
    policy, scheduling = job.run_policy, job.scheduling
    total = sum(spec.replicas for spec in job.replica_specs if has_role(spec))
    gang = without_none(
        minAvailable=scheduling.min_available if 0 < scheduling.min_available < total else None,
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
    everyone = success(job) == {(Role.WORKER.value, None)}
    many = any(spec.role is Role.WORKER and spec.replicas > 1 for spec in job.replica_specs)
    spec = without_none(
        runPolicy=run,
        successPolicy="AllWorkers" if everyone and many else None,
        enableDynamicWorker=True if job.tf_config is TFConfigStyle.SPARSE else None,
        tfReplicaSpecs={_V1_KEYS[one.role]: _v1_replicas(job, one) for one in job.replica_specs if has_role(one)},
    )
    return _document(Dialect.TFJOB_V1, metadata(source, bounds=_least(job) | _most(job)), spec)


def _workers(job: Job) -> ReplicaSpec | None:
    return next((spec for spec in job.replica_specs if spec.role is Role.WORKER), None)


def _least(job: Job) -> dict[str, str]:
    """The fewest workers, where the gang's minimum says the same."""
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
    return {"replicas": spec.replicas, "restartPolicy": _v1_policy(job, spec), "template": _template(job, spec, None)}


def _v1_policy(job: Job, spec: ReplicaSpec) -> str:
    """The restart policy nearest to what the job does when a replica fails by itself, and when it is killed."""
    own, killed = (answer_failed(job, spec, code) for code in (1, 143))
    if own is Action.RESTART_POD:
        return "Always" if spec.pod_restart_policy == "Always" else "OnFailure"
    if killed is Action.RESTART_POD and own in _FATAL:
        return "ExitCode"
    return "Never"


def tfjob_v1alpha1(job: Job, source: Document) -> dict[str, Any]:
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
    head = metadata(source, suspended=job.run_policy.suspend)
    if 0 < len(job.scheduling.queue) <= _LONGEST_LABEL:
        head["labels"] = {**head.get("labels", {}), QUEUE: job.scheduling.queue}
    return _document(Dialect.TFJOB_V1ALPHA1, head, spec)


def _v1alpha1_type(role: Role) -> str:
    """MASTER for whoever leads; "" for roles that v1alpha1 does not know."""
    return "MASTER" if role.leads else {Role.PS: "PS", Role.WORKER: "WORKER"}.get(role, "")


def _chief(job: Job, specs: list[ReplicaSpec]) -> dict[str, Any]:
    """The replica whose end is the job's: the leader, else the worker the job names, else the first there is."""
    leader = next((spec for spec in specs if spec.role.leads), None)
    leader = leader or next((spec for spec in specs if spec.role is Role.WORKER), None) or next(iter(specs), None)
    named = [rule.index for rule in job.success if leader and rule.type == leader.type and rule.index is not None]
    kind = _v1alpha1_type(leader.role) if leader else "MASTER"
    return {"replicaName": kind, "replicaIndex": next(iter(named), 0)}


def _v1alpha1_replicas(job: Job, spec: ReplicaSpec) -> dict[str, Any]:
    return {
        "tfReplicaType": _v1alpha1_type(spec.role),
        "replicas": spec.replicas,
        "tfPort": spec.port,
        "template": _template(job, spec, spec.pod_restart_policy),
    }


def volcano(job: Job, source: Document) -> dict[str, Any]:
    """A ``batch.volcano.sh/v1alpha1`` Job with the tensorflow plugin."""
    policy, scheduling = job.run_policy, job.scheduling
    limit = _limit(job)
    # The plugin calls every leader chief, whatever its task is named.
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
    return _document(Dialect.VOLCANO, metadata(source, suspended=policy.suspend, bounds=_most(job)), spec)


def _task(job: Job, spec: ReplicaSpec) -> dict[str, Any]:
    return {
        "name": spec.type,
        "replicas": spec.replicas,
        "minAvailable": spec.min_replicas,
        "policies": _policies(job, spec),
        "template": _template(job, spec, _volcano_pod_policy(job, spec)),
    }


def _volcano_pod_policy(job: Job, spec: ReplicaSpec) -> str:
    """Policies see pods that have failed and completed: where they decide, the kubelet may not restart in place."""
    if any(answer_failed(job, spec, *exit_) is not Action.RESTART_POD for exit_ in EXIT_SAMPLES):
        return "Never"
    decides = any(rule.type == spec.type for rule in job.success)
    return "OnFailure" if decides and spec.pod_restart_policy == "Always" else spec.pod_restart_policy


def _policies(job: Job, spec: ReplicaSpec) -> list[dict[str, Any]]:
    """Volcano policies in the order that counts: exact exit codes before the event that covers them all."""
    own, killed = (answer_failed(job, spec, code) for code in (1, 143))
    listed: list[dict[str, Any]] = []
    if own is not killed and killed is Action.RESTART_POD:
        listed += [{"exitCode": code, "action": "RestartPod"} for code in _SIGNALS]
    if own is Action.RESTART_POD:
        listed.append({"event": "PodFailed", "action": "RestartPod"})
    elif own is Action.FAIL_JOB:
        listed.append({"event": "PodFailed", "action": "TerminateJob"})
    if answer(job, spec, Event.POD_EVICTED) is Action.RESTART_POD:
        listed.append({"event": "PodEvicted", "action": "RestartPod"})
    if any(rule.type == spec.type and (rule.index is None or spec.replicas == 1) for rule in job.success):
        listed.append({"event": "TaskCompleted", "action": "CompleteJob"})
    return listed


def _template(job: Job, spec: ReplicaSpec, restart_policy: str | None) -> dict[str, Any]:
    """The pod template with what the source said elsewhere: claims, restart policy, port, the container's name."""
    template = with_claims(spec.template, job.volumes, job.key.name)
    pod = {key: value for key, value in mapping(template.get("spec")).items() if key != "restartPolicy"}
    listed = [
        _container(one, spec) if one.get("name") == spec.container else one for one in items(pod.get("containers"))
    ]
    pod["containers"] = listed
    return {**template, "spec": {**pod, **({"restartPolicy": restart_policy} if restart_policy else {})}}


def _container(container: Mapping[str, Any], spec: ReplicaSpec) -> dict[str, Any]:
    """The container that trains, with its name and the port under which every format finds it."""
    ports = list(items(container.get("ports")))
    if all(at(port, "name") != TF_PORT_NAME for port in ports) and spec.port != TF_PORT:
        ports.append({"name": TF_PORT_NAME, "containerPort": spec.port})
    return {**container, "name": TF_CONTAINER, **({"ports": ports} if ports else {})}


def _document(dialect: Dialect, head: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": dialect.value, "kind": dialect.kind, "metadata": head, "spec": spec}

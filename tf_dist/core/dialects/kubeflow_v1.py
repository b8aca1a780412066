"""``kubeflow.org/v1`` TFJob (training-operator 1.9): schema, defaults, validation, and conversion to a job.

The rules are those of Kubeflow's validating webhook, and further rules for jobs that Kubeflow accepts but cannot run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from tf_dist.core.dialects import common_annotations
from tf_dist.core.dialects.common_schema import (
    INT32_MAX,
    LAYOUTS,
    SERVICES_ANNOTATION,
    TF_CONTAINER,
    TF_PORT,
    TF_PORT_NAME,
    Count,
    Envelope,
    LongSeconds,
    ReplicaCount,
    SchemaModel,
    Seconds,
    Template,
    check_metadata,
    check_pod_names,
    container_names,
    named_port,
    template_containers,
    with_defaults,
)
from tf_dist.core.dialects.field_errors import FieldErrors
from tf_dist.core.dialects.pod_template import read_quantities, require_container
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import FieldPath, format_field_path, list_items, mapping, suggestion, text, value_at
from tf_dist.core.model.job import (
    Action,
    CleanPodPolicy,
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
    SuccessRule,
    TFConfigStyle,
)
from tf_dist.core.model.names import MAX_WORKERS, MIN_WORKERS, TRAINING_OPERATOR
from tf_dist.core.model.wording import counted
from tf_dist.errors import Problem

TYPES: Final = ("Chief", "Master", "PS", "Worker", "Evaluator")
RETIRED_KEYS: Final = ("cleanPodPolicy", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
"""Keys that v1.0 had directly under ``spec``. Later versions drop them silently (kubeflow/trainer#1241)."""

CleanPods = Literal["All", "Running", "None"]
RestartPolicy = Literal["Always", "OnFailure", "Never", "ExitCode"]


class SchedulingPolicy(SchemaModel):
    """Fields for gang admission."""

    min_available: Count | None = None
    """The number of pods that must be admitted together; default: all."""
    queue: str | None = None
    """The queue in which the job waits."""
    min_resources: dict[str, Any] | None = None
    """Not used: tf-dist adds up what the pods request."""
    priority_class: str | None = None
    """A PriorityClass. It decides which job is admitted first, and which job is preempted."""
    schedule_timeout_seconds: Seconds | None = None
    """How long the pods may wait for their nodes, in seconds."""


class RunPolicyShape(SchemaModel):
    """Limits and housekeeping."""

    clean_pod_policy: CleanPods | None = None
    """Which pods are deleted when the job has ended."""
    ttl_seconds_after_finished: Seconds | None = None
    """How long the job is kept after its end, in seconds."""
    active_deadline_seconds: LongSeconds | None = None
    """How long the job may be active, in seconds from the admission of its gang."""
    backoff_limit: Count | None = None
    """The number of restarts of any kind after which the job fails."""
    suspend: bool | None = None
    """Whether the job is suspended."""
    managed_by: Literal["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"] | None = None
    """The controller of the job; tf-dist reconciles the job only if this is kubeflow.org/training-operator."""
    scheduling_policy: SchedulingPolicy | None = None
    """Settings of gang admission."""


class Replicas(SchemaModel):
    """Replicas of one type."""

    replicas: ReplicaCount | None = None
    """The number of replicas; default: 1."""
    template: Template
    """The pods to run, as in any workload."""
    restart_policy: RestartPolicy | None = None
    """The action after a replica has failed; default: Never."""

    @property
    def count(self) -> int:
        """The number of replicas; 1 by default."""
        return 1 if self.replicas is None else self.replicas


class Spec(SchemaModel):
    """The job, including the retired keys, which v1.0 had directly under the spec."""

    run_policy: RunPolicyShape | None = None
    """Limits and housekeeping."""
    success_policy: Literal["", "AllWorkers"] | None = None
    """The condition of success: the chief has succeeded, or all workers have (AllWorkers)."""
    tf_replica_specs: dict[str, Replicas]
    """The replicas by type: Chief, Master, PS, Worker, Evaluator."""
    enable_dynamic_worker: bool | None = None
    """Whether workers may be added and removed while the job runs."""
    clean_pod_policy: CleanPods | None = None
    """Which pods are deleted when the job has ended. The path of v1.0."""
    backoff_limit: Count | None = None
    """The number of restarts of any kind after which the job fails. The path of v1.0."""
    active_deadline_seconds: LongSeconds | None = None
    """How long the job may be active, in seconds from the admission of its gang. The path of v1.0."""
    ttl_seconds_after_finished: Seconds | None = None
    """How long the job is kept after its end, in seconds. The path of v1.0."""

    @property
    def policy(self) -> RunPolicyShape:
        """The limits and housekeeping; empty by default."""
        return self.run_policy or RunPolicyShape()

    @property
    def gang(self) -> SchedulingPolicy:
        """The settings of gang admission; empty by default."""
        return self.policy.scheduling_policy or SchedulingPolicy()

    @property
    def types(self) -> dict[str, str]:
        """The keys of the replicas by their type, in Kubeflow's spelling."""
        return {normalized_type(key): key for key in self.tf_replica_specs}

    @property
    def total(self) -> int:
        """The number of all replicas."""
        return sum(replicas.count for replicas in self.tf_replica_specs.values())


class TFJob(Envelope):
    """A document of this dialect."""

    spec: Spec


RETRYABLE: Final = ExitCodes(ranges=((-INT32_MAX - 1, -1), (128, 255)), unknown=True, start_failures=False)
"""The exit codes after which a retry can succeed: those of signals, and unknown codes. Codes 1 to 127 are failures of
the program.

Containers that could not be started (code 128) are not retried.
"""

_LOST: Final = frozenset({Event.POD_EVICTED, Event.NODE_LOST})
_FAILED: Final = frozenset({Event.POD_FAILED})
_REPLACE_LOST: Final = Rule(events=_LOST, action=Action.RESTART_POD)
RESTART_POLICIES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "Never": (Rule(events=_FAILED, action=Action.FAIL_JOB), _REPLACE_LOST),
    "OnFailure": (Rule(events=_FAILED | _LOST, action=Action.RESTART_POD),),
    "Always": (Rule(events=_FAILED | _LOST, action=Action.RESTART_POD),),
    "ExitCode": (
        Rule(events=_FAILED, action=Action.RESTART_POD, codes=RETRYABLE),
        Rule(events=_FAILED, action=Action.FAIL_JOB),
        _REPLACE_LOST,
    ),
}
"""The rules of each restart policy."""
TOLERANT: Final = (Rule(events=_FAILED, action=Action.IGNORE), _REPLACE_LOST)
"""The rules of dynamic workers that are not restarted: the other workers continue after a failure."""


def default_spec(spec: Document) -> Document:
    """The spec with the defaults of training-operator. Keys at their path of v1.0 move to their current path."""
    if not isinstance(spec.get("runPolicy"), Mapping | None):
        return spec
    retired = {key: spec[key] for key in RETIRED_KEYS if spec.get(key) is not None}
    given = {key: value for key, value in mapping(spec.get("runPolicy")).items() if value is not None}
    filled = {key: value for key, value in spec.items() if key not in RETIRED_KEYS}
    filled["runPolicy"] = {"cleanPodPolicy": "None", **retired, **given}
    if filled.get("successPolicy") is None:
        filled["successPolicy"] = ""
    if isinstance(specs := spec.get("tfReplicaSpecs"), Mapping):
        names = [normalized_type(key) if isinstance(key, str) else key for key in specs]
        # Two spellings of the same type are an error, which is reported later: keep both.
        keys = names if len(set(names)) == len(names) else list(specs)
        filled["tfReplicaSpecs"] = dict(zip(keys, map(_defaulted_replicas, specs.values()), strict=True))
    return filled


def _defaulted_replicas(replicas: object) -> object:
    if not isinstance(replicas, Mapping):
        return replicas
    template = _with_port(replicas.get("template"))
    return with_defaults({**replicas, "template": template}, replicas=1, restartPolicy="Never")


def _with_port(template: object) -> object:
    """The template with ``tfjob-port`` on the training container (the first container, if none has its name)."""
    listed = value_at(template, "spec", "containers")
    if not isinstance(template, Mapping) or not isinstance(listed, list) or not listed:
        return template
    names = [value_at(container, "name") for container in listed]
    index = names.index(TF_CONTAINER) if TF_CONTAINER in names else 0
    container = listed[index]
    if not isinstance(container, Mapping) or not isinstance(container.get("ports"), list | None):
        return template
    ports = list(list_items(container.get("ports")))
    if any(value_at(port, "name") == TF_PORT_NAME for port in ports):
        return template
    changed = {**container, "ports": [*ports, {"name": TF_PORT_NAME, "containerPort": TF_PORT}]}
    return {
        **template,
        "spec": {**template["spec"], "containers": [*listed[:index], changed, *listed[index + 1 :]]},
    }


def build(job: TFJob) -> Job:
    """The job of a checked document with defaults."""
    policy, gang = job.spec.policy, job.spec.gang
    dynamic = bool(job.spec.enable_dynamic_worker)
    annotations = job.metadata.annotations or {}
    groups = job.spec.tf_replica_specs.items()
    specs = tuple(_replica_spec(key, replicas, annotations, dynamic=dynamic) for key, replicas in groups)
    per_job = annotations.get(SERVICES_ANNOTATION) == ServiceStyle.PER_JOB
    success = _success(job.spec, specs)
    all_replicas = sum(spec.min_replicas for spec in specs)
    # A job that can never have more than one replica gets no TF_CONFIG, even with dynamic workers.
    alone = sum(spec.most for spec in specs) == 1
    return Job(
        dialect=Dialect.TFJOB_V1,
        key=job.metadata.key,
        uid=job.metadata.uid or "",
        labels=job.metadata.labels or {},
        annotations=annotations,
        replica_specs=specs,
        success=success,
        running_types=tuple(dict.fromkeys(rule.type for rule in success)),
        run_policy=RunPolicy(
            clean_pods=CleanPodPolicy(policy.clean_pod_policy or "None"),
            max_restarts=policy.backoff_limit,
            active_deadline=policy.active_deadline_seconds,
            ttl=policy.ttl_seconds_after_finished,
            suspend=bool(policy.suspend) or job.metadata.suspended,
        ),
        scheduling=Scheduling(
            min_available=all_replicas if gang.min_available is None else gang.min_available,
            queue=gang.queue or "",
            priority_class=gang.priority_class or "",
            timeout=gang.schedule_timeout_seconds,
        ),
        tf_config=TFConfigStyle.NONE if alone else TFConfigStyle.SPARSE if dynamic else TFConfigStyle.V1,
        services=ServiceStyle.PER_JOB if per_job else ServiceStyle.PER_REPLICA,
        managed_elsewhere=policy.managed_by not in (None, TRAINING_OPERATOR),
    )


def _replica_spec(key: str, replicas: Replicas, annotations: Mapping[str, str], *, dynamic: bool) -> ReplicaSpec:
    policy = replicas.restart_policy or "Never"
    role = Role(key.lower())
    bounds = annotations if role is Role.WORKER else {}
    tolerant = dynamic and policy == "Never" and role is Role.WORKER
    return ReplicaSpec(
        name=key,
        type=key.lower(),
        role=role,
        replicas=replicas.count,
        min_replicas=min(replicas.count, common_annotations.worker_bound(bounds, names.MIN_WORKERS) or replicas.count),
        max_replicas=common_annotations.worker_bound(bounds, names.MAX_WORKERS),
        template=replicas.template,
        container=TF_CONTAINER if TF_CONTAINER in container_names(replicas.template) else "",
        port=named_port(replicas.template, TF_CONTAINER, TF_PORT),
        pod_restart_policy="Never" if policy == "ExitCode" else policy,
        rules=TOLERANT if tolerant else RESTART_POLICIES[policy],
    )


def _success(spec: Spec, specs: tuple[ReplicaSpec, ...]) -> tuple[SuccessRule, ...]:
    """The rules of success: the chief decides. Without a chief, worker 0 or all workers decide."""
    leader = next((one.type for one in specs if one.role.leads), None)
    if leader is not None:
        return (SuccessRule(type=leader),)
    if not any(one.role is Role.WORKER for one in specs):
        return ()
    every = SuccessRule(type=Role.WORKER)
    return (every,) if spec.success_policy == "AllWorkers" else (SuccessRule(type=Role.WORKER, index=0), every)


_SPECS: Final = LAYOUTS[Dialect.TFJOB_V1].replicas
_RETIRED = {key: name for key in RETIRED_KEYS for name, info in Spec.model_fields.items() if info.alias == key}
_BY_FOLDED = {name.casefold(): name for name in TYPES}


def normalized_type(key: str) -> str:
    """The replica type in Kubeflow's spelling, for a key in any letter case (``WORKER``). Other keys are unchanged."""
    return _BY_FOLDED.get(key.casefold(), key) if key.isascii() else key


def validate(job: TFJob, out: FieldErrors) -> None:
    """Check all rules about the keys of this format."""
    spec = job.spec
    most = common_annotations.worker_bound(job.metadata.annotations, MAX_WORKERS) or 0
    groups = [
        (key.casefold(), max(replicas.count, most) if normalized_type(key) == "Worker" else replicas.count)
        for key, replicas in spec.tf_replica_specs.items()
    ]
    if check_metadata(job.metadata, out, letter_first=True):
        check_pod_names(job.metadata, groups, out)
    _check_types(spec, out)
    _check_counts(spec, out)
    for key, replicas in spec.tf_replica_specs.items():
        require_container(replicas.template, (*_SPECS, key, "template"), out, named=TF_CONTAINER)
    for key, field in _RETIRED.items():
        old, new = getattr(spec, field), getattr(spec.policy, field)
        if old is not None and new not in (None, old):
            out.error(("spec", key), f"is {old} here and {new} in spec.runPolicy", "keep the one in spec.runPolicy")
        elif old is not None:
            out.warn(("spec", key), "it was here in v1.0, and is still used", f"move it to spec.runPolicy.{key}")
    _check_gang(spec, out)
    _check_elastic(job, out)
    if out.advice:
        for key, replicas in spec.tf_replica_specs.items():
            _advise_restart(key, replicas, out)
        _advise_always(spec, out)
        _advise_master(spec, out)
        _advise_leftovers(spec, out)


def _check_types(spec: Spec, out: FieldErrors) -> None:
    found: dict[str, list[str]] = {}
    for key in spec.tf_replica_specs:
        found.setdefault(normalized_type(key), []).append(key)
        if normalized_type(key) not in TYPES:
            out.error((*_SPECS, key), "unknown replica type", suggestion(key, TYPES))
    for same in found.values():
        if len(same) > 1:
            out.error((*_SPECS, same[-1]), f"{' and '.join(same)} are the same replica type", "keep one of them")


def _check_counts(spec: Spec, out: FieldErrors) -> None:
    specs = spec.tf_replica_specs
    leaders = [key for key in specs if normalized_type(key) in ("Chief", "Master")]
    if len(leaders) > 1:
        out.error((*_SPECS, leaders[-1]), f"two chiefs: {' and '.join(leaders)}", "a job has one Chief or one Master")
    for key in leaders:
        if specs[key].count != 1:
            what = "two chiefs or more" if specs[key].count else "no chief to finish, so the job could never succeed"
            out.error((*_SPECS, key, "replicas"), f"{specs[key].count} replicas: {what}", "write 1, or leave it out")
    if out.partial:
        return
    worker = next((key for key in specs if normalized_type(key) == "Worker"), None)
    if not specs:
        out.error(_SPECS, "at least one replica type is required", f"known: {', '.join(TYPES)}")
    elif not spec.total:
        out.error(_SPECS, "there are no replicas at all: nothing would run")
    elif not leaders and worker and specs[worker].count == 0:
        message = "0 workers and no chief: no replica decides whether the job has succeeded"
        out.error((*_SPECS, worker, "replicas"), message, "give it a worker or a Chief")


def _check_gang(spec: Spec, out: FieldErrors) -> None:
    place: FieldPath = ("spec", "runPolicy", "schedulingPolicy")
    least = spec.gang.min_available
    if least is not None and least > spec.total > 0 and not out.partial:
        message = f"{counted(least, 'replica')} must start together, but the job has {spec.total}"
        hint = f"write {spec.total} or less, or leave it out"
        out.error((*place, "minAvailable"), f"{message}: it could never start", hint)
    if spec.gang.min_resources is not None:
        read_quantities(spec.gang.min_resources, (*place, "minResources"), out)
        out.warn((*place, "minResources"), "is not used: tf-dist adds up what the gang's pods request")


def _check_elastic(job: TFJob, out: FieldErrors) -> None:
    """Check the bounds of workers, and warn about restarts if the job cannot be resized while it runs."""
    annotations, spec = job.metadata.annotations, job.spec
    workers = spec.tf_replica_specs[spec.types["Worker"]].count if "Worker" in spec.types else None
    common_annotations.check_worker_bounds(annotations, workers, "spec.tfReplicaSpecs.Worker.replicas", out)
    least, most = (common_annotations.worker_bound(annotations, key) for key in (MIN_WORKERS, MAX_WORKERS))
    if workers is None or out.partial:
        return
    gang, needed = spec.gang.min_available, spec.total - workers + (least or workers)
    if least is not None and gang is not None and gang != needed:
        message = f"is {least}, which makes a gang of {needed} with the other replicas, but minAvailable is {gang}"
        out.error(common_annotations.annotation_path(MIN_WORKERS), message, "leave minAvailable out")
    changes = (least is not None and least < workers) or (most is not None and most > workers)
    if changes and not spec.enable_dynamic_worker:
        out.warn(
            ("spec", "enableDynamicWorker"),
            "is not set, so TF_CONFIG names every worker: when the job grows, all its replicas start again",
            "write true if the program copes with workers that come and go, and save checkpoints",
        )


def _advise_restart(key: str, replicas: Replicas, out: FieldErrors) -> None:
    """Warn about a restart policy of the template that has no effect."""
    written = value_at(replicas.template, "spec", "restartPolicy")
    policy = replicas.restart_policy or "Never"
    used = "Never" if policy == "ExitCode" else policy
    if isinstance(written, str) and written != used and not out.is_wrong((*_SPECS, key, "restartPolicy")):
        said = f"{key}'s {'' if replicas.restart_policy else 'default '}restartPolicy {policy}"
        place = (*_SPECS, key, "template", "spec", "restartPolicy")
        out.warn(place, f"{written} is overridden by {said}", f"write it in spec.tfReplicaSpecs.{key}.restartPolicy")


def _advise_always(spec: Spec, out: FieldErrors) -> None:
    """Warn if the replicas that decide about success never end, because the kubelet restarts them."""
    deciding = next((spec.types[name] for name in ("Chief", "Master", "Worker") if name in spec.types), None)
    if deciding is None or spec.tf_replica_specs[deciding].restart_policy != "Always":
        return
    limit = spec.run_policy.backoff_limit if spec.run_policy else spec.backoff_limit
    ends = "" if limit is None else f" and fails when backoffLimit {limit} is spent"
    out.warn(
        (*_SPECS, deciding, "restartPolicy"),
        f"Always restarts a container that exits with 0, too, and {deciding} decides: the job never succeeds{ends}",
        "write OnFailure",
    )


_VERSION_1: Final = re.compile(r":v?1\.[0-9][^/]*$")


def _advise_master(spec: Spec, out: FieldErrors) -> None:
    """Warn about a Master unless its image has a tag of TensorFlow 1. A single replica gets no TF_CONFIG."""
    key = spec.types.get("Master")
    if key is None or spec.total == 1:
        return
    containers = template_containers(spec.tf_replica_specs[key].template)
    if not any(_VERSION_1.search(text(container.get("image"))) for _, container in containers):
        out.warn(
            (*_SPECS, key),
            "TensorFlow 2 refuses a TF_CONFIG that names a master (Unrecognized task_type)",
            "write Chief, unless the program reads TF_CONFIG itself or runs on TensorFlow 1",
        )


def _advise_leftovers(spec: Spec, out: FieldErrors) -> None:
    """Warn about replicas that keep running, and about a job that never succeeds."""
    types = {normalized_type(key) for key, replicas in spec.tf_replica_specs.items() if replicas.count}
    if "PS" in types and (spec.policy.clean_pod_policy or spec.clean_pod_policy) is None:
        out.warn(
            ("spec", "runPolicy", "cleanPodPolicy"),
            "is not set, so parameter servers keep running when the job has succeeded",
            "write Running (stop what still runs) or All (remove every pod)",
        )
    if types and not out.partial and not types & {"Chief", "Master", "Worker"}:
        out.warn(_SPECS, f"with only {' and '.join(sorted(types))} the job never succeeds", "add a Chief or a Worker")


def update_problems(old: Document, new: Document) -> tuple[Problem, ...]:
    """The forbidden changes of an update of a TFJob, of any version: ``managedBy`` cannot change."""
    place: FieldPath = ("spec", "runPolicy", "managedBy")
    before, after = (value_at(document, *map(str, place)) or TRAINING_OPERATOR for document in (old, new))
    if before == after:
        return ()
    hint = "undo the change, or delete the job and submit it again"
    return (Problem(format_field_path(place), f"cannot be changed from {before} to {after}", hint),)

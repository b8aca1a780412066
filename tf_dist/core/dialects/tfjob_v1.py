"""``kubeflow.org/v1`` TFJob: the defaults of Kubeflow's training-operator, and the job it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core import names
from tf_dist.core.claims import TRAINING_OPERATOR
from tf_dist.core.dialects import elastic
from tf_dist.core.dialects.shape import (
    INT32_MAX,
    SERVICES_ANNOTATION,
    TF_CONTAINER,
    TF_PORT,
    TF_PORT_NAME,
    RawTemplate,
    container_names,
    named_port,
)
from tf_dist.core.dialects.tfjob_v1_checks import normalised
from tf_dist.core.dialects.tfjob_v1_schema import RETIRED_KEYS, Replicas, RunPolicyShape, SchedulingPolicy, Spec, TFJob
from tf_dist.core.model import (
    CleanPodPolicy,
    Dialect,
    Document,
    Job,
    ReplicaSpec,
    Role,
    RunPolicy,
    Scheduling,
    ServiceStyle,
    SuccessRule,
    TFConfigStyle,
)
from tf_dist.core.policy_model import Action, Event, ExitCodes, Rule
from tf_dist.core.untyped import at, items, mapping

RETRYABLE: Final = ExitCodes(ranges=((-INT32_MAX - 1, -1), (128, 255)), unknown=True)
"""Killed by a signal, or nobody knows: worth another try. 1 to 127 are the program's own word that it is not."""

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
"""What each restart policy answers."""
TOLERANT: Final = (Rule(events=_FAILED, action=Action.IGNORE), _REPLACE_LOST)
"""Of dynamic workers that are not to be restarted: the others go on without one that has failed."""


def templates(document: Document) -> Iterator[RawTemplate]:
    """The raw templates of a document, whatever else is wrong with it."""
    for key, replicas in mapping(at(document, "spec", "tfReplicaSpecs")).items():
        if isinstance(key, str) and at(replicas, "template") is not None:
            count = at(replicas, "replicas")
            number = count if type(count) is int else 1
            place = ("spec", "tfReplicaSpecs", key, "template")
            yield RawTemplate(place, replicas["template"], number)


def defaulted(document: Document) -> dict[str, Any]:
    """The document as training-operator's defaulting makes it; unchanged parts are shared with the original.

    Keys where v1.0 had them move to where they are read now.
    """
    result = dict(document)
    spec = result.get("spec")
    if not isinstance(spec, Mapping) or not isinstance(spec.get("runPolicy"), Mapping | None):
        return result
    retired = {key: spec[key] for key in RETIRED_KEYS if spec.get(key) is not None}
    given = {key: value for key, value in mapping(spec.get("runPolicy")).items() if value is not None}
    filled = {key: value for key, value in spec.items() if key not in RETIRED_KEYS}
    filled["runPolicy"] = {"cleanPodPolicy": "None", **retired, **given}
    if filled.get("successPolicy") is None:
        filled["successPolicy"] = ""
    if isinstance(specs := spec.get("tfReplicaSpecs"), Mapping):
        specs = {key: value for key, value in specs.items() if value is not None}  # as API servers drop them
        names = [normalised(key) if isinstance(key, str) else key for key in specs]
        # Two spellings of one type are an error to report: one must not hide the other.
        keys = names if len(set(names)) == len(names) else list(specs)
        filled["tfReplicaSpecs"] = dict(zip(keys, map(_defaulted_replicas, specs.values()), strict=True))
    result["spec"] = filled
    return result


def _defaulted_replicas(replicas: object) -> object:
    if not isinstance(replicas, Mapping):
        return replicas
    filled = dict(replicas)
    for key, value in (("replicas", 1), ("restartPolicy", "Never")):
        if filled.get(key) is None:
            filled[key] = value
    filled["template"] = _with_port(filled.get("template"))
    return filled


def _with_port(template: object) -> object:
    """The template with ``tfjob-port`` on the container that trains (the first, if none is named so)."""
    listed = at(template, "spec", "containers")
    if not isinstance(template, Mapping) or not isinstance(listed, list) or not listed:
        return template
    names = [at(container, "name") for container in listed]
    index = names.index(TF_CONTAINER) if TF_CONTAINER in names else 0
    container = listed[index]
    if not isinstance(container, Mapping) or not isinstance(container.get("ports"), list | None):
        return template
    ports = list(items(container.get("ports")))
    if any(at(port, "name") == TF_PORT_NAME for port in ports):
        return template
    changed = {**container, "ports": [*ports, {"name": TF_PORT_NAME, "containerPort": TF_PORT}]}
    return {
        **template,
        "spec": {**template["spec"], "containers": [*listed[:index], changed, *listed[index + 1 :]]},
    }


def build(job: TFJob) -> Job:
    """The job that a defaulted and checked document means."""
    policy = job.spec.run_policy or RunPolicyShape()
    dynamic = bool(job.spec.enable_dynamic_worker)
    annotations = job.metadata.annotations or {}
    groups = job.spec.tf_replica_specs.items()
    specs = tuple(_replica_spec(key, replicas, annotations, dynamic=dynamic) for key, replicas in groups)
    per_job = annotations.get(SERVICES_ANNOTATION) == ServiceStyle.PER_JOB
    success = _success(job.spec, specs)
    return Job(
        dialect=Dialect.TFJOB_V1,
        key=job.metadata.key,
        uid=job.metadata.uid or "",
        labels=job.metadata.labels or {},
        annotations=annotations,
        replica_specs=specs,
        success=success,
        running_types=tuple(dict.fromkeys(rule.type for rule in success)),
        run_policy=_run_policy(policy, suspended=job.metadata.suspended),
        scheduling=_scheduling(policy.scheduling_policy or SchedulingPolicy(), specs),
        tf_config=_tf_config(dynamic, specs),
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
        min_replicas=min(replicas.count, elastic.bound(bounds, names.MIN_WORKERS) or replicas.count),
        max_replicas=elastic.bound(bounds, names.MAX_WORKERS),
        template=replicas.template,
        container=TF_CONTAINER if TF_CONTAINER in container_names(replicas.template) else "",
        port=named_port(replicas.template, TF_CONTAINER, TF_PORT),
        pod_restart_policy="Never" if policy == "ExitCode" else policy,
        rules=TOLERANT if tolerant else RESTART_POLICIES[policy],
    )


def _success(spec: Spec, specs: tuple[ReplicaSpec, ...]) -> tuple[SuccessRule, ...]:
    """A chief alone decides; without one worker 0 does, or all workers together (they need not wait for each other)."""
    leader = next((one.type for one in specs if one.role.leads), None)
    if leader is not None:
        return (SuccessRule(type=leader),)
    if not any(one.role is Role.WORKER for one in specs):
        return ()
    everyone = SuccessRule(type=Role.WORKER)
    return (everyone,) if spec.success_policy == "AllWorkers" else (SuccessRule(type=Role.WORKER, index=0), everyone)


def _run_policy(policy: RunPolicyShape, *, suspended: bool) -> RunPolicy:
    return RunPolicy(
        clean_pods=CleanPodPolicy(policy.clean_pod_policy or "None"),
        max_restarts=policy.backoff_limit,
        active_deadline=policy.active_deadline_seconds,
        ttl=policy.ttl_seconds_after_finished,
        suspend=bool(policy.suspend) or suspended,
    )


def _scheduling(policy: SchedulingPolicy, specs: tuple[ReplicaSpec, ...]) -> Scheduling:
    schedulers = (at(spec.template, "spec", "schedulerName") for spec in specs)
    return Scheduling(
        min_available=policy.min_available or sum(spec.min_replicas for spec in specs),
        queue=policy.queue or "",
        priority_class=policy.priority_class or "",
        scheduler_name=next((name for name in schedulers if isinstance(name, str) and name), ""),
        timeout=policy.schedule_timeout_seconds,
    )


def _tf_config(dynamic: bool, specs: tuple[ReplicaSpec, ...]) -> TFConfigStyle:
    if dynamic:
        return TFConfigStyle.SPARSE
    return TFConfigStyle.NONE if sum(spec.most for spec in specs) == 1 else TFConfigStyle.V1

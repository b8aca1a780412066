"""``kubeflow.org/v1alpha1`` TFJob: the original operator's defaults, and the job it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tf_dist.core.dialects.shape import TF_CONTAINER, TF_PORT, Metadata, RawTemplate
from tf_dist.core.dialects.tfjob_v1 import RETRYABLE
from tf_dist.core.dialects.tfjob_v1alpha1_schema import IMAGE, Chief, Replicas, Spec, TFJob
from tf_dist.core.model import (
    CleanPodPolicy,
    Dialect,
    Document,
    Job,
    ReplicaSpec,
    Role,
    RunPolicy,
    Scheduling,
    SuccessRule,
    TFConfigStyle,
)
from tf_dist.core.names import short_hash
from tf_dist.core.policy_model import Action, Event, ExitCodes, Rule
from tf_dist.core.untyped import at, items

_FAILED: Final = frozenset({Event.POD_FAILED})
REPLACE: Final = Rule(
    events=frozenset({Event.POD_FAILED, Event.POD_EVICTED, Event.NODE_LOST}), action=Action.RESTART_POD
)
"""The answer for replicas that do not lead."""
_SURVIVABLE: Final = ExitCodes(ranges=RETRYABLE.ranges, unknown=RETRYABLE.unknown, oom=False)
"""Retryable, unless it was killed for memory: it would be killed again."""


def templates(document: Document) -> Iterator[RawTemplate]:
    """The raw templates of a document, whatever else is wrong with it."""
    for index, replicas in enumerate(items(at(document, "spec", "replicaSpecs"))):
        if at(replicas, "template") is not None:
            count = at(replicas, "replicas")
            number = count if type(count) is int else 1
            place = ("spec", "replicaSpecs", index, "template")
            yield RawTemplate(place, replicas["template"], number, at(replicas, "tfReplicaType") == "PS")


def defaulted(document: Document) -> dict[str, Any]:
    """The document as the original's ``SetDefaults_TFJob`` makes it; unchanged parts are shared with the original.

    ``RuntimeId`` stays out: the original draws it when the job starts, and from a file every run would get the same.
    """
    result = dict(document)
    spec = result.get("spec")
    if not isinstance(spec, Mapping):
        return result
    filled = dict(spec)
    chief = {"chief": {"replicaName": "MASTER", "replicaIndex": 0}}
    for key, value in (("tfImage", IMAGE), ("terminationPolicy", chief)):
        if filled.get(key) is None:
            filled[key] = value
    if isinstance(specs := filled.get("replicaSpecs"), list):
        filled["replicaSpecs"] = [_defaulted_replicas(replicas) for replicas in specs]
    result["spec"] = filled
    return result


def _defaulted_replicas(replicas: object) -> object:
    if not isinstance(replicas, Mapping):
        return replicas
    filled = dict(replicas)
    for key, value in (("replicas", 1), ("tfPort", TF_PORT), ("tfReplicaType", "MASTER")):
        if filled.get(key) is None:
            filled[key] = value
    return filled


def build(job: TFJob) -> Job:
    """The job that a defaulted and checked document means."""
    spec = job.spec
    chief = spec.chief
    specs = tuple(_replica_spec(replicas, spec, chief) for replicas in spec.replica_specs)
    leader = chief.replica_name.lower()
    return Job(
        dialect=Dialect.TFJOB_V1ALPHA1,
        key=job.metadata.key,
        uid=job.metadata.uid or "",
        labels=job.metadata.labels or {},
        annotations=job.metadata.annotations or {},
        replica_specs=specs,
        success=(SuccessRule(type=leader, index=chief.replica_index),),
        running_types=(leader,),
        run_policy=RunPolicy(
            # The original leaves parameter servers running for ever; its last release removed what still ran.
            clean_pods=CleanPodPolicy(spec.cleanup_pod_policy or "Running"),
            suspend=job.metadata.suspended,
        ),
        scheduling=Scheduling(
            min_available=sum(one.min_replicas for one in specs), scheduler_name=spec.scheduler_name or ""
        ),
        tf_config=TFConfigStyle.V1ALPHA1,
        runtime_id=spec.runtime_id or runtime_id(job.metadata),
    )


def runtime_id(metadata: Metadata) -> str:
    """Four characters that tell two runs of one name apart, the same every time they are asked for."""
    return short_hash(metadata.uid or metadata.key, length=4)


def _replica_spec(replicas: Replicas, spec: Spec, chief: Chief) -> ReplicaSpec:
    kind = replicas.kind
    least = spec.min_instance or replicas.count
    policy = at(replicas.template, "spec", "restartPolicy")
    return ReplicaSpec(
        name=kind,
        type=kind.lower(),
        role=Role(kind.lower()),
        replicas=replicas.count,
        min_replicas=max(1, least) if kind == "WORKER" and replicas.count else replicas.count,
        max_replicas=spec.max_instance or None if kind == "WORKER" and replicas.count else None,
        template=replicas.template or {},
        container=TF_CONTAINER,
        port=replicas.tf_port or TF_PORT,
        pod_restart_policy=policy if isinstance(policy, str) else "Always",
        rules=chief_rules(chief.replica_index) if kind == chief.replica_name else (REPLACE,),
        server_image=(spec.tf_image or IMAGE) if replicas.default_server else "",
        last_exit_counts=True,
    )


def chief_rules(index: int) -> tuple[Rule, ...]:
    """The chief's own failures decide; those of its siblings do not."""
    return (
        Rule(events=_FAILED, action=Action.RESTART_POD, codes=_SURVIVABLE, index=index),
        Rule(events=_FAILED, action=Action.FAIL_JOB, index=index),
        REPLACE,
    )

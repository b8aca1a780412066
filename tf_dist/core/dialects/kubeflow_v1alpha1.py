"""``kubeflow.org/v1alpha1`` TFJob: schema, defaults, validation, and conversion to a job.

The schema includes the keys of the DRAGON fork. The rules are those of the original's ``ValidateTFJobSpec``, and rules
for jobs that the original accepted but could not run: a chief that does not exist, two entries of the same type,
contradictory bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import Field

from tf_dist.core.dialects import common_annotations
from tf_dist.core.dialects.common_schema import (
    LAYOUTS,
    MAX_NAME,
    TF_CONTAINER,
    TF_PORT,
    Count,
    Envelope,
    Int64,
    Metadata,
    Port,
    ReplicaCount,
    SchemaModel,
    Template,
    check_label,
    check_metadata,
    container_names,
    template_containers,
    with_defaults,
)
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.dialects.kubeflow_v1 import RETRYABLE
from tf_dist.core.dialects.pod_template import require_container
from tf_dist.core.model import names
from tf_dist.core.model.fieldpath import FieldPath, list_items, value_at
from tf_dist.core.model.job import (
    Action,
    CleanPodPolicy,
    Dialect,
    Document,
    Event,
    Job,
    ReplicaSpec,
    Role,
    Rule,
    RunPolicy,
    Scheduling,
    SuccessRule,
    TFConfigStyle,
)
from tf_dist.core.model.names import KEPT_NAME, MAX_WORKERS, MIN_WORKERS, short_hash
from tf_dist.core.model.wording import are, counted

TYPES: Final = ("MASTER", "PS", "WORKER")
DEFAULT_IMAGE: Final = "tensorflow/tensorflow:1.3.0"

ReplicaType = Literal["MASTER", "PS", "WORKER"]


class Replicas(SchemaModel):
    """Replicas of one type."""

    replicas: ReplicaCount | None = None
    """The number of replicas; default: 1."""
    template: Template | None = None
    """The pods to run, as in any workload."""
    tf_port: Port | None = None
    """The port of TensorFlow; default: 2222."""
    tf_replica_type: ReplicaType | None = None
    """The type of the replicas; default: MASTER."""

    @property
    def kind(self) -> str:
        """The replica type; MASTER by default."""
        return self.tf_replica_type or "MASTER"

    @property
    def count(self) -> int:
        """The number of replicas; 1 by default."""
        return 1 if self.replicas is None else self.replicas

    @property
    def default_server(self) -> bool:
        """Whether these are parameter servers without a program, which run the standard server."""
        return self.kind == "PS" and TF_CONTAINER not in container_names(self.template)


class Chief(SchemaModel):
    """The replica that ends the job."""

    replica_name: ReplicaType
    """The type of the replica."""
    replica_index: Count = 0
    """The index of the replica."""


class TerminationPolicy(SchemaModel):
    """The condition of the job's end; the only option is a chief."""

    chief: Chief
    """The replica whose end is the end of the job."""


class Spec(SchemaModel):
    """The spec. ``RuntimeId`` has a capital letter, because it has no JSON tag in the original's Go code."""

    runtime_id: str | None = Field(None, alias="RuntimeId")
    """A part of the names of pods and services."""
    replica_specs: list[Replicas]
    """The replicas, one entry for each type."""
    tf_image: str | None = None
    """The image of parameter servers without a program."""
    termination_policy: TerminationPolicy | None = None
    """When the job has ended."""
    scheduler_name: str | None = None
    """The scheduler of the pods."""
    cleanup_pod_policy: Literal["All", "Running", "None"] | None = None
    """Which pods are deleted when the job has ended."""
    min_instance: ReplicaCount | None = Field(None, alias="min-instance")
    """The minimum number of workers."""
    max_instance: ReplicaCount | None = Field(None, alias="max-instance")
    """The maximum number of workers."""
    batch_size: Int64 | None = Field(None, alias="batch-size")
    """Not used."""
    model_name: str | None = None
    """Not used."""
    total_number: Int64 | None = Field(None, alias="total-number")
    """Not used."""
    tensorboard: Any = None
    """Not used."""

    @property
    def chief(self) -> Chief:
        """The chief; MASTER 0 by default."""
        return (
            self.termination_policy.chief
            if self.termination_policy
            else Chief.model_validate({"replicaName": "MASTER"})
        )

    @property
    def workers(self) -> Replicas | None:
        """The first entry of type WORKER."""
        return next((one for one in self.replica_specs if one.kind == "WORKER"), None)


class TFJob(Envelope):
    """A document of this dialect."""

    spec: Spec


_FAILED: Final = frozenset({Event.POD_FAILED})
REPLACE_POD: Final = Rule(
    events=frozenset({Event.POD_FAILED, Event.POD_EVICTED, Event.NODE_LOST}), action=Action.RESTART_POD
)
"""The rule of replicas that are not the chief."""
_SURVIVABLE: Final = replace(RETRYABLE, oom=False)
"""Retryable codes, except after an out-of-memory kill, because the container would run out of memory again."""


def default_spec(spec: Document) -> Document:
    """The spec with the defaults of the original's ``SetDefaults_TFJob``.

    ``RuntimeId`` has no default. The original generates it when a job starts; from a file, every run would get the
    same value.
    """
    chief = {"chief": {"replicaName": "MASTER", "replicaIndex": 0}}
    filled = with_defaults(spec, tfImage=DEFAULT_IMAGE, terminationPolicy=chief)
    if isinstance(specs := filled.get("replicaSpecs"), list):
        filled["replicaSpecs"] = [_defaulted_replicas(replicas) for replicas in specs]
    return filled


def _defaulted_replicas(replicas: object) -> object:
    if not isinstance(replicas, Mapping):
        return replicas
    return with_defaults(replicas, replicas=1, tfPort=TF_PORT, tfReplicaType="MASTER")


def build(job: TFJob) -> Job:
    """The job of a checked document with defaults."""
    spec = job.spec
    chief = spec.chief
    specs = tuple(_replica_spec(replicas, spec, chief) for replicas in spec.replica_specs)
    leader = chief.replica_name.lower()
    # The original writes the RuntimeId into the spec at the start of a job, if the user gave none.
    stored = job.metadata.uid is not None
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
            # The original leaves parameter servers running forever. Its last release removed pods that still ran.
            clean_pods=CleanPodPolicy(spec.cleanup_pod_policy or "Running"),
            suspend=job.metadata.suspended,
        ),
        scheduling=Scheduling(
            min_available=sum(one.min_replicas for one in specs), scheduler_name=spec.scheduler_name or ""
        ),
        tf_config=TFConfigStyle.V1ALPHA1,
        runtime_id=spec.runtime_id or runtime_id(job.metadata),
        spec_defaults={"RuntimeId": runtime_id(job.metadata)} if stored and not job.spec.runtime_id else {},
    )


def runtime_id(metadata: Metadata) -> str:
    """Four characters that are derived from the job, and that differ between two runs with the same name."""
    return short_hash(metadata.uid or metadata.key, length=4)


def _replica_spec(replicas: Replicas, spec: Spec, chief: Chief) -> ReplicaSpec:
    kind = replicas.kind
    least = spec.min_instance or replicas.count
    policy = value_at(replicas.template, "spec", "restartPolicy")
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
        rules=chief_rules(chief.replica_index) if kind == chief.replica_name else (REPLACE_POD,),
        server_image=(spec.tf_image or DEFAULT_IMAGE) if replicas.default_server else "",
        last_exit_counts=True,
        batches=max(0, spec.total_number or 0) if kind == "WORKER" else 0,
    )


def chief_rules(index: int) -> tuple[Rule, ...]:
    """The rules of the chief's replica type. Only failures of the chief end the job, not those of its siblings."""
    return (
        Rule(events=_FAILED, action=Action.RESTART_POD, codes=_SURVIVABLE, index=index),
        Rule(events=_FAILED, action=Action.FAIL_JOB, index=index),
        REPLACE_POD,
    )


_SPECS: Final = LAYOUTS[Dialect.TFJOB_V1ALPHA1].replicas


def validate(job: TFJob, out: FieldErrors) -> None:
    """Check all rules about the keys of this format."""
    spec = job.spec
    check_metadata(job.metadata, out, letter_first=True)
    if spec.runtime_id and check_label(spec.runtime_id, ("spec", "RuntimeId"), out):
        _check_names(job.metadata, spec, out)
    if spec.scheduler_name:
        check_label(spec.scheduler_name, ("spec", "schedulerName"), out)
    if spec.tensorboard is not None:
        hint = "run it separately, on the logs of the job"
        out.warn(("spec", "tensorboard"), "tf-dist does not start TensorBoard", hint)
    for key, value in (("batch-size", spec.batch_size), ("modelName", spec.model_name)):
        if value:
            message = "is not used: tf-dist schedules by replicas and requests, as DRAGON did"
            out.warn(("spec", key), message, "leave it out")
    common_annotations.warn_unused_annotation(job.metadata.annotations, MIN_WORKERS, "spec.min-instance", out)
    common_annotations.warn_unused_annotation(job.metadata.annotations, MAX_WORKERS, "spec.max-instance", out)
    for index, replicas in enumerate(spec.replica_specs):
        _check_replicas(replicas, (*_SPECS, index), out)
    _check_types(spec, out)
    if not out.partial:
        _check_chief(spec, out)
        _check_elastic(spec, out)
        _check_batches(spec, out)


def _check_names(metadata: Metadata, spec: Spec, out: FieldErrors) -> None:
    """Check a RuntimeId of the user, which is part of Service names of at most 63 characters.

    The original shortens only the job's name, and the API server rejects longer names.
    """
    start = len(metadata.job_name[:KEPT_NAME])
    rest = (len(f"-{one.kind}--{one.count - 1}") for one in spec.replica_specs if one.count > 0)
    longest = start + len(spec.runtime_id or "") + max(rest, default=0)
    if longest > MAX_NAME:
        hint = f"with this name it may have {max(0, MAX_NAME - longest + len(spec.runtime_id or ''))}"
        out.error(("spec", "RuntimeId"), f"names of services would have {longest} characters; {MAX_NAME} may be", hint)


def _check_replicas(replicas: Replicas, loc: FieldPath, out: FieldErrors) -> None:
    if out.is_wrong((*loc, "tfReplicaType")):
        return  # the required keys depend on the type
    if replicas.kind == "MASTER" and replicas.count > 1:
        out.error((*loc, "replicas"), f"{replicas.count} masters: there can be one", "write 1, or leave it out")
    if replicas.default_server:
        return
    if replicas.template is None:
        out.error((*loc, "template"), MISSING, "only PS may leave it out: it gets a standard server")
        return
    require_container(replicas.template, (*loc, "template"), out, named=TF_CONTAINER)


def _check_types(spec: Spec, out: FieldErrors) -> None:
    if not spec.replica_specs:
        out.error(_SPECS, "at least one entry is required")
    kinds = [replicas.kind for replicas in spec.replica_specs]
    for index, replicas in enumerate(spec.replica_specs):
        if replicas.kind in kinds[:index] and not out.partial:
            implied = "" if replicas.tf_replica_type else " (the default)"
            message = f"a second entry of type {replicas.kind}{implied}"
            out.error((*_SPECS, index, "tfReplicaType"), message, "put their replicas into one entry")


def _check_chief(spec: Spec, out: FieldErrors) -> None:
    place: FieldPath = ("spec", "terminationPolicy", "chief")
    chief = spec.chief
    group = next((one for one in spec.replica_specs if one.kind == chief.replica_name), None)
    implied = "" if spec.termination_policy else " (the default, as there is no terminationPolicy)"
    if group is None:
        have = ", ".join(dict.fromkeys(one.kind for one in spec.replica_specs)) or "none"
        out.error(
            (*place, "replicaName"),
            f"the chief is a {chief.replica_name}{implied}, but no entry has that type",
            f"name one of the job's types ({have}), or add a {chief.replica_name} to replicaSpecs",
        )
    elif chief.replica_index >= group.count:
        out.error(
            (*place, "replicaIndex"),
            f"the chief is {chief.replica_name} {chief.replica_index}{implied}, but there are {group.count} of it",
            f"the last index is {group.count - 1}" if group.count else "with 0 replicas the job could never end",
        )


def _check_elastic(spec: Spec, out: FieldErrors) -> None:
    least, most, workers = spec.min_instance or 0, spec.max_instance or 0, spec.workers
    if least and most and least > most:
        out.error(("spec", "min-instance"), f"is {least}, more than max-instance {most}", "swap the two values")
    if workers is None and (least or most):
        out.warn(("spec", "min-instance" if least else "max-instance"), "limits the workers, but the job has none")
    if workers is None:
        return
    place = (*_SPECS, spec.replica_specs.index(workers), "replicas")
    has = f"{counted(workers.count, 'worker')} {are(workers.count)}"
    if workers.count < least:
        out.error(place, f"{has} fewer than min-instance {least}", f"write {least} or more")
    if most and workers.count > most:
        out.error(place, f"{has} more than max-instance {most}", f"write {most} or fewer")


def _check_batches(spec: Spec, out: FieldErrors) -> None:
    """Check that workers have the argument with which they receive their share of the total."""
    place, workers = ("spec", "total-number"), spec.workers
    if not spec.total_number:
        return
    containers = template_containers(workers.template) if workers else ()
    arguments = [list_items(one.get("args")) for _, one in containers if one.get("name") == TF_CONTAINER]
    flags = (one for each in arguments for one in each if isinstance(one, str))
    if workers is None or not any(map(names.BATCHES_FLAG.fullmatch, flags)):
        out.warn(place, "no worker has an argument --num_batches to receive its share", "write --num_batches=1")
    elif 0 < spec.total_number < workers.count:
        has = f"{counted(spec.total_number, 'batch', 'batches')} {are(spec.total_number)}"
        out.warn(place, f"{has} fewer than the {workers.count} workers", "each gets one")

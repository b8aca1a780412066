"""The shape of a ``kubeflow.org/v1`` TFJob (Kubeflow training-operator 1.9), keys and types only."""

from __future__ import annotations

from typing import Any, Final, Literal

from tf_dist.core.dialects.shape import Count, Envelope, LongSeconds, Positive, ReplicaCount, Seconds, Shape, Template

TYPES: Final = ("Chief", "Master", "PS", "Worker", "Evaluator")
RETIRED_KEYS: Final = ("cleanPodPolicy", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
"""Keys that v1.0 had directly under ``spec``; later versions drop them there without a word (kubeflow/trainer#1241)."""

CleanPods = Literal["All", "Running", "None"]
RestartPolicy = Literal["Always", "OnFailure", "Never", "ExitCode"]


class SchedulingPolicy(Shape):
    """What gang admission needs to know."""

    min_available: Positive | None = None
    queue: str | None = None
    min_resources: dict[str, Any] | None = None
    priority_class: str | None = None
    schedule_timeout_seconds: Seconds | None = None


class RunPolicyShape(Shape):
    """Limits and housekeeping."""

    clean_pod_policy: CleanPods | None = None
    ttl_seconds_after_finished: Seconds | None = None
    active_deadline_seconds: LongSeconds | None = None
    backoff_limit: Count | None = None
    suspend: bool | None = None
    managed_by: str | None = None
    scheduling_policy: SchedulingPolicy | None = None


class Replicas(Shape):
    """One entry of ``tfReplicaSpecs``."""

    replicas: ReplicaCount | None = None
    template: Template
    restart_policy: RestartPolicy | None = None

    @property
    def count(self) -> int:
        """How many there are; one where the document does not say."""
        return 1 if self.replicas is None else self.replicas


class Spec(Shape):
    """The job, with the retired keys in the place where v1.0 had them."""

    run_policy: RunPolicyShape | None = None
    success_policy: Literal["", "AllWorkers"] | None = None
    tf_replica_specs: dict[str, Replicas]
    enable_dynamic_worker: bool | None = None
    clean_pod_policy: CleanPods | None = None
    backoff_limit: Count | None = None
    active_deadline_seconds: LongSeconds | None = None
    ttl_seconds_after_finished: Seconds | None = None


class TFJob(Envelope):
    """A document of this dialect."""

    spec: Spec

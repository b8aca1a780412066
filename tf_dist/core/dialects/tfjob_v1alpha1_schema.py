"""The shape of a ``kubeflow.org/v1alpha1`` TFJob, with the keys of the DRAGON fork; keys and types only."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from tf_dist.core.dialects.shape import (
    TF_CONTAINER,
    Count,
    Envelope,
    Int64,
    Port,
    ReplicaCount,
    Shape,
    Template,
    container_names,
)

TYPES: Final = ("MASTER", "PS", "WORKER")
IMAGE: Final = "tensorflow/tensorflow:1.3.0"

ReplicaType = Literal["MASTER", "PS", "WORKER"]


class Replicas(Shape):
    """One entry of ``replicaSpecs``."""

    replicas: ReplicaCount | None = None
    template: Template | None = None
    tf_port: Port | None = None
    tf_replica_type: ReplicaType | None = None

    @property
    def kind(self) -> str:
        """The replica type; MASTER where the document does not say."""
        return self.tf_replica_type or "MASTER"

    @property
    def count(self) -> int:
        """How many there are; one where the document does not say."""
        return 1 if self.replicas is None else self.replicas

    @property
    def default_server(self) -> bool:
        """Whether these are parameter servers that run the standard server: no program of the user's is named."""
        return self.kind == "PS" and TF_CONTAINER not in container_names(self.template)


class Chief(Shape):
    """The replica whose end is the job's."""

    replica_name: ReplicaType
    replica_index: Count = 0


class TerminationPolicy(Shape):
    """When the job has ended; a chief is the only way there is."""

    chief: Chief


class Spec(Shape):
    """The job. ``RuntimeId`` has no tag in the original's Go code, hence its capital letter."""

    runtime_id: str | None = Field(None, alias="RuntimeId")
    replica_specs: list[Replicas]
    tf_image: str | None = None
    termination_policy: TerminationPolicy | None = None
    scheduler_name: str | None = None
    cleanup_pod_policy: Literal["All", "Running", "None"] | None = None
    min_instance: ReplicaCount | None = Field(None, alias="min-instance")
    max_instance: ReplicaCount | None = Field(None, alias="max-instance")
    batch_size: Int64 | None = Field(None, alias="batch-size")
    model_name: str | None = None
    total_number: Int64 | None = Field(None, alias="total-number")
    tensorboard: Any = None

    @property
    def chief(self) -> Chief:
        """The chief, MASTER 0 where the document does not say."""
        return (
            self.termination_policy.chief
            if self.termination_policy
            else Chief.model_validate({"replicaName": "MASTER"})
        )

    @property
    def elastic(self) -> tuple[int, int]:
        """Least and most workers; 0 where the document sets no bound."""
        return self.min_instance or 0, self.max_instance or 0


class TFJob(Envelope):
    """A document of this dialect."""

    spec: Spec

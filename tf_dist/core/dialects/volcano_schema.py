"""Schema of a ``batch.volcano.sh/v1alpha1`` Job (Volcano 1.15)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tf_dist.core.dialects.common_schema import (
    INT32_MAX,
    Count,
    Envelope,
    Positive,
    ReplicaCount,
    SchemaModel,
    Seconds,
    Template,
)

MAX_TASKS = 256
"""So many tasks a job may have: each is compared with each when an API server checks one."""


class Policy(SchemaModel):
    """A lifecycle policy: an action for an event or an exit code; known values are checked in ``volcano_policies``."""

    action: str | None = None
    event: str | None = None
    events: list[str] | None = None
    exit_code: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    timeout: str | None = None


class DependsOn(SchemaModel):
    """The tasks that must be running before this one starts."""

    name: list[str] | None = None
    iteration: Literal["any", "all"] | None = None


class Task(SchemaModel):
    """One group of equal pods."""

    name: str | None = None
    replicas: ReplicaCount | None = None
    min_available: Count | None = None
    template: Template
    policies: list[Policy] | None = None
    topology_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] | None = None
    max_retry: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    depends_on: DependsOn | None = None
    partition_policy: Any = None

    @property
    def count(self) -> int:
        """How many there are; Volcano takes a missing number for 0."""
        return self.replicas or 0

    @property
    def least(self) -> int:
        """How many must run at once."""
        return self.count if self.min_available is None else self.min_available


class Volume(SchemaModel):
    """A claim mounted into every pod of the job."""

    mount_path: str
    volume_claim_name: str | None = None
    volume_claim: dict[str, Any] | None = None


class Spec(SchemaModel):
    """The job."""

    scheduler_name: str | None = None
    min_available: Count | None = None
    volumes: list[Volume] | None = None
    tasks: list[Task]
    policies: list[Policy] | None = None
    plugins: dict[str, list[str] | None] | None = None
    running_estimate: Any = None
    queue: str | None = None
    max_retry: Count | None = None
    ttl_seconds_after_finished: Seconds | None = None
    priority_class_name: str | None = None
    min_success: Positive | None = None
    network_topology: Any = None

    @property
    def total(self) -> int:
        """All pods of the job."""
        return sum(task.count for task in self.tasks)


class VolcanoJob(Envelope):
    """A document of this dialect."""

    spec: Spec


def task_name(task: Task, index: int) -> str:
    """A task's name; Volcano calls the nameless ``default0``, ``default1``, …"""
    return task.name or f"default{index}"

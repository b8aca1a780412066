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
    """A lifecycle policy: an action for an event or an exit code.

    ``volcano_policies`` checks the values.
    """

    action: str | None = None
    """What follows."""
    event: str | None = None
    """An event."""
    events: list[str] | None = None
    """Several events."""
    exit_code: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    """An exit code."""
    timeout: str | None = None
    """How long after the event: 10m."""


class DependsOn(SchemaModel):
    """The tasks that must be running before this one starts."""

    name: list[str] | None = None
    """Their names."""
    iteration: Literal["any", "all"] | None = None
    """Whether any of the tasks must run, or all."""


class Task(SchemaModel):
    """One group of equal pods."""

    name: str | None = None
    """Its name; default0, default1, … if not said."""
    replicas: ReplicaCount | None = None
    """How many pods; 0 if not said."""
    min_available: Count | None = None
    """How many pods must run at once; all of them if not said."""
    template: Template
    """The pods to run, as in any workload."""
    policies: list[Policy] | None = None
    """What follows from an event or an exit code."""
    topology_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] | None = None
    """Not used."""
    max_retry: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    """How many restarts the task may spend; -1: no limit."""
    depends_on: DependsOn | None = None
    """The tasks that must run before this task starts."""
    partition_policy: Any = None
    """Not used."""

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
    """How many pods must have room at once."""
    volumes: list[Volume] | None = None
    """Claims that are mounted in every pod."""
    tasks: list[Task]
    """The groups of pods."""
    policies: list[Policy] | None = None
    """What follows from an event or an exit code, for all tasks."""
    plugins: dict[str, list[str] | None] | None = None
    """Plugins of Volcano, with their arguments."""
    running_estimate: Any = None
    """Not used."""
    queue: str | None = None
    """The queue in which the job waits."""
    max_retry: Count | None = None
    """How many attempts the job has; 3 if not said."""
    ttl_seconds_after_finished: Seconds | None = None
    """How long the job is kept after its end, in seconds."""
    priority_class_name: str | None = None
    """A PriorityClass: which job goes first, and which makes room."""
    min_success: Positive | None = None
    """How many pods that have succeeded make the job succeed."""
    network_topology: Any = None
    """Not used."""

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

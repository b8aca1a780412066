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
"""The maximum number of tasks. An API server compares each task with every other."""


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
    """The time after the event, such as 10m."""


class DependsOn(SchemaModel):
    """The tasks that must be running before this one starts."""

    name: list[str] | None = None
    """Their names."""
    iteration: Literal["any", "all"] | None = None
    """Whether any or all of the tasks must run."""


class Task(SchemaModel):
    """One group of equal pods."""

    name: str | None = None
    """The name; default: default0, default1, …"""
    replicas: ReplicaCount | None = None
    """The number of pods; default: 0."""
    min_available: Count | None = None
    """The number of pods that must be admitted together; default: all."""
    template: Template
    """The pods to run, as in any workload."""
    policies: list[Policy] | None = None
    """The actions on events and exit codes."""
    topology_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] | None = None
    """Not used."""
    max_retry: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    """The number of restarts after which the task fails; -1: no limit."""
    depends_on: DependsOn | None = None
    """The tasks that must run before this task starts."""
    partition_policy: Any = None
    """Not used."""

    @property
    def count(self) -> int:
        """The number of replicas; Volcano reads a missing number as 0."""
        return self.replicas or 0

    @property
    def least(self) -> int:
        """The number of pods that must be admitted together."""
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
    """The number of pods that must be admitted together."""
    volumes: list[Volume] | None = None
    """Claims that are mounted in every pod."""
    tasks: list[Task]
    """The groups of pods."""
    policies: list[Policy] | None = None
    """The actions on events and exit codes, for all tasks."""
    plugins: dict[str, list[str] | None] | None = None
    """Plugins of Volcano, with their arguments."""
    running_estimate: Any = None
    """Not used."""
    queue: str | None = None
    """The queue in which the job waits."""
    max_retry: Count | None = None
    """The number of attempts; default: 3."""
    ttl_seconds_after_finished: Seconds | None = None
    """How long the job is kept after its end, in seconds."""
    priority_class_name: str | None = None
    """A PriorityClass. It decides which job is admitted first, and which is preempted."""
    min_success: Positive | None = None
    """The number of successful pods with which the job succeeds."""
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

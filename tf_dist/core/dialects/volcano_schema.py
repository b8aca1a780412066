"""Schema of a ``batch.volcano.sh/v1alpha1`` Job (Volcano 1.15), with its lifecycle policies.

The rules include what Volcano leaves to its controller: PodPending has an effect only with a timeout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

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
from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.model.fieldpath import FieldPath, suggestion
from tf_dist.core.model.job import Action, Event, ExitCodes, Rule
from tf_dist.core.model.timestamps import parse_go_duration

MAX_TASKS = 256
"""So many tasks a job may have: each is compared with each when an API server checks one."""


class Policy(SchemaModel):
    """A lifecycle policy: an action for an event or an exit code; known values are checked in ``check_policies``."""

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


ANY_EVENT: Final = "*"
UNREACHABLE_EVENT: Final = "JobUpdated"
"""Accepted by Volcano and never emitted."""

EVENTS: Final = (
    ANY_EVENT,
    Event.POD_FAILED.value,
    Event.POD_EVICTED.value,
    Event.POD_PENDING.value,
    Event.UNKNOWN.value,
    Event.TASK_COMPLETED.value,
    Event.TASK_FAILED.value,
    UNREACHABLE_EVENT,
)
ACTIONS: Final = tuple(
    action.value
    for action in (
        Action.ABORT_JOB,
        Action.RESTART_JOB,
        Action.RESTART_TASK,
        Action.RESTART_POD,
        Action.TERMINATE_JOB,
        Action.COMPLETE_JOB,
        Action.RESUME_JOB,
    )
)
_INTERNAL_EVENTS: Final = ("OutOfSync", "CommandIssued", "PodRunning")
_INTERNAL_ACTIONS: Final = ("SyncJob", "EnqueueJob", "SyncQueue", "OpenQueue", "CloseQueue")


def events_of(policy: Policy) -> tuple[str, ...]:
    """The events a policy names, each once."""
    return tuple(dict.fromkeys([*([policy.event] if policy.event else []), *(policy.events or ())]))


def policy_rules(policies: Sequence[Policy] | None) -> tuple[Rule, ...]:
    """The rules of checked policies, in order: the first that matches wins."""
    return tuple(rule for policy in policies or () for rule in _rules(policy))


def _rules(policy: Policy) -> Iterator[Rule]:
    action = Action(policy.action or "")
    timeout = (policy.timeout and parse_go_duration(policy.timeout)) or 0.0
    if policy.exit_code is not None:
        codes = ExitCodes(ranges=((policy.exit_code, policy.exit_code),))
        yield Rule(events=frozenset({Event.POD_FAILED}), action=action, codes=codes, timeout=timeout)
        return
    named = events_of(policy)
    events = set(Event) if ANY_EVENT in named else {Event(name) for name in named if name != UNREACHABLE_EVENT}
    if not timeout:
        events.discard(Event.POD_PENDING)
    if events:
        yield Rule(events=frozenset(events), action=action, timeout=timeout)


def check_policies(policies: Sequence[Policy] | None, loc: FieldPath, out: FieldErrors) -> None:
    """Check a list of policies: each by itself, then for duplicates."""
    for index, policy in enumerate(policies or ()):
        _check_policy(policy, (*loc, index), out)
    _check_twice(policies or (), loc, out)


def _check_policy(policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    named = events_of(policy)
    if named and policy.exit_code is not None:
        out.error(loc, "names both an event and an exitCode", "make two policies of it")
    elif not named and policy.exit_code is None and not out.partial:
        out.error(loc, "names neither an event nor an exitCode", f"events: {', '.join(EVENTS)}")
    if policy.exit_code == 0:
        out.error((*loc, "exitCode"), "0 is success, to which no policy answers", "use event: TaskCompleted")
    _check_action(policy, loc, out)
    for name in named:
        _check_event(name, policy, (*loc, "event" if name == policy.event else "events"), out)
    if policy.timeout:
        _check_timeout(policy.timeout, (*loc, "timeout"), out)


def _check_action(policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    place = (*loc, "action")
    if not policy.action:
        if not out.partial:
            out.error(place, MISSING, f"known: {', '.join(ACTIONS)}")
    elif policy.action == "RestartPartition":
        out.error(place, "tf-dist does not know partitions, and would restart nothing", "RestartTask or RestartPod")
    elif policy.action in _INTERNAL_ACTIONS:
        out.error(place, f"{policy.action} is Volcano's own and may not be asked for", f"known: {', '.join(ACTIONS)}")
    elif policy.action not in ACTIONS:
        out.error(place, f"unknown action {policy.action!r}", suggestion(policy.action, ACTIONS))


def _check_event(name: str, policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    if name in _INTERNAL_EVENTS:
        out.error(loc, f"{name} is Volcano's own; no policy may answer it", f"known: {', '.join(EVENTS)}")
    elif name not in EVENTS:
        out.error(loc, f"unknown event {name!r}", suggestion(name, EVENTS))
    elif name == UNREACHABLE_EVENT:
        out.warn(loc, "JobUpdated never happens: Volcano accepts it and does not emit it")
    elif name == Event.POD_PENDING and not policy.timeout:
        out.warn(loc, "PodPending without a timeout never fires", "say how long is too long: timeout: 10m")


def _check_timeout(timeout: str, loc: FieldPath, out: FieldErrors) -> None:
    if parse_go_duration(timeout) is None:
        hint = f"write {timeout}s" if timeout.isdecimal() else "such as 90s, 10m or 1h30m"
        out.error(loc, f"{timeout!r} is no duration", hint)


def _check_twice(policies: Sequence[Policy], loc: FieldPath, out: FieldErrors) -> None:
    seen: set[str | int] = set()
    for index, policy in enumerate(policies):
        for name in events_of(policy):
            if name in seen:
                out.error((*loc, index), f"event {name} has a policy already", "the first one wins: keep one of them")
        if policy.exit_code is not None and policy.exit_code in seen:
            place = (*loc, index, "exitCode")
            out.error(place, f"exit code {policy.exit_code} has a policy already", "keep one of them")
        seen.update(events_of(policy), [] if policy.exit_code is None else [policy.exit_code])
    named = {name for policy in policies for name in events_of(policy)}
    if ANY_EVENT in named and len(named) > 1:
        out.error(
            loc,
            f"'*' is every event, so {', '.join(sorted(named - {ANY_EVENT}))} cannot have a policy in addition",
            "name the events one by one, or keep only the policy for '*'",
        )

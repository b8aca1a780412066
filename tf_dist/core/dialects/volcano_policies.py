"""Lifecycle policies of a Volcano Job: their checks, and conversion to rules.

The checks include those that Volcano leaves to its controller: PodPending has an effect only with a timeout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tf_dist.core.dialects.field_errors import MISSING, FieldErrors
from tf_dist.core.dialects.volcano_schema import Policy, Spec, Task
from tf_dist.core.model.fieldpath import FieldPath, suggestion, value_at
from tf_dist.core.model.job import Action, Event, ExitCodes, Rule
from tf_dist.core.model.timestamps import parse_go_duration

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
    """Check a list of policies: each policy, then duplicates."""
    for index, policy in enumerate(policies or ()):
        _check_policy(policy, (*loc, index), out)
    _check_twice(policies or (), loc, out)


def _check_policy(policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    named = events_of(policy)
    if named and policy.exit_code is not None:
        out.error(loc, "names both an event and an exitCode", "split it into two policies")
    elif not named and policy.exit_code is None and not out.partial:
        out.error(loc, "names neither an event nor an exitCode", f"events: {', '.join(EVENTS)}")
    if policy.exit_code == 0:
        out.error((*loc, "exitCode"), "0 means success, and policies do not react to it", "use event: TaskCompleted")
    _check_action(policy, loc, out)
    for name in named:
        _check_event(name, policy, (*loc, "event" if name == policy.event else "events"), out)
    if policy.timeout and parse_go_duration(policy.timeout) is None:
        hint = f"write {policy.timeout}s" if policy.timeout.isdecimal() else "such as 90s, 10m or 1h30m"
        out.error((*loc, "timeout"), f"{policy.timeout!r} is not a duration", hint)


def _check_action(policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    place = (*loc, "action")
    if not policy.action:
        if not out.partial:
            out.error(place, MISSING, f"known: {', '.join(ACTIONS)}")
    elif policy.action == "RestartPartition":
        out.error(place, "tf-dist does not know partitions, and would restart nothing", "RestartTask or RestartPod")
    elif policy.action in _INTERNAL_ACTIONS:
        out.error(
            place,
            f"{policy.action} is internal to Volcano and cannot be used in a policy",
            f"known: {', '.join(ACTIONS)}",
        )
    elif policy.action not in ACTIONS:
        out.error(place, f"unknown action {policy.action!r}", suggestion(policy.action, ACTIONS))


def _check_event(name: str, policy: Policy, loc: FieldPath, out: FieldErrors) -> None:
    if name in _INTERNAL_EVENTS:
        out.error(loc, f"{name} is internal to Volcano; a policy cannot react to it", f"known: {', '.join(EVENTS)}")
    elif name not in EVENTS:
        out.error(loc, f"unknown event {name!r}", suggestion(name, EVENTS))
    elif name == UNREACHABLE_EVENT:
        out.warn(loc, "JobUpdated never happens: Volcano accepts it and does not emit it")
    elif name == Event.POD_PENDING and not policy.timeout:
        out.warn(loc, "PodPending without a timeout never fires", "add the time: timeout: 10m")


def _check_twice(policies: Sequence[Policy], loc: FieldPath, out: FieldErrors) -> None:
    seen: set[str | int] = set()
    for index, policy in enumerate(policies):
        for name in events_of(policy):
            if name in seen:
                out.error((*loc, index), f"event {name} already has a policy", "the first one wins: keep one of them")
        if policy.exit_code is not None and policy.exit_code in seen:
            place = (*loc, index, "exitCode")
            out.error(place, f"exit code {policy.exit_code} already has a policy", "keep one of them")
        seen.update(events_of(policy), [] if policy.exit_code is None else [policy.exit_code])
    named = {name for policy in policies for name in events_of(policy)}
    if ANY_EVENT in named and len(named) > 1:
        out.error(
            loc,
            f"'*' is every event, so {', '.join(sorted(named - {ANY_EVENT}))} cannot have a policy in addition",
            "name the events one by one, or keep only the policy for '*'",
        )


def advise_restarts(task: Task, spec: Spec, loc: FieldPath, out: FieldErrors) -> None:
    """Warn about restart policies of a template with which pods do not end as the policies expect."""
    policy = value_at(task.template, "spec", "restartPolicy")
    place = (*loc, "template", "spec", "restartPolicy")
    if policy is None:
        out.warn(
            place, "is not set; the default of Kubernetes is Always, and a completed pod starts again", "write Never"
        )
    handled = _handled_events(task.policies) | _handled_events(spec.policies)
    restarts = policy in (None, "Always")
    if restarts and Event.TASK_COMPLETED in handled:
        out.warn(place, "with Always no pod ever completes, so the policy for TaskCompleted never fires", "write Never")
    if policy in (None, "Always", "OnFailure") and Event.POD_FAILED in _handled_events(task.policies):
        out.warn(
            place,
            f"with {policy or 'Always'} the kubelet restarts a container in place; the PodFailed policy hardly fires",
            "write Never",
        )
    if policy == "Never" and Event.TASK_FAILED in _handled_events(task.policies):
        message = "TaskFailed counts restarts in place; with Never there are none, and its policy never fires"
        out.warn(place, message, "write OnFailure, or a policy for PodFailed")


_RESTARTS: Final = frozenset({Action.RESTART_JOB.value, Action.RESTART_TASK.value, Action.RESTART_POD.value})


def advise_restarts_of_success(spec: Spec, names: Sequence[str], out: FieldErrors) -> None:
    """Warn about policies that restart a task because it has succeeded. They repeat until maxRetry is reached."""
    tasks: dict[FieldPath, list[str]] = {}
    for index, task in enumerate(spec.tasks):
        if value_at(task.template, "spec", "restartPolicy") in (None, "Always"):
            continue  # its pods never succeed, of which there is a warning
        own: FieldPath = ("spec", "tasks", index, "policies")
        lists = ((own, task.policies), (("spec", "policies"), spec.policies))
        listed = [((*place, at), one) for place, policies in lists for at, one in enumerate(policies or ())]
        answers = {ANY_EVENT, Event.TASK_COMPLETED.value}
        found = next(((at, one) for at, one in listed if not answers.isdisjoint(events_of(one))), None)
        if found is not None and found[1].action in _RESTARTS:
            tasks.setdefault((*found[0], "action"), []).append(names[index])
    for place, named in tasks.items():
        message = f"restarts {' and '.join(named)} whenever all its pods have succeeded, until maxRetry is spent"
        hint = "write CompleteJob for TaskCompleted, and restart on PodFailed or PodEvicted"
        out.warn(place, f"{message}; then the job has failed", hint)


def _handled_events(policies: Sequence[Policy] | None) -> set[str]:
    """The events to which a list of policies reacts."""
    return {name for policy in policies or () for name in events_of(policy)}

"""Volcano's lifecycle policies: the rules of its webhook, and the rows of the policy table they become.

What Volcano leaves to its controller is said in the rows: PodPending means something only with a timeout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tf_dist.core.dialects.problems import MISSING, Findings, Loc, suggest
from tf_dist.core.dialects.volcano_schema import Policy
from tf_dist.core.policy_model import Action, Event, ExitCodes, Rule

ANY: Final = "*"
DEAD: Final = "JobUpdated"
"""Accepted by Volcano and never emitted."""

EVENTS: Final = (
    ANY,
    Event.POD_FAILED.value,
    Event.POD_EVICTED.value,
    Event.POD_PENDING.value,
    Event.UNKNOWN.value,
    Event.TASK_COMPLETED.value,
    Event.TASK_FAILED.value,
    DEAD,
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
_UNIT: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def seconds(duration: str) -> float:
    """The length of a Go duration such as ``1h30m`` or ``1.5s``; ValueError if it is none or negative."""
    if duration in ("0", "+0"):
        return 0.0
    text = duration.removeprefix("+")
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{duration!r} is no duration")
    return float(sum(float(number) * _UNIT[unit] for number, unit in parts))


def events_of(policy: Policy) -> tuple[str, ...]:
    """The events a policy names, each once."""
    return tuple(dict.fromkeys([*([policy.event] if policy.event else []), *(policy.events or ())]))


def rules(policies: Sequence[Policy] | None) -> tuple[Rule, ...]:
    """The rows of checked policies, in order: the first that matches wins."""
    return tuple(rule for policy in policies or () for rule in _rules(policy))


def _rules(policy: Policy) -> Iterator[Rule]:
    action = Action(policy.action or "")
    timeout = seconds(policy.timeout) if policy.timeout else 0.0
    if policy.exit_code is not None:
        codes = ExitCodes(ranges=((policy.exit_code, policy.exit_code),))
        yield Rule(events=frozenset({Event.POD_FAILED}), action=action, codes=codes, timeout=timeout)
        return
    named = events_of(policy)
    events = set(Event) if ANY in named else {Event(name) for name in named if name != DEAD}
    if not timeout:
        events.discard(Event.POD_PENDING)
    if events:
        yield Rule(events=frozenset(events), action=action, timeout=timeout)


def check(policies: Sequence[Policy] | None, loc: Loc, out: Findings) -> None:
    """One list of policies: each by itself, then what they say twice."""
    for index, policy in enumerate(policies or ()):
        _check_policy(policy, (*loc, index), out)
    _check_twice(policies or (), loc, out)


def _check_policy(policy: Policy, loc: Loc, out: Findings) -> None:
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


def _check_action(policy: Policy, loc: Loc, out: Findings) -> None:
    place = (*loc, "action")
    if not policy.action:
        if not out.partial:
            out.error(place, MISSING, f"known: {', '.join(ACTIONS)}")
    elif policy.action == "RestartPartition":
        out.error(place, "tf-dist does not know partitions, and would restart nothing", "RestartTask or RestartPod")
    elif policy.action in _INTERNAL_ACTIONS:
        out.error(place, f"{policy.action} is Volcano's own and may not be asked for", f"known: {', '.join(ACTIONS)}")
    elif policy.action not in ACTIONS:
        out.error(place, f"unknown action {policy.action!r}", suggest(policy.action, ACTIONS))


def _check_event(name: str, policy: Policy, loc: Loc, out: Findings) -> None:
    if name in _INTERNAL_EVENTS:
        out.error(loc, f"{name} is Volcano's own; no policy may answer it", f"known: {', '.join(EVENTS)}")
    elif name not in EVENTS:
        out.error(loc, f"unknown event {name!r}", suggest(name, EVENTS))
    elif name == DEAD:
        out.warn(loc, "JobUpdated never happens: Volcano accepts it and does not emit it")
    elif name == Event.POD_PENDING and not policy.timeout:
        out.warn(loc, "PodPending without a timeout never fires", "say how long is too long: timeout: 10m")


def _check_timeout(timeout: str, loc: Loc, out: Findings) -> None:
    try:
        seconds(timeout)
    except ValueError:
        hint = f"write {timeout}s" if timeout.isdecimal() else "such as 90s, 10m or 1h30m"
        out.error(loc, f"{timeout!r} is no duration", hint)


def _check_twice(policies: Sequence[Policy], loc: Loc, out: Findings) -> None:
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
    if ANY in named and len(named) > 1:
        out.error(loc, f"'*' is every event, so {', '.join(sorted(named - {ANY}))} cannot have a policy beside it")

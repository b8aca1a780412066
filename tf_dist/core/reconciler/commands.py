"""Volcano's Commands (``bus.volcano.sh``), by which ``vcctl`` suspends, resumes and restarts a Job.

Volcano's controller deletes a Command first and acts then, so it acts at most once, and not at all after a crash in
between (``processNextCommand``). tf-dist writes the uid of a Command together with the resulting status, and then
deletes the Command, so it acts exactly once. Commands are executed one at a time, the oldest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from tf_dist.core.model.context import Action, Delete, EmitEvent, ReconcileContext
from tf_dist.core.model.fieldpath import mapping, text
from tf_dist.core.model.job import Action as PolicyAction
from tf_dist.core.model.job import Document
from tf_dist.core.model.reasons import Reason
from tf_dist.core.model.status import Phase, Status
from tf_dist.core.reconciler import restarts

COMMAND: Final = "Command"
# The number of stored uids: a server that was set back may show a deleted Command again.
_REMEMBERED: Final = 8
COMMANDED_PHASES: Final = frozenset(
    {Phase.ABORTING, Phase.TERMINATING, Phase.COMPLETING, Phase.RESTARTING, Phase.PENDING, Phase.FAILED}
)


def _stop(phase: Phase, action: PolicyAction) -> Callable[[ReconcileContext], Status]:
    message = f"stopped by the Command {action.value}"
    return lambda s: s.status.with_phase(phase, s.now, Reason.COMMAND_ISSUED, message)


# The effects of actions on a live job. Other actions do nothing: RestartTask and RestartPod have no target here.
_LIVE_ACTIONS: Final[Mapping[str, Callable[[ReconcileContext], Status]]] = {
    PolicyAction.ABORT_JOB.value: _stop(Phase.ABORTING, PolicyAction.ABORT_JOB),
    PolicyAction.TERMINATE_JOB.value: _stop(Phase.TERMINATING, PolicyAction.TERMINATE_JOB),
    PolicyAction.COMPLETE_JOB.value: _stop(Phase.COMPLETING, PolicyAction.COMPLETE_JOB),
    PolicyAction.RESTART_JOB.value: restarts.restart_by_command,
}


def execute_command(s: ReconcileContext) -> Status | None:
    """Execute the oldest Command for an active job."""
    command = _next(s)
    if command is None:
        return None
    act = _LIVE_ACTIONS.get(_action(command))
    return _remember(s.status if act is None else act(s), command)


def resume_by_command(s: ReconcileContext) -> Status | None:
    """Execute the oldest Command for a stopped job. Only ResumeJob has an effect."""
    command = _next(s)
    if command is None:
        return None
    resumes = _action(command) == PolicyAction.RESUME_JOB.value and not s.job.run_policy.suspend
    return _remember(restarts.next_run(s) if resumes else s.status, command)


def ignore_command(s: ReconcileContext) -> Status | None:
    """Ignore Commands for a job that is completing or terminating."""
    command = _next(s)
    return None if command is None else _remember(s.status, command)


def command_actions(s: ReconcileContext) -> Iterator[Action]:
    """Delete executed Commands, and report them. For a job that has ended, no Command has an effect."""
    for command in _commands(s):
        uid = _uid(command)
        if not (uid in s.status.commands or s.status.finished) or "deletionTimestamp" in command["metadata"]:
            continue
        if uid not in s.before.commands:
            yield _event(command, s.before, s.status)
        yield Delete(COMMAND, command["metadata"]["name"], uid)


def _event(command: Document, before: Status, after: Status) -> EmitEvent:
    """The original's message; a Command without an effect has its own."""
    action = _action(command)
    if (before.phase, before.attempts) == (after.phase, after.attempts):
        return EmitEvent(
            "Warning", Reason.COMMAND_ISSUED, f"command {action} does nothing to a job that is {before.phase}"
        )
    message = f"Start to execute command {action}, and clean it up to make sure executed not more than once."
    return EmitEvent("Normal", Reason.COMMAND_ISSUED, message)


def _next(s: ReconcileContext) -> Document | None:
    """The oldest Command, after all executed Commands have been deleted."""
    commands = _commands(s)
    if not commands or any(_uid(one) in s.status.commands for one in commands):
        return None
    return commands[0]


def _commands(s: ReconcileContext) -> list[Document]:
    found = [body for (kind, _), body in s.observed.objects.items() if kind == COMMAND]
    return sorted(found, key=lambda one: (text(one["metadata"].get("creationTimestamp")), one["metadata"]["name"]))


def _remember(status: Status, command: Document) -> Status:
    return replace(status, commands=(*status.commands, _uid(command))[-_REMEMBERED:])


def _uid(command: Document) -> str:
    return str(command["metadata"]["uid"])


def _action(command: Document) -> str:
    return text(command.get("action"))


def is_command_to(command: Document, uid: str) -> bool:
    """Whether a Command is for the job with this uid. A Command without a uid is for the job of its name."""
    return text(mapping(command.get("target")).get("uid")) in ("", uid)

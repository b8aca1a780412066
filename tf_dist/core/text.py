"""Sentences about what happened, in one place, so that a status, an event and a terminal say the same."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from typing import Final

from tf_dist.core.facts import Occurrence
from tf_dist.core.model import Job
from tf_dist.core.observed import Exit
from tf_dist.core.policy_model import Event

_SIGNAL_BASE: Final = 128


def signal_name(code: int | None) -> str:
    """The signal that an exit code of 128+n (or -n) stands for, "" for none."""
    number = 0 if code is None else code - _SIGNAL_BASE if code > _SIGNAL_BASE else -code
    return signal.Signals(number).name if number in {*signal.Signals} else ""


def exit_text(exit_: Exit | None) -> str:
    """``exited with code 137 (SIGKILL)``; out of memory and unknown ends have words of their own."""
    if exit_ is None or (exit_.code is None and not exit_.reason):
        return "failed without an exit code"
    if exit_.out_of_memory:
        return f"was killed for its memory (OOMKilled, code {exit_.code})"
    if exit_.code is None:
        return f"failed: {exit_.reason}"
    name = signal_name(exit_.code)
    special = exit_.reason if exit_.reason not in ("", "Error", "Completed") else ""
    detail = ", ".join(part for part in (name, special) if part)
    return f"exited with code {exit_.code}" + (f" ({detail})" if detail else "")


def listed(things: Sequence[object], most: int = 3) -> str:
    """The first few things by name, and how many more there are."""
    more = len(things) - most
    return ", ".join(map(str, things[:most])) + (f" and {more} more" if more > 0 else "")


def describe(job: Job, occurrence: Occurrence) -> str:
    """One sentence about an occurrence, without a full stop."""
    who = str(occurrence.replica) if occurrence.replica else occurrence.spec.name
    match occurrence.event:
        case Event.POD_FAILED:
            return f"{who} {exit_text(occurrence.exit)}"
        case Event.POD_EVICTED:
            if occurrence.disruption is not None:
                return f"{who} {occurrence.disruption}"
            said = ": ".join(filter(None, (exit_.reason, exit_.message))) if (exit_ := occurrence.exit) else ""
            return f"{who} was evicted" + (f" ({said})" if said else "")
        case Event.NODE_LOST:
            return f"{who} {occurrence.disruption or 'is lost with its node'}"
        case Event.POD_PENDING:
            return f"{who} has been pending for longer than its policy allows"
        case Event.TASK_COMPLETED:
            return f"all {occurrence.spec.replicas} {who} replicas succeeded"
        case Event.TASK_FAILED:
            return f"the containers of {who} were restarted too often (maxRetry={occurrence.spec.container_restarts})"
        case Event.UNKNOWN:
            return f"{who} cannot be scheduled while other replicas of {job.key.name} run"


def describe_all(job: Job, occurrences: Iterable[Occurrence], most: int = 3) -> str:
    """The first few of several occurrences, and how many more there are."""
    sentences = [describe(job, occurrence) for occurrence in occurrences]
    more = len(sentences) - most
    return "; ".join(sentences[:most]) + (f"; and {more} more" if more > 0 else "")

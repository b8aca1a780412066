"""The rows of a job's policy table: what may happen to it, and what is to be done then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Event(StrEnum):
    """What may happen to a job, derived from what is there, never from a watch event."""

    POD_FAILED = "PodFailed"
    POD_EVICTED = "PodEvicted"
    POD_PENDING = "PodPending"
    NODE_LOST = "NodeLost"
    TASK_COMPLETED = "TaskCompleted"
    TASK_FAILED = "TaskFailed"
    UNKNOWN = "Unknown"


class Action(StrEnum):
    """What a policy may answer to an event."""

    RESTART_POD = "RestartPod"
    RESTART_TASK = "RestartTask"
    RESTART_JOB = "RestartJob"
    ABORT_JOB = "AbortJob"
    RESUME_JOB = "ResumeJob"
    COMPLETE_JOB = "CompleteJob"
    TERMINATE_JOB = "TerminateJob"
    FAIL_JOB = "FailJob"
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCodes:
    """A set of exit codes: inclusive ranges, whether "no exit code known" belongs to it, and what OOMKilled means.

    ``oom``: True: an out-of-memory kill always belongs, False: never, None: its code (137) decides.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    unknown: bool = False
    oom: bool | None = None

    def __contains__(self, exit_: tuple[int | None, bool]) -> bool:
        """Whether (exit code or None, killed for memory) is in the set."""
        code, out_of_memory = exit_
        if out_of_memory and self.oom is not None:
            return self.oom
        if code is None:
            return self.unknown
        return any(low <= code <= high for low, high in self.ranges)


ANY_EXIT = ExitCodes(ranges=((-(2**31), 2**31),), unknown=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the policy table: when one of ``events`` happens (with such an exit code), do ``action``.

    ``timeout``: the event must have lasted so many seconds (PodPending needs one to mean anything). ``index``: only for
    that replica of the group (None: for all).
    """

    events: frozenset[Event]
    action: Action
    codes: ExitCodes = ANY_EXIT
    timeout: float = 0.0
    index: int | None = None

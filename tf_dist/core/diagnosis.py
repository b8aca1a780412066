"""One finding about a job: how grave, of what kind, and in which words.

Categories are a contract: tools may rely on them, so they are added to and never renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How grave it is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Category(StrEnum):
    """What kind of thing it is."""

    ADMISSION = "waits-for-admission"
    NEVER_FITS = "never-fits"
    QUOTA = "quota-exceeded"
    QUEUE = "queue-not-found"
    SCHEDULER_MISSING = "gang-scheduler-missing"
    RESERVED = "room-is-reserved"
    PREEMPTED = "preempted"
    SCHEDULE_TIMEOUT = "not-scheduled-in-time"
    UNSCHEDULABLE = "unschedulable"
    REFUSED = "refused"
    IMAGE = "image"
    CONFIGURATION = "configuration"
    BACKOFF = "waits-to-restart"
    STOPPING = "waits-for-old-pods"
    DEPENDENCY = "waits-for-dependency"
    STARTING = "starting"
    FAILURE = "failure"
    COMMAND = "command"
    MEMORY = "out-of-memory"
    EVICTION = "eviction"
    NODE_LOST = "node-lost"
    DEADLINE = "deadline"
    BUDGET = "restart-budget"
    INVALID = "invalid-spec"
    NEWER_FORMAT = "newer-status-format"
    SUSPENDED = "suspended"
    RUNNING = "running"
    SUCCEEDED = "succeeded"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding: ``summary`` for a line, ``detail`` as evidence (log lines, messages), ``resolution`` what to do."""

    level: Level
    category: Category
    summary: str
    detail: str = ""
    resolution: str = ""

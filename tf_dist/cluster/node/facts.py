"""What is known of a pod's processes, and what may be done about them: the vocabulary of ``lifecycle``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.node.problems import PodProblem
from tf_dist.core.times import parse_time

LOST = "SupervisorLost"
LOST_MESSAGE = "the node's supervisor ended and its processes with it"
_KILLED = 137


class RunState(StrEnum):
    """Where one instance of a container is."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One instance (``attempt`` counts from 0) of a container; ``streak`` restarts in a row led to it.

    Times are epoch seconds; ``code`` is 128+n for signal n.
    """

    name: str
    attempt: int = 0
    streak: int = 0
    state: RunState = RunState.STARTING
    started: float = 0.0
    finished: float = 0.0
    code: int = 0
    reason: str = ""
    message: str = ""
    last: Run | None = None

    @property
    def alive(self) -> bool:
        """Whether a process is or may be there."""
        return self.state != RunState.EXITED

    @property
    def failed(self) -> bool:
        """Whether it ended badly."""
        return not self.alive and self.code != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the runtime says of a pod. ``sandbox`` is "" (none), creating, ready, broken or removing."""

    uid: str = ""
    sandbox: str = ""
    message: str = ""
    ip: str = ""
    host_ip: str = ""
    runs: Mapping[str, Run] = field(default_factory=dict)
    problem: PodProblem | None = None
    stopping: bool = False  # a stop of everything was already ordered
    leaving: bool = False  # the node is ending: what runs is stopped, what does not run never will
    ready: Mapping[str, bool] = field(default_factory=dict)  # containers with a readiness probe, and its verdict

    @property
    def alive(self) -> list[str]:
        """Containers with a process."""
        return [name for name, run in self.runs.items() if run.alive]


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    """Make the pod's surroundings."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start an instance of a container."""

    name: str
    attempt: int = 0
    streak: int = 0


@dataclass(frozen=True, slots=True)
class StopAll:
    """End all containers: politely, and after ``grace`` seconds not."""

    grace: float


@dataclass(frozen=True, slots=True)
class RemoveSandbox:
    """Take the pod's surroundings down, with whatever still runs in them."""


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Everything is gone: the object may go, too."""


Action = CreateSandbox | Start | StopAll | RemoveSandbox | DeleteObject


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, the status to show, and when to look again without being woken (epoch seconds)."""

    status: Object
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


def run_from_record(record: Mapping[str, Any]) -> Run:
    """A run as the supervisor reports it."""
    last = record.get("last")
    return Run(
        name=record["name"],
        attempt=record["attempt"],
        streak=record["streak"],
        state=RunState(record["state"]),
        started=record["started"],
        finished=record["finished"] or 0.0,
        code=record["code"] or 0,
        reason=record["reason"],
        message=record["message"],
        last=run_from_record(last) if last else None,
    )


def known_runs(status: Object, facts: Facts, now: float) -> dict[str, Run]:
    """The supervisor's runs, completed by what the status remembers: a container that the status calls running and
    the supervisor does not know was lost with an earlier supervisor."""
    remembered = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    runs = {item["name"]: run for item in remembered if (run := _remembered(item, now))}
    return runs | {name: _with_past(run, runs.get(name)) for name, run in facts.runs.items()}


def _with_past(run: Run, before: Run | None) -> Run:
    """A run whose predecessor only the status remembers."""
    if run.last is not None or before is None or run.attempt == 0:
        return run
    return replace(run, last=replace(before, last=None) if before.attempt < run.attempt else before.last)


def _remembered(item: Object, now: float) -> Run | None:
    state, past = item.get("state") or {}, (item.get("lastState") or {}).get("terminated")
    attempt = item.get("restartCount", 0)
    last = _past_run(item["name"], attempt - 1, past, now) if past else None
    if "running" in state:
        ended = {**state["running"], "exitCode": _KILLED, "reason": LOST, "message": LOST_MESSAGE}
        return replace(_past_run(item["name"], attempt, ended, now), last=last)
    if "terminated" in state:
        return replace(_past_run(item["name"], attempt, state["terminated"], now), last=last)
    # Waiting for its next start: the status then shows the latest end as the last one.
    return replace(last, attempt=attempt, streak=attempt, last=last) if last else None


def _past_run(name: str, attempt: int, ended: Object, now: float) -> Run:
    return Run(
        name=name,
        attempt=attempt,
        streak=attempt,
        state=RunState.EXITED,
        started=parse_time(ended.get("startedAt")) or now,
        finished=parse_time(ended.get("finishedAt")) or now,
        code=ended["exitCode"],
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
    )

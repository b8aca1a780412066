"""Container states of a pod and its status in the API's form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tf_dist.cluster.api import TERMINAL_PHASES, Object
from tf_dist.core.model.timestamps import format_time, parse_time
from tf_dist.errors import TFDistError


class PodStartError(TFDistError):
    """A pod or one of its containers cannot be started.

    ``reason`` is the container's waiting reason; ``permanent`` problems fail the pod; others are retried. ``container``
    is "" when the problem concerns the whole pod.
    """

    def __init__(
        self, reason: str, message: str, *, hint: str = "", permanent: bool = False, container: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.permanent = permanent
        self.container = container

    @property
    def text(self) -> str:
        """Message and hint in one line."""
        return f"{self} ({self.hint})" if self.hint else str(self)


def config_error(message: str, hint: str = "", *, permanent: bool = True) -> PodStartError:
    """This node cannot provide what a pod requests, or (not ``permanent``) cannot provide it yet."""
    return PodStartError("CreateContainerConfigError", message, hint=hint, permanent=permanent)


SUPERVISOR_LOST = "SupervisorLost"
SUPERVISOR_LOST_MESSAGE = "the node's supervisor ended and its processes with it"
_KILLED = 137


class ContainerState(StrEnum):
    """The state of one instance of a container."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """One instance (``attempt`` counts from 0) of a container; ``streak``: the restarts in a row before it.

    Times are epoch seconds; ``code`` is 128+n for signal n.
    """

    name: str
    attempt: int = 0
    streak: int = 0
    state: ContainerState = ContainerState.STARTING
    started: float = 0.0
    finished: float = 0.0
    code: int = 0
    reason: str = ""
    message: str = ""
    last: ContainerRun | None = None

    @property
    def alive(self) -> bool:
        """Whether a process exists, or may exist."""
        return self.state != ContainerState.EXITED

    @property
    def begun(self) -> bool:
        """Whether any instance of the container has run, including earlier ones."""
        return bool(self.started) or self.attempt > 0

    @property
    def failed(self) -> bool:
        """Whether the instance ended with an error."""
        return not self.alive and self.code != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePodStatus:
    """The runtime's status of a pod. ``sandbox`` is "" (none), creating, ready, broken or removing."""

    uid: str = ""
    sandbox: str = ""
    message: str = ""
    ip: str = ""
    host_ip: str = ""
    runs: Mapping[str, ContainerRun] = field(default_factory=dict)
    problem: PodStartError | None = None
    stopping: bool = False  # a stop of all containers was already sent
    ready: Mapping[str, bool] = field(default_factory=dict)  # containers with a readiness probe, and its verdict

    @property
    def alive(self) -> list[str]:
        """Containers with a process."""
        return [name for name, run in self.runs.items() if run.alive]


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    """Create the pod's sandbox."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start an instance of a container."""

    name: str
    attempt: int = 0
    streak: int = 0


@dataclass(frozen=True, slots=True)
class StopContainers:
    """Stop all containers: SIGTERM, and SIGKILL after ``grace`` seconds."""

    grace: float


@dataclass(frozen=True, slots=True)
class RemoveSandbox:
    """Remove the pod's sandbox and every process in it."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod object, after everything of the pod is removed."""


PodAction = CreateSandbox | StartContainer | StopContainers | RemoveSandbox | DeletePod


@dataclass(frozen=True, slots=True)
class PodDecision:
    """Actions to take now, the status to write, and when to sync again at the latest (epoch seconds)."""

    status: Object
    actions: tuple[PodAction, ...] = ()
    wake_at: float | None = None


def run_from_record(record: Mapping[str, Any]) -> ContainerRun:
    """A run from the supervisor's record."""
    last = record.get("last")
    return ContainerRun(
        name=record["name"],
        attempt=record["attempt"],
        streak=record["streak"],
        state=ContainerState(record["state"]),
        started=record["started"],
        finished=record["finished"] or 0.0,
        code=record["code"] or 0,
        reason=record["reason"],
        message=record["message"],
        last=run_from_record(last) if last else None,
    )


def known_runs(status: Object, facts: RuntimePodStatus, now: float) -> dict[str, ContainerRun]:
    """The supervisor's runs, completed from the status. A container that is running in the status but unknown to the
    supervisor was lost with an earlier supervisor.
    """
    remembered = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    runs = {item["name"]: run for item in remembered if (run := _remembered(item, now))}
    return runs | {name: _with_past(run, runs.get(name)) for name, run in facts.runs.items()}


def _with_past(run: ContainerRun, before: ContainerRun | None) -> ContainerRun:
    """A run whose predecessor is known only from the status."""
    if run.last is not None or before is None or run.attempt == 0:
        return run
    return replace(run, last=replace(before, last=None) if before.attempt < run.attempt else before.last)


def _remembered(item: Object, now: float) -> ContainerRun | None:
    state, past = item.get("state") or {}, (item.get("lastState") or {}).get("terminated")
    attempt = item.get("restartCount", 0)
    last = _past_run(item["name"], attempt - 1, past, now) if past else None
    if "running" in state:
        ended = {**state["running"], "exitCode": _KILLED, "reason": SUPERVISOR_LOST, "message": SUPERVISOR_LOST_MESSAGE}
        return replace(_past_run(item["name"], attempt, ended, now), last=last)
    if "terminated" in state:
        return replace(_past_run(item["name"], attempt, state["terminated"], now), last=last)
    # The container waits for its next start: its status shows the latest end as the last state.
    return replace(last, attempt=attempt, streak=attempt, last=last) if last else None


def _past_run(name: str, attempt: int, ended: Object, now: float) -> ContainerRun:
    return ContainerRun(
        name=name,
        attempt=attempt,
        streak=attempt,
        state=ContainerState.EXITED,
        started=parse_time(ended.get("startedAt")) or now,
        finished=parse_time(ended.get("finishedAt")) or now,
        code=ended["exitCode"],
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
    )


@dataclass(frozen=True, slots=True)
class PhaseVerdict:
    """The pod's phase and why; ``crashing`` containers wait for their next start."""

    phase: str
    reason: str = ""
    message: str = ""
    crashing: frozenset[str] = frozenset()


def generate_pod_status(
    pod: Object, facts: RuntimePodStatus, runs: Mapping[str, ContainerRun], verdict: PhaseVerdict, now: float
) -> Object:
    """The whole status; equal inputs result in equal statuses, so that nothing is written twice."""
    before = pod.get("status") or {}
    containers = [_container(item, facts, runs, verdict) for item in pod["spec"]["containers"]]
    inits = [_init_container(item, facts, runs, verdict) for item in pod["spec"].get("initContainers") or []]
    ip = facts.ip or before.get("podIP", "")
    status: Object = {
        **before,
        "phase": verdict.phase,
        "conditions": _conditions(pod, inits, containers, verdict, now),
        "startTime": before.get("startTime") or format_time(now),
        "containerStatuses": containers,
    }
    optional = {
        "reason": verdict.reason,
        "message": verdict.message,
        "hostIP": facts.host_ip or before.get("hostIP", ""),
        "podIP": ip,
        "podIPs": [{"ip": ip}] if ip else [],
        "initContainerStatuses": inits,
    }
    return {key: value for key, value in (status | optional).items() if value or key not in optional}


def _container(
    item: Object, facts: RuntimePodStatus, runs: Mapping[str, ContainerRun], verdict: PhaseVerdict
) -> Object:
    name, run = item["name"], runs.get(item["name"])
    state = _state(name, run, facts, verdict)
    running = "running" in state
    status: Object = {
        "name": name,
        "image": item.get("image", ""),
        "imageID": "",
        "state": state,
        "lastState": _last_state(run, state),
        "ready": running and facts.ready.get(name, True),
        "restartCount": run.attempt if run else 0,
        "started": running,
    }
    if run is not None:
        status["containerID"] = f"tf-dist://{pod_instance(facts)}{run.name}/{run.attempt}"
    return status


def _init_container(
    item: Object, facts: RuntimePodStatus, runs: Mapping[str, ContainerRun], verdict: PhaseVerdict
) -> Object:
    status = _container(item, facts, runs, verdict)
    ended = status["state"].get("terminated")
    return status | {"ready": status["ready"] or (ended is not None and ended["exitCode"] == 0)}


def pod_instance(facts: RuntimePodStatus) -> str:
    """The part of container ids that differs between pods."""
    return f"{facts.uid}/" if facts.uid else ""


def _state(name: str, run: ContainerRun | None, facts: RuntimePodStatus, verdict: PhaseVerdict) -> Object:
    if run is not None and run.state == ContainerState.RUNNING:
        return {"running": {"startedAt": format_time(run.started)}}
    if run is not None and run.state == ContainerState.EXITED:
        return _ended(run, name in verdict.crashing)
    problem = facts.problem
    if problem is not None and problem.container in ("", name):
        return {"waiting": {"reason": problem.reason, "message": problem.text}}
    waits = run is None and bool(facts.alive)  # for an init container
    return {"waiting": {"reason": "PodInitializing" if waits else "ContainerCreating"}}


def _ended(run: ContainerRun, crashing: bool) -> Object:
    if not crashing:
        return {"terminated": terminated_state(run)}
    return {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off restarting failed container {run.name}"}}


def terminated_state(run: ContainerRun) -> Object:
    """The end of an instance."""
    reason = run.reason or ("Completed" if run.code == 0 else "Error")
    body: Object = {
        "exitCode": run.code,
        "reason": reason,
        "startedAt": format_time(run.started),
        "finishedAt": format_time(run.finished),
    }
    if 128 < run.code <= 128 + 64:
        body["signal"] = run.code - 128
    if run.message:
        body["message"] = run.message
    return body


def _last_state(run: ContainerRun | None, state: Object) -> Object:
    if run is None:
        return {}
    if "waiting" in state and not run.alive:
        return {"terminated": terminated_state(run)}
    return {"terminated": terminated_state(run.last)} if run.last else {}


def _conditions(
    pod: Object, inits: list[Object], containers: list[Object], verdict: PhaseVerdict, now: float
) -> list[dict[str, Any]]:
    unready = [item["name"] for item in containers if not item["ready"]]
    over = verdict.phase in TERMINAL_PHASES
    initialized = verdict.phase != "Pending" or not inits or all("terminated" in item["state"] for item in inits)
    reason = "PodCompleted" if verdict.phase == "Succeeded" else "ContainersNotReady" if unready else ""
    message = f"containers with unready status: [{' '.join(unready)}]" if unready and not over else ""
    ready = not unready and not over
    wanted = [
        ("Initialized", initialized, "" if initialized else "ContainersNotInitialized", ""),
        ("Ready", ready, reason, message),
        ("ContainersReady", ready, reason, message),
        ("PodScheduled", True, "", ""),
    ]
    before = {item["type"]: item for item in (pod.get("status") or {}).get("conditions") or []}
    mine = {entry[0]: _condition(before.get(entry[0]), *entry, now=now) for entry in wanted}
    return [*(item for kind, item in before.items() if kind not in mine), *mine.values()]


def _condition(before: Object | None, kind: str, holds: bool, reason: str, message: str, *, now: float) -> Object:
    status = str(holds)
    same = before is not None and before.get("status") == status
    changed = before.get("lastTransitionTime") if before is not None and same else format_time(now)
    found: Object = {"type": kind, "status": status, "lastTransitionTime": changed or format_time(now)}
    return found | {key: value for key, value in (("reason", reason), ("message", message)) if value}

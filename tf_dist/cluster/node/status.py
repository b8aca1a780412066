"""A pod's status in the API's words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.node.facts import Facts, Run, RunState
from tf_dist.core.times import format_time

_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The pod's phase and why; ``crashing`` containers wait for their next start."""

    phase: str
    reason: str = ""
    message: str = ""
    crashing: frozenset[str] = frozenset()


def make_status(pod: Object, facts: Facts, runs: Mapping[str, Run], verdict: Verdict, now: float) -> Object:
    """The whole status; equal inputs give equal statuses, so that nothing is written twice."""
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


def _container(item: Object, facts: Facts, runs: Mapping[str, Run], verdict: Verdict) -> Object:
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


def _init_container(item: Object, facts: Facts, runs: Mapping[str, Run], verdict: Verdict) -> Object:
    status = _container(item, facts, runs, verdict)
    ended = status["state"].get("terminated")
    return status | {"ready": status["ready"] or (ended is not None and ended["exitCode"] == 0)}


def pod_instance(facts: Facts) -> str:
    """What makes container ids of different pods differ."""
    return f"{facts.uid}/" if facts.uid else ""


def _state(name: str, run: Run | None, facts: Facts, verdict: Verdict) -> Object:
    if run is not None and run.state == RunState.RUNNING:
        return {"running": {"startedAt": format_time(run.started)}}
    if run is not None and run.state == RunState.EXITED:
        return _ended(run, name in verdict.crashing)
    problem = facts.problem
    if problem is not None and problem.container in ("", name):
        return {"waiting": {"reason": problem.reason, "message": problem.text}}
    waits = run is None and bool(facts.alive)  # for an init container
    return {"waiting": {"reason": "PodInitializing" if waits else "ContainerCreating"}}


def _ended(run: Run, crashing: bool) -> Object:
    if not crashing:
        return {"terminated": terminated(run)}
    return {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off restarting failed container {run.name}"}}


def terminated(run: Run) -> Object:
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


def _last_state(run: Run | None, state: Object) -> Object:
    if run is None:
        return {}
    if "waiting" in state and not run.alive:
        return {"terminated": terminated(run)}
    return {"terminated": terminated(run.last)} if run.last else {}


def _conditions(
    pod: Object, inits: list[Object], containers: list[Object], verdict: Verdict, now: float
) -> list[dict[str, Any]]:
    unready = [item["name"] for item in containers if not item["ready"]]
    over = verdict.phase in _OVER
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

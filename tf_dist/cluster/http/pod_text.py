"""One word for a pod's state, as kubectl says it: the most telling reason among its containers."""

from __future__ import annotations

from typing import Any

from tf_dist.cluster.api import Object
from tf_dist.cluster.http.durations import age
from tf_dist.cluster.memory.objects import look_up


def _statuses(pod: Object, field: str = "containerStatuses") -> list[Object]:
    return look_up(pod, f"status.{field}") or []


def ready(pod: Object, now: float) -> str:
    """``1/2``: containers that are ready, of all."""
    count = sum(bool(one.get("ready")) for one in _statuses(pod))
    return f"{count}/{len(look_up(pod, 'spec.containers') or ())}"


def restarts(pod: Object, now: float) -> str:
    """``0`` or ``3 (5m ago)``."""
    total = sum(one.get("restartCount", 0) for one in _statuses(pod))
    ends = [look_up(one, "lastState.terminated.finishedAt") for one in _statuses(pod)]
    last = max((end for end in ends if end), default=None)
    return f"{total} ({age(last, now)} ago)" if total and last else str(total)


def status(pod: Object, now: float) -> str:
    """What the STATUS column says."""
    text = str(look_up(pod, "status.reason") or look_up(pod, "status.phase") or "Unknown")
    if _gated(pod):
        text = "SchedulingGated"
    text = _starting(pod) or _running(pod, text)
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if look_up(pod, "status.reason") == "NodeLost" else "Terminating"
    return text


def _gated(pod: Object) -> bool:
    conditions = look_up(pod, "status.conditions") or ()
    return any(one.get("type") == "PodScheduled" and one.get("reason") == "SchedulingGated" for one in conditions)


def _starting(pod: Object) -> str:
    """The first init container that is not done."""
    total = len(look_up(pod, "spec.initContainers") or ())
    for at, one in enumerate(_statuses(pod, "initContainerStatuses")):
        ended = look_up(one, "state.terminated")
        if ended is not None:
            if ended.get("exitCode") == 0:
                continue
            return f"Init:{_end(ended)}"
        waiting = look_up(one, "state.waiting.reason")
        return f"Init:{waiting}" if waiting and waiting != "PodInitializing" else f"Init:{at}/{total}"
    return ""


def _running(pod: Object, text: str) -> str:
    for one in reversed(_statuses(pod)):
        if waiting := look_up(one, "state.waiting.reason"):
            text = str(waiting)
        elif (ended := look_up(one, "state.terminated")) is not None:
            text = _end(ended)
    running = any(one.get("ready") and look_up(one, "state.running") is not None for one in _statuses(pod))
    # One container is done and another still works: the pod as a whole runs.
    return "Running" if text == "Completed" and running else text


def _end(ended: dict[str, Any]) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode', 0)}"

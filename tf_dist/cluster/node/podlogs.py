"""Which log a request means, and the kubelet's answers when there is none."""

from __future__ import annotations

from dataclasses import replace

from tf_dist.cluster.api import LogOptions, Object
from tf_dist.cluster.node.client import Supervisor
from tf_dist.cluster.node.logs import LogStream
from tf_dist.cluster.node.workload import Workload
from tf_dist.errors import Rejected

_DEFAULT = "kubectl.kubernetes.io/default-container"


def open_log(pod: Object, workload: Workload, supervisor: Supervisor, options: LogOptions, now: float) -> LogStream:
    """The log of a container's current (or previous) instance; Rejected when there is none."""
    name = choose_container(pod, options.container)
    attempt = _attempt(pod, workload, supervisor, name)
    if options.previous:
        attempt = -1 if attempt is None else attempt - 1
    path = workload.log(name, attempt if attempt is not None else 0)
    if attempt is None or (not path.exists() and not _alive(workload, supervisor, name, attempt)):
        raise Rejected(_why_not(pod, name, options.previous))
    since = 0.0 if options.since_seconds is None else now - options.since_seconds
    shown = replace(options, follow=options.follow and not options.previous)
    return LogStream(path, shown, lambda: _alive(workload, supervisor, name, attempt), since=since)


def choose_container(pod: Object, asked: str) -> str:
    """The container asked for, or the only or default one."""
    spec = pod["spec"]
    names = [item["name"] for item in spec["containers"]]
    every = [item["name"] for item in spec.get("initContainers") or []] + names
    name = asked or (pod["metadata"].get("annotations") or {}).get(_DEFAULT) or (names[0] if len(names) == 1 else "")
    where = f"pod {pod['metadata']['name']}"
    if not name:
        raise Rejected(f"a container name must be specified for {where}, choose one of: [{' '.join(names)}]")
    if name not in every:
        raise Rejected(f"container {name} is not valid for {where}, choose one of: [{' '.join(every)}]")
    return name


def _attempt(pod: Object, workload: Workload, supervisor: Supervisor, name: str) -> int | None:
    record = supervisor.record(workload.uid)
    for item in record["containers"] if record else ():
        if item["name"] == name:
            return int(item["attempt"])
    status = _status(pod, name)
    known = status.get("containerID") or status.get("restartCount")
    return int(status["restartCount"]) if known else None


def _alive(workload: Workload, supervisor: Supervisor, name: str, attempt: int) -> bool:
    record = supervisor.record(workload.uid)
    runs = record["containers"] if record else ()
    return any(run["name"] == name and run["attempt"] == attempt and run["state"] != "exited" for run in runs)


def _why_not(pod: Object, name: str, previous: bool) -> str:
    where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
    if previous:
        return f"previous terminated {where} not found"
    waiting = (_status(pod, name).get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason") or "ContainerCreating"
    message = f": {waiting['message']}" if waiting.get("message") else ""
    return f"{where} is waiting to start: {reason}{message}"


def _status(pod: Object, name: str) -> Object:
    status = pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return next((item for item in every if item["name"] == name), {})

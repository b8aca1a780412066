"""The runtime's operations (create, run, stop, exec, remove): pods as processes, their output and exit codes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from tf_dist.cluster.kubelet.runtime.cgroups import Cgroup, CgroupManager
from tf_dist.cluster.kubelet.runtime.egress import Egress
from tf_dist.cluster.kubelet.runtime.event_loop import EventLoop, Message, SupervisorConfig
from tf_dist.cluster.kubelet.runtime.log_file import LogFile
from tf_dist.cluster.kubelet.runtime.sandbox import PodSubnet
from tf_dist.cluster.kubelet.runtime.shim_manager import (
    KILL_TIMEOUT,
    ContainerRecord,
    PodRecord,
    ShimManager,
    ShimRecord,
    drain_pipe,
    exit_code,
    write_in_place,
)

OPERATIONS = frozenset({"create", "run", "stop", "exec", "hosts", "remove"})
OOM_KILLED = "OOMKilled"
_KILLED = 128 + signal.SIGKILL


class RuntimeService:
    """All pods of a node. The kubelet may request the methods named in ``OPERATIONS``."""

    def __init__(
        self, config: SupervisorConfig, loop: EventLoop, changed: Callable[[str], None], emit: Callable[[Message], None]
    ) -> None:
        self._config = config
        self._loop = loop
        self._changed = changed
        self._emit = emit
        self._isolated = config.mode == "isolated"
        self._tokens = count()
        self._hooks: dict[str, ContainerRecord] = {}
        self._groups = count()
        self.cgroups = CgroupManager()
        self._shims = ShimManager(loop, PodSubnet(config.bridge, config.prefix), self._heard, self._shim_ended)
        self.pods: dict[str, PodRecord] = {}

    def start(self) -> None:
        """In isolated mode, enter the node's own network; OSError if the system forbids it."""
        self.cgroups.start()
        if self._isolated:
            self._shims.enter()

    @property
    def egress(self) -> Egress:
        """The egress of isolated pods."""
        return self._shims.egress

    # Operations

    def create(self, uid: str, **spec: Any) -> None:
        """Create a pod without containers; in isolated mode, with namespaces and a network."""
        if uid in self.pods:
            self._changed(uid)
            return
        pod = self.pods[uid] = PodRecord(uid, spec)
        try:
            os.makedirs(spec["staging"], mode=0o700, exist_ok=True)
            if self._isolated:
                pod.shim = self._shims.isolate(pod)
            else:
                pod.state = "ready"
        except OSError as error:
            pod.state, pod.message = "broken", str(error)
        self._changed(uid)

    def run(
        self,
        uid: str,
        name: str,
        attempt: int,
        streak: int,
        log: str,
        limits: dict[str, int] | None = None,
        **spec: Any,
    ) -> None:
        """Start an instance of a container."""
        pod = self.pods.get(uid)
        before = pod.containers.get(name) if pod else None
        twice = before is not None and (before.state != "exited" or before.attempt >= attempt)
        if pod is None or pod.state in ("broken", "removing") or twice:
            self._changed(uid)
            return
        try:
            shim = pod.shim or self._shims.share(pod)
        except OSError as error:  # no process can be created
            pod.state, pod.message = "broken", str(error)
            self._changed(uid)
            return
        container = ContainerRecord(name, attempt, streak, LogFile(log, self._config.log_limit), shim)
        container.last = {**before.report(), "last": None} if before else None
        pod.containers[name] = container
        try:
            container.group = self.cgroups.make(str(next(self._groups)), limits or {}, self._config.pids_limit)
        except OSError as error:
            self._finish(
                pod, container, 128, reason="StartError", message=f"cannot set the container's limits: {error}"
            )
            return
        self._launch(pod, container, spec)

    def stop(self, uid: str, name: str = "", grace: float = 30.0, hooks: dict[str, list[str]] | None = None) -> None:
        """Send SIGTERM to a container (or all), after its hook if any, and SIGKILL ``grace`` seconds from now."""
        for container in self._alive(uid, name):
            if grace > 0 and hooks and container.name in hooks:
                token = f"hook-{next(self._tokens)}"
                self._hooks[token] = container
                argv = hooks[container.name]
                container.shim.send(op="exec", name=container.name, token=token, argv=argv, timeout=grace)
            elif grace > 0:
                self._terminate(container)
            self._loop.later(max(grace, 0), lambda container=container: self._kill(container))  # type: ignore[misc]

    def exec(self, uid: str, name: str, token: str, **what: Any) -> None:
        """Run a hook or probe. An ``exec`` event with ``token`` and the exit code reports its end."""
        for container in self._alive(uid, name):
            container.shim.send(op="exec", name=name, token=token, **what)
            return
        self._emit({"event": "exec", "token": token, "code": 1})

    def hosts(self, uid: str, text: str) -> None:
        """Overwrite the pod's /etc/hosts in place, because it is bind-mounted and a new file would not be visible."""
        pod = self.pods.get(uid)
        if pod is not None and pod.spec.get("hosts"):
            write_in_place(pod.spec["hosts"], text.encode())

    def remove(self, uid: str) -> None:
        """Kill the remaining processes and remove the pod. ``gone`` is sent when everything is removed."""
        pod = self.pods.get(uid)
        if pod is None:
            self._changed(uid)
            return
        pod.state = "removing"
        shims = self._shims.of(pod)
        self._changed(uid)
        for shim in shims:
            self._shims.end(shim)
        if not shims:
            self._forget(pod)

    def close(self) -> None:
        """Remove all pods and wait, without sending events, because the supervisor ends."""
        changed, self._changed = self._changed, lambda uid: None
        for uid in list(self.pods):
            self.remove(uid)
        deadline = time.monotonic() + 2 * KILL_TIMEOUT
        while self._shims and time.monotonic() < deadline:
            self._loop.step(0.1)
        self._changed = changed
        self.cgroups.close()

    def failed(self, operation: str, order: Message, error: Exception) -> None:
        """Report an operation that failed. Otherwise the kubelet would wait for it forever."""
        pod = self.pods.get(str(order.get("uid")))
        if operation == "exec":
            self._emit({"event": "exec", "token": order.get("token", ""), "code": 1})
        elif pod is None:
            self._changed(str(order.get("uid")))
        elif operation == "create":
            pod.state, pod.message = "broken", str(error)
            self._changed(pod.uid)
        elif operation == "run":
            container = pod.containers.get(str(order.get("name")))
            if container is not None and (container.state, container.attempt) == ("starting", order.get("attempt")):
                self._finish(pod, container, 128, reason="StartError", message=f"cannot start the container: {error}")
            self._changed(pod.uid)

    # Containers

    def _alive(self, uid: str, name: str) -> list[ContainerRecord]:
        pod = self.pods.get(uid)
        every = pod.containers.values() if pod else ()
        return [item for item in every if item.state != "exited" and name in ("", item.name)]

    def _terminate(self, container: ContainerRecord) -> None:
        container.shim.send(op="signal", name=container.name, signal=signal.SIGTERM)

    def _kill(self, container: ContainerRecord) -> None:
        if container.state != "exited":
            container.shim.send(op="kill", name=container.name)

    def _launch(self, pod: PodRecord, container: ContainerRecord, spec: Message) -> None:
        ends: list[int] = []
        for stream in ("stdout", "stderr"):
            read, write = os.pipe()
            os.set_blocking(read, False)
            container.pipes.append(read)
            ends.append(write)
            self._loop.watch(read, lambda read=read, stream=stream: self._pump(container, read, stream))  # type: ignore[misc]
        paths = container.group.paths if container.group else []
        container.shim.send(ends, op="start", name=container.name, cgroups=paths, **spec)
        for end in ends:
            os.close(end)
        self._changed(pod.uid)

    def _pump(self, container: ContainerRecord, fd: int, stream: str) -> None:
        if not drain_pipe(container, fd, stream, 4):
            self._close_pipe(container, fd)

    def _close_pipe(self, container: ContainerRecord, fd: int) -> None:
        self._loop.forget(fd)
        if fd in container.pipes:
            container.pipes[container.pipes.index(fd)] = -1
            os.close(fd)

    def _finish(self, pod: PodRecord, container: ContainerRecord, code: int, **facts: Any) -> None:
        """Record the end of a container whose processes have ended, after reading the rest of the pipes."""
        for fd, stream in zip(list(container.pipes), ("stdout", "stderr"), strict=False):
            if fd >= 0:
                drain_pipe(container, fd, stream, 1 << 10)
                self._close_pipe(container, fd)
        container.log.close()
        if container.group is not None:
            if code and container.group.killed_for_memory():
                facts |= {"reason": OOM_KILLED}
            self._dissolve(container.group)
        container.end(code, **facts)
        if pod.shim is None:
            container.shim.send(op="die")
        self._changed(pod.uid)

    def _dissolve(self, group: Cgroup, tries: int = 50) -> None:
        """Remove a container's groups. Retried, because a process that has just ended may still be in one."""
        if not group.remove() and tries:
            self._loop.later(0.1, lambda: self._dissolve(group, tries - 1))

    # Shims

    def _heard(self, pod: PodRecord, message: Message) -> None:
        event = message.pop("event")
        if event == "exec" and message["token"] in self._hooks:
            self._terminate(self._hooks.pop(message["token"]))
        elif event == "exec":
            self._emit({"event": "exec", **message})
        elif event in ("ready", "broken"):
            self._settled(pod, event, message.get("message", ""))
        else:
            self._about(pod, pod.containers[message.pop("name")], event, message)

    def _settled(self, pod: PodRecord, state: str, message: str) -> None:
        if pod.state == "creating":
            pod.state, pod.message = state, message
            self._changed(pod.uid)

    def _about(self, pod: PodRecord, container: ContainerRecord, event: str, facts: Message) -> None:
        if event == "started":
            container.state, container.pid, container.started = "running", facts["pid"], time.time()
            self._changed(pod.uid)
        elif event == "failed":
            self._finish(pod, container, facts["code"], reason="StartError", message=facts["message"])
        else:
            self._finish(pod, container, exit_code(facts["code"]), finished=facts["finished"])

    def _shim_ended(self, shim: ShimRecord, pod: PodRecord) -> None:
        for container in pod.containers.values():
            if container.shim is shim and container.state != "exited":
                self._cut_off(pod, container)
        if pod.shim is shim and pod.state != "removing":
            pod.state, pod.message = "broken", pod.message or "the pod's first process was killed"
            self._changed(pod.uid)
        if pod.state == "removing" and not self._shims.of(pod):
            self._forget(pod)

    def _cut_off(self, pod: PodRecord, container: ContainerRecord) -> None:
        """Record the end of a container whose shim was killed: it ended with the shim, or never started."""
        message = pod.message or "the process above it was killed"
        if container.state == "running":
            self._finish(pod, container, _KILLED, reason="Error", message=message)
        else:
            self._finish(pod, container, 128, reason="StartError", message=message)

    def _forget(self, pod: PodRecord) -> None:
        if self.pods.get(pod.uid) is pod:
            del self.pods[pod.uid]
            self._changed(pod.uid)

"""The supervisor's records of pods, containers and shims; starting, ending and reaping shims."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tf_dist.cluster.kubelet.runtime import linux, sandbox
from tf_dist.cluster.kubelet.runtime.cgroups import Cgroup
from tf_dist.cluster.kubelet.runtime.egress import Egress
from tf_dist.cluster.kubelet.runtime.event_loop import EventLoop, Message, MessageDecoder, encode_message
from tf_dist.cluster.kubelet.runtime.log_file import LogFile
from tf_dist.cluster.kubelet.runtime.sandbox import PodSubnet
from tf_dist.cluster.kubelet.runtime.shim import Shim as ShimProcess
from tf_dist.cluster.kubelet.runtime.shim import detach_process

_REPORTED = ("name", "attempt", "streak", "state", "pid", "started", "finished", "code", "reason", "message")


@dataclass(slots=True, eq=False)
class ShimRecord:
    """The supervisor's record of a shim."""

    pid: int
    control: socket.socket
    lines: MessageDecoder = field(default_factory=MessageDecoder)

    def send(self, fds: list[int] | None = None, **message: Any) -> None:
        """Send a message with descriptors. A shim that does not listen is dead, which is detected elsewhere."""
        try:
            data = encode_message(message)
            sent = socket.send_fds(self.control, [data], fds or []) if fds else 0
            self.control.sendall(data[sent:])
        except OSError:
            return


@dataclass(slots=True, eq=False)
class ContainerRecord:
    """One instance (attempt) of a container; ``code`` is 0 to 255 with signals as 128+n, None while it runs."""

    name: str
    attempt: int
    streak: int
    log: LogFile
    shim: ShimRecord
    state: str = "starting"  # starting, running, exited
    pid: int = 0
    started: float = 0.0
    finished: float | None = None
    code: int | None = None
    reason: str = ""
    message: str = ""
    pipes: list[int] = field(default_factory=list)
    group: Cgroup | None = None
    last: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        """For the kubelet."""
        return {key: getattr(self, key) for key in _REPORTED} | {"last": self.last}

    def end(self, code: int, *, reason: str = "", message: str = "", finished: float | None = None) -> None:
        """Record the end, once."""
        if self.state == "exited":
            return
        self.state, self.code, self.reason, self.message = "exited", code, reason, message
        self.finished = time.time() if finished is None else finished
        self.started = self.started or self.finished


@dataclass(slots=True, eq=False)
class PodRecord:
    """One pod; ``shim``: the shim of all its containers (isolated mode only)."""

    uid: str
    spec: dict[str, Any]
    shim: ShimRecord | None = None
    state: str = "creating"  # creating, ready, broken, removing
    message: str = ""
    containers: dict[str, ContainerRecord] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """For the kubelet."""
        containers = [container.report() for container in self.containers.values()]
        facts = {"uid": self.uid, "ip": self.spec["ip"], "state": self.state, "message": self.message}
        return facts | {"containers": containers, "devices": self.spec.get("devices")}


def exit_code(status: int) -> int:
    """The exit code that containers report for a wait status: signals as 128+n."""
    return 128 - status if status < 0 else status


def drain_pipe(container: ContainerRecord, fd: int, stream: str, rounds: int) -> bool:
    """Move at most ``rounds`` chunks from a pipe to the log; False at its end."""
    for _ in range(rounds):
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        container.log.write(stream, data)
    return True


def write_in_place(path: str, data: bytes) -> None:
    """Replace a file's content without replacing the file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


KILL_TIMEOUT = 5.0  # seconds for a shim to kill the processes below it


class ShimManager:
    """All shims of a node. ``heard`` gets their messages; ``ended`` is called once for each, after its last message."""

    def __init__(
        self,
        loop: EventLoop,
        subnet: PodSubnet,
        heard: Callable[[PodRecord, Message], None],
        ended: Callable[[ShimRecord, PodRecord], None],
    ) -> None:
        self._loop = loop
        self.egress = Egress(loop, subnet)
        self._heard = heard
        self._ended = ended
        self._bridge: int | None = None  # None: shared mode
        self._cables = count()
        self._shims: dict[int, tuple[ShimRecord, PodRecord]] = {}
        wake = linux.sigchld_pipe()
        loop.watch(wake, lambda: self._reap(wake))

    def enter(self) -> None:
        """Enter the node's own network; pods are isolated from then on. OSError if the system forbids it."""
        self.egress.prepare()
        self._bridge = sandbox.enter_network(self.egress.subnet)
        self.egress.open(self._bridge)

    def __bool__(self) -> bool:
        return bool(self._shims)

    def of(self, pod: PodRecord) -> list[ShimRecord]:
        """A pod's shims."""
        return [shim for shim, owner in self._shims.values() if owner is pod]

    def isolate(self, pod: PodRecord) -> ShimRecord:
        """Create namespaces and a network for a pod, with a shim inside."""
        assert self._bridge is not None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                cable = f"tfd{next(self._cables)}p"
                pid = sandbox.create_sandbox(pod.spec, self.egress.subnet, self._bridge, cable, theirs)
        except OSError:
            ours.close()
            raise
        shim = self._adopt(pod, pid, ours)
        ours.send(b"\n")
        return shim

    def share(self, pod: PodRecord) -> ShimRecord:
        """Start a shim for one container, in the machine's own namespaces."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                detach_process(theirs)
                ShimProcess(theirs, isolated=False, staging="").run()
            finally:
                os._exit(1)
        theirs.close()
        return self._adopt(pod, pid, ours)

    def end(self, shim: ShimRecord) -> None:
        """End a shim with all processes below it."""
        if self._bridge is not None:
            linux.signal_pids({shim.pid}, signal.SIGKILL)
            return
        shim.send(op="die")
        self._loop.later(KILL_TIMEOUT, lambda: self._kill(shim))

    def _kill(self, shim: ShimRecord) -> None:
        if shim.pid in self._shims:
            linux.signal_pids({shim.pid}, signal.SIGKILL)

    def _adopt(self, pod: PodRecord, pid: int, control: socket.socket) -> ShimRecord:
        control.settimeout(KILL_TIMEOUT)
        shim = ShimRecord(pid, control)
        self._shims[pid] = (shim, pod)
        self._loop.watch(control.fileno(), lambda: self._hear(shim, pod))
        return shim

    def _hear(self, shim: ShimRecord, pod: PodRecord) -> None:
        try:
            data = shim.control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._loop.forget(shim.control.fileno())
            return
        for message in shim.lines.feed(data):
            self._heard(pod, message)

    def _hear_rest(self, shim: ShimRecord, pod: PodRecord) -> None:
        shim.control.setblocking(False)
        with contextlib.suppress(OSError):
            while data := shim.control.recv(1 << 16):
                for message in shim.lines.feed(data):
                    self._heard(pod, message)
        self._loop.forget(shim.control.fileno())
        shim.control.close()

    def _reap(self, wake: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._bury(pid)
        # In shared mode, other children of the supervisor are orphans of a killed shim.
        if self._bridge is None and (orphans := linux.child_pids(os.getpid()) - set(self._shims)):
            linux.signal_pids(orphans, signal.SIGKILL)
            self._loop.later(0.01, lambda: self._reap(wake))

    def _bury(self, pid: int) -> None:
        shim, pod = self._shims.pop(pid, (None, None))
        if shim is not None and pod is not None:
            self._hear_rest(shim, pod)
            self._ended(shim, pod)

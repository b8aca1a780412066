"""What the supervisor knows of pods and containers, and the form in which the agent hears of it."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from tf_dist.cluster.node.runtime.cgroups import Group
from tf_dist.cluster.node.runtime.logfile import LogFile
from tf_dist.cluster.node.runtime.wire import Lines, encode

_REPORTED = ("name", "attempt", "streak", "state", "pid", "started", "finished", "code", "reason", "message")


@dataclass(slots=True, eq=False)
class Shim:
    """A shim as its parent sees it."""

    pid: int
    control: socket.socket
    lines: Lines = field(default_factory=Lines)

    def send(self, fds: list[int] | None = None, **message: Any) -> None:
        """Send with descriptors; a shim that does not listen is dead: its end is noticed elsewhere."""
        try:
            data = encode(message)
            sent = socket.send_fds(self.control, [data], fds or []) if fds else 0
            self.control.sendall(data[sent:])
        except OSError:
            return


@dataclass(slots=True, eq=False)
class Container:
    """One instance (attempt) of a container; ``code`` is 0 to 255 with signals as 128+n, None while it lives."""

    name: str
    attempt: int
    streak: int
    log: LogFile
    shim: Shim
    state: str = "starting"  # starting, running, exited
    pid: int = 0
    started: float = 0.0
    finished: float | None = None
    code: int | None = None
    reason: str = ""
    message: str = ""
    pipes: list[int] = field(default_factory=list)
    group: Group | None = None
    last: dict[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        """For the agent."""
        return {key: getattr(self, key) for key in _REPORTED} | {"last": self.last}

    def end(self, code: int, *, reason: str = "", message: str = "", finished: float | None = None) -> None:
        """Record the end, once."""
        if self.state == "exited":
            return
        self.state, self.code, self.reason, self.message = "exited", code, reason, message
        self.finished = time.time() if finished is None else finished
        self.started = self.started or self.finished


@dataclass(slots=True, eq=False)
class Pod:
    """One pod; ``shim`` only where the whole pod shares one (isolated mode)."""

    uid: str
    spec: dict[str, Any]
    shim: Shim | None = None
    state: str = "creating"  # creating, ready, broken, removing
    message: str = ""
    containers: dict[str, Container] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """For the agent."""
        containers = [container.report() for container in self.containers.values()]
        facts = {"uid": self.uid, "ip": self.spec["ip"], "state": self.state, "message": self.message}
        return facts | {"containers": containers, "devices": self.spec.get("devices")}


def exit_code(status: int) -> int:
    """A wait status as containers report it: signals as 128+n."""
    return 128 - status if status < 0 else status


def drain(container: Container, fd: int, stream: str, rounds: int) -> bool:
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

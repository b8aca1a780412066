"""The shim: the process above a pod's containers, which starts them, reaps orphans and reports exits.

Isolated mode: one shim per pod, which is process 1 of the pod's own pid namespace, so no process outlives it. Shared
mode: one shim per container, which is a subreaper and kills all processes below it. In both modes, the shim ends all
processes as soon as the supervisor has ended (end of file on the control socket).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any, NoReturn

from tf_dist.cluster.kubelet.runtime import linux
from tf_dist.cluster.kubelet.runtime.container_init import CANNOT_START_CODE, MOUNTED, exec_container, run_probe
from tf_dist.cluster.kubelet.runtime.event_loop import Message, MessageDecoder, encode_message

_KILL_ROUNDS = 200  # of 10 ms: a fork bomb is killed round by round


class Shim:
    """One shim's state; ``run`` never returns."""

    def __init__(self, control: socket.socket, *, isolated: bool, staging: str) -> None:
        self._control = control
        self._isolated = isolated
        self._staging = staging
        self._lines = MessageDecoder()
        self._fds: list[int] = []
        self._names: dict[int, str] = {}  # main process -> container
        self._specs: dict[str, Message] = {}
        self._spaces: dict[str, int] = {}  # container -> its mount namespace, held open
        self._execs: dict[int, tuple[str, float]] = {}  # process -> token, deadline

    def run(self) -> NoReturn:
        """Serve until the supervisor ends or sends ``die``, then end all containers."""
        try:
            self._loop()
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._kill_everything()
            os._exit(0)

    def _loop(self) -> None:
        wake, control = linux.sigchld_pipe(), self._control.fileno()
        while True:
            timeout = 0.1 if self._execs else None
            ready, _, _ = select.select([control, wake], [], [], timeout)
            if wake in ready:
                os.read(wake, 4096)
            if control in ready and not self._receive():
                return
            self._reap()
            self._expire()

    def _receive(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 16)
        self._fds += fds
        for fd in fds:
            os.set_inheritable(fd, False)
        messages = self._lines.feed(data)
        for message in messages:
            if message["op"] == "die":
                return False
            self._obey(message)
        return bool(data)

    def _obey(self, message: Message) -> None:
        """Execute one operation. A failure, such as a lack of processes or descriptors, must not end other
        containers.
        """
        try:
            getattr(self, "_" + message["op"])(message)
        except (BrokenPipeError, ConnectionResetError):
            raise  # the supervisor has ended
        except OSError as error:
            if message["op"] == "start":
                text = f"cannot start the container: {error}"
                self._send(event="failed", name=message["name"], code=CANNOT_START_CODE, message=text)
            elif message["op"] == "exec":
                self._send(event="exec", token=message["token"], code=1)

    def _send(self, **message: Any) -> None:
        self._control.sendall(encode_message(message))

    def _start(self, spec: Message) -> None:
        out, err = self._fds.pop(0), self._fds.pop(0)
        try:
            report, theirs = socket.socketpair()
            with theirs:
                pid = os.fork()
                if pid == 0:
                    exec_container(spec, out, err, theirs.fileno(), isolated=self._isolated, staging=self._staging)
        finally:
            os.close(out)
            os.close(err)
        with report:
            problem = self._settle(spec["name"], pid, report)
        if problem:
            os.waitpid(pid, 0)
            self._release(spec["name"])
            self._send(event="failed", name=spec["name"], **json.loads(problem))
            return
        self._names[pid] = spec["name"]
        self._specs[spec["name"]] = spec
        self._send(event="started", name=spec["name"], pid=pid)

    def _settle(self, name: str, pid: int, report: socket.socket) -> bytes:
        """Open the new container's mount namespace, then read the reason why its program cannot run, if any."""
        data = report.recv(1 << 16)
        if data == MOUNTED:
            self._spaces[name] = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
            report.send(MOUNTED)
            data = report.recv(1 << 16)
        return data

    def _release(self, name: str) -> None:
        if name in self._spaces:
            os.close(self._spaces.pop(name))

    def _signal(self, message: Message) -> None:
        """Send a signal (except SIGKILL) to the main process's group."""
        for pid in self._mains(message["name"]):
            linux.signal_group(pid, message["signal"])

    def _kill(self, message: Message) -> None:
        for pid in self._mains(message["name"]):
            linux.signal_group(pid)
            linux.signal_pids({pid}, signal.SIGKILL)

    def _exec(self, message: Message) -> None:
        """Run a hook or probe inside the container (or, without ``argv``, from inside the pod's network)."""
        pid = os.fork()
        if pid == 0:
            mains = self._mains(message["name"])
            run_probe(message, self._specs.get(message["name"], {}), mains[0] if mains and self._isolated else 0)
        self._execs[pid] = (message["token"], time.monotonic() + message["timeout"])

    def _mains(self, name: str) -> list[int]:
        return [pid for pid, owner in self._names.items() if owner == name]

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._ended(*ended)

    def _ended(self, pid: int, status: int) -> None:
        if pid in self._execs:
            self._send(event="exec", token=self._execs.pop(pid)[0], code=os.waitstatus_to_exitcode(status))
        elif pid in self._names:
            name = self._names.pop(pid)
            finished = time.time()
            self._kill_rest(pid, name)
            self._release(name)
            self._send(event="exited", name=name, code=os.waitstatus_to_exitcode(status), finished=finished)

    def _expire(self) -> None:
        now = time.monotonic()
        linux.signal_pids({pid for pid, (_, deadline) in self._execs.items() if deadline < now}, signal.SIGKILL)

    def _kill_rest(self, main: int, name: str) -> None:
        """End the remaining processes of the container, detached or not."""
        linux.signal_group(main)
        for _ in range(_KILL_ROUNDS):
            rest = self._rest(main, name)
            if not rest:
                return
            linux.signal_pids(rest, signal.SIGKILL)
            self._reap()
            time.sleep(0.01)

    def _rest(self, main: int, name: str) -> set[int]:
        if self._isolated:
            return linux.pids_in_mount_namespace(self._spaces[name]) - {main} - set(self._execs)
        return linux.descendants(os.getpid()) - set(self._names) - set(self._execs)

    def _kill_everything(self) -> None:
        if self._isolated:
            return  # the end of process 1 is the end of its namespace
        for _ in range(_KILL_ROUNDS):
            for pid in self._names:
                linux.signal_group(pid)
            linux.signal_pids(linux.descendants(os.getpid()) | set(self._names), signal.SIGKILL)
            try:
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                    self._names.pop(pid, None)
            except ChildProcessError:
                return
            time.sleep(0.01)


def detach_process(control: socket.socket) -> None:
    """Close inherited descriptors (except the control socket and 0 to 2) and ignore signals, right after the fork."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep = {0, 1, 2, control.fileno()}
    for fd in {int(name) for name in os.listdir("/dev/fd")} - keep:
        with contextlib.suppress(OSError):
            os.close(fd)
    control.setblocking(True)
    os.setsid()
    linux.become_subreaper()

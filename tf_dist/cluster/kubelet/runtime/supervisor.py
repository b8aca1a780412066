"""The supervisor: serves the kubelet and the shims in one thread, and tests isolated mode.

The kubelet sends operations (``op``), and the supervisor sends the whole record of each changed pod. Therefore no
message has to be matched with another one, and a new kubelet starts from ``state``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

from tf_dist.cluster.kubelet.runtime import linux
from tf_dist.cluster.kubelet.runtime.event_loop import (
    SOCKET_NAME,
    EventLoop,
    Message,
    MessageDecoder,
    SupervisorConfig,
    encode_message,
    log_exception,
)
from tf_dist.cluster.kubelet.runtime.remove_tree import remove_tree
from tf_dist.cluster.kubelet.runtime.runtime_service import OPERATIONS, RuntimeService


def check_isolation(config: SupervisorConfig, loop: EventLoop, runner: RuntimeService) -> None:
    """Run a test pod with volumes at new mount points; OSError with the call that the system refused."""
    folder = os.path.join(config.folder, "rehearsal")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    last = socket.inet_ntoa(bytes((*socket.inet_aton(config.bridge)[:2], 255, 254)))
    runner.create("", ip=last, hostname="rehearsal", staging=f"{folder}/staging")
    mounts = [{"source": folder, "target": target} for target in (f"{folder}/a/b", "/tf-dist-rehearsal")]
    argv = [sys.executable, "-I", "-S", "-c", ""]
    runner.run("", "try", 0, 0, f"{folder}/log", argv=argv, env={}, cwd="/", mounts=mounts)
    pod = runner.pods[""]
    while pod.state != "broken" and not any(item.state == "exited" for item in pod.containers.values()):
        loop.step(1.0)
    runner.close()
    remove_tree(folder)
    for message in (pod.message, *(item.message for item in pod.containers.values())):
        if message:
            raise OSError(message)


class Supervisor:
    """Accepts one kubelet at a time and executes its operations."""

    def __init__(self, config: SupervisorConfig, loop: EventLoop) -> None:
        self._config = config
        self._loop = loop
        self._runner = RuntimeService(config, loop, self._changed, self._emit)
        self._kubelet: socket.socket | None = None
        self._lines = MessageDecoder()
        self._out = bytearray()
        self._seen = 0  # the kubelet's latest order: older reports must not undo the results that it expects
        self._listener = self._listen()

    def start(self) -> None:
        """Test the mode, then serve the first kubelet; OSError when the system does not allow the mode."""
        try:
            self._try_mode()
        except OSError:
            self._runner.egress.close()
            self._runner.cgroups.close()
            raise
        self._attend(socket.socket(fileno=self._config.kubelet_fd))
        self._loop.watch(self._listener.fileno(), self._accept)
        self._watch_kubelet()

    def _try_mode(self) -> None:
        self._runner.start()
        if self._config.mode == "isolated":
            check_isolation(self._config, self._loop, self._runner)
            self._runner.egress.settle()

    def _listen(self) -> socket.socket:
        """Bind to a relative name, because a socket's path may have only 107 bytes."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET_NAME)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(SOCKET_NAME)
        os.chmod(SOCKET_NAME, 0o600)
        listener.listen(4)
        listener.setblocking(False)
        return listener

    def _watch_kubelet(self) -> None:
        """In ephemeral mode, also watch the kubelet's process, because a fork of the kubelet may keep the socket
        open.
        """
        if not self._config.ephemeral:
            return
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._loop.watch(os.pidfd_open(self._config.kubelet_pid), self.end)
        self._check_parent()

    def _check_parent(self) -> None:
        if os.getppid() != self._config.kubelet_pid:
            self.end()
        self._loop.later(2.0, self._check_parent)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if self._kubelet is not None:
            with contextlib.suppress(OSError):
                connection.send(encode_message({"event": "refused", "message": "another kubelet is connected"}))
            connection.close()
            return
        self._attend(connection)

    def _attend(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._kubelet, self._lines = connection, MessageDecoder()
        self._out.clear()
        self._seen = 0
        self._loop.watch(connection.fileno(), self._hear)
        pods = [pod.report() for pod in self._runner.pods.values()]
        facts = {"mode": self._config.mode, "pid": os.getpid(), "no_way_out": self._runner.egress.problem}
        facts["enforced"] = sorted(self._runner.cgroups.controllers)
        self._emit({"event": "state", **facts, "pods": pods})

    def _hear(self) -> None:
        assert self._kubelet is not None
        try:
            data = self._kubelet.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        for message in self._lines.feed(data):
            self._obey(message)

    def _lost(self) -> None:
        if self._kubelet is None:
            return
        self._loop.forget(self._kubelet.fileno())
        self._kubelet.close()
        self._kubelet = None
        if self._config.ephemeral:
            self.end()

    def _obey(self, message: Message) -> None:
        operation, self._seen = message.pop("op"), message.pop("order", self._seen)
        if operation == "shutdown":
            self.end()
        elif operation in OPERATIONS:
            try:
                getattr(self._runner, operation)(**message)
            except Exception as error:  # later operations concern other pods
                log_exception()
                self._runner.failed(operation, message, error)

    def _changed(self, uid: str) -> None:
        pod = self._runner.pods.get(uid)
        event = {"event": "pod", "pod": pod.report()} if pod else {"event": "gone", "uid": uid}
        self._emit(event | {"seen": self._seen})

    def _emit(self, message: Message) -> None:
        if self._kubelet is None:
            return
        self._out += encode_message(message)
        self._flush()

    def _flush(self) -> None:
        """Send as much as the kubelet's buffer takes, and the rest later. A stopped kubelet must not stop the pods."""
        if self._kubelet is None or not self._out:
            return
        try:
            sent = self._kubelet.send(self._out)
            del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._lost()
            return
        if self._out:
            self._loop.later(0.02, self._flush)

    def end(self) -> None:
        """Stop serving; ``serve`` cleans up."""
        self._loop.stopped = True

    def close(self) -> None:
        """Kill every pod, wait until all have ended, and remove the socket (in ephemeral mode the folder)."""
        self._runner.close()
        self._runner.egress.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET_NAME)
        if self._config.ephemeral:
            os.chdir("/")
            remove_tree(self._config.folder)
            with contextlib.suppress(OSError):  # the last supervisor also removes the parent folder
                os.rmdir(os.path.dirname(self._config.folder))
        if self._kubelet is not None:
            self._kubelet.close()


def _signals(loop: EventLoop, supervisor: Supervisor) -> None:
    def ended(*_: object) -> None:
        supervisor.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def serve(text: str) -> None:
    """Run a supervisor with the configuration ``text`` (JSON)."""
    config = SupervisorConfig(**json.loads(text))
    os.chdir(config.folder)
    for fd in (config.kubelet_fd, config.lock_fd):
        os.set_inheritable(fd, False)
    if not config.ephemeral and os.fork():
        os._exit(0)  # reparented to init: the kubelet may exit
    linux.become_subreaper()
    loop = EventLoop()
    try:
        supervisor = Supervisor(config, loop)
        _signals(loop, supervisor)
        supervisor.start()
    except OSError as error:
        refusal = encode_message({"event": "refused", "message": str(error)})
        socket.socket(fileno=os.dup(config.kubelet_fd)).send(refusal)
        os._exit(1)
    try:
        loop.run()
    finally:
        supervisor.close()
    sys.stdout.flush()
    os._exit(0)

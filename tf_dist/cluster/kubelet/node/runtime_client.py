"""The kubelet's client of the runtime supervisor: starts or finds one, keeps its records, and sends operations."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tf_dist.cluster.kubelet.node.node_settings import (
    NetworkDescription,
    NetworkMode,
    NodeSettings,
    candidate_modes,
    describe_network,
    network_hint,
)
from tf_dist.cluster.kubelet.node.state_dir import StateDir
from tf_dist.cluster.kubelet.runtime.event_loop import (
    SOCKET_NAME,
    Message,
    MessageDecoder,
    SupervisorConfig,
    encode_message,
)
from tf_dist.errors import Unavailable

_MAIN = Path(__file__).parents[1] / "runtime" / "__main__.py"
_HELLO_TIMEOUT = 20.0  # seconds for the supervisor's first message
_MAX_SOCKET_PATH = 100  # bytes of a socket's path (the limit is 107 on Linux, 103 on macOS)


class RuntimeClient:
    """A connection to a supervisor. ``changed(uid)`` is called in the reader thread, ``lost()`` at its end."""

    def __init__(self, changed: Callable[[str], None], lost: Callable[[], None]) -> None:
        self._changed = changed
        self._lost = lost
        self._lock = threading.Lock()
        self._records: dict[str, Message] = {}
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._tokens = itertools.count()
        self._orders = itertools.count(1)
        self._ordered: dict[str, int] = {}
        self._waiting: dict[str, Callable[[int], None]] = {}
        self.pid = 0
        self.mode = NetworkMode.SHARED
        self._no_way_out = ""
        self.enforced: frozenset[str] = frozenset()
        """The resources whose limits the supervisor enforces."""

    # Lifecycle

    def launch(self, folder: StateDir, settings: NodeSettings) -> NetworkDescription:
        """Start a supervisor; ``auto`` falls back to shared. Unavailable with the reason if that is not possible."""
        reason, network = "isolated mode needs Linux", settings.network
        for mode in candidate_modes(network):
            connection, refusal = self._spawn(folder, mode, settings)
            if connection is not None:
                self._attend(connection)
                why = reason if mode == NetworkMode.SHARED else ""
                return describe_network(mode, why, forced=network != NetworkMode.AUTO, no_way_out=self._no_way_out)
            reason = refusal
        raise Unavailable(f"cannot start the node's supervisor: {reason}", hint=network_hint(network))

    def connect(self, path: Path) -> NetworkDescription | None:
        """Connect to a running supervisor; None when there is none."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            with short_socket_path(path / SOCKET_NAME) as reachable:
                connection.connect(reachable)
        except OSError:
            connection.close()
            return None
        refusal = self._greet(connection)
        if refusal:
            connection.close()
            raise Unavailable(f"the node in {path} cannot be taken over: {refusal}", hint="stop its owner first")
        self._attend(connection)
        return describe_network(self.mode, "found running", forced=False, no_way_out=self._no_way_out)

    def disconnect(self) -> None:
        """Disconnect from the supervisor and join the reader. An ephemeral supervisor then ends."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._join()

    def shutdown(self) -> None:
        """End the supervisor with all its pods, and wait for its end."""
        self.send("shutdown")
        self._join()

    def _join(self) -> None:
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _spawn(self, folder: StateDir, mode: NetworkMode, settings: NodeSettings) -> tuple[socket.socket | None, str]:
        ours, theirs = socket.socketpair()
        fds = (theirs.fileno(), folder.lock_fd)
        config = SupervisorConfig(str(folder.path), mode, settings.ephemeral, os.getpid(), *fds, settings.log_limit)
        # In isolated mode, the supervisor's own processes carry the mark, so that they can be swept. In shared mode,
        # the shims clean up.
        environ = {**os.environ, **(folder.marks if mode == NetworkMode.ISOLATED else {})}
        command = [sys.executable, "-I", "-S", "-E", str(_MAIN), json.dumps(asdict(config))]
        with theirs, open(folder.path / "supervisor.log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                start_new_session=True,
                pass_fds=fds,
            )
        refusal = self._greet(ours)
        if refusal:
            ours.close()
        if refusal or not settings.ephemeral:
            self._process.wait()
            self._process = None
        return (None, refusal) if refusal else (ours, "")

    def _greet(self, connection: socket.socket) -> str:
        """Read the first message, which has the whole state. Returns the supervisor's refusal, or ""."""
        lines = MessageDecoder()
        connection.settimeout(_HELLO_TIMEOUT)
        messages: list[Message] = []
        try:
            while not messages:
                data = connection.recv(1 << 20)
                if not data:
                    return "it ended before it was ready (see supervisor.log in the state folder)"
                messages = lines.feed(data)
        except OSError as error:
            return str(error)
        connection.settimeout(None)
        if messages[0]["event"] == "refused":
            return str(messages[0]["message"])
        self.pid, self.mode = messages[0]["pid"], NetworkMode(messages[0]["mode"])
        self._no_way_out = messages[0].get("no_way_out", "")
        self.enforced = frozenset(messages[0].get("enforced", ()))
        with self._lock:
            self._records = {pod["uid"]: pod for pod in messages[0]["pods"]}
            self._ordered = {}
        self._lines = lines
        self._early = messages[1:]
        return ""

    def _attend(self, connection: socket.socket) -> None:
        self._socket = connection
        for message in self._early:
            self._heard(message)
        self._reader = threading.Thread(target=self._read, args=(connection,), name="kubelet-runtime", daemon=True)
        self._reader.start()

    # Receiving

    def _read(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(1 << 20):
                for message in self._lines.feed(data):
                    self._heard(message)
        except OSError:
            pass
        with self._lock:
            self._records = {}
        self._lost()

    def _heard(self, message: Message) -> None:
        if message["event"] == "exec":
            done = self._waiting.pop(message["token"], None)
            if done is not None:
                done(message["code"])
            return
        uid = message["uid"] if message["event"] == "gone" else message["pod"]["uid"]
        with self._lock:
            if message["seen"] < self._ordered.get(uid, 0):
                return  # sent before the supervisor received the latest order; a newer report follows
            if message["event"] == "gone":
                self._records.pop(uid, None)
                self._ordered.pop(uid, None)
            else:
                self._records[uid] = message["pod"]
        self._changed(uid)

    def record(self, uid: str) -> Message | None:
        """The supervisor's last record of a pod, with the operations that were sent since."""
        with self._lock:
            return self._records.get(uid)

    def uids(self) -> list[str]:
        """The uids of the supervisor's pods."""
        with self._lock:
            return list(self._records)

    # Operations

    def send(self, operation: str, **arguments: Any) -> None:
        """Send an operation. The reader thread notices when the supervisor has ended."""
        with self._lock:
            self._send(operation, arguments)

    def create(self, uid: str, **spec: Any) -> None:
        """Create a pod's sandbox."""
        expected = {"uid": uid, "ip": spec["ip"], "state": "creating", "message": "", "containers": []}
        self._expecting(uid, lambda record: expected, "create", spec)

    def run(self, uid: str, name: str, attempt: int, streak: int, **spec: Any) -> None:
        """Start an instance of a container."""
        mine = {"name": name, "attempt": attempt, "streak": streak}
        self._expecting(uid, lambda record: _with_run(record, mine), "run", {**mine, **spec})

    def remove(self, uid: str) -> None:
        """Remove a pod."""
        self._expecting(uid, lambda record: record and record | {"state": "removing"}, "remove", {})

    def exec(self, uid: str, name: str, done: Callable[[int], None], **what: Any) -> None:
        """Run a hook or probe; ``done(exit code)`` is called from the reader thread."""
        token = str(next(self._tokens))
        self._waiting[token] = done
        self.send("exec", uid=uid, name=name, token=token, **what)

    def _expecting(
        self, uid: str, expect: Callable[[Message | None], Message | None], operation: str, arguments: Message
    ) -> None:
        """Send an operation and record its expected result at once. Otherwise the kubelet would repeat the operation
        until its result arrives.
        """
        with self._lock:
            expected = expect(self._records.get(uid))
            if expected is not None:
                self._records[uid] = expected
            self._ordered[uid] = self._send(operation, {"uid": uid, **arguments})

    def _send(self, operation: str, arguments: Message) -> int:
        order = next(self._orders)
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(encode_message({"op": operation, "order": order, **arguments}))
        return order


def _with_run(record: Message | None, mine: Message) -> Message | None:
    if record is None:
        return None
    others = [item for item in record["containers"] if item["name"] != mine["name"]]
    before = next((item for item in record["containers"] if item["name"] == mine["name"]), None)
    blank = {"state": "starting", "pid": 0, "started": 0.0, "finished": None, "code": None, "reason": "", "message": ""}
    run = {**mine, **blank, "last": before and {**before, "last": None}}
    return record | {"containers": [*others, run]}


@contextlib.contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """A path that fits into a socket address. Long paths are replaced by a symbolic link."""
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield str(path)
        return
    with tempfile.TemporaryDirectory(prefix="tfd", dir="/tmp") as folder:
        link = Path(folder) / "d"
        link.symlink_to(path.parent)
        yield str(link / path.name)

"""Start, find and stop the local cluster's daemon: up, status, connect, down.

The daemon is ``tf_dist.local.daemon``. Its store is durable, and its pods continue if the daemon is killed. The next
``up`` starts a new daemon, which takes over the store and the pods.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tf_dist.cluster.api import NAMESPACES, Cluster
from tf_dist.cluster.client.auth import Credential, RefreshingCredentials
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.cluster.kubelet.node.state_dir import ownership_problem, private_dir
from tf_dist.errors import ClusterError, Unavailable

ENDPOINT_FILE: Final = "endpoint.json"
KUBECONFIG_FILE: Final = "kubeconfig"
LOG_FILE: Final = "daemon.log"
_POLL: Final = 0.02
_LOG_TAIL_LINES: Final = 15


def state_home() -> Path:
    """The folder of this user's local cluster ($TF_DIST_HOME, else below the XDG state folder)."""
    if home := os.environ.get("TF_DIST_HOME"):
        return Path(home).absolute()
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if base.startswith("~"):  # the user of a container may have no home directory
        raise ClusterError("this user has no home directory", hint="name a folder for the local cluster: TF_DIST_HOME")
    return Path(base).absolute() / "tf-dist" / "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """Settings of a daemon. They are plain values, because they are passed as JSON."""

    state_dir: str
    workdir: str
    network: str = "auto"
    capacity: Mapping[str, str] = field(default_factory=dict)
    entrypoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonEndpoint:
    """The address of the running daemon, and how it isolates pods (``network``: mode, reason, limits)."""

    url: str
    token: str
    pid: int
    network: Mapping[str, Any]
    state_dir: Path

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig file for kubectl and clients."""
        return self.state_dir / KUBECONFIG_FILE


def daemon_status(state_dir: Path | None = None) -> DaemonEndpoint | None:
    """The running daemon, or None if no daemon runs.

    An endpoint in another user's folder is ignored. Otherwise that user could receive our jobs, and could make us
    signal any process.
    """
    try:
        folder = state_dir or state_home()
    except ClusterError:
        return None
    try:
        if ownership_problem(folder):
            return None
        endpoint = read_endpoint(folder)
        os.kill(endpoint.pid, 0)
        with daemon_client(endpoint, retries=0) as cluster:
            cluster.get(NAMESPACES, None, "default")
    except (OSError, ValueError, ClusterError):
        return None
    return endpoint


def read_endpoint(folder: Path) -> DaemonEndpoint:
    """The endpoint that a daemon has published. Raises OSError, or ValueError for a file that no daemon writes."""
    try:
        found = DaemonEndpoint(**json.loads((folder / ENDPOINT_FILE).read_text()), state_dir=folder)
        network = found.network
        texts = [found.url, found.token, network["mode"], network["reason"], *(network.get("limits") or ())]
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder / ENDPOINT_FILE} is damaged") from error
    # A signal to process 0 or -1 would reach other processes.
    if not all(isinstance(one, str) for one in texts) or type(found.pid) is not int or not 0 < found.pid < 1 << 31:
        raise ValueError(f"{folder / ENDPOINT_FILE} is damaged")
    return found


def daemon_client(endpoint: DaemonEndpoint, *, retries: int = 3) -> RestCluster:
    """A client of a daemon and of its successors at the same address. ``retries``: as in ``RestCluster``."""
    first = [endpoint]

    def token() -> Credential:
        present = first.pop() if first else _current_endpoint(endpoint.state_dir)
        return Credential({"Authorization": f"Bearer {present.token}"})

    return RestCluster(endpoint.url, credentials=RefreshingCredentials(token), retries=retries)


def _current_endpoint(folder: Path) -> DaemonEndpoint:
    """The endpoint of the running daemon. Raises Unavailable while the daemon starts."""
    try:
        endpoint = read_endpoint(folder)
        os.kill(endpoint.pid, 0)
    except (OSError, ValueError) as error:
        raise Unavailable("the local cluster is not running, or is still starting") from error
    return endpoint


def connect(state_dir: Path | None = None) -> Cluster:
    """A client of the running daemon. Raises Unavailable if no daemon runs."""
    endpoint = daemon_status(state_dir)
    if endpoint is None:
        raise Unavailable("no local cluster is running", hint="start one: tf-dist local up")
    return daemon_client(endpoint)


def up(settings: DaemonSettings, *, timeout: float = 30.0) -> DaemonEndpoint:
    """Start the daemon if none runs, and return it. If it does not start, Unavailable contains the end of its log."""
    folder = private_dir(Path(settings.state_dir))
    with _start_lock(folder):
        return daemon_status(folder) or _start(settings, folder, timeout)


@contextmanager
def _start_lock(folder: Path) -> Iterator[None]:
    """A second process waits until the first has started the daemon. The lock is released when the process ends."""
    descriptor = os.open(folder / "up.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _start(settings: DaemonSettings, folder: Path, timeout: float) -> DaemonEndpoint:
    process = _spawn(settings, folder / LOG_FILE)
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        found = daemon_status(folder)
        if found is not None and found.pid == process.pid:
            # The daemon outlives this process on purpose: prevent the warning of Popen.
            process.returncode = 0
            return found
        time.sleep(_POLL)
    if process.poll() is None:
        process.terminate()
        process.wait()
    raise Unavailable(f"the local cluster does not start:\n{_tail(folder / LOG_FILE)}", hint=f"see {folder / LOG_FILE}")


def _spawn(settings: DaemonSettings, log: Path) -> subprocess.Popen[bytes]:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        return subprocess.Popen(
            [sys.executable, "-m", "tf_dist.local.daemon", json.dumps(asdict(settings))],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(its log is empty)"


def down(state_dir: Path | None = None, *, timeout: float = 60.0) -> bool:
    """Stop the daemon and all pods, including pods that a killed daemon has left. Return False if nothing ran.

    Jobs stay in the store for the next ``up``. Unavailable: the daemon does not answer, or does not stop.
    """
    deadline = time.monotonic() + timeout
    while (endpoint := daemon_status(state_dir)) is None:
        try:
            return _end_pods(state_dir)
        except Unavailable:  # a daemon is starting or stopping
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL)
    os.kill(endpoint.pid, signal.SIGTERM)
    while _alive(endpoint.pid):
        if time.monotonic() > deadline:
            raise Unavailable(f"the local cluster (process {endpoint.pid}) does not stop", hint="see its daemon.log")
        time.sleep(_POLL)
    return True


def _end_pods(state_dir: Path | None) -> bool:
    """End the pods that run without a daemon. Return False if there are none. Unavailable: they have a daemon."""
    from tf_dist.cluster.kubelet.node.runtime_client import RuntimeClient

    try:
        folder = state_dir or state_home()
        if ownership_problem(folder):
            return False
    except (ClusterError, OSError):
        return False
    runtime = RuntimeClient(lambda uid: None, lambda: None)
    try:
        if runtime.connect(folder / "node") is None:
            return False
    except Unavailable as error:
        hint = "end its process tf_dist.local.daemon, and repeat the command"
        raise Unavailable(f"the local cluster in {folder} does not answer", hint=hint) from error
    runtime.shutdown()
    return True


def _alive(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of this process must be reaped
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""The lasting local cluster: one daemon per user and state folder, found by everybody through files in that folder.

The daemon is ``tf_dist.driver.daemon``. Its store is durable and its pods outlive it: after it was killed, ``up``
starts another one, which takes both over.
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
from tf_dist.cluster.credentials import Grant, Renewed
from tf_dist.cluster.node.folders import foreign, private
from tf_dist.cluster.rest import RestCluster
from tf_dist.errors import ClusterError, Unavailable

ENDPOINT: Final = "endpoint.json"
KUBECONFIG: Final = "kubeconfig"
LOG: Final = "daemon.log"
_POLL: Final = 0.02
_LAST_LINES: Final = 15


def state_home() -> Path:
    """Where the local cluster of this user lives ($TF_DIST_HOME, else below the XDG state folder)."""
    if home := os.environ.get("TF_DIST_HOME"):
        return Path(home).absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "tf-dist" / "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """What a daemon is started with; plain values, because they travel to it as JSON."""

    state_dir: str
    workdir: str
    network: str = "auto"
    capacity: Mapping[str, str] = field(default_factory=dict)
    entrypoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEndpoint:
    """Where the running daemon is, and how it separates pods (``network``: mode, reason, limits)."""

    url: str
    token: str
    pid: int
    network: Mapping[str, Any]
    state_dir: Path

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig file for kubectl and clients."""
        return self.state_dir / KUBECONFIG


def status(state_dir: Path | None = None) -> LocalEndpoint | None:
    """The running daemon, None if there is none (or the one there was is dead).

    What another user's folder says is not believed: they would get our jobs, and our signals to any process.
    """
    folder = state_dir or state_home()
    try:
        if foreign(folder):
            return None
        endpoint = _read(folder)
        os.kill(endpoint.pid, 0)
        with client(endpoint, retries=0) as cluster:
            cluster.get(NAMESPACES, None, "default")
    except (OSError, ValueError, TypeError, ClusterError):
        return None
    return endpoint


def _read(folder: Path) -> LocalEndpoint:
    return LocalEndpoint(**json.loads((folder / ENDPOINT).read_text()), state_dir=folder)


def client(endpoint: LocalEndpoint, *, retries: int = 3) -> RestCluster:
    """A client of a daemon, and of the next one at the same place; ``retries`` as of ``RestCluster``."""
    first = [endpoint]

    def token() -> Grant:
        present = first.pop() if first else _successor(endpoint.state_dir)
        return Grant({"Authorization": f"Bearer {present.token}"})

    return RestCluster(endpoint.url, credentials=Renewed(token), retries=retries)


def _successor(folder: Path) -> LocalEndpoint:
    """The daemon that is there now; Unavailable while it only starts."""
    try:
        endpoint = _read(folder)
        os.kill(endpoint.pid, 0)
    except (OSError, ValueError, TypeError) as error:
        raise Unavailable("the local cluster does not run, or only starts") from error
    return endpoint


def connect(state_dir: Path | None = None) -> Cluster:
    """A client of the running daemon; Unavailable when there is none."""
    endpoint = status(state_dir)
    if endpoint is None:
        raise Unavailable("no local cluster is running", hint="start one: tf-dist local up")
    return client(endpoint)


def up(settings: LocalSettings, *, timeout: float = 30.0) -> LocalEndpoint:
    """The running daemon, started if there was none. Unavailable, with the end of its log, when it does not start."""
    folder = private(Path(settings.state_dir))
    with _one_at_a_time(folder):
        return status(folder) or _start(settings, folder, timeout)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Whoever comes second waits for the first, and then finds its daemon. The lock goes with the process."""
    descriptor = os.open(folder / "up.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _start(settings: LocalSettings, folder: Path, timeout: float) -> LocalEndpoint:
    process = _spawn(settings, folder / LOG)
    deadline = time.monotonic() + timeout
    while process.poll() is None and time.monotonic() < deadline:
        found = status(folder)
        if found is not None and found.pid == process.pid:
            # It is meant to outlive this process: Popen must not warn that it does.
            process.returncode = 0
            return found
        time.sleep(_POLL)
    if process.poll() is None:
        process.terminate()
        process.wait()
    raise Unavailable(f"the local cluster does not start:\n{_tail(folder / LOG)}", hint=f"see {folder / LOG}")


def _spawn(settings: LocalSettings, log: Path) -> subprocess.Popen[bytes]:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        return subprocess.Popen(
            [sys.executable, "-m", "tf_dist.driver.daemon", json.dumps(asdict(settings))],
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
    return "\n".join(lines[-_LAST_LINES:]) or "(its log is empty)"


def down(state_dir: Path | None = None, *, timeout: float = 60.0) -> bool:
    """Stop the daemon and every pod; False if none was running. Jobs stay in the store for the next ``up``."""
    endpoint = status(state_dir)
    if endpoint is None:
        return False
    os.kill(endpoint.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while _alive(endpoint.pid):
        if time.monotonic() > deadline:
            raise Unavailable(f"the local cluster (process {endpoint.pid}) does not end", hint="see its daemon.log")
        time.sleep(_POLL)
    return True


def _alive(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # if it is a child of this process it must be reaped to be gone
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""Helpers of the tests of the node. They do not sleep to synchronise: ``until`` waits for a condition."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tf_dist.cluster.api import CONFIG_MAPS, EVENTS, NETWORK_POLICIES, PODS, SECRETS, SERVICES, LogOptions, Object
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.cluster.apiserver.storage.object_admission import set_pod_defaults
from tf_dist.cluster.apiserver.storage.store import Key
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode, NodeSettings, RestartBackoff
from tf_dist.cluster.kubelet.runtime.egress import SLIRP_PROGRAM, TAP_NAME, TUN_DEVICE
from tf_dist.errors import NotFound, Unavailable

PATIENCE = 90.0
OVER = ("Succeeded", "Failed")
T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "", patience: float = PATIENCE) -> T:
    """Wait for a true value of ``condition`` and return it."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {patience} s: {what or condition}"
        time.sleep(0.005)
    return value


def make_pod(name: str, *command: str, containers: list[Object] | None = None, **spec: Any) -> Object:
    """A pod that is bound to the node ``local``, with the container ``main`` by default."""
    metadata = spec.pop("metadata", {})
    main = {"name": "main", "image": "any", "command": list(command), **spec.pop("container", {})}
    body = {"nodeName": "local", "restartPolicy": "Never", "containers": containers or [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": body}


def sh(name: str, script: str, **spec: Any) -> Object:
    return make_pod(name, "sh", "-c", script, **spec)


def py(name: str, script: str, **spec: Any) -> Object:
    return make_pod(name, "python", "-c", script, **spec)


class Bench:
    """A cluster with one node, and the queries that tests make."""

    def __init__(self, cluster: MemoryCluster, kubelet: Kubelet) -> None:
        self.cluster = cluster
        self.kubelet = kubelet
        cluster.log_source = kubelet.logs

    def create(self, pod: Object) -> Object:
        return self.cluster.create(PODS, "default", pod)

    def pod(self, name: str) -> Object:
        return self.cluster.get(PODS, "default", name)

    def status(self, name: str) -> Object:
        return self.pod(name).get("status") or {}

    def container(self, name: str, index: int = 0) -> Object:
        statuses = self.status(name).get("containerStatuses") or [{}]
        return statuses[index]

    def over(self, name: str) -> Object:
        """The pod's status after it has ended."""
        until(lambda: self.status(name).get("phase") in OVER, f"{name} is over")
        return self.status(name)

    def run(self, pod: Object) -> Object:
        """Create a pod, wait for its end, and return its status."""
        self.create(pod)
        return self.over(pod["metadata"]["name"])

    def run_unchecked(self, pod: Object) -> Object:
        """``run`` for a pod that the API server refuses, such as a pod that an older server stored."""
        stub = {**pod, "spec": {"containers": [{"name": "main", "image": "i"}]}}
        made = self.create(stub)
        whole = {**made, "spec": deepcopy(pod["spec"])}
        set_pod_defaults(whole)
        self.cluster._store.put(Key("pods", "default", made["metadata"]["name"]), whole)
        return self.over(made["metadata"]["name"])

    def running(self, name: str) -> None:
        until(lambda: "running" in self.container(name).get("state", {}), f"{name} runs")

    def says(self, name: str, text: str) -> str:
        """Wait until the log contains ``text``, and return the log."""
        until(lambda: text in self.log(name, quiet=True), f"{name} says {text!r}")
        return self.log(name)

    def log(self, name: str, *, quiet: bool = False, **options: Any) -> str:
        try:
            with self.cluster.logs("default", name, LogOptions(**options)) as lines:
                return b"".join(lines).decode(errors="replace")
        except Exception:
            if quiet:
                return ""
            raise

    def delete(self, name: str, **options: Any) -> None:
        self.cluster.delete(PODS, "default", name, **options)

    def clear(self) -> None:
        """Delete the objects that a test has left, and wait until all pods have ended."""
        for resource in (PODS, CONFIG_MAPS, SECRETS, SERVICES, NETWORK_POLICIES, EVENTS):
            for one in self.cluster.list(resource).items:
                self.cluster.delete(resource, "default", one["metadata"]["name"], grace_period=0)
        until(lambda: not self.kubelet._supervisor.uids(), "no pod is left")

    def gone(self, name: str) -> None:
        until(lambda: self._missing(name), f"{name} is gone")

    def _missing(self, name: str) -> bool:
        try:
            self.pod(name)
        except NotFound:
            return True
        return False


def settings(folder: Path, **changes: Any) -> NodeSettings:
    values: dict[str, Any] = {
        "state_dir": folder / "state",
        "workdir": folder,
        "backoff": RestartBackoff(0.2, 1.0, 600.0),
    }
    return NodeSettings(**values | changes)


@functools.cache
def why_not_isolated() -> str:
    """The reason why this system cannot isolate pods, or "". It starts an isolated kubelet to find out."""
    if sys.platform != "linux":
        return "isolated mode needs Linux"
    import tempfile

    with tempfile.TemporaryDirectory() as folder, MemoryCluster() as cluster:
        try:
            kubelet = Kubelet(cluster, settings=settings(Path(folder), network=NetworkMode.ISOLATED))
            kubelet.start()
            kubelet.stop()
        except Unavailable as error:
            return str(error)
    return ""


def processes_with(text: str) -> list[int]:
    """Processes of this machine whose command line contains ``text``."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(int(name))
    return found


def why_no_way_out() -> str:
    """The reason why isolated pods cannot have outbound network here, or "" if they must have it."""
    if shutil.which(SLIRP_PROGRAM) is None:
        return "install slirp4netns (apt-get install slirp4netns) to test the way out of isolated pods"
    if not os.access(TUN_DEVICE, os.R_OK | os.W_OK):
        return f"let this user open {TUN_DEVICE} to test the way out of isolated pods"
    return ""


def slirps(supervisor: int) -> list[int]:
    """The slirp4netns processes of a supervisor."""
    return processes_with(f"\0{supervisor}\0{TAP_NAME}")


_BECOME = {
    "root": ["setpriv"],
    "no rights": ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"],
    "nobody": ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"],
}


def as_other(who: str, script: str, *arguments: str, around: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script as root, as root without CAP_SYS_ADMIN, or as an ordinary user. Skip if this is not possible.

    The ordinary user gets the system's Python, because this Python may be in the home of root.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    python = "/usr/bin/python3" if who == "nobody" else sys.executable
    libraries = [str(Path(__file__).parents[3]), sysconfig.get_path("purelib")]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(libraries), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*around, *_BECOME[who], python, "-c", script, *arguments],
        capture_output=True, text=True, timeout=180, env=env, cwd="/", check=False,
    )  # fmt: skip
    if any(word in done.stderr for word in ("Unavailable", "ModuleNotFoundError", "SyntaxError", "mknod", "mount:")):
        pytest.skip(f"not possible here: {done.stderr.splitlines()[-1]}")
    return done


MakeBench = Callable[..., Bench]

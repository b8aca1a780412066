"""This machine as a node of a real API server. The embedded cluster's kubelet runs in a process that tests kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Event

from tests.waiting import until
from tf_dist.cluster.client.client_config import load_config
from tf_dist.cluster.kubelet.kubelet import Kubelet
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode, NodeSettings

ROOT = Path(__file__).parents[2]
READY = "the node is ready"


class NodeProcess:
    """A kubelet as a process. Its pods outlive it, and its output goes to a file."""

    def __init__(self, kubeconfig: str, folder: Path, name: str) -> None:
        self.name = name
        folder = Path(tempfile.mkdtemp(dir=folder))
        self.state = folder / "state"
        self.output = folder / "output"
        self._command = [sys.executable, "-m", "tests.integration.node", name, kubeconfig, str(self.state)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the kubelet, and wait until it is ready."""
        self.output.unlink(missing_ok=True)
        with self.output.open("wb") as file:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(
                self._command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=ROOT
            )
        until(self._is_ready, 60)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()
        return READY in self.output.read_text()

    def log(self, namespace: str, pod: str) -> str:
        """The output of the pod's containers."""
        logs = sorted((self.state / "logs" / namespace / pod).rglob("*.log"))
        return "".join(path.read_text() for path in logs)

    def end(self, *, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end of the process, and return its exit code. SIGTERM ends its pods, too."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def clean(self) -> None:
        """End the remaining processes of the node."""
        if self.process is None:
            return
        if self.process.poll() not in (None, 0):
            with suppress(AssertionError):  # after a kill, the next kubelet takes over the pods
                self.start()
        self.end()


def main(name: str, kubeconfig: str, state: str) -> None:
    """Run the node until SIGTERM."""
    settings = NodeSettings(
        name=name,
        state_dir=Path(state),
        network=NetworkMode.ISOLATED,
        keep_logs_dir=Path(state) / "logs",
        ephemeral=False,
        heartbeat=10.0,  # this node has no Lease, so the node controller needs its status
    )
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with load_config(kubeconfig).cluster() as cluster, Kubelet(cluster, settings=settings):
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        ended.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""This machine as a node of a real API server: the embedded cluster's kubelet in a process that a test may kill."""

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
    """A kubelet as a process: its pods outlive it, as a kubelet's do. Its output goes to a file."""

    def __init__(self, kubeconfig: str, folder: Path, name: str) -> None:
        self.name = name
        folder = Path(tempfile.mkdtemp(dir=folder))
        self.state = folder / "state"
        self.output = folder / "output"
        self._command = [sys.executable, "-m", "tests.integration.node", name, kubeconfig, str(self.state)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
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
        """What the pod's containers have written."""
        logs = sorted((self.state / "logs" / namespace / pod).rglob("*.log"))
        return "".join(path.read_text() for path in logs)

    def end(self, *, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end; the exit code. SIGTERM ends its pods, too."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=120)

    def clean(self) -> None:
        """End what is left of it."""
        if self.process is None:
            return
        if self.process.poll() not in (None, 0):
            with suppress(AssertionError):  # killed: its successor ends what it left
                self.start()
        self.end()


def main(name: str, kubeconfig: str, state: str) -> None:
    """Be the node until SIGTERM."""
    settings = NodeSettings(
        name=name,
        state_dir=Path(state),
        network=NetworkMode.ISOLATED,
        keep_logs_dir=Path(state) / "logs",
        ephemeral=False,
        heartbeat=10.0,  # this node has no Lease, by which a node controller would know that it lives
    )
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with load_config(kubeconfig).cluster() as cluster, Kubelet(cluster, settings=settings):
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        ended.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

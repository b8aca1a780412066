"""``python -m tests.real_servers COMMAND…``: run a command with a temporary Kubernetes control plane without kubelets.

TF_DIST_TEST_KUBECONFIG contains the administrator's kubeconfig, and kubectl is in the PATH.
``../shared/control-plane/cluster build`` builds the programs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.servers import LOAD, Servers, binaries, free_port, process


def main(command: list[str]) -> int:
    """Run the command, and return its exit code."""
    try:
        programs = binaries()
    except FileNotFoundError as error:
        sys.exit(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="tf-dist-servers-") as folder, Servers(Path(folder)) as servers:
        kubeconfig = servers.kubeconfig(LOAD)
        files = (f"--{which}={kubeconfig}" for which in ("kubeconfig", "authentication-kubeconfig"))
        port = f"--secure-port={free_port()}"
        scheduler = [programs / "kube-scheduler", *files, "--leader-elect=false", "--bind-address=127.0.0.1", port]
        added = {"TF_DIST_TEST_KUBECONFIG": str(kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"}
        with process(scheduler, Path(folder) / "kube-scheduler.log"):
            return subprocess.call(command, env={**os.environ, **added})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

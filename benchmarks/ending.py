"""How long a controller takes to end, as a whole process, when the API server answers and when it does not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark
from tests.faults.proxy import Fault, Kind, Proxy
from tf_dist.cluster.api import NODES, TFJOBS
from tf_dist.cluster.http import ApiServer, kubeconfig
from tf_dist.cluster.memory import MemoryCluster

_GRACE = 20.0  # seconds: well within the kubelet's 30


@benchmark("controller.sigterm_seconds")
def ends() -> Figure:
    """SIGTERM to the end of ``tf-dist controller``, with its Lease given back."""
    return Figure(_seconds(hanging=False), "s", target=5.0)


@benchmark("controller.sigterm_hanging_seconds")
def ends_without_answers() -> Figure:
    """The same with jobs under way and an API server that accepts connections and never answers."""
    return Figure(_seconds(hanging=True), "s", target=_GRACE)


def _seconds(*, hanging: bool) -> float:
    with MemoryCluster() as memory, ApiServer(memory) as server:
        host, _, port = server.app.url.removeprefix("http://").partition(":")
        with Proxy((host, int(port))) as proxy, _controller(kubeconfig(proxy.url, server.token)) as process:
            memory.create(NODES, None, {"metadata": {"name": "n1"}})
            _submit(memory, "before")
            _until(lambda: all("status" in job for job in memory.list(TFJOBS).items))
            if hanging:
                proxy.inject(Fault(Kind.HANG, times=None, seconds=3600))
                _submit(memory, "after")
                _until(lambda: sum(one.fault is Kind.HANG for one in proxy.passed) > 4)
            asked = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(300)
            return time.monotonic() - asked


def _submit(memory: MemoryCluster, name: str) -> None:
    for number in range(4):
        memory.create(TFJOBS, "default", tfjob(f"{name}-{number}"))


@contextmanager
def _controller(config: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    program = [sys.executable, "-m", "tf_dist", "controller", "--metrics-port", "0", "--kubeconfig"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kubeconfig"
        file.touch(mode=0o600)
        file.write_text(json.dumps(config))
        process = subprocess.Popen([*program, str(file)], stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _until(condition: Callable[[], bool]) -> None:
    pause, end = threading.Event(), time.monotonic() + 120
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the controller does nothing")
        pause.wait(0.05)

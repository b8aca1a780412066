"""The launcher of an Argo step: how soon it says something, and what it costs while it waits for its job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.jobs import tfjob
from benchmarks.measure import Figure, benchmark
from tf_dist.driver.embedded import EmbeddedCluster, EmbeddedSettings, dump

_TF_DIST = Path(sys.executable).with_name("tf-dist")
_WATCHED = 20.0  # seconds
_FOREVER = ["sh", "-c", "trap 'exit 143' TERM; echo up; while :; do sleep 0.2; done"]


@contextmanager
def _launched() -> Iterator[tuple[subprocess.Popen[str], float]]:
    """A launcher whose job runs, and the seconds from its start to its first line."""
    with (
        tempfile.TemporaryDirectory(prefix="tb-") as folder,
        EmbeddedCluster(EmbeddedSettings(state_dir=Path(folder) / "state")) as cluster,
    ):
        place = Path(folder) / "kubeconfig"
        dump(cluster.kubeconfig(), place)
        job = json.dumps(tfjob("mnist", command=_FOREVER))
        command = [str(_TF_DIST), "argo-launch", f"--job={job}", f"--out={folder}/out", f"--kubeconfig={place}"]
        started = time.perf_counter()
        process = subprocess.Popen([*command, "--on-term=delete"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        first = time.perf_counter() - started
        try:
            while " | up" not in process.stdout.readline():
                pass
            yield process, first
        finally:
            process.terminate()
            process.stdout.close()
            process.wait()


@benchmark("argo.first_line")
def first_line() -> Figure:
    """Seconds from the start of a launcher to its first line."""
    times = []
    for _ in range(3):
        with _launched() as (_, seconds):
            times.append(seconds)
    return Figure(sorted(times)[1], "s", target=0.5)


@benchmark("argo.memory")
def memory() -> Figure:
    """What a launcher occupies while its job runs, driving it inline."""
    with _launched() as (process, _):
        time.sleep(5.0)
        text = Path(f"/proc/{process.pid}/status").read_text()
    kib = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))
    return Figure(kib / 1024, "MB", target=80)


@benchmark("argo.cpu")
def cpu() -> Figure:
    """What part of a core a launcher uses while its job runs and says nothing."""
    with _launched() as (process, _):
        time.sleep(3.0)
        before = _cpu_seconds(process.pid)
        time.sleep(_WATCHED)
        used = _cpu_seconds(process.pid) - before
    return Figure(100 * used / _WATCHED, "% of a core", target=1.0)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))

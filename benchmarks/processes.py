"""Whole processes: the command line, ``tf-dist run``, the end of a controller, and the launcher of an Argo step."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.jobs import tfjob
from benchmarks.measure import Measured, Row, Target, benchmark, cpu_seconds, resident_mib, rounds, until
from tests.faults.proxy import Fault, Kind, Proxy
from tf_dist.cluster.api import LEASES, NODES, TFJOBS
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings, write_private_json

_TF_DIST: Final = Path(sys.executable).with_name("tf-dist")
_GRACE: Final = 20.0  # seconds: well within the kubelet's 30
_SECOND: Final = "import time; time.sleep(1.0)"
_WATCHED: Final = 20.0  # seconds
_FOREVER: Final = ["sh", "-c", "trap 'exit 143' TERM; echo up; while :; do sleep 0.2; done"]
_BARE, _PIP, _VALIDATE = "python -c pass", "pip --version", "tf-dist validate"


def _in_turn(repeat: int = 7, **calls: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each call, in rounds in which each comes once, after one that does not count."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            found[name] += rounds(call, repeat=1, warm=bool(found[name]))
    return found


def _process(*command: str | Path) -> Callable[[], object]:
    """A whole process, which must succeed."""
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


_START_PIP = _process(sys.executable, "-m", "pip", "--version", "--disable-pip-version-check")


@contextmanager
def _job_file(document: dict[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(document))
        yield file


@benchmark(
    Row("cli.help", "`tf-dist --help` as a whole process.", "s", target=Target(1.0, of=_PIP)),
    Row("cli.validate", "`tf-dist validate` of a small job as a whole process.", "s", target=Target(1.3, of=_PIP)),
)
def start_up() -> dict[str, Measured]:
    """Beside Python itself, and another command line of this environment."""
    with _job_file(tfjob("mnist")) as file:
        found = _in_turn(
            help=_process(_TF_DIST, "--help"),
            validate=_process(_TF_DIST, "validate", file),
            bare=_process(sys.executable, "-c", "pass"),
            pip=_START_PIP,
        )
    peers = {_BARE: found["bare"], _PIP: found["pip"]}
    return {"cli.help": Measured(found["help"], peers), "cli.validate": Measured(found["validate"], peers)}


def _by_hand() -> None:
    for process in [subprocess.Popen([sys.executable, "-c", _SECOND]) for _ in range(3)]:
        assert process.wait() == 0


@benchmark(
    Row(
        "run.overhead",
        "`tf-dist run` of a job of three processes that take a second, from the command to its end with clean-up, less "
        "the median of the same three started by hand.",
        "s",
        target=Target(6.0, of=_VALIDATE),
    )
)
def run() -> Measured:
    """The peer starts and reads the same file, and runs nothing."""
    with _job_file(tfjob("mnist", command=["python", "-c", _SECOND])) as file:
        found = _in_turn(
            5,
            hand=_by_hand,
            run=_process(_TF_DIST, "run", file),
            validate=_process(_TF_DIST, "validate", file),
        )
    assert min(found["run"]) > 1.0, "the job did not run"
    by_hand = statistics.median(found["hand"])
    return Measured(
        [one - by_hand for one in found["run"]], {_VALIDATE: found["validate"]}, f"By hand {by_hand:.2f} s."
    )


# -- The end of a controller --


@benchmark(
    Row(
        "controller.sigterm_seconds",
        "From SIGTERM to the end of `tf-dist controller`, with its Lease given back.",
        "s",
        target=Target(5.0),
    ),
    Row(
        "controller.sigterm_hanging_seconds",
        "The same with jobs under way and an API server that accepts connections and never answers.",
        "s",
        target=Target(_GRACE),
    ),
)
def ends() -> dict[str, Measured]:
    """Bounded by timers, not by the machine."""
    return {
        "controller.sigterm_seconds": Measured([_ends(hanging=False) for _ in range(3)]),
        "controller.sigterm_hanging_seconds": Measured([_ends(hanging=True) for _ in range(3)]),
    }


def _ends(*, hanging: bool) -> float:
    with MemoryCluster() as memory, ApiServer(memory) as server:
        host, _, port = server.app.url.removeprefix("http://").partition(":")
        with Proxy((host, int(port))) as proxy, _controller(make_kubeconfig(proxy.url, server.token)) as process:
            memory.create(NODES, None, {"metadata": {"name": "n1"}})
            _submit(memory, "before")
            until(lambda: all("status" in job for job in memory.list(TFJOBS).items))
            if hanging:
                proxy.inject(Fault(Kind.HANG, times=None, seconds=3600))
                _submit(memory, "after")
                until(lambda: sum(one.fault is Kind.HANG for one in proxy.passed) > 4)
            asked = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(300)
            seconds = time.monotonic() - asked
            holders = [lease.get("spec", {}).get("holderIdentity") for lease in memory.list(LEASES).items]
            assert holders, "it never had a Lease"
            assert hanging or not any(holders), f"Leases are held by {holders}"
            return seconds


def _submit(memory: MemoryCluster, name: str) -> None:
    for number in range(4):
        memory.create(TFJOBS, "default", tfjob(f"{name}-{number}"))


@contextmanager
def _controller(config: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    program = [_TF_DIST, "controller", "--metrics-port", "0", "--kubeconfig"]
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


# -- The launcher of an Argo step --


@contextmanager
def _launched() -> Iterator[tuple[subprocess.Popen[str], float]]:
    """A launcher whose job runs, and the seconds from its start to its first line."""
    with (
        tempfile.TemporaryDirectory(prefix="tb-") as folder,
        EmbeddedCluster(EmbeddedSettings(state_dir=Path(folder) / "state")) as cluster,
    ):
        place = Path(folder) / "kubeconfig"
        write_private_json(cluster.kubeconfig(), place)
        job = json.dumps(tfjob("mnist", command=_FOREVER))
        command = [str(_TF_DIST), "argo-launch", f"job={job}", f"out={folder}/out", f"kubeconfig={place}"]
        started = time.perf_counter()
        process = subprocess.Popen([*command, "on_term=delete"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            assert process.stdout.readline(), "the launcher said nothing"
            first = time.perf_counter() - started
            assert any(" | up" in line for line in process.stdout), "the job did not run"
            yield process, first
        finally:
            process.terminate()
            process.stdout.close()
            process.wait()


@benchmark(
    Row(
        "argo.first_line",
        "From the start of a launcher's process to its first line.",
        "s",
        target=Target(2.0, of=_PIP),
    ),
    Row(
        "argo.memory",
        "What a launcher occupies 5 s after its job began to run, driving it inline.",
        "MiB",
        target=Target(80),
    ),
    Row(
        "argo.cpu",
        "The part of a core that it uses, in 20 s in which its job says nothing.",
        "% of a core",
        target=Target(1.0),
    ),
)
def launcher() -> dict[str, Measured]:
    """Three launchers, one after the other, each with an embedded cluster that runs its job."""
    first, memory, cpu, pip = [], [], [], []
    for _ in range(3):
        with _launched() as (process, seconds):
            first.append(seconds)
            time.sleep(5.0)
            memory.append(resident_mib(process.pid))
            before = cpu_seconds(process.pid)
            time.sleep(_WATCHED)
            cpu.append(100 * (cpu_seconds(process.pid) - before) / _WATCHED)
            assert process.poll() is None, "the launcher has ended"
            pip += rounds(_START_PIP, repeat=1)
    return {
        "argo.first_line": Measured(first, {_PIP: pip}),
        "argo.memory": Measured(memory),
        "argo.cpu": Measured(cpu),
    }

"""The examples train with real TensorFlow and parameter servers, also while replicas are killed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import until
from tf_dist.cluster.api import TFJOBS, Cluster
from tf_dist.cluster.kubelet.runtime.linux import descendants, pids_with_variable
from tf_dist.core.dialects import parse
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted((EXAMPLES / "digits").glob("*.yaml"))

trains = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="TensorFlow is missing: pip install '.[tensorflow]'",
    ),
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_example_is_valid_without_warnings(file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        assert parse(document).warnings == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
class TestTraining:
    """Each example, run like a user would."""

    pytestmark = trains

    def test_example_trains(self, file: Path) -> None:
        done = _run(file)
        if "isolated mode" in done.stderr:
            pytest.skip("this example needs isolated pods, which this system does not allow")
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert summary["metrics"]["accuracy"] >= 0.95
        assert Path(f"{summary['checkpoint']}.index").exists()


def _run(file: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("tf-dist")
    return subprocess.run([program, "run", file, "-o", "json"], capture_output=True, text=True, check=False)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = EmbeddedSettings(state_dir=tmp_path / "state", workdir=EXAMPLES / "digits", serve=False)
    with EmbeddedCluster(settings) as embedded:
        yield embedded.cluster


def _submit(cluster: Cluster, **options: str) -> None:
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / "digits" / "tfjob.yaml").read_text())
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    worker["args"] += [f"--{name}={value}" for name, value in options.items()]
    job["spec"]["runPolicy"]["cleanPodPolicy"] = "Running"
    cluster.create(TFJOBS, "default", job)


def _state(cluster: Cluster) -> dict[str, Any]:
    return dict(cluster.get(TFJOBS, "default", "digits").get("status", {}).get("tfDist", {}))


def _steps(cluster: Cluster, pod: str) -> int:
    try:
        text = b"".join(cluster.logs("default", pod)).decode()
    except Exception:
        return 0
    return max((int(step) for step in re.findall(r"step=(\d+)", text)), default=0)


def _processes(replica: str) -> list[int]:
    """The training processes of a replica. The host name in their environment excludes those of other runs."""
    found = []
    for process in descendants(os.getpid()) & pids_with_variable(f"HOSTNAME=digits-{replica}".encode()):
        with suppress(OSError):
            if b"train.py" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
class TestTrouble:
    """Training continues after failures."""

    pytestmark = trains

    def test_training_succeeds_after_killed_replicas_restart(self, cluster: Cluster) -> None:
        _submit(cluster, steps="5000")
        for victim, step in (("worker-1", 500), ("ps-0", 1200), ("worker-0", 1900)):
            until(partial(lambda least: _steps(cluster, "digits-worker-0") >= least, step), 300)
            killed = _processes(victim)
            assert killed
            for process in killed:
                os.kill(process, signal.SIGKILL)
        until(lambda: _state(cluster).get("phase") in ("Completed", "Failed"), 500)
        state = _state(cluster)
        assert state["phase"] == "Completed", state
        assert sum(state.get("restarts", {}).values()) + state.get("containerRestarts", 0) >= 3
        log = b"".join(cluster.logs("default", "digits-worker-0")).decode()
        accuracy = float(re.findall(r"accuracy=([0-9.]+) checkpoint=", log)[-1])
        assert accuracy >= 0.95

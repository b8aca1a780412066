"""The real program in a process of its own, with a folder for its leavings that must be empty afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.child_processes import environment_without, signals_heard
from tests.cli import ready
from tests.cli.ready import Started

PROGRAM = [sys.executable, "-m", "tf_dist.cli.main"]
PATIENCE = 120.0


def surroundings(folder: Path, scratch: str) -> dict[str, str]:
    """The environment of a program, without what may lead to another cluster or change the output."""
    found = environment_without("TF_DIST", "NO_COLOR", "KUBECONFIG", "KUBERNETES_SERVICE", "VIRTUAL_ENV")
    return found | {"HOME": str(folder), "TMPDIR": scratch, "TF_DIST_HOME": f"{scratch}/home"}


@dataclass
class Program:
    """Runs ``tf-dist`` in ``folder``. ``token`` marks the processes of the jobs that it starts."""

    folder: Path
    env: dict[str, str]
    token: str = field(default_factory=lambda: f"mark{uuid.uuid4().hex}")

    def __call__(self, *arguments: str, stdin: str | bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        found = ready.run(arguments, self.folder, self.env | env, data, timeout=240)
        return subprocess.CompletedProcess(found.args, found.returncode, found.stdout.decode(), found.stderr.decode())

    def start(self, *arguments: str) -> Started:
        """Start it; its output is read line by line by the test."""
        return Started(arguments, self.folder, self.env, text=True)

    def start_anew(self, *arguments: str) -> subprocess.Popen[str]:
        """The same, from nothing."""
        with signals_heard():
            return subprocess.Popen(
                [*PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.env,
                text=True,
                bufsize=1,
            )

    def write(self, name: str, *documents: Any) -> str:
        """A file of these documents (or this text); its name."""
        texts = [one if isinstance(one, str) else json.dumps(one) for one in documents]
        (self.folder / name).write_text("\n---\n".join(texts))
        return name

    def job(self, script: str = "true", *, workers: int = 1, name: str = "job", **fields: Any) -> dict[str, Any]:
        """A TFJob whose workers run a shell script. ``fields`` are those of the pod's spec."""
        container = {"name": "tensorflow", "image": "none", "command": ["sh", "-c", f": {self.token}; {script}"]}
        template = {"spec": {"terminationGracePeriodSeconds": 5, "containers": [container], **fields}}
        worker = {"replicas": workers, "restartPolicy": "Never", "template": template}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": {"name": name},
            "spec": {"runPolicy": {"cleanPodPolicy": "All"}, "tfReplicaSpecs": {"Worker": worker}},
        }

    def processes(self) -> list[str]:
        """The command lines of processes of this test's jobs, and of its supervisors."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if self.token in line or self.env["TMPDIR"] in line:
                found.append(line)
        return found

    def leftovers(self) -> list[str]:
        """What a run has left behind: processes and files."""
        return [*self.processes(), *_everything_in(self.env["TMPDIR"])]


@pytest.fixture
def tf_dist(tmp_path: Path) -> Iterator[Program]:
    # The node's sockets live below TMPDIR, and the path of a socket may have 107 characters only.
    scratch = tempfile.mkdtemp(prefix="td-")
    env = surroundings(tmp_path, scratch) | {"PYTHONUNBUFFERED": "1"}
    try:
        yield Program(tmp_path, env)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program with a local cluster that is up."""
    scratch = tempfile.mkdtemp(prefix="td-")
    folder = tmp_path_factory.mktemp("local")
    program = Program(folder, surroundings(folder, scratch))
    try:
        assert program("local", "up").returncode == 0
        yield program
        assert program("local", "down").returncode == 0
        assert eventually(lambda: not program.processes())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def eventually(condition: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _everything_in(folder: str) -> list[str]:
    """All files and folders below; what goes away meanwhile is no error."""
    return [os.path.join(parent, name) for parent, *names in os.walk(folder) for group in names for name in group]

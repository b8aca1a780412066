"""The real program in a separate process, with a folder for temporary files that must be empty afterwards."""

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
    """The environment of a program, without variables that select another cluster or change the output."""
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
        """Start the program. The test reads its output line by line."""
        return Started(arguments, self.folder, self.env, text=True)

    def start_anew(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program in a new interpreter."""
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
        """Write a file with these documents or this text, and return its name."""
        texts = [one if isinstance(one, str) else json.dumps(one) for one in documents]
        (self.folder / name).write_text("\n---\n".join(texts))
        return name

    def job(self, script: str = "true", *, workers: int = 1, name: str = "job", **fields: Any) -> dict[str, Any]:
        """A TFJob whose workers run a shell script. ``fields`` are fields of the pod's spec."""
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
        """The command lines of processes of this test's jobs and supervisors."""
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
        """The processes and files that a run has left behind."""
        return [*self.processes(), *_everything_in(self.env["TMPDIR"])]


@pytest.fixture
def tf_dist(tmp_path: Path) -> Iterator[Program]:
    # The node's sockets are below TMPDIR, and the path of a socket can have only 107 characters.
    scratch = tempfile.mkdtemp(prefix="td-")
    env = surroundings(tmp_path, scratch) | {"PYTHONUNBUFFERED": "1"}
    try:
        yield Program(tmp_path, env)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The program with a running local cluster."""
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
    """Whether the condition becomes true in time."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _everything_in(folder: str) -> list[str]:
    """All files and folders below the folder. Files that disappear meanwhile are not errors."""
    return [os.path.join(parent, name) for parent, *names in os.walk(folder) for group in names for name in group]

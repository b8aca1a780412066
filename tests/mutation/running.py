"""Runs pytest in forks of this process, in copies of the tree: nothing is changed in the tree itself."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.inside import enter

# Imported once, not once a mutant.
_HEAVY = (
    "pytest",
    "_pytest.assertion.rewrite",
    "numpy",
    "pydantic",
    "yaml",
    "urllib3",
    "rich.console",
    "typer",
)
_COPIED = ("tf_dist", "tests", "workflows", "examples", "dags", "deploy", "docs", "benchmarks")
_EXPORTS = ("pyproject.toml", "README.md", "Makefile", "constraints.txt", "CONTRIBUTING.md", "mkdocs.yml")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: what it had to tell (None: it broke off), and what it printed."""

    too_long: bool
    told: Any
    output: str


class Copies:
    """Copies of the tree, each for one process at a time."""

    def __init__(self, tree: Path, folder: Path, jobs: int) -> None:
        self.roots = [folder / f"copy-{number}" for number in range(jobs)]
        for root in self.roots:
            for name in _COPIED:
                _mirror(tree / name, root / name)
            for name in _EXPORTS:
                if (tree / name).exists():
                    shutil.copy2(tree / name, root / name)

    @contextlib.contextmanager
    def changed(self, root: Path, file: str, source: str) -> Iterator[None]:
        """A file of a copy is another; no compiled one is in its way."""
        path = root / file
        before, times = path.read_bytes(), path.stat()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(source)
        try:
            yield
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _mirror(source: Path, target: Path) -> None:
    """What is in ``source``, and nothing else; compiled files stay, as Python checks them itself."""
    target.mkdir(parents=True, exist_ok=True)
    names = {entry.name for entry in source.iterdir() if entry.name != "__pycache__"}
    for entry in target.iterdir():
        if entry.name not in names and entry.name != "__pycache__":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name in names:
        entry = source / name
        if entry.is_dir():
            _mirror(entry, target / name)
        elif not (target / name).exists() or (target / name).read_bytes() != entry.read_bytes():
            shutil.copy2(entry, target / name)


@dataclass(frozen=True, slots=True)
class Job:
    """``work`` in a process of its own, in a copy in which ``change`` (file, source) is made.

    Not ``apart``: it goes on in the copy that this process is in. ``cpu`` and ``wall``: seconds after which it takes
    too long. ``ended`` is called in this process.
    """

    work: Callable[[Path], Any]
    ended: Callable[[Ended], None]
    cpu: int
    wall: float
    change: tuple[str, str] | None = None
    apart: bool = True


def run(jobs: Iterable[Job], copies: Copies, folder: Path) -> None:
    """All of them, as many at a time as there are copies."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for name in _HEAVY:
        importlib.import_module(name)
    waiting, free, running = iter(jobs), list(copies.roots), {}
    try:
        while True:
            while free and (job := next(waiting, None)):
                root = free.pop()
                change = copies.changed(root, *job.change) if job.change else contextlib.nullcontext()
                change.__enter__()
                pid = _fork(job, root, folder)
                running[pid] = (job, root, change, time.monotonic() + job.wall)
            if not running:
                return
            for pid in list(running):
                job, root, change, until = running[pid]
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done and time.monotonic() < until:
                    continue
                _end(pid)
                if not done:
                    os.waitpid(pid, 0)
                change.__exit__(None, None, None)
                del running[pid]
                free.append(root)
                job.ended(_ended(pid, status if done else None, folder))
            time.sleep(0.02)
    finally:
        for pid, (_, _, change, _) in running.items():
            os.kill(pid, signal.SIGTERM)  # it ends what it started
            os.waitpid(pid, 0)
            _end(pid)
            change.__exit__(None, None, None)


def _fork(job: Job, root: Path, folder: Path) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        mine = os.getpid()
        with (folder / f"{mine}.out").open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        enter(root if job.apart else None, job.cpu)
        told = job.work(root)
        (folder / f"{mine}.told").write_bytes(pickle.dumps(told))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end(pid: int) -> None:
    """The process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _ended(pid: int, status: int | None, folder: Path) -> Ended:
    output, told = folder / f"{pid}.out", folder / f"{pid}.told"
    text = output.read_text(errors="replace")
    value = pickle.loads(told.read_bytes()) if told.exists() else None
    for path in (output, told):
        path.unlink(missing_ok=True)
    too_long = status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL})
    return Ended(too_long, value, text)

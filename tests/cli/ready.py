"""Runs of the program that begin at once: each is a process of its own, forked off one that has imported everything.

Of a second that a short command takes, the imports are nine tenths. What needs a start from nothing, a signal, a
terminal or a pipe starts the program itself (``Program.start``).
"""

from __future__ import annotations

import atexit
import importlib
import io
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import tf_dist.cli
import tf_dist.client
import tf_dist.controller
from tf_dist.cli.main import main

for _package in (tf_dist.cli, tf_dist.client, tf_dist.controller):
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        if not _module.name.endswith("__main__"):
            importlib.import_module(_module.name)

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["__main__", __name__])


def run(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], stdin: bytes, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """What ``subprocess.run`` does with the program."""
    with tempfile.TemporaryDirectory(prefix="said-") as said:
        streams = [Path(said, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_bytes(stdin)
        process = _FORKS.Process(target=_run, args=(list(arguments), folder, dict(env), streams))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(arguments), timeout, streams[1].read_bytes(), streams[2].read_bytes())
        return subprocess.CompletedProcess(
            list(arguments), process.exitcode, streams[1].read_bytes(), streams[2].read_bytes()
        )


def _run(arguments: list[str], folder: Path, env: dict[str, str], streams: list[Path]) -> None:
    """In the new process: make everything as the start of a program finds it, then run it."""
    flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    for number, (stream, flag) in enumerate(zip(streams, flags, strict=True)):
        opened = os.open(stream, flag)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace")
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    tempfile.tempdir = None
    os.chdir(folder)
    sys.argv = ["tf-dist", *arguments]
    try:
        main(arguments)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()

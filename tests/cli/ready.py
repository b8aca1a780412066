"""Runs of the program that start immediately, in processes forked from a process with all imports done.

Imports are nine tenths of the second that a short command takes. Tests that need a new interpreter or a terminal start
the program themselves (``Program.start_anew``).
"""

from __future__ import annotations

import atexit
import importlib
import io
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

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
    """Run the program like ``subprocess.run``."""
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


def tf_dist(*arguments: str, stdin: str = "", env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    """Run the program in the current folder to its end, with its output as text."""
    done = run(arguments, Path.cwd(), env, stdin.encode(), timeout=240)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Started:
    """A running program with the needed part of ``subprocess.Popen``. ``stdout`` contains both outputs."""

    def __init__(self, arguments: Sequence[str], folder: Path, env: Mapping[str, str], *, text: bool = False) -> None:
        reader, writer = _FORKS.Pipe(duplex=False)
        with reader, writer:
            self._process = _FORKS.Process(target=_run, args=(list(arguments), folder, dict(env), writer))
            self._process.start()
            self.stdout: IO[Any] = open(os.dup(reader.fileno()), "r" if text else "rb")  # noqa: SIM115

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], folder: Path, env: dict[str, str], streams: list[Path] | Connection) -> None:
    """Prepare the new process like the start of a program, then run the program."""
    _open(streams)
    raw = env.get("PYTHONUNBUFFERED")
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape")
    sys.stdout, sys.stderr = (_writer(number, raw=bool(raw)) for number in (1, 2))
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        signal.signal(number, handler)
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


def _open(streams: list[Path] | Connection) -> None:
    """Open standard input, output and error: three files, or no input and one pipe for both outputs."""
    if isinstance(streams, Connection):
        opened = [os.open(os.devnull, os.O_RDONLY), os.dup(streams.fileno()), os.dup(streams.fileno())]
        streams.close()
    else:
        flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
        opened = [os.open(stream, flag) for stream, flag in zip(streams, flags, strict=True)]
    for number, file in enumerate(opened):
        os.dup2(file, number)
        os.close(file)


def _writer(number: int, *, raw: bool) -> io.TextIOWrapper:
    file: Any = io.FileIO(number, "w", closefd=False)
    errors = "surrogateescape" if number == 1 else "backslashreplace"
    return io.TextIOWrapper(file if raw else io.BufferedWriter(file), "utf-8", errors, write_through=raw)

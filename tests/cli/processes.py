"""Running programs and their output, up to a line or to the end, in a pipe or on a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import uuid
from collections.abc import Callable

from tests.child_processes import signals_heard
from tests.cli.conftest import PROGRAM, Program
from tests.cli.ready import Started

FOREVER = "trap 'exit 143' TERM; echo up; while :; do sleep 0.05; done"
"""The script of a job that runs until it is terminated."""


def until(process: subprocess.Popen[str] | Started, *texts: str) -> str:
    """The output up to the first line with all of these texts."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if all(text in line for text in texts):
            return seen
    raise AssertionError(f"{texts} not in the output:\n{seen}")


def rest(process: subprocess.Popen[str] | Started) -> str:
    assert process.stdout is not None
    with process.stdout as stream:
        text = stream.read()
    process.wait(120)
    return text


def on_terminal(
    tf_dist: Program,
    *arguments: str,
    seen: Callable[[bytes], None] = lambda _: None,
    interrupted_at: bytes = b"",
    **env: str,
) -> tuple[int, str]:
    """Exit code and output of a command on a terminal of 100 columns. ``seen`` is called with the output so far.

    The command is interrupted once when its output contains ``interrupted_at``.
    """
    ours, theirs = pty.openpty()
    settings = {**tf_dist.env, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **env}
    command, nothing = [*PROGRAM, *arguments], subprocess.DEVNULL
    with signals_heard():
        process = subprocess.Popen(
            command, stdin=nothing, stdout=theirs, stderr=theirs, cwd=tf_dist.folder, env=settings
        )
    os.close(theirs)
    text = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        text += data
        seen(text)
        if interrupted_at and interrupted_at in text:
            process.send_signal(signal.SIGINT)
            interrupted_at = b""
    os.close(ours)
    return process.wait(120), text.decode()


def name() -> str:
    """A unique name for a job."""
    return f"job-{uuid.uuid4().hex[:6]}"

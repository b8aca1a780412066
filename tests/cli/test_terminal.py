"""What a person at a terminal sees."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from tests.cli.conftest import PROGRAM, Program


def on_terminal(tf_dist: Program, *arguments: str, **env: str) -> tuple[int, str]:
    """Exit code and output of a command on a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    settings = {**tf_dist.env, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", **env}
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=tf_dist.folder, env=settings
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
    os.close(ours)
    return process.wait(60), text.decode()


def test_a_run_is_a_live_table_below_the_lines(tf_dist: Program) -> None:
    script = "for i in 1 2 3; do echo step=$i loss=0.$i accuracy=0.9$i; sleep 0.1; done"
    code, text = on_terminal(tf_dist, "run", tf_dist.write("job.yaml", tf_dist.job(script, workers=2)))
    assert code == 0
    for word in ("replica", "state", "restarts", "accuracy", "last line", "0.2000", "0s ago", "\x1b[36mworker-0 |"):
        assert word in text
    assert text.rstrip().endswith("restarts:    0")
    assert "\x1b[?25h" in text, "the cursor is back"
    assert tf_dist.leftovers() == []


@pytest.mark.parametrize("how", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_plain_where_it_is_wanted(tf_dist: Program, how: dict[str, str]) -> None:
    plain = [] if how else ["--plain"]
    code, text = on_terminal(tf_dist, "run", tf_dist.write("job.yaml", tf_dist.job("echo hello")), *plain, **how)
    assert code == 0
    assert "worker-0 | hello\r\n" in text
    assert "\x1b" not in text


def test_a_job_cannot_steer_the_terminal(tf_dist: Program) -> None:
    script = r"printf '\033]0;title\007\033[2J\033[31mred\033[0m\n[bold]markup[/bold]\n'"
    _, text = on_terminal(tf_dist, "run", tf_dist.write("job.yaml", tf_dist.job(script)))
    assert "\x1b[2J" not in text
    assert "\x1b]0;" not in text
    assert "\x1b[31mred" in text
    assert "[bold]markup[/bold]" in text


def test_problems_are_coloured(tf_dist: Program) -> None:
    code, text = on_terminal(tf_dist, "validate", tf_dist.write("job.yaml", tf_dist.job(name="Bad")))
    assert code == 2
    assert "\x1b[31;1merror\x1b[0m: job.yaml:1:" in text

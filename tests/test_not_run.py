"""The line at the end of a run that says what was left out, and the runs that fail because of a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_slow(n): pass

@pytest.mark.cluster
@pytest.mark.slow
def test_cluster(): pass

def test_runs(): pass

def test_named(): pass

@pytest.mark.skipif(True, reason="there is no moon here")
def test_moon(): pass

@pytest.mark.skipif(True, reason="there is no sun here")
def test_sun(): pass
"""
CONFIGURATION = """
[pytest]
addopts = -m "not slow and not cluster"
markers =
    slow
    cluster
"""


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text(CONFIGURATION)
    (folder / "test_these.py").write_text(TESTS)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.not_run", *arguments],
        cwd=folder,
        env=env | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_one_line_says_what_was_left_out_and_what_would_run_it(tmp_path: Path, processes: str) -> None:
    code, said = run(tmp_path, "--numprocesses", processes)
    assert code == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith("not run: ")]
    assert line == (
        "not run: 1 cluster (TF_DIST_TEST_KUBECONFIG=… make test-all), 2 slow (make test-all), "
        "1 skipped (there is no moon here), 1 skipped (there is no sun here)"
    )


def test_nothing_is_said_where_everything_ran(tmp_path: Path) -> None:
    code, said = run(tmp_path, "test_these.py::test_runs")
    assert code == 0, said
    assert "not run" not in said


def test_what_the_command_line_left_out_is_counted(tmp_path: Path) -> None:
    assert "not run: 3 deselected on the command line\n" in run(tmp_path, "-k", "runs or slow or cluster", "-m", "")[1]


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_skip_for_another_reason_than_those_of_the_file_fails_the_run(tmp_path: Path, processes: str) -> None:
    may_skip = tmp_path / "may-skip"
    arguments = ("--numprocesses", processes, "--may-skip", str(may_skip))
    may_skip.write_text("there is no moon  # it has set\n")
    code, said = run(tmp_path, *arguments)
    assert code == 1
    assert "UNEXPECTED SKIP test_these.py::test_sun: there is no sun here" in said
    assert "UNEXPECTED SKIP test_these.py::test_moon" not in said
    may_skip.write_text("there is no moon  # it has set\nthere is no sun here\n")
    assert run(tmp_path, *arguments)[0] == 0

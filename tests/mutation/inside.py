"""What runs in a process of pytest: records which tests run which lines, or picks the tests that are near a line."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

PACKAGES = ("core", "driver", "client", "airflow")

# Tests with these marks are not near anything: what they test runs in other processes, where no line is recorded.
FAR = ("tensorflow", "airflow_stack", "cluster")
QUIET = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]


def record(root: Path, files: list[str]) -> tuple[dict[str, float], dict[str, dict[int, list[str]]]]:
    """Runs the tests of these files: those that passed with their seconds; by source file and line, who runs it."""
    recorder = Recorder(root)
    near = " and ".join(f"not {mark}" for mark in FAR)
    pytest.main([*QUIET, "-m", near, "--timeout", "120", *files], plugins=[recorder])
    return recorder.found()


def first_failure(root: Path, tests: list[str]) -> str:
    """Runs these tests, the first named first, to the first that fails, and says which ("": none does)."""
    picker = Picker(tests)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    code = pytest.main([*QUIET, "-x", *files], plugins=[picker])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return ""
    return picker.failed or f"exit code {int(code)}"


class Recorder:
    """Tells coverage which test runs; what it took of the processor, and whether it passed."""

    def __init__(self, root: Path) -> None:
        import coverage

        self.tests: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage = coverage.Coverage(
            data_file=None,
            config_file=False,
            source=[str(root / "tf_dist" / package) for package in PACKAGES],
            messages=False,
        )
        self._coverage.start()
        self._coverage.switch_context("")
        self._root = root

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        self._coverage.switch_context(item.nodeid)
        start, wall = time.process_time(), time.monotonic()
        try:
            return (yield)
        finally:
            # Who waits is as far away as who computes: an eighth of it counts, for others have their share in it.
            self.tests[item.nodeid] = max(time.process_time() - start, (time.monotonic() - wall) / 8)
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def found(self) -> tuple[dict[str, float], dict[str, dict[int, list[str]]]]:
        """The tests that passed, with their seconds; by file and line, the tests that run it."""
        self._coverage.stop()
        data = self._coverage.get_data()
        files = {
            Path(file).relative_to(self._root).as_posix(): data.contexts_by_lineno(file)
            for file in data.measured_files()
        }
        passed = {test: seconds for test, seconds in self.tests.items() if test not in self._failed}
        return passed, files


class Picker:
    """Runs the tests named, the first named first, file by file, and knows which failed first."""

    def __init__(self, tests: list[str]) -> None:
        self._place: Mapping[str, int] = {test: at for at, test in enumerate(tests)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item], config: pytest.Config) -> None:
        picked = [item for item in items if item.nodeid in self._place]
        first: dict[str, int] = {}
        for item in picked:
            file = item.nodeid.partition("::")[0]
            first[file] = min(first.get(file, len(self._place)), self._place[item.nodeid])
        picked.sort(key=lambda item: (first[item.nodeid.partition("::")[0]], self._place[item.nodeid]))
        items[:] = picked

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"{report.nodeid} (collected)"


def enter(root: Path, cpu_seconds: int | None) -> None:
    """Makes this forked process one of the copy of the tree at ``root``: what it imports is from there."""
    import resource
    import sys

    os.setsid()
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "tf_dist"}]:
        del sys.modules[name]
    here = Path.cwd()
    os.chdir(root)
    sys.path[:] = [str(root), *(path for path in sys.path if path and Path(path) != here)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    if cpu_seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))

"""What runs in a process of pytest: records which tests run which lines, or picks the tests that are near a line."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType

import pytest

# Folders of tf_dist that are measured, and, of the same names, of the tests that are near them.
PACKAGES = ("core", "controller", "cluster/client", "client", "airflow")

# Tests with these marks are not near anything: they take long, or what they test runs in other processes.
FAR = ("slow", "tensorflow", "airflow_stack", "cluster")
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


def collected(root: Path, files: list[str], go_on: Callable[[pytest.Session], None]) -> None:
    """Collects the tests of these files in this process, and calls ``go_on`` instead of running them."""
    pytest.main([*QUIET, "-x", "-s", *files], plugins=[_Instead(go_on)])


class _Instead:
    def __init__(self, go_on: Callable[[pytest.Session], None]) -> None:
        self._go_on = go_on

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.unregister(self)
        self._go_on(session)
        return True


def first_failure_of(session: pytest.Session, tests: list[str], path: str, source: str) -> str:
    """``first_failure`` in a process that has collected everything, with a function of the module at ``path`` changed.

    "" where there is no such function, too: what runs at import has to be changed before it is imported.
    """
    if path and not put_in_place(path, source):
        return ""
    picker = Picker(tests)
    session.config.pluginmanager.register(picker)
    picker.pytest_collection_modifyitems(session.items, session.config)
    session.testscollected = len(session.items)
    with contextlib.suppress(session.Failed):
        session.config.hook.pytest_runtestloop(session=session)
    return picker.failed


def put_in_place(path: str, source: str) -> bool:
    """The functions of the module at ``path`` do what they do in ``source``; whether there were any that can."""
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compile(source, path, "exec"))}
    done = False
    for found in gc.get_objects():
        if type(found) is FunctionType and found.__code__.co_filename == path:
            code = codes.get((found.__code__.co_qualname, found.__code__.co_firstlineno))
            if code is not None and code != found.__code__:
                try:
                    found.__code__ = code
                except ValueError:  # it closes over other names than before
                    return False
                done = True
        elif type(found).__name__ == "_lru_cache_wrapper" and found.__module__.startswith("tf_dist."):
            found.cache_clear()
    return done


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


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
        before = _seconds()
        try:
            return (yield)
        finally:
            spent, passed, held_up = (after - start for after, start in zip(_seconds(), before, strict=True))
            # Who waits is as far away as who computes: an eighth of it counts, as others have their share in it.
            self.tests[item.nodeid] = max(spent, (passed - held_up) / 8)
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


def _seconds() -> tuple[float, float, float]:
    """Of the processor, on the clock, and those in which this thread could have run on a machine with less to do."""
    held_up = 0.0
    with contextlib.suppress(OSError):  # Linux says it
        held_up = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return time.process_time(), time.monotonic(), held_up


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


def enter(root: Path | None, cpu_seconds: int) -> None:
    """Makes this forked process one of the copy of the tree at ``root``: what it imports is from there."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    if root is None:
        return
    for name in [name for name in sys.modules if name.partition(".")[0] in {"tests", "tf_dist"}]:
        del sys.modules[name]
    here = Path.cwd()
    os.chdir(root)
    sys.path[:] = [str(root), *(path for path in sys.path if path and Path(path) != here)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    os.environ["TF_DIST_TEST_EXAMPLES"] = "all"

"""Print a line about tests that did not run. With ``--may-skip``, an unexpected skip fails the test run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest

# The commands that run the tests deselected by the markers in pyproject.toml. A test with several markers is counted
# once, under the first marker.
_WOULD_RUN: Final = {
    "cluster": "TF_DIST_TEST_KUBECONFIG=… make test-all",
    "containers": "TF_DIST_TEST_CONTAINERS=… make test-containers",
    "airflow_stack": "make test-all",
    "slow": "make test-all",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--may-skip",
        type=Path,
        metavar="FILE",
        help="fail when a test is skipped for a reason that begins with no line of this file; # begins a comment",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_NotRun(config))


class _NotRun:
    """Counts tests that did not run. With xdist, workers count deselected tests, and this process reads the counts."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._deselected: Counter[str] = Counter()
        self._skipped: dict[str, str] = {}  # a reason for each test or module
        self._unexpected: dict[str, str] = {}

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._deselected.update(_kind(item) for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            self._skipped[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._deselected |= Counter(getattr(node, "workeroutput", {}).get("deselected", {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["deselected"] = dict(self._deselected)
        elif (file := self._config.getoption("may_skip")) is not None:
            expected = tuple(_lines(self._config.rootpath / file))
            self._unexpected = {
                test: reason for test, reason in self._skipped.items() if not reason.startswith(expected)
            }
            if self._unexpected and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after every other summary
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        yield
        for test, reason in self._unexpected.items():
            terminalreporter.write_line(f"UNEXPECTED SKIP {test}: {reason}", red=True)
        parts = [
            f"{self._deselected[kind]} {kind} ({how})" for kind, how in _WOULD_RUN.items() if self._deselected[kind]
        ]
        parts += [f"{self._deselected['']} deselected on the command line"] * bool(self._deselected[""])
        parts += [f"{count} skipped ({reason})" for reason, count in Counter(self._skipped.values()).most_common()]
        if parts:
            terminalreporter.write_line(f"not run: {', '.join(parts)}")


def _kind(item: pytest.Item) -> str:
    return next((kind for kind in _WOULD_RUN if item.get_closest_marker(kind)), "")


def _lines(file: Path) -> Iterable[str]:
    for line in file.read_text().splitlines():
        if text := line.partition("#")[0].strip():
            yield text

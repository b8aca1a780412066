"""Log records as JSON lines that name the job."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tf_dist.cli.options import Level
from tf_dist.controller.observability import json_logging
from tf_dist.controller.observability.json_logging import LogFormat, configure_logging, job_log_context


class Output:
    def __init__(self, form: LogFormat) -> None:
        self.stream = io.StringIO()
        self.handler = json_logging.configure_logging(form, level=logging.DEBUG, stream=self.stream)

    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]


@pytest.fixture
def output(request: pytest.FixtureRequest) -> Iterator[Output]:
    root = logging.getLogger()
    level = root.level
    output = Output(getattr(request, "param", LogFormat.JSON))
    yield output
    root.removeHandler(output.handler)
    root.setLevel(level)


LOG = logging.getLogger("tests.of.logs")


def test_record_is_one_line(output: Output) -> None:
    LOG.warning("two\nlines and %s", "ümlaut")
    (record,) = output.records()
    assert record.pop("time").endswith("Z")
    assert record == {"level": "warning", "logger": "tests.of.logs", "message": "two\nlines and ümlaut"}


def test_records_in_job_log_context_name_job(output: Output) -> None:
    with job_log_context("team/mnist"):
        LOG.info("one")
        with job_log_context("team/other"):
            logging.getLogger("another.library").info("two")
        LOG.info("three")
    LOG.info("four")
    LOG.info("five", extra={"job": "team/named"})
    assert [record.get("job") for record in output.records()] == [
        "team/mnist",
        "team/other",
        "team/mnist",
        None,
        "team/named",
    ]


def test_job_log_context_is_separate_for_each_thread(output: Output) -> None:
    def work(job: str) -> None:
        with job_log_context(job):
            LOG.info("%s", job)

    with job_log_context("team/lead"), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (f"team/{n}" for n in range(50))))
    assert all(record["job"] == record["message"] for record in output.records())


def test_record_contains_exception(output: Output) -> None:
    try:
        raise ValueError("no good")
    except ValueError:
        LOG.exception("it failed")
    (record,) = output.records()
    assert "ValueError: no good" in record["exception"]
    assert len(output.lines()) == 1


@pytest.mark.parametrize("output", [LogFormat.TEXT], indirect=True)
def test_text_format_names_job(output: Output) -> None:
    with job_log_context("team/mnist"):
        LOG.info("started")
    LOG.info("idle")
    assert output.lines()[0].endswith("INFO tests.of.logs: team/mnist: started")
    assert output.lines()[1].endswith("INFO tests.of.logs: idle")


def test_debug_logs_of_http_clients_are_suppressed(output: Output) -> None:
    logging.getLogger("urllib3.connectionpool").debug("GET /")
    logging.getLogger("kubernetes.client.rest").debug("response body: secret")
    assert output.lines() == []


def test_log_level_is_set_by_option_or_environment_variable(tmp_path: Path) -> None:
    """An invalid level is refused with a list of all levels."""
    command = [sys.executable, "-m", "tf_dist", "controller", "--kubeconfig", str(tmp_path / "none")]

    def said(*arguments: str, **environ: str) -> str:
        done = subprocess.run(
            [*command, *arguments],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode != 0
        return done.stderr

    for wrong in (said("--log-level", "loud"), said(TF_DIST_LOG_LEVEL="loud")):
        assert "'debug', 'info', 'warning', 'error'" in " ".join(wrong.replace("│", " ").split())
    for right in (said("--log-level", "debug"), said(TF_DIST_LOG_LEVEL="error")):
        assert str(tmp_path / "none") in right.replace("\n", ""), "it goes on to what else is wrong"


@pytest.mark.parametrize("level", list(Level))
def test_level_passes_records_of_same_or_higher_severity(level: Level) -> None:
    stream, root = io.StringIO(), logging.getLogger()
    before = root.level
    handler = configure_logging(LogFormat.TEXT, level=level.number, stream=stream)
    try:
        for one in Level:
            logging.getLogger("tf_dist.levels").log(one.number, "this is %s", one.value)
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    order = list(Level)
    heard = [one for one in order if f"this is {one.value}" in stream.getvalue()]
    assert heard == order[order.index(level) :]

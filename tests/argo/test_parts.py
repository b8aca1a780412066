"""The parts of the launcher that work without a cluster."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.argo.stage import job
from tests.waiting import until
from tf_dist.argo.launcher import contract
from tf_dist.argo.launcher.launcher_arguments import LauncherOptions
from tf_dist.argo.launcher.log_writer import LogWriter
from tf_dist.argo.launcher.step_job import step_document
from tf_dist.argo.launcher.step_outputs import ProgressFile, StepOutputs, progress_outputs
from tf_dist.client.log_follower import LogLines
from tf_dist.client.monitor import JobSnapshot
from tf_dist.core.diagnostics.metrics_parser import Progress
from tf_dist.core.model.job import ReplicaId
from tf_dist.errors import InvalidJob

# The job


def made(options: LauncherOptions, home: str = "ml") -> dict[str, Any]:
    return step_document(options, home)[0].document


def options(document: Any, **more: Any) -> LauncherOptions:
    import json

    step = {"workflow": "wf", "workflow_uid": "u-1", "node": "wf.train"}
    return LauncherOptions(job=json.dumps(document), **{**step, **more})


def test_job_name_is_same_for_every_try() -> None:
    first, again = (made(options(job("true"), retry=number)) for number in (0, 1))
    assert first == again
    others = [options(job("true"), node="wf.other"), options(job("true"), workflow_uid="u-2")]
    assert len({made(one)["metadata"]["name"] for one in others} | {first["metadata"]["name"]}) == 3


@given(name=st.from_regex(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?", fullmatch=True), workers=st.integers(1, 2000))
def test_pod_names_have_at_most_63_characters(name: str, workers: int) -> None:
    entry, _ = step_document(options(job("true", name=name, workers=workers)), "ml")
    assert re.fullmatch(r".+-[a-z0-9]{8}", entry.job.key.name)
    assert len(f"{entry.job.key.name}-worker-{workers - 1}") <= 63


def test_job_metadata_names_workflow() -> None:
    metadata = made(options(job("true")))["metadata"]
    assert metadata["labels"] == {contract.WORKFLOW_LABEL: "wf", contract.WORKFLOW_UID: "u-1"}
    assert metadata["annotations"] == {contract.NODE: "wf.train"}
    assert metadata["ownerReferences"][0]["uid"] == "u-1"
    elsewhere = made(options(job("true"), namespace="research"))["metadata"]
    assert "ownerReferences" not in elsewhere  # an owner must be in the same namespace


def test_job_without_workflow_keeps_name() -> None:
    metadata = made(options(job("true"), workflow="", workflow_uid="", node=""))["metadata"]
    assert metadata["name"] == "tiny"
    assert "ownerReferences" not in metadata


def test_step_arguments_are_validated() -> None:
    with pytest.raises(InvalidJob, match="apiVersion"):
        made(options({"kind": "TFJob"}))
    with pytest.raises(InvalidJob, match="1 ps replica is asked for"):
        made(options(job("true"), ps=1))


# Outputs


def test_outputs_are_written_atomically(tmp_path: Path) -> None:
    outputs, seen, stop = StepOutputs(tmp_path / "out"), set(), threading.Event()
    outputs.start("tiny")

    def read() -> None:
        while not stop.is_set():
            seen.add((tmp_path / "out" / "checkpoint").read_text())

    reader = threading.Thread(target=read)
    reader.start()
    values = [letter * 3000 for letter in "abcdefgh"] * 20
    for value in values:
        outputs.put({"checkpoint": value})
    stop.set()
    reader.join()
    assert seen <= {*values, ""}
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_deleted_output_folder_is_reported(tmp_path: Path) -> None:
    outputs = StepOutputs(tmp_path / "out")
    outputs.start("tiny")
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    (tmp_path / "out").rmdir()
    outputs.put({"status": "Running"})
    assert "cannot write the output status" in outputs.problem


def test_nan_metrics_are_valid_json() -> None:
    found = progress_outputs(Progress({"loss": float("nan"), "step": 3.0, "a": 0.25}))
    assert found["metrics"] == '{"a": 0.25, "loss": "nan", "step": 3.0}'
    assert (found["metric-step"], found["metric-a"], found["metric-loss"]) == ("3", "0.25", "nan")


def test_many_metrics_stay_valid_json_within_limit(tmp_path: Path) -> None:
    progress = Progress()
    for number in range(16_000):
        progress = progress.after(f"loss={number} a_metric_with_quite_a_long_name_of_the_layer_{number}=0.125")
    outputs = StepOutputs(tmp_path)
    outputs.put(progress_outputs(progress))
    written = (tmp_path / "metrics").read_text()
    assert 3_500 < len(written) <= 4_096
    assert json.loads(written)["loss"] == 15_999
    assert len([*tmp_path.iterdir()]) <= 102
    assert (tmp_path / "metric-loss").read_text() == "15999"


@pytest.mark.parametrize(
    ("metrics", "total", "shown"),
    [
        ({"step": 3.0}, 10, "3/10"),
        ({"step": 30.0}, 10, "10/10"),
        ({"step": 3.0, "total_steps": 12.0}, None, "3/12"),
        ({"step": 3.0}, None, ""),
        ({"step": float("nan")}, 10, ""),
        ({}, 10, ""),
    ],
)
def test_progress_file_contains_step_and_total(
    tmp_path: Path, metrics: dict[str, float], total: int | None, shown: str
) -> None:
    file = tmp_path / "progress"
    ProgressFile(file, total).show(Progress(metrics))
    assert (file.read_text().strip() if file.exists() else "") == shown


def test_shorter_progress_overwrites_whole_file(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path / "progress", 1000)
    for step, shown in ((1000, "1000/1000"), (5, "5/1000")):
        progress.show(Progress({"step": float(step)}))
        assert (tmp_path / "progress").read_text().strip() == shown


# The log writer


def lines(*texts: str) -> list[LogLines]:
    return [LogLines(ReplicaId("worker", 0), "worker-0", texts)]


def test_slow_reader_blocks_writer() -> None:
    reading, writing = os.pipe()
    log_writer = LogWriter(writing)
    try:
        chunk = ["x" * 1000] * 100
        filled = threading.Event()

        def fill() -> None:
            for _ in range(40):
                log_writer.show(JobSnapshot(_job()), lines(*chunk))
            filled.set()

        thread = threading.Thread(target=fill)
        thread.start()
        until(lambda: log_writer.behind, 60)
        assert not filled.is_set()
        got = 0
        while not (filled.is_set() and got >= 40 * 100 * 1012):
            got += len(os.read(reading, 1 << 16))
        thread.join()
    finally:
        log_writer.close()
        os.close(reading)
        os.close(writing)


def test_hurry_drops_lines() -> None:
    reading, writing = os.pipe()
    log_writer = LogWriter(writing)
    log_writer.hurry()
    for _ in range(40):
        log_writer.show(JobSnapshot(_job()), lines(*["x" * 1000] * 100))
    assert log_writer.finish(0) is False
    os.close(reading)  # the writer's thread ends with the pipe
    os.close(writing)


def test_closed_pipe_is_ignored() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log_writer = LogWriter(writing)
    for _ in range(3):
        log_writer.say("hello")
    assert log_writer.finish(60)
    os.close(writing)


def _job() -> Any:
    return step_document(options(job("true")), "ml")[0].job

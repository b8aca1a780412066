"""``run`` in Python: a job on this machine from start to result. Nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.core.builders import START, pod, running, v1_job, views
from tests.waiting import until
from tf_dist import Client, InvalidJob, JobFailed, OutcomeKind, Result, TFJob, run
from tf_dist.client.connection import Connection
from tf_dist.client.job_display import NotebookView
from tf_dist.client.job_files import InvalidFiles
from tf_dist.client.monitor import Ending, JobSnapshot
from tf_dist.core.diagnostics.replicas import replica_states
from tf_dist.core.model.status import Admission, Phase, Status
from tf_dist.core.pipeline.session import Seen, decide_end, run_policy
from tf_dist.errors import AdmissionTimeout
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings

SECONDS = 120
FOREVER = "touch runs; trap 'exit 0' TERM; while :; do sleep 0.05; done"


POLICIES = {"restart_policy": "Never", "success_policy": "AllWorkers"}


def job(script: str, **fields: Any) -> TFJob:
    return TFJob("job", image="none", **({"command": ["sh", "-c", script]} | POLICIES | fields))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_result_contains_outcome_metrics_checkpoint_and_logs(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    script = 'echo "step=3 loss=0.5"; echo checkpoint=m/3; pwd'
    result = run(job(script, workers=2), timeout=SECONDS).raise_for_outcome()
    assert (result.succeeded, result.state, result.name) == (True, "Succeeded", "job")
    assert (result.outcome.kind, result.outcome.checkpoint) == (OutcomeKind.SUCCEEDED, "m/3")
    assert result.metrics == {"step": 3.0, "loss": 0.5}
    assert result.checkpoint == "m/3"
    lines = ("step=3 loss=0.5", "checkpoint=m/3", str(folder))
    assert result.logs == {"worker-0": lines, "worker-1": lines}
    assert (result.findings, sum(result.restarts.values())) == ((), 0)
    assert "worker-1 | step=3 loss=0.5\n" in capsys.readouterr().out
    assert "<td>worker-1</td>" in result._repr_html_()
    assert re.fullmatch(r"Result\(job: Succeeded, \d+\.\ds, loss=0\.5000, step=3, checkpoint=m/3\)", repr(result))


def test_outcome_contains_used_and_lost_gpu_seconds() -> None:
    again = "test -e again && exit; touch again; sleep 1.5; exit 1"
    fields: dict[str, Any] = {"resources": {"nvidia.com/gpu": 2}, "restart_policy": "OnFailure"}
    result = run(job(again, **fields), node={"nvidia.com/gpu": 2, "cpu": 4}, show=False, timeout=SECONDS)
    outcome = result.raise_for_outcome().outcome
    assert outcome.restarts == 1
    assert 2 <= outcome.lost_gpu_seconds <= outcome.gpu_seconds
    assert outcome.lost_gpu_seconds == pytest.approx(2 * outcome.lost_replica_seconds, abs=0.01)
    assert outcome.goodput is not None
    assert 0 <= outcome.goodput < 1


def test_failed_job_raises_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(job("echo '<b>why</b>'; exit 3"), show=False, timeout=SECONDS)
    assert (result.outcome.kind, result.outcome.exit_code) == (OutcomeKind.FAILED, 3)
    assert result.outcome.log == "<b>why</b>"
    with pytest.raises(JobFailed, match="worker-0 exited with code 3") as caught:
        result.raise_for_outcome()
    assert caught.value.outcome == result.outcome
    assert "<b>why" not in result._repr_html_()
    assert capsys.readouterr().out == ""


def test_result_keeps_last_thousand_lines() -> None:
    result = run(job("seq 1 5000"), show=False, timeout=SECONDS)
    assert result.logs["worker-0"] == tuple(str(number) for number in range(4001, 5001))


def test_run_opens_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []
    monkeypatch.setattr(socket.socket, "listen", lambda self, *_: opened.append(self))
    assert run(job("true"), show=False, timeout=SECONDS).succeeded
    assert opened == []


def test_run_works_in_any_thread() -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda text: run(job(f"echo {text}"), show=False, timeout=SECONDS), "ab"))
    assert [result.logs["worker-0"] for result in results] == [("a",), ("b",)]


def test_keyboard_interrupt_ends_job_before_it_is_raised(folder: Path) -> None:
    def interrupt() -> None:
        until((folder / "runs").exists, SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup would ignore SIGINT
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt, match=r"^job was interrupted, and its pods have ended$") as caught:
            run(job(f"{FOREVER}"), show=False, timeout=SECONDS)
        shown = caught.value._render_traceback_()  # type: ignore[attr-defined]  # what a notebook asks an exception
        assert shown == [f"KeyboardInterrupt: {caught.value}"]
    finally:
        thread.join()
        after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler


def test_job_file_runs_in_its_folder_and_keep_stores_logs(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "job.yaml").write_text(job("pwd").to_yaml())
    result = run(elsewhere / "job.yaml", show=False, keep=folder / "kept", timeout=SECONDS)
    assert result.logs["worker-0"] == (str(elsewhere),)
    assert run(elsewhere / "job.yaml", show=False, workdir=folder, timeout=SECONDS).logs["worker-0"] == (str(folder),)
    (log,) = (folder / "kept/logs").rglob("*.log")
    assert log.read_text().rstrip().endswith(str(elsewhere))


@pytest.mark.parametrize(
    ("fields", "arguments", "path"),
    [
        ({}, {"network": "fast"}, "network"),
        ({}, {"workdir": "not-there"}, "workdir"),
        ({"run_policy": {"suspend": True}}, {}, ""),
        ({"command": ["no-such-program"]}, {}, "spec.tfReplicaSpecs.Worker.template.spec.containers[0]"),
    ],
)
def test_impossible_job_is_rejected_before_start(
    fields: dict[str, Any], arguments: dict[str, Any], path: str, folder: Path
) -> None:
    with pytest.raises(InvalidJob) as caught:
        run(job("touch started", **fields), show=False, **arguments)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert all(problem.hint for problem in caught.value.problems)
    assert not (folder / "started").exists()


def test_run_deletes_job_and_follow_keeps_job() -> None:
    with EmbeddedCluster(EmbeddedSettings(serve=False)) as embedded:
        client = Client(connection=Connection(embedded.cluster, "default", "the test's cluster"))
        assert run(job("echo here"), client=client, show=False, timeout=SECONDS).logs == {"worker-0": ("here",)}
        assert client.list() == []
        stored = client.submit(job("echo step=7"))
        followed = client.follow(stored, show=False, timeout=SECONDS)
        assert (followed.outcome.kind, followed.metrics) == (OutcomeKind.SUCCEEDED, {"step": 7.0})
        assert [one.name for one in client.list()] == ["job"]


def test_missing_admission_raises_admission_timeout() -> None:
    job, status = v1_job(), Status(created=time.time() - 100)
    end = decide_end(run_policy(deadline=time.time()), Seen(now=time.time(), job=job, status=status))
    assert end is not None
    waiting = Result(end, JobSnapshot(job, status), 1.0)
    with pytest.raises(AdmissionTimeout):
        waiting.raise_for_outcome()
    assert waiting.outcome.waited_seconds == pytest.approx(100, abs=60)


class Displayed:
    """Replaces IPython's display handle, and records all updates."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, snapshot: JobSnapshot, *, display_id: bool) -> Displayed:
        assert display_id
        self.update(snapshot)
        return self

    def update(self, snapshot: JobSnapshot) -> None:
        self.shown.append(snapshot._repr_html_())


def test_notebook_updates_one_table_to_last_state() -> None:
    job, cell = v1_job(), Displayed()
    view = NotebookView(cell.display)
    for phase in (Phase.PENDING, Phase.RUNNING, Phase.COMPLETED):
        status = Status(phase=phase, admission=Admission(START), message="of three replicas")
        pods = views(pod(job, "worker-0", running()))
        view.show(JobSnapshot(job, status, pods, replica_states(job, status, pods)), [])
    view.close()
    assert len(cell.shown) == 2
    assert view.tick is not None
    assert view.tick <= 1, "what comes too soon to be drawn is drawn a second later"
    assert "is Pending: of three replicas" in cell.shown[0]
    assert "is Succeeded" in cell.shown[-1]
    assert "<td>worker-0</td>" in cell.shown[-1]


@pytest.mark.parametrize(
    ("phase", "ending", "title"),
    [
        (Phase.COMPLETING, None, "mnist is Succeeded"),
        (Phase.RUNNING, Ending("interrupted by SIGINT", 0.0, "kill"), "mnist is interrupted by SIGINT"),
    ],
)
def test_last_table_agrees_with_outcome(phase: Phase, ending: Ending | None, title: str) -> None:
    snapshot = JobSnapshot(v1_job(), Status(phase=phase, admission=Admission(START)), ending=ending)
    assert title in snapshot._repr_html_()


def test_missing_file_is_rejected(folder: Path) -> None:
    with pytest.raises(InvalidFiles, match=r"no\.yaml"):
        run(folder / "no.yaml")

"""The DAGs in dags/ import without errors and run like in production.

One test trains with TensorFlow. The others run a program with the same output and files (tests/stand_in).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.running import read_dags, run
from tests.airflow.site import SECONDS
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS
from tf_dist.local import daemon_control as lasting

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "dags"
NAMES = sorted(path.stem for path in DAGS.glob("*.py"))


@pytest.fixture(scope="module")
def local(airflow_db: None) -> Iterator[str]:
    """The folder of a running local cluster, started like ``tf-dist local up``."""
    with tempfile.TemporaryDirectory(prefix="td-") as folder:
        lasting.up(lasting.DaemonSettings(state_dir=folder, workdir=folder), timeout=SECONDS)
        try:
            yield folder
        finally:
            lasting.down(Path(folder))


@pytest.fixture
def where(local: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The DAGs specify no cluster, so they use the running local cluster, like the command line."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("TF_DIST_HOME", local)
    monkeypatch.setenv("DIGITS_INBOX", str(tmp_path / "digits.new"))
    yield
    cluster = lasting.connect()
    until(lambda: not cluster.list(TFJOBS, "default").items and not cluster.list(PODS, "default").items, SECONDS)


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A copy of the DAGs, with examples that do not train."""
    digits = tmp_path / "examples" / "digits"
    shutil.copytree(ROOT / "examples" / "digits", digits)
    shutil.copy(ROOT / "tests" / "stand_in" / "train.py", digits)
    # The job ends so early that its pods would be deleted before their logs are read.
    job = (digits / "tfjob.yaml").read_text()
    (digits / "tfjob.yaml").write_text(job.replace("cleanPodPolicy: All", "cleanPodPolicy: Running"))
    return shutil.copytree(DAGS, tmp_path / "dags")


def read(name: str, folder: Path = DAGS) -> Any:
    """The DAG of a file, read by Airflow."""
    bag = read_dags(folder / f"{name}.py")
    assert bag.import_errors == {}
    (dag,) = bag.dags.values()
    return dag


@pytest.mark.parametrize("name", NAMES)
def test_dag_file_imports_without_errors(airflow_db: None, name: str) -> None:
    dag = read(name)
    assert dag.dag_id == name
    assert dag.doc_md
    assert not dag.catchup


def evict_a_worker() -> None:
    """Delete a worker's pod as soon as it runs."""
    cluster = lasting.connect()

    def runs() -> list[str]:
        pods = cluster.list(PODS, "default").items
        running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
        return [pod["metadata"]["name"] for pod in running if pod["metadata"]["name"].endswith("worker-1")]

    until(lambda: bool(runs()), SECONDS)
    cluster.delete(PODS, "default", runs()[0])


class TestRunning:
    @pytest.mark.slow  # tests/examples runs this example, too
    def test_digits_train_reports_steps(self, where: None, stand_in: Path) -> None:
        found = run(read("digits_train", stand_in), run_conf={"steps": 300})
        assert found.tasks == {"train": "success"}
        assert found.xcom("train")["metrics"]["step"] >= 300

    @pytest.mark.slow
    @pytest.mark.tensorflow
    @pytest.mark.timeout(900)
    @pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="TensorFlow is missing: pip install '.[tensorflow]'",
    )
    def test_digits_retrain_promotes_only_better_models(self, where: None) -> None:
        first = run(read("digits_retrain"), run_conf={"steps": 1500})
        assert set(first.tasks.values()) == {"success"}
        promoted = first.xcom("promote")
        assert promoted["accuracy"] == first.xcom("evaluate")["accuracy"] > 0.5
        assert Path(os.path.dirname(promoted["checkpoint"])).is_dir()
        second = run(read("digits_retrain"), run_conf={"steps": 2})
        assert second.tasks == {"train": "success", "evaluate": "success", "promote": "skipped", "report": "success"}

    @pytest.mark.slow
    def test_tuning_sweep_selects_best_rate(self, where: None, stand_in: Path) -> None:
        found = run(read("tuning_sweep", stand_in), run_conf={"steps": 200, "rates": [0.0001, 0.2]})
        assert found.xcom("best")["rate"] == 0.2

    def test_evicted_or_failed_publishes_successful_run(self, where: None, stand_in: Path) -> None:
        found = run(read("evicted_or_failed", stand_in), run_conf={"steps": 200})
        assert (found.tasks["resume"], found.tasks["page"], found.state) == ("skipped", "skipped", "success")
        assert found.xcom("train", "outcome")["kind"] == "succeeded"
        assert found.xcom("publish") == found.xcom("train")["checkpoint"]

    @pytest.mark.slow
    def test_evicted_or_failed_resumes_after_eviction(self, where: None, stand_in: Path) -> None:
        evicting = threading.Thread(target=evict_a_worker)
        evicting.start()
        found = run(read("evicted_or_failed", stand_in), run_conf={"steps": 20_000})
        evicting.join()
        outcome = found.xcom("train", "outcome")
        assert (outcome["kind"], outcome["replica"], outcome["disruptions"]) == ("evicted", "worker-1", 1)
        assert (found.tasks["train"], found.tasks["resume"], found.tasks["page"]) == ("failed", "success", "skipped")
        assert found.xcom("publish") == found.xcom("resume")["checkpoint"]
        assert found.state == "success"

    @pytest.mark.slow
    def test_evicted_or_failed_pages_after_failure(self, where: None, stand_in: Path) -> None:
        job = stand_in.parent / "examples" / "digits" / "tfjob.yaml"
        broken = '[python, -c, "raise SystemExit(3)"]'
        job.write_text(job.read_text().replace("[python, train.py]", broken))
        found = run(read("evicted_or_failed", stand_in))
        outcome = found.xcom("train", "outcome")
        assert outcome["kind"] == "failed"
        assert outcome["exit_code"] == 3
        assert (found.tasks["resume"], found.tasks["page"], found.tasks["publish"]) == ("skipped", "failed", "skipped")
        assert found.state == "failed"

    def test_gang_fallback_runs_with_smaller_gang(self, where: None, stand_in: Path) -> None:
        dag = stand_in / "gang_fallback.py"
        text = dag.read_text()
        for said, here in (
            ("GPUS, FEWER = 8, 4", "GPUS, FEWER = 500, 1"),  # more than any machine has
            ('{"nvidia.com/gpu": 1}', "{}"),
            ("ADMISSION_TIMEOUT = 600.0", "ADMISSION_TIMEOUT = 1.0"),
        ):
            assert said in text
            text = text.replace(said, here)
        dag.write_text(text)
        found = run(read("gang_fallback", stand_in), run_conf={"steps": 100})
        assert found.tasks == {"train": "success", "which": "success"}
        assert found.xcom("which") == 1
        outcome = found.xcom("train", "outcome")
        assert (outcome["kind"], outcome["fallback"]) == ("succeeded", 1)

    @pytest.mark.slow
    def test_gang_wait_fails_when_job_fails(self, where: None, stand_in: Path) -> None:
        job = stand_in.parent / "examples" / "digits" / "tfjob.yaml"
        job.write_text(job.read_text().replace("[python, train.py]", '[python, -c, "raise SystemExit(3)"]'))
        dag = read("gang_wait", stand_in)
        found = run(dag.partial_subset(["submit", "admitted", "finished", "clean_up"]))
        assert (found.tasks["finished"], found.tasks["clean_up"], found.state) == ("failed", "success", "failed")

    def test_gang_wait_succeeds(self, where: None, stand_in: Path) -> None:
        found = run(read("gang_wait", stand_in), run_conf={"steps": 100})
        assert set(found.tasks.values()) == {"success"}

    @pytest.mark.slow
    def test_pause_at_night_suspends_and_resumes_job(self, where: None, stand_in: Path) -> None:
        # Enough steps that the job still runs when it is suspended.
        conf = {"steps": 120_000, "night_seconds": 0, "workers": 1}
        found = run(read("pause_at_night", stand_in), run_conf=conf)
        assert set(found.tasks.values()) == {"success"}
        assert found.xcom("scale")["status"] == "Suspended"
        assert found.xcom("finished")["name"] == found.xcom("submit")["name"] == "digits-by-day"

"""The files and commands of the tutorials work unchanged."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Program, tf_dist
from tf_dist.cluster.api import TFJOBS
from tf_dist.core.dialects import parse
from tf_dist.core.model.job import Role
from tf_dist.local.embedded import EmbeddedCluster, EmbeddedSettings, write_private_json

__all__ = ["tf_dist"]

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def files(page: str) -> dict[str, str]:
    """The files that readers of a page save."""
    text = (TUTORIALS / page).read_text()
    return dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL))


def commands(page: str) -> list[str]:
    """The commands of a page, in order."""
    return re.findall(r"^\$ (.*)$", (TUTORIALS / page).read_text(), flags=re.MULTILINE)


@pytest.fixture
def reader(tf_dist: Program) -> Program:
    """A folder with the files of the first tutorial."""
    for name, text in files("laptop.md").items():
        tf_dist.write(name, text)
    return tf_dist


def test_laptop_tutorial_job_is_validated_planned_and_run(reader: Program) -> None:
    told = {line: reader(*shlex.split(line)[1:]) for line in commands("laptop.md") if line.endswith(" hello.yaml")}
    assert [done.returncode for done in told.values()] == [0, 0, 0], told
    shown = told["tf-dist run hello.yaml"].stdout
    # The job succeeds only when both workers have succeeded, so no worker is stopped before its output.
    assert "worker-0 is Succeeded" in shown
    assert "worker-1 is Succeeded" in shown
    assert "worker-0 | I am worker 0" in shown
    assert "worker-1 | I am worker 1" in shown
    assert "hello: Succeeded" in shown
    assert not reader.leftovers()


def test_laptop_tutorial_job_succeeds_only_with_all_workers() -> None:
    (rule,) = parse(yaml.safe_load(files("laptop.md")["hello.yaml"])).job.success
    assert (rule.type, rule.index) == (Role.WORKER, None)


def test_laptop_tutorial_mistake_is_reported(reader: Program) -> None:
    (line,) = [line for line in commands("laptop.md") if line.startswith("sed ")]
    subprocess.run(line, shell=True, check=True, cwd=reader.folder)
    found = reader("validate", "wrong.yaml")
    assert found.returncode == 2
    assert f"$ tf-dist validate wrong.yaml\n{found.stdout}```" in (TUTORIALS / "laptop.md").read_text()


def test_laptop_tutorial_python_trains(reader: Program) -> None:
    done = subprocess.run(
        [sys.executable, "hello.py"], cwd=reader.folder, env=reader.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'loss': 0.5" in done.stdout


def test_first_installation_job_is_valid() -> None:
    (job,) = (yaml.safe_load(text) for text in files("first-installation.md").values())
    assert parse(job).job.replicas


def test_first_dag_has_tasks_and_test_command() -> None:
    pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")
    names: dict[str, object] = {}
    exec(compile(files("first-dag.md")["hello_training.py"], "hello_training.py", "exec"), names)
    dag = names["dag"] if "dag" in names else names["train"].dag  # type: ignore[attr-defined]
    assert dag.task_ids == ["train", "report"]
    assert {line for line in commands("first-dag.md") if "dags test" in line} == {f"airflow dags test {dag.dag_id}"}


@pytest.mark.slow
def test_first_dag_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")
    from examples.airflow import demo

    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "hello_training.py").write_text(files("first-dag.md")["hello_training.py"])
    monkeypatch.setattr(demo, "DAGS", tmp_path / "dags")
    with EmbeddedCluster(EmbeddedSettings(workdir=tmp_path)) as cluster:
        write_private_json(cluster.kubeconfig(), tmp_path / "kubeconfig")
        code = demo.run("hello_training", tmp_path, tmp_path / "kubeconfig")
        assert not cluster.cluster.list(TFJOBS).items, "a job that succeeded is deleted"
    told = capfd.readouterr().out
    assert code == 0, told
    assert "worker-0 | step=100 loss=0.20 accuracy=0.95" in told

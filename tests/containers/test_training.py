"""The shipped jobs in real containers: all three formats, ``tf-dist run``, an Argo step and an Airflow task."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.containers.conftest import TFJOBS, Namespace, shipped
from tests.containers.steps import export, run_step
from tf_dist.argo.launcher.contract import OUTPUTS

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]
ACCURATE = 0.9


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("tfjob.yaml", TFJOBS),
        ("tfjob-v1alpha1.yaml", "tfjobs.v1alpha1.kubeflow.org"),
        ("volcano-job.yaml", "jobs.batch.volcano.sh"),
    ],
)
def test_shipped_examples_train_unchanged(namespace: Namespace, file: str, kind: str) -> None:
    name = namespace.apply(shipped(file))
    log = namespace.tf_dist("logs", "-f", name)
    namespace.tf_dist("wait", name, "--timeout", "60")
    found = re.findall(r"accuracy=(\S+) checkpoint=", log)
    assert found, log
    assert float(found[-1]) >= ACCURATE
    namespace.delete(name, kind)


def test_run_reports_job_and_leaves_nothing(namespace: Namespace, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(shipped("tfjob.yaml", name="run"))
    report = json.loads(namespace.tf_dist("run", str(file), "-o", "json", "--kubeconfig", namespace.kubeconfig))
    assert (report["state"], report["exitCode"]) == ("Succeeded", 0)
    assert report["metrics"]["accuracy"] >= ACCURATE
    assert report["metrics"]["step"] == 4000
    assert "run" not in namespace.jobs()
    assert not namespace.objects("leases")


def test_argo_step_trains_and_outputs_results(namespace: Namespace, tmp_path: Path) -> None:
    """Uses the template and the role that ``tf-dist workflows export`` writes."""
    export(namespace, tmp_path)
    found = yaml.safe_load((tmp_path / "tf-dist-templates.yaml").read_text())["spec"]["templates"]
    template = next(one for one in found if one["name"] == "tf-job")
    outputs = run_step(namespace, template, job=shipped("tfjob.yaml"))
    assert outputs.keys() >= OUTPUTS.keys()
    assert (outputs["outcome"], outputs["status"]) == ("succeeded", "Succeeded")
    assert json.loads(outputs["metrics"])["accuracy"] >= ACCURATE
    assert "model.ckpt-4000" in outputs["checkpoint"]


@pytest.mark.filterwarnings("ignore")
def test_airflow_task_trains_and_pushes_results(
    namespace: Namespace, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")
    request.getfixturevalue("airflow_db")
    from airflow.sdk import DAG

    from tests.airflow.running import run
    from tf_dist.airflow import TFJobOperator

    job = yaml.safe_load(shipped("tfjob.yaml", name="task"))
    with DAG("containers", schedule=None) as dag:
        TFJobOperator(task_id="train", job=job, namespace=namespace.name, config_file=namespace.kubeconfig)
    found = run(dag)
    assert found.tasks == {"train": "success"}
    result = found.xcom("train")
    assert result["metrics"]["step"] == 4000
    assert result["metrics"]["accuracy"] >= ACCURATE
    assert not [name for name in namespace.jobs() if name.startswith("task")]

"""``@task.tfjob``: a function as the code of every replica."""

from __future__ import annotations

import sys

import pytest

from tests.airflow.running import run
from tests.airflow.site import Site

pytest.importorskip("airflow", reason="Airflow is missing: pip install 'tf-dist[airflow]'")

from airflow.sdk import DAG, task

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_every_replica_runs_the_function_with_its_arguments(site: Site) -> None:
    with DAG("decorated") as dag:

        @task
        def numbers() -> list[float]:
            return [1.5, 2.5]

        @task.tfjob(workers=2, python=sys.executable, config_file=site.kubeconfig, deferrable=True)
        def add(values: list[float], *, more: dict[str, float], text: str) -> dict[str, object]:
            """Adds, and says who it is."""
            import json
            import os

            me = json.loads(os.environ["TF_CONFIG"])["task"]
            print(f"{text} of {me['type']} {me['index']}")
            return {"total": sum(values) + more["x"], "checkpoint": "/tmp/m"}

        add(numbers(), more={"x": 1.0}, text="'\"$(HOME) {{ dag.dag_id }}")

    found = run(dag)
    assert found.tasks["add"] == "success"
    result = found.xcom("add")
    assert (result["metrics"], result["checkpoint"]) == ({"total": 5.0}, "/tmp/m")
    assert result["name"].startswith("add-")


def test_arguments_that_are_no_json_and_functions_that_are_too_large(site: Site) -> None:
    with DAG("refused") as dag:

        @task.tfjob(config_file=site.kubeconfig)
        def train(value: object) -> None:
            pass

        train.override(task_id="no_json")({1, 2})
        train.override(task_id="large")("x" * 200_000)

    found = run(dag)
    assert found.tasks == {"no_json": "failed", "large": "failed"}

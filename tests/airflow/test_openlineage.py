"""The events that OpenLineage's provider emits for a task, written to a file."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.site import SECONDS, Site

pytest.importorskip("airflow", reason="Airflow is missing: pip install 'tf-dist[airflow]'")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("airflow.providers.openlineage") is None,
    reason="no OpenLineage provider: pip install apache-airflow-providers-openlineage",
)

_DAG = """
import os
from airflow.sdk import DAG
from tests.airflow.running import run
from tests.airflow.site import document
from tf_dist.airflow import TFJobOperator

WHERE = {"config_file": os.environ["TD_KUBECONFIG"], "trigger_rule": "all_done"}
SAID = "echo accuracy=0.5 checkpoint=gs://models/7"
with DAG("lineage") as dag:
    train = TFJobOperator(task_id="train", job=document(SAID), **WHERE)
    later = TFJobOperator(task_id="later", job=document(SAID), deferrable=True, **WHERE)
    train >> later >> TFJobOperator(task_id="fails", job=document(f"{SAID}; exit 3"), **WHERE)
print(run(dag).tasks)
"""


@pytest.fixture(scope="module")
def events(site: Site, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All events emitted while a DAG ran."""
    file = tmp_path_factory.mktemp("lineage") / "events.json"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    root = str(Path(__file__).parents[2])
    env = {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport), "TD_KUBECONFIG": site.kubeconfig}
    done = subprocess.run(
        [sys.executable, "-c", _DAG],
        env=os.environ | env | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "'fails': 'failed'" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("task", "type", "status"),
    [("train", "COMPLETE", "Succeeded"), ("later", "COMPLETE", "Succeeded"), ("fails", "FAIL", "Failed")],
)
def test_event_contains_checkpoint_and_job_status(
    events: list[dict[str, Any]], task: str, type: str, status: str
) -> None:
    (event,) = [one for one in events if one["job"]["name"] == f"lineage.{task}" and one["eventType"] == type]
    assert [(one["namespace"], one["name"]) for one in event["outputs"]] == [("gs://models", "7")]
    facet = event["run"]["facets"]["tfDist_job"]
    assert (facet["status"], facet["metrics"], facet["namespace"]) == (status, {"accuracy": 0.5}, "default")
    assert facet["name"].startswith("job-")

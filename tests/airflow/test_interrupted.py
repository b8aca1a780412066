"""An interrupted ``dag.test()`` run deletes or keeps its job and reports which."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.airflow.site import SECONDS, Site
from tests.child_processes import signals_heard
from tests.waiting import until

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]

_DAG = """
import os
from airflow.sdk import DAG
from tests.airflow.running import run
from tests.airflow.site import FOREVER, document
from tf_dist.airflow import TFJobOperator

with DAG("interrupted") as dag:
    TFJobOperator(
        task_id="train", job=document(FOREVER), config_file=os.environ["TD_KUBECONFIG"],
        deferrable=bool(os.environ["TD_DEFERRABLE"]), on_kill_action=os.environ["TD_ACTION"],
    )
run(dag)
"""

_CASES = list(product([signal.SIGINT, signal.SIGTERM], ["", "1"], ["delete_job", "keep_job"]))


@pytest.mark.parametrize(
    ("number", "deferrable", "action"), _CASES, ids=lambda value: getattr(value, "name", value) or "in the worker"
)
def test_interrupted_run_deletes_or_keeps_job(site: Site, number: signal.Signals, deferrable: str, action: str) -> None:
    env = {"TD_KUBECONFIG": site.kubeconfig, "TD_DEFERRABLE": deferrable, "TD_ACTION": action}
    root = str(Path(__file__).parents[2])
    with signals_heard():
        process = subprocess.Popen(
            [sys.executable, "-c", _DAG],
            env=os.environ | env | {"PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        until(lambda: bool(site.leases()) and bool(site.pods()), 2 * SECONDS)  # it imports Airflow
        process.send_signal(number)
        out, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    kept = action == "keep_job"
    assert bool(site.names()) is kept, out[-4000:]
    assert ("continues" if kept else "is deleted: this run was interrupted") in out or "the run was interrupted" in out

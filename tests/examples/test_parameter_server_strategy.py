"""TensorFlow 2's ParameterServerStrategy in jobs with an evaluator, with fixed and with dynamic workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.examples.test_digits import trains

pytestmark = trains

PROGRAM = """\
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import tensorflow as tf

task = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if task.task_type in ("ps", "worker"):
    server = tf.distribute.Server(task.cluster_spec(), job_name=task.task_type, task_index=task.task_id)
    server.join()
elif task.task_type == "chief":
    strategy = tf.distribute.ParameterServerStrategy(task)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        step = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def count():
        strategy.run(lambda: step.assign_add(1, read_value=False))

    for _ in range(8):
        coordinator.schedule(count)
    coordinator.join()
    print(f"step={int(step.numpy())}", flush=True)
else:
    tf.io.gfile.exists(task.master())
"""


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed workers", "dynamic workers"])
def test_parameter_server_strategy_trains_with_evaluator(tmp_path: Path, dynamic: bool) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    container = {"name": "tensorflow", "image": "any", "command": ["python", "train.py"]}
    counts = {"Chief": 1, "PS": 2, "Worker": 2, "Evaluator": 1}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "strategy"},
        "spec": {
            # If its TF_CONFIG named the evaluator, the chief would wait forever for the evaluator's server.
            "runPolicy": {"cleanPodPolicy": "All", "activeDeadlineSeconds": 300},
            "enableDynamicWorker": dynamic,
            "tfReplicaSpecs": {
                type_: {"replicas": count, "template": {"spec": {"containers": [container]}}}
                for type_, count in counts.items()
            },
        },
    }
    (tmp_path / "tfjob.yaml").write_text(yaml.safe_dump(job))
    program = Path(sys.executable).with_name("tf-dist")
    command = [program, "run", tmp_path / "tfjob.yaml", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["step"] == 8

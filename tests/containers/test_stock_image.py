"""A folder with a script, and an image that has TensorFlow and nothing of tf-dist: one command trains."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.containers.conftest import Namespace

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]
VARIABLE = "TF_DIST_TEST_TENSORFLOW"
SCRIPT = """\
import json
import os

import tensorflow.compat.v1 as tf

from data import batch  # of the same folder

tf.disable_v2_behavior()
task = json.loads(os.environ["TF_CONFIG"])
cluster, me = tf.train.ClusterSpec(task["cluster"]), task["task"]
server = tf.train.Server(cluster, job_name=me["type"], task_index=me["index"])
if me["type"] == "ps":
    server.join()
with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{me['index']}", cluster=cluster)):
    features, labels = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
    weights = tf.get_variable("weights", [4, 1])
    scores = tf.matmul(features, weights)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=scores))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(scores > 0, labels > 0.5), tf.float32))
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
hooks = [tf.train.StopAtStepHook(last_step=300)]
with tf.train.MonitoredTrainingSession(server.target, is_chief=me["index"] == 0, hooks=hooks) as session:
    while not session.should_stop():
        x, y = batch()
        _, number, right = session.run([train, step, accuracy], {features: x, labels: y})
        print(f"step={number} accuracy={right:.4f}", flush=True)
"""
DATA = """\
import numpy as np


def batch():
    x = np.random.randn(256, 4)
    return x, (x.sum(axis=1, keepdims=True) > 0).astype(float)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a user."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "data.py").write_text(DATA)
    return tmp_path


@pytest.fixture
def image() -> str:
    """An image that has TensorFlow."""
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"no image with TensorFlow: {VARIABLE} names one that the nodes have (docs/testing.md)")
    return found


def test_one_command_trains_a_folder(namespace: Namespace, folder: Path, image: str) -> None:
    options = ("--workers", "2", "--ps", "1", "--image", image, "--kubeconfig", namespace.kubeconfig)
    report = json.loads(namespace.tf_dist("run", str(folder / "train.py"), *options, "-o", "json"))
    assert (report["state"], report["exitCode"]) == ("Succeeded", 0)
    assert report["metrics"]["step"] > 250  # worker 1 may do the last
    assert report["metrics"]["accuracy"] > 0.9
    assert "train" not in namespace.jobs()
    assert not [one for one in namespace.objects("configmaps") if "-code-" in one["metadata"]["name"]]


def test_describe_shows_the_accuracy_of_a_submitted_folder(namespace: Namespace, folder: Path, image: str) -> None:
    options = ("--workers", "2", "--ps", "1", "--image", image, "--name", "submitted")
    namespace.tf_dist("submit", str(folder / "train.py"), *options)
    namespace.tf_dist("wait", "submitted", "--timeout", "240")
    namespace.until_shown(("describe", "submitted"), "accuracy", "Succeeded")
    namespace.delete("submitted")

"""One command trains a folder with a script, in an image that has TensorFlow but not tf-dist."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from tests.containers.conftest import IMAGE, ROOT, Namespace
from tests.containers.steps import export, run_step
from tests.waiting import until
from tf_dist import TFJob

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
    made = tmp_path / "mine"
    made.mkdir()
    (made / "train.py").write_text(SCRIPT)
    (made / "data.py").write_text(DATA)
    return made


@pytest.fixture
def image() -> str:
    """An image with TensorFlow."""
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"no image with TensorFlow: {VARIABLE} names one that the nodes have (docs/testing.md)")
    return found


def code_of(namespace: Namespace) -> list[str]:
    """The ConfigMaps with code in the namespace."""
    names = [one["metadata"]["name"] for one in namespace.objects("configmaps")]
    return [name for name in names if "-code-" in name]


def test_run_trains_folder_and_deletes_code(namespace: Namespace, folder: Path, image: str) -> None:
    (folder / "vocabulary.bin").write_bytes(os.urandom(7 << 20))  # eight ConfigMaps
    with (folder / "data.py").open("a") as data:
        data.write("import os\nprint(f'size={os.path.getsize(\"vocabulary.bin\")}', flush=True)\n")
    options = ("--workers", "2", "--ps", "1", "--image", image, "--kubeconfig", namespace.kubeconfig)
    report = json.loads(namespace.tf_dist("run", str(folder / "train.py"), *options, "-o", "json"))
    assert (report["state"], report["exitCode"]) == ("Succeeded", 0)
    assert report["metrics"]["step"] > 250  # worker 1 may do the last steps
    assert report["metrics"]["accuracy"] > 0.9
    assert report["metrics"]["size"] == 7 << 20
    assert "train" not in namespace.jobs()
    until(lambda: not code_of(namespace), 30, every=0.5)


def test_describe_shows_accuracy_of_submitted_folder(namespace: Namespace, folder: Path, image: str) -> None:
    options = ("--workers", "2", "--ps", "1", "--image", image, "--name", "submitted")
    namespace.tf_dist("submit", str(folder / "train.py"), *options)
    namespace.tf_dist("wait", "submitted", "--timeout", "240")
    namespace.until_shown(("describe", "submitted"), "accuracy", "Succeeded")
    namespace.delete("submitted")


def test_restricted_pods_train_folder(other: Namespace, folder: Path, image: str) -> None:
    """In a namespace that enforces restricted pods, with a read-only root file system in addition."""
    server = json.loads(other.kubectl("version", "-o", "json"))["serverVersion"]
    if int(server["minor"].rstrip("+")) < 25:
        pytest.skip("this API server has no Pod Security admission: it is in 1.25 and later")
    other.kubectl("label", "namespace", other.name, "pod-security.kubernetes.io/enforce=restricted")
    options = ("--kubeconfig", other.kubeconfig, "-o", "json")
    refused = other.start_tf_dist("run", str(folder / "train.py"), "--name", "refused", "--image", image, *options)
    try:
        other.until_shown(("explain", "refused"), "violates PodSecurity", "runAsUser: 1000", seconds=120)
    finally:
        refused.send_signal(signal.SIGINT)
        said, _ = refused.communicate(timeout=60)
    assert "violates PodSecurity" in said
    page = (ROOT / "docs" / "your-script.md").read_text()
    spec = yaml.safe_load(page.partition('title="restricted.yaml"\n')[2].partition("```")[0])["spec"]
    (container,) = spec.pop("containers")
    container["securityContext"]["readOnlyRootFilesystem"] = True
    del container["name"]
    job = TFJob.from_script(
        folder / "train.py", name="restricted", image=image, workers=2, ps=1, pod=spec, container=container
    )
    (folder / "job.yaml").write_text(job.to_yaml())
    report = json.loads(other.tf_dist("run", str(folder / "job.yaml"), *options))
    assert (report["state"], report["exitCode"]) == ("Succeeded", 0)
    assert report["metrics"]["accuracy"] > 0.9


def test_failed_package_installation_is_reported(namespace: Namespace, folder: Path, image: str) -> None:
    """The nodes cannot reach a package index."""
    options = ("--image", image, "--package", "tiny-data==1.0", "--kubeconfig", namespace.kubeconfig)
    report = json.loads(namespace.tf_dist("run", str(folder / "train.py"), *options, "-o", "json", check=False))
    assert (report["state"], report["exitCode"]) == ("Failed", 1)
    assert "package tiny-data==1.0 was not installed" in json.dumps(report)


def test_argo_step_sends_folder(namespace: Namespace, folder: Path, image: str, tmp_path: Path) -> None:
    hera = pytest.importorskip("hera.workflows", reason="Hera is missing: pip install '.[argo]'")
    from tf_dist.argo import TFJobStep

    export(namespace, tmp_path / "shipped")
    job = TFJob(image=image, command=["python3", "train.py"], workers=2, ps=1)
    with hera.Workflow(name="step", entrypoint="train") as workflow:
        TFJobStep(name="train", job=job, code=str(folder), image=IMAGE)
    (template,) = workflow.to_dict()["spec"]["templates"]
    outputs = run_step(namespace, template)
    assert (outputs["outcome"], outputs["status"]) == ("succeeded", "Succeeded")
    assert json.loads(outputs["metrics"])["accuracy"] > 0.9


@pytest.mark.filterwarnings("ignore")
def test_airflow_task_sends_folder(
    namespace: Namespace, folder: Path, image: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")
    request.getfixturevalue("airflow_db")
    from airflow.sdk import DAG

    from tests.airflow.running import run
    from tf_dist.airflow import TFJobOperator

    with DAG("folder", schedule=None) as dag:
        TFJobOperator(
            task_id="train",
            image=image,
            command=["python3", "train.py"],
            workers=2,
            ps=1,
            code=str(folder),
            namespace=namespace.name,
            config_file=namespace.kubeconfig,
        )
    found = run(dag)
    assert found.tasks == {"train": "success"}
    assert found.xcom("train")["metrics"]["accuracy"] > 0.9
    until(lambda: not code_of(namespace), 30, every=0.5)

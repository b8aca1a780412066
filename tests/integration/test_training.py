"""Real training on a real control plane: API server, scheduler, kubelet, controller and TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.kubelet.bench import processes_with
from tests.integration.node import ROOT, NodeProcess
from tests.waiting import until
from tf_dist.cluster.api import PODS, TFJOBS, Cluster
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller
from tf_dist.controller.settings import ControllerSettings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.tensorflow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="TensorFlow is missing: pip install '.[tensorflow]'",
    ),
]

SCRIPT = ROOT / "examples" / "digits" / "train.py"


@pytest.fixture
def driven(real: RestCluster, namespace: str) -> Iterator[None]:
    driver = Controller(real, settings=ControllerSettings(namespace=namespace))
    driver.start()
    yield
    driver.stop()


def submit(cluster: Cluster, namespace: str, node: NodeProcess, folder: Path, steps: int) -> None:
    """Submit the digits example on this node, with its models in ``folder``. Its pods are kept for their logs."""
    job: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "digits" / "tfjob.yaml").read_text())
    job["spec"]["runPolicy"]["cleanPodPolicy"] = "Running"
    for replica in job["spec"]["tfReplicaSpecs"].values():
        spec = replica["template"]["spec"]
        spec["nodeSelector"] = {"kubernetes.io/hostname": node.name}
        spec["containers"][0]["command"] = ["python", str(SCRIPT)]
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["containers"][0]["args"] = [f"--model-dir={folder}", f"--steps={steps}"]
    worker["containers"][0]["volumeMounts"] = [{"name": "model", "mountPath": str(folder)}]
    worker["volumes"] = [{"name": "model", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}]
    cluster.create(TFJOBS, namespace, job)


def phase(cluster: Cluster, namespace: str) -> str:
    return str(cluster.get(TFJOBS, namespace, "digits").get("status", {}).get("tfDist", {}).get("phase", ""))


def over(cluster: Cluster, namespace: str) -> None:
    until(lambda: phase(cluster, namespace) in ("Completed", "Failed"), 400, every=0.5)
    status = cluster.get(TFJOBS, namespace, "digits")["status"]
    assert status["tfDist"]["phase"] == "Completed", status


def steps_done(node: NodeProcess, namespace: str) -> int:
    found = re.findall(r"step=(\d+)", node.log(namespace, "digits-worker-0"))
    return max(map(int, found), default=0)


def workers(cluster: Cluster, namespace: str) -> dict[str, str]:
    found = cluster.list(PODS, namespace, labels="tf-dist.dev/replica-type=worker").items
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in found}


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]


@pytest.mark.usefixtures("driven")
def test_job_trains_to_completion_and_leaves_nothing(
    real: RestCluster, namespace: str, node: NodeProcess, tmp_path: Path
) -> None:
    node.start()
    submit(real, namespace, node, tmp_path / "model", 600)
    over(real, namespace)

    pods = real.list(PODS, namespace).items
    assert {pod["spec"]["nodeName"] for pod in pods} == {node.name}
    assert "accuracy=" in node.log(namespace, "digits-worker-0")

    real.delete(TFJOBS, namespace, "digits")
    until(lambda: not real.list(PODS, namespace).items, 90)
    until(lambda: not os.listdir(node.state / "pods"), 90)
    assert not processes_with(str(SCRIPT))
    assert node.end() == 0
    assert not processes_with(str(node.state))
    assert not mounts_below(tmp_path)


@pytest.mark.usefixtures("driven")
def test_restarted_kubelet_keeps_pods_of_killed_kubelet(
    real: RestCluster, namespace: str, node: NodeProcess, tmp_path: Path
) -> None:
    node.start()
    submit(real, namespace, node, tmp_path / "model", 6000)
    until(lambda: steps_done(node, namespace) >= 300, 240, every=0.5)
    before = workers(real, namespace)
    assert len(before) == 2

    node.end(number=signal.SIGKILL)
    node.start()
    over(real, namespace)

    assert workers(real, namespace) == before  # no pod was replaced
    status = real.get(TFJOBS, namespace, "digits")["status"]["tfDist"]
    assert not status.get("restarts")
    assert not status.get("containerRestarts")

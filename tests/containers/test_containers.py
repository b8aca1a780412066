"""Jobs in real containers, through the controller: they train, and what goes wrong is said as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.containers.conftest import Namespace, small_job
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]
DIGITS = Path(__file__).parents[2] / "examples" / "digits"
VOLCANO = "jobs.batch.volcano.sh"
ACCURATE = 0.9


def steps(name: str, number: int) -> str:
    """The shipped TFJob, called ``name``, with another number of steps."""
    document = yaml.safe_load((DIGITS / "tfjob.yaml").read_text())
    document["metadata"]["name"] = name
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["args"][1] = f"--steps={number}"
    return yaml.safe_dump(document)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("tfjob.yaml", "tfjobs.kubeflow.org"),
        ("tfjob-v1alpha1.yaml", "tfjobs.v1alpha1.kubeflow.org"),
        ("volcano-job.yaml", VOLCANO),
    ],
)
def test_the_shipped_examples_train_as_they_are(namespace: Namespace, file: str, kind: str) -> None:
    name = yaml.safe_load((DIGITS / file).read_text())["metadata"]["name"]
    namespace.kubectl("apply", "-f", str(DIGITS / file))
    log = namespace.tf_dist("logs", "-f", name)
    namespace.tf_dist("wait", name, "--timeout", "60")
    accuracy = [line for line in log.splitlines() if "checkpoint=" in line][-1].partition("accuracy=")[2].split()[0]
    assert float(accuracy) >= ACCURATE
    namespace.delete(name, kind)


def test_a_worker_that_is_evicted_comes_back_and_training_goes_on(namespace: Namespace) -> None:
    name, worker = "evicted", "evicted-worker-1"
    namespace.kubectl("apply", "-f", "-", given=steps(name, 6000))
    namespace.until_said(worker, "step=")
    before = namespace.pods()[worker]["metadata"]["uid"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": worker}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{worker}/eviction"
    namespace.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction))
    until(lambda: namespace.pods().get(worker, {"metadata": {"uid": before}})["metadata"]["uid"] != before, 60)
    assert namespace.until_ended(name)["type"] == "Succeeded"
    namespace.delete(name)


def explained(namespace: Namespace, document: str) -> str:
    """What ``tf-dist explain`` says of a job that has failed."""
    name = yaml.safe_load(document)["metadata"]["name"]
    namespace.kubectl("apply", "-f", "-", given=document)
    assert namespace.until_ended(name, 120)["type"] == "Failed"
    said = namespace.tf_dist("explain", name, check=False)
    namespace.delete(name)
    return said


def test_a_container_that_needs_too_much_memory_is_named_as_that(namespace: Namespace) -> None:
    greedy = "exec python -c 'x = bytearray(10**9)'"
    document = small_job("greedy", greedy, resources={"limits": {"memory": "64Mi"}}, restartPolicy="Never")
    assert "resources.limits.memory" in explained(namespace, document)

"""``plan`` and ``convert``: what is printed, byte for byte where others build on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Program

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "digits"

PLAN = """\
TFJob default/job (kubeflow.org/v1)
gang: at least 2 of 2 pods start together; it needs cpu 1, memory 2Gi, pods 2

KIND     NAME          DETAIL
Service  job-worker-0  headless, port 2222
Service  job-worker-1  headless, port 2222
Pod      job-worker-0  tensorflow: none
Pod      job-worker-1  tensorflow: none

worker-0 TF_CONFIG
  {"cluster":{"worker":["job-worker-0.default.svc:2222","job-worker-1.default.svc:2222"]},\
"task":{"type":"worker","index":0},"environment":"cloud"}

worker-1 TF_CONFIG
  {"cluster":{"worker":["job-worker-0.default.svc:2222","job-worker-1.default.svc:2222"]},\
"task":{"type":"worker","index":1},"environment":"cloud"}
"""


def sized(tf_dist: Program) -> dict[str, Any]:
    job = tf_dist.job(workers=1)
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    return job


def test_the_table(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", sized(tf_dist))
    found = tf_dist("plan", file, "--set", "spec.tfReplicaSpecs.Worker.replicas=2")
    assert (found.returncode, found.stdout, found.stderr) == (0, PLAN, "")


@pytest.mark.parametrize("example", ["tfjob.yaml", "tfjob-v1alpha1.yaml", "volcano-job.yaml"])
def test_yaml_is_a_stream_of_objects_without_owner(tf_dist: Program, example: str) -> None:
    found = tf_dist("plan", str(EXAMPLES / example), "-o", "yaml")
    objects = list(yaml.safe_load_all(found.stdout))
    assert found.returncode == 0
    assert all({"apiVersion", "kind", "metadata", "spec"} <= set(one) or one["kind"] == "ConfigMap" for one in objects)
    assert not any("ownerReferences" in one["metadata"] for one in objects)
    assert [one["kind"] for one in objects if one["kind"] == "Pod"] == ["Pod"] * 3
    selectors = [one["spec"]["selector"] for one in objects if one["kind"] == "Service"]
    labels = [one["metadata"]["labels"] for one in objects if one["kind"] == "Pod"]
    assert all(any(selector.items() <= found.items() for found in labels) for selector in selectors)


def test_json_has_each_tf_config(tf_dist: Program) -> None:
    companion = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}
    file = tf_dist.write("job.yaml", companion, sized(tf_dist))
    found = tf_dist("plan", file, "-o", "json", "--set", "spec.tfReplicaSpecs.Worker.replicas=2")
    report = json.loads(found.stdout)
    assert report["job"] == {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "job", "namespace": "default"}
    assert report["requests"] == {"cpu": "1", "memory": "2Gi", "pods": "2"}
    assert report["objects"][0] == companion
    assert report["tfConfig"]["worker-0"]["task"] == {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("spec.tfReplicaSpecs.Wroker.replicas=3", "did you mean Worker?"),
        ("spec.tfReplicaSpecs.Worker.replicas=many", "spec.tfReplicaSpecs.Worker.replicas"),
        ("nonsense", "--set: there is no '=' in 'nonsense'"),
    ],
)
def test_a_change_that_is_wrong(tf_dist: Program, change: str, told: str) -> None:
    found = tf_dist("plan", tf_dist.write("job.yaml", tf_dist.job()), "--set", change)
    assert (found.returncode, found.stdout) == (2, "")
    assert told in found.stderr


def test_one_job_at_a_time(tf_dist: Program) -> None:
    found = tf_dist("plan", tf_dist.write("job.yaml", tf_dist.job(), tf_dist.job(name="other")))
    assert found.returncode == 2
    assert "document 2: one job is run at a time, and there are 2: job, other" in found.stderr


TARGETS = ["kubeflow.org/v1", "kubeflow.org/v1alpha1", "batch.volcano.sh/v1alpha1"]


@pytest.mark.parametrize("target", TARGETS)
def test_convert_gives_a_valid_job(tf_dist: Program, target: str) -> None:
    found = tf_dist("convert", str(EXAMPLES / "tfjob.yaml"), "--to", target)
    assert found.returncode == 0, found.stderr
    assert yaml.safe_load(found.stdout)["apiVersion"] == target
    again = tf_dist("validate", "-", stdin=found.stdout)
    assert again.returncode == 0, again.stdout


def test_convert_says_what_it_cannot_carry(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", tf_dist.job())
    found = tf_dist("convert", file, "--to", "batch.volcano.sh/v1alpha1")
    strict = tf_dist("convert", file, "--to", "batch.volcano.sh/v1alpha1", "--strict")
    assert (found.returncode, strict.returncode) == (0, 2)
    assert "warning: job.yaml:1: spec." in found.stderr
    assert found.stdout == strict.stdout


def test_convert_keeps_what_stands_beside_the_job(tf_dist: Program) -> None:
    companion = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    found = tf_dist("convert", tf_dist.write("job.yaml", companion, tf_dist.job()), "--to", "kubeflow.org/v1")
    assert [one["kind"] for one in yaml.safe_load_all(found.stdout)] == ["ConfigMap", "TFJob"]


def test_convert_to_what_there_is_not(tf_dist: Program) -> None:
    found = tf_dist("convert", tf_dist.write("job.yaml", tf_dist.job()), "--to", "kubeflow.org/v2")
    assert found.returncode == 2
    assert "did you mean kubeflow.org/v1?" in found.stderr

"""The v1alpha1 manifests of tf-operator 0.1 to 0.3 and of the DRAGON fork, each as a minimal equivalent document.

The names are paths in those repositories. The documents are our own and contain the parts of the originals that matter.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.core.dialects.documents import Doc
from tf_dist.core.dialects import convert, parse, read
from tf_dist.core.model.job import CleanPodPolicy, Dialect
from tf_dist.core.podbuilder import replica_pod, services
from tf_dist.errors import InvalidJob
from tools.definitions.crds import tfjobs


def entry(kind: str = "", replicas: int | None = None, **container: Any) -> Doc:
    pod = {"restartPolicy": "OnFailure", "containers": [{"name": "tensorflow", "image": "sample:1", **container}]}
    said: Doc = {"tfReplicaType": kind} if kind else {}
    return {**said, **({} if replicas is None else {"replicas": replicas}), "template": {"spec": pod}}


def tfjob(name: str, *entries: Doc, **spec: Any) -> Doc:
    return {
        "apiVersion": "kubeflow.org/v1alpha1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": list(entries), **spec},
    }


THREE_TYPES = (entry("MASTER", 1), entry("WORKER", 1), entry("PS", 2))
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
VALID: dict[str, tuple[Doc, dict[str, int]]] = {
    "examples/tf_job.yaml": (tfjob("example-job", *THREE_TYPES), {"master": 1, "worker": 1, "ps": 2}),
    "examples/tf_job_defaults.yaml": (tfjob("example-job-defaults", entry()), {"master": 1}),
    "examples/tf_job_gpu.yaml": (tfjob("tf-smoke-gpu", entry("MASTER", **GPU)), {"master": 1}),
    "examples/tf_job_clean_policy.yaml": (
        tfjob("clean-policy-job", entry("MASTER", 1), entry("WORKER", 1), cleanupPodPolicy="All"),
        {"master": 1, "worker": 1},
    ),
    "test/workflows/components/simple_tfjob.jsonnet": (
        tfjob("simple", *THREE_TYPES),
        {"master": 1, "worker": 1, "ps": 2},
    ),
    "test/workflows/components/gpu_tfjob.jsonnet": (tfjob("gpu", entry("MASTER", **GPU)), {"master": 1}),
    "tf-job-operator-chart/templates/tests/basic-test.yaml": (
        tfjob("basic", *THREE_TYPES),
        {"master": 1, "worker": 1, "ps": 2},
    ),
    "README.md, a job with a chief of its own": (
        tfjob("chief", entry("WORKER", 2), terminationPolicy={"chief": {"replicaName": "WORKER", "replicaIndex": 0}}),
        {"worker": 2},
    ),
    "README.md, the default parameter server": (
        tfjob("default-ps", entry("MASTER", 1), {"tfReplicaType": "PS", "replicas": 2}),
        {"master": 1, "ps": 2},
    ),
}


@pytest.mark.parametrize("name", VALID)
def test_manifest_runs_unchanged(name: str) -> None:
    document, counts = VALID[name]
    found = parse(document)
    assert found.warnings == ()
    job = read({**document, "metadata": {**document["metadata"], "uid": "u"}})
    assert {spec.type: spec.replicas for spec in job.replica_specs} == counts
    bodies = [replica_pod.build_pod(job, replica, "1.0.0") for replica in job.replicas]
    starts = [f"{job.key.name[:40]}-{replica.type}-{job.runtime_id}-{replica.index}-" for replica in job.replicas]
    assert [body["metadata"]["name"][: len(start)] for body, start in zip(bodies, starts, strict=True)] == starts
    assert len(services.build_objects(job)) == sum(counts.values())


def test_clean_up_policy_is_used() -> None:
    job = parse(VALID["examples/tf_job_clean_policy.yaml"][0]).job
    assert job.run_policy.clean_pods is CleanPodPolicy.ALL


@pytest.mark.parametrize("name", [name for name in VALID if "default parameter server" not in name])
def test_manifest_is_converted(name: str) -> None:
    found = convert(VALID[name][0])
    assert parse(found.document).job.dialect is Dialect.TFJOB_V1


REFUSED = {
    # The chart writes replica_specs, a key of a release before 0.1, which later operators do not read.
    "examples/tf_job/templates/tf_job.yaml": (
        {**tfjob("chart"), "spec": {"replica_specs": [entry("MASTER", 1)]}},
        "spec.replica_specs",
    ),
    "pkg/trainer/training_test.go, no chief": (
        tfjob("no-chief", entry("WORKER", 2)),
        "spec.terminationPolicy.chief.replicaName",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_manifest_is_refused(name: str) -> None:
    document, path = REFUSED[name]
    with pytest.raises(InvalidJob) as caught:
        parse(document)
    assert path in [problem.path for problem in caught.value.problems], yaml.safe_dump(document)


DRAGON_SPEC = ("min-instance", "max-instance", "batch-size", "modelName", "total-number", "RuntimeId")
DRAGON_2_SPEC = ("min-instances", "max-instances")
STATUS = ("phase", "reason", "state", "replicaStatuses", "enqueueScheduleTime", "startRunTime", "jobFinishTime")


@pytest.mark.parametrize("version", [one["name"] for one in tfjobs()["spec"]["versions"]])
@pytest.mark.parametrize(("part", "keys"), [("spec", DRAGON_SPEC + DRAGON_2_SPEC), ("status", STATUS)])
def test_crd_keeps_every_key(version: str, part: str, keys: tuple[str, ...]) -> None:
    """A cluster drops keys that are not in the CRD, unless the CRD preserves unknown fields."""
    (found,) = (one for one in tfjobs()["spec"]["versions"] if one["name"] == version)
    schema = found["schema"]["openAPIV3Schema"]["properties"][part]
    lost = [key for key in keys if key not in schema.get("properties", {})]
    assert not lost or schema.get("x-kubernetes-preserve-unknown-fields") is True

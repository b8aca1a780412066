"""Pods and TF_CONFIG: training-operator 1.9, ``pod_test.go``, ``job_test.go``, ``tensorflow_test.go``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.tfjob_v1_jobs import NAME, conditions, document, end, true_conditions, world
from tf_dist.core.dialects import parse
from tf_dist.core.dialects.common_schema import SERVICES_ANNOTATION
from tf_dist.core.model.job import ReplicaId, TFConfigStyle
from tf_dist.core.model.names import EVALUATOR_IN_CLUSTER
from tf_dist.core.podbuilder.tf_config import build_tf_config, cluster_hosts


def host(type_: str, namespace: str, domain: str = "", index: int = 0) -> str:
    return f"{NAME}-{type_}-{index}.{namespace}.svc{domain and '.'}{domain}:2222"


@pytest.mark.parametrize(
    ("counts", "namespace", "domain"),
    [
        ({"worker": 1}, "ns0", ""),
        ({"worker": 1}, "ns1", "tf.training.com"),
        ({"worker": 1, "ps": 1}, "ns2", "tf.training.org"),
        ({"worker": 1, "ps": 1, "evaluator": 1}, "ns3", "tf.training.io"),
        ({"worker": 1, "ps": 1, "evaluator": 1}, "ns3", ""),
    ],
)
def test_cluster_spec(counts: Any, namespace: str, domain: str) -> None:
    """pod_test.go, "Test ClusterSpec": the domain follows ``svc``, and a lone replica has no TF_CONFIG."""
    job = parse(document(None, namespace, **counts)).job
    job = replace(job, cluster_domain=domain, annotations={EVALUATOR_IN_CLUSTER: "true"})
    cluster = {type_: [host(type_, namespace, domain)] for type_ in sorted(counts)}
    whole = {"cluster": cluster, "task": {"type": "worker", "index": 0}, "environment": "cloud"}
    expected = None if counts == {"worker": 1} else json.dumps(whole, separators=(",", ":"))
    assert build_tf_config(job, ReplicaId("worker", 0), cluster_hosts(job)) == expected


def test_sparse_cluster_spec() -> None:
    """tensorflow_test.go: under ``cluster`` since 1.7 (before: ``sparseCluster``, which TensorFlow does not read)."""
    content = document(worker=1, ps=2)
    content["spec"]["enableDynamicWorker"] = True
    job = parse(content).job
    servers = [host("ps", "default", index=index) for index in range(2)]
    expected = {
        ReplicaId("worker", 0): {"worker": {"0": host("worker", "default")}, "ps": servers},
        ReplicaId("ps", 0): {"worker": {}, "ps": servers[:1]},
    }
    for replica, cluster in expected.items():
        value = build_tf_config(job, replica, cluster_hosts(job))
        assert value is not None
        assert json.loads(value) == {"cluster": cluster, "task": {"type": replica.type, "index": 0}}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("counts", "distributed"),
    [({"worker": 1}, False), ({"worker": 1, "ps": 1}, True), ({"ps": 1}, False), ({"chief": 1, "worker": 1}, True)],
)
def test_is_distributed(counts: Any, distributed: bool, dynamic: bool) -> None:
    """pod_test.go, "Test IsDistributed": a lone replica is not distributed, even if workers are dynamic."""
    content = document(**counts)
    content["spec"]["enableDynamicWorker"] = dynamic
    assert (parse(content).job.tf_config is not TFConfigStyle.NONE) is distributed


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("ExitCode", "Never"), ("Never", "Never"), ("Always", "Always"), ("OnFailure", "OnFailure"), (None, "Never")],
)
def test_restart_policy_of_pods(policy: str | None, expected: str) -> None:
    """pod_test.go, "Test Restart Policy"."""
    made = world(document(policy, worker=1))
    assert {pod["spec"]["restartPolicy"] for pod in made.pods.values()} == {expected}


@pytest.mark.parametrize(
    ("code", "expected"),
    [(1, "Failed"), (2, "Failed"), (126, "Failed"), (127, "Failed"), (128, "Restarting")]
    + [(code, "Restarting") for code in (130, 137, 138, 139, 143, 255)],
)
def test_exit_codes(code: int, expected: str) -> None:
    """pod_test.go, "Test Exit Code" and "Test Unretryable Exit Code"; train_util.go: from 128 on."""
    made = world(document("ExitCode", worker=1))
    end(made, worker_0=code)
    made.step()
    assert true_conditions(made) == {"Created", expected}
    made.settle()
    assert bool([pod for pod in made.pods.values() if pod["status"]["phase"] == "Pending"]) is (expected != "Failed")


@pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 3)])
def test_dynamic_workers_are_scaled(before: int, after: int) -> None:
    """pod_test.go, "Test Scale Down" and "Test Scale Up": the highest indexes are deleted, and others are kept."""
    content = document(worker=before, ps=1)
    content["spec"]["enableDynamicWorker"] = True
    made = world(content)
    uids = {name: pod["metadata"]["uid"] for name, pod in made.pods.items()}
    made.scale("worker", after)
    made.settle()
    workers = {name for name in made.pods if "worker" in name}
    assert workers == {f"{NAME}-worker-{index}" for index in range(after)}
    assert all(uids.get(name, pod["metadata"]["uid"]) == pod["metadata"]["uid"] for name, pod in made.pods.items())
    assert {name for _, name in made.objects} == set(made.pods)


@pytest.mark.parametrize(
    ("clean", "codes", "left"),
    [
        # job_test.go, "Test Delete Pods and Services". Its cases start with a succeeded job.
        ("All", {}, 0),
        ("Running", {}, 1),
        ("Running", {f"worker_{index}": 0 for index in range(1, 4)} | {"ps_0": 0, "ps_1": 0}, 6),
        ("None", {f"worker_{index}": 0 for index in range(1, 4)} | {"ps_0": 0, "ps_1": 0}, 6),
        ("None", {}, 6),
    ],
)
def test_clean_pod_policy(clean: str, codes: dict[str, int], left: int) -> None:
    """Worker 0 ends the job. A headless service, as in the original, is deleted with its pod."""
    content = document(worker=4, ps=2)
    content["metadata"]["annotations"] = {SERVICES_ANNOTATION: "headless"}
    made = world(content, cleanPodPolicy=clean)
    end(made, worker_0=0, **codes)
    made.settle()
    assert len(made.pods) == left
    assert {name for _, name in made.objects} == set(made.pods)


@pytest.mark.parametrize(("deadline", "left"), [(None, 6), (2, 0)])
def test_active_deadline(deadline: int | None, left: int) -> None:
    """job_test.go, "Test Active Deadline Seconds"."""
    made = world(document(worker=4, ps=2), cleanPodPolicy="All", activeDeadlineSeconds=deadline)
    made.now += 2
    made.settle()
    assert (len(made.pods), len(made.objects)) == (left, left)


def test_template_labels_and_annotations_are_copied_to_pods() -> None:
    """job_test.go, "Test Copy Labels and Annotation"."""
    content = document(worker=1)
    metadata = {"labels": {"label1": "1"}, "annotations": {"annotation1": "1"}}
    content["spec"]["tfReplicaSpecs"]["Worker"]["template"]["metadata"] = metadata
    (pod,) = world(content).pods.values()
    assert pod["metadata"]["labels"]["label1"] == pod["metadata"]["annotations"]["annotation1"] == "1"


def test_failed_dynamic_worker_does_not_end_job() -> None:
    """tfjob_controller.go, UpdateJobStatus. With ExitCode, the worker ends the job (common/pod.go)."""
    for policy, expected in (("Never", "Running"), ("ExitCode", "Failed")):
        content = document(policy, worker=3, ps=1)
        content["spec"]["enableDynamicWorker"] = True
        made = world(content)
        end(made, worker_1=1)
        made.settle()
        assert true_conditions(made) == {"Created", expected}
        assert conditions(made)["Created"]["reason"] == "TFJobCreated"

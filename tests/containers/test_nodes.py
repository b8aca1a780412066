"""What happens to nodes: a kubelet restarts or falls silent, a node is drained. On a node of the tests' own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.containers.conftest import LONG, Namespace, Node, shipped, small_job
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]


def test_a_kubelet_that_restarts_ends_no_log_and_spoils_no_result(
    namespace: Namespace, node: Node, tmp_path: Path
) -> None:
    """The API server then ends a log that is followed as if the container had ended."""
    file = tmp_path / "job.yaml"
    file.write_text(shipped("tfjob.yaml", steps=LONG, name="restarted"))
    with namespace.start_tf_dist("run", str(file), "-o", "json", "--kubeconfig", namespace.kubeconfig) as run:
        namespace.until_said("restarted-worker-0", "step=")
        node.stop("kubelet", "KILL")
        node.start("kubelet")
        said, _ = run.communicate(timeout=240)
    report = json.loads(said[said.index("\n{") :])
    assert report["state"] == "Succeeded"
    assert report["metrics"]["step"] == LONG
    assert all(row["restarts"] == 0 for row in report["replicas"])


def test_a_node_that_falls_silent_and_comes_back_costs_a_job_nothing(namespace: Namespace, node: Node) -> None:
    name, worker = namespace.apply(small_job("silent", "echo up; sleep 30")), "silent-worker-0"
    namespace.until_said(worker, "up")
    before = namespace.pods()[worker]["metadata"]["uid"]
    node.stop("kubelet", "STOP")
    try:
        namespace.until_shown(["explain", name], "is not ready: it may still run")
    finally:
        node.start("kubelet")
    assert namespace.until_ended(name) == "Succeeded"
    assert namespace.pods()[worker]["metadata"]["uid"] == before
    namespace.delete(name)


def test_a_job_whose_node_is_drained_waits_and_says_for_what(namespace: Namespace, node: Node) -> None:
    name, worker = namespace.apply(small_job("drained", "echo up; sleep 5")), "drained-worker-0"
    namespace.until_said(worker, "up")
    (where,) = [one["metadata"]["name"] for one in namespace.objects("nodes")]
    try:
        selector = f"--pod-selector=tf-dist.dev/job-name={name}"
        namespace.kubectl("drain", where, selector, "--force", "--delete-emptydir-data", "--timeout=60s")
        namespace.until_shown(["explain", name], "were unschedulable", "cordoned")
    finally:
        namespace.kubectl("uncordon", where)
    until(lambda: namespace.pods().get(worker, {}).get("spec", {}).get("nodeName") == where, 60, every=0.5)
    assert namespace.until_ended(name) == "Succeeded"
    namespace.delete(name)

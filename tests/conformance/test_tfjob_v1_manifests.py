"""The TFJobs of kubeflow/training-operator 1.9 (examples, notebooks, SDK), each as a minimal equivalent document.

The names are paths in that repository. The documents are our own and contain the parts of the originals that matter.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.tfjob_v1_jobs import document, end, run_all, true_conditions, world
from tests.core.world import WAIT, World
from tf_dist.core.dialects import parse
from tf_dist.core.model.assignment import Admit
from tf_dist.core.podbuilder import replica_pod, services
from tf_dist.errors import InvalidJob

Doc = dict[str, Any]
PS_LEFT = ("spec.runPolicy.cleanPodPolicy",)


def job(
    restart: str | None = "Never",
    *,
    pod: Any = None,
    container: Any = None,
    annotations: Any = None,
    policy: Any = None,
    **counts: int,
) -> Doc:
    """A TFJob with the same template for all replicas."""
    content = document(restart, **counts)
    for spec in content["spec"]["tfReplicaSpecs"].values():
        spec["template"]["spec"].update(pod or {})
        spec["template"]["spec"]["containers"][0].update(container or {})
        spec["template"]["metadata"] = {"annotations": annotations or {}}
    if policy is not None:
        content["spec"]["runPolicy"] = policy
    return content


def claim(name: str) -> Doc:
    return {"volumes": [{"name": "training", "persistentVolumeClaim": {"claimName": name}}]}


MOUNT = {"volumeMounts": [{"mountPath": "/train", "name": "training"}]}
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
KEEP = {"cleanPodPolicy": "None"}
LIMITS = {"resources": {"limits": {"cpu": "1.6", "memory": "4Gi"}}}
NO_SIDECAR = {"sidecar.istio.io/inject": "false"}


def gang(least: int) -> Doc:
    return job(
        worker=1,
        container=LIMITS,
        annotations=NO_SIDECAR,
        pod={"schedulerName": "volcano"},
        policy={**KEEP, "schedulingPolicy": {"minAvailable": least}},
    )


VALID: dict[str, tuple[Doc, dict[str, int], tuple[str, ...]]] = {
    "examples/tensorflow/dist-mnist/tf_job_mnist.yaml": (
        job(chief=1, ps=1, worker=2),
        {"chief": 1, "ps": 1, "worker": 2},
        PS_LEFT,
    ),
    "examples/tensorflow/distribution_strategy/multi_worker_tfjob.yaml": (
        job(worker=2, pod=claim("strategy-volume"), container={**MOUNT, **GPU}, policy=KEEP),
        {"worker": 2},
        (),
    ),
    "examples/tensorflow/mnist_with_summaries/tf_job_mnist.yaml": (
        job(worker=1, pod=claim("tfevent-volume"), container=MOUNT, policy=KEEP),
        {"worker": 1},
        (),
    ),
    "examples/tensorflow/simple.yaml": (job("OnFailure", worker=2), {"worker": 2}, ()),
    "examples/tensorflow/image-classification/create-tfjob.ipynb": (
        job(chief=1, ps=1, worker=2, policy=KEEP),
        {"chief": 1, "ps": 1, "worker": 2},
        (),
    ),
    "sdk/python/test/e2e/test_e2e_tfjob.py (test_sdk_e2e)": (
        job(worker=1, container=LIMITS, annotations=NO_SIDECAR, policy=KEEP),
        {"worker": 1},
        (),
    ),
    "sdk/python/test/e2e/test_e2e_tfjob.py (test_sdk_e2e_with_gang_scheduling)": (gang(1), {"worker": 1}, ()),
}


def ended(made: World) -> set[str]:
    """The true conditions after the replica that decides has ended with 0."""
    end(made, **{"chief_0" if made.has("chief-0") else "worker_0": 0})
    made.settle()
    return true_conditions(made)


@pytest.mark.parametrize("name", VALID)
def test_manifest_runs_unchanged(name: str) -> None:
    """The warnings of ``validate``, and the pods and services of ``plan``: one of each for each replica."""
    content, counts, warned = VALID[name]
    found = parse(content)
    assert tuple(warning.path for warning in found.warnings) == warned
    bodies = [replica_pod.build_pod(found.job, replica, "1.0.0") for replica in found.job.replicas]
    expected = sorted(f"test-tfjob-{type_}-{index}" for type_, count in counts.items() for index in range(count))
    assert sorted(body["metadata"]["name"] for body in bodies) == expected
    assert sorted(body["metadata"]["name"] for body in services.build_objects(found.job)) == expected
    assert ended(world(content)) == {"Created", "Succeeded"}


def test_gang_larger_than_job_is_refused() -> None:
    """The original's job of one worker with ``minAvailable: 10`` stays Created and can never start."""
    with pytest.raises(InvalidJob) as caught:
        parse(gang(10))
    assert [problem.path for problem in caught.value.problems] == ["spec.runPolicy.schedulingPolicy.minAvailable"]


def test_gang_without_capacity_is_created_and_not_running() -> None:
    """verify_unschedulable_job_e2e, then verify_job_e2e, of the SDK's own tests."""
    made = World(parse(gang(1)).job)
    made.verdict = WAIT
    made.settle()
    assert true_conditions(made) == {"Created"}
    assert not made.pods
    made.verdict = Admit()
    run_all(made)
    assert ended(made) == {"Created", "Succeeded"}

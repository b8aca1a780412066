"""Admission and defaults: training-operator 1.9, ``tfjob_webhook_test.go`` and ``tensorflow_defaults_test.go``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.tfjob_v1_jobs import document
from tf_dist.core.dialects import defaulted, parse
from tf_dist.core.reconciler.ownership import managed_elsewhere
from tf_dist.errors import InvalidJob

Doc = dict[str, Any]
WORKER = "spec.tfReplicaSpecs.Worker"
CONTAINERS = f"{WORKER}.template.spec.containers"
TRAINING_OPERATOR = "kubeflow.org/training-operator"


def job(*, name: str = "test", managed_by: str | None = None, **container: Any) -> Doc:
    """A job of two workers whose container has these keys."""
    content = document("OnFailure", worker=2)
    content["metadata"]["name"] = name
    if managed_by is not None:
        content["spec"]["runPolicy"] = {"managedBy": managed_by}
    content["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0].update(container)
    return content


def without(content: Doc, **changed: Any) -> Doc:
    content["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"].update(changed)
    return content


def none_of(kind: str) -> Doc:
    """A job with a parameter server and 0 replicas of this type."""
    content = document(ps=1, chief=int(kind == "Chief"), worker=1)
    content["spec"]["tfReplicaSpecs"][kind]["replicas"] = 0
    return content


REFUSED: dict[str, tuple[Doc, set[str]]] = {
    "TFJob name does not meet DNS1035": (job(name="00test"), {"metadata.name"}),
    # The original reports both that the pod has no containers and that no container is named tensorflow.
    "no containers": (without(job(), containers=[]), {CONTAINERS}),
    "empty image": (job(image=""), {f"{CONTAINERS}[0].image"}),
    # In this case, a container has no name. Kubernetes refuses that as well, and both problems are reported.
    "default container name doesn't present": (
        without(job(), containers=[{"name": "", "image": "x"}]),
        {CONTAINERS, f"{CONTAINERS}[0].name"},
    ),
    "more than 2 masterReplica's or ChiefReplica's": (document(chief=1, master=1), {"spec.tfReplicaSpecs.Master"}),
    "unsupported managedBy": (job(managed_by="other-job-controller"), {"spec.runPolicy.managedBy"}),
    # From the same function, without a case in the original test.
    "no tfReplicaSpecs": ({**job(), "spec": {}}, {"spec.tfReplicaSpecs"}),
    # Deliberate: the original accepts these jobs, which end at once or never.
    "no worker and no chief": (none_of("Worker"), {f"{WORKER}.replicas"}),
    "no chief of those there are to be": (none_of("Chief"), {"spec.tfReplicaSpecs.Chief.replicas"}),
    "another container only": (without(job(), containers=[{"name": "main", "image": "x"}]), {CONTAINERS}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_jobs_that_the_webhook_refuses(name: str) -> None:
    content, paths = REFUSED[name]
    with pytest.raises(InvalidJob) as caught:
        parse(content)
    assert {problem.path for problem in caught.value.problems} == paths


@pytest.mark.parametrize("manager", [None, TRAINING_OPERATOR, "kueue.x-k8s.io/multikueue"])
def test_accepts_jobs_that_the_webhook_accepts(manager: str | None) -> None:
    assert parse(job(managed_by=manager)).warnings == ()


@pytest.mark.parametrize(("least", "expected"), [(None, 2), (0, 0), (1, 1), (2, 2)])
def test_minimum_of_pod_group(least: int | None, expected: int) -> None:
    """common/job.go: the minimum of the document, including 0, if it is set."""
    content = job()
    content["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": least}}
    assert parse(content).job.scheduling.min_available == expected


@pytest.mark.parametrize(
    ("manager", "elsewhere"),
    [
        (None, False),
        ("", True),
        (TRAINING_OPERATOR, False),
        ("kueue.x-k8s.io/multikueue", True),
        ("other-job-controller", True),
    ],
)
def test_managed_by_external_controller(manager: str | None, elsewhere: bool) -> None:
    """common/job_test.go: any value except the original's own means another controller, including the empty value."""
    assert managed_elsewhere(job(managed_by=manager)) is elsewhere


DEFAULT_PORT, CUSTOM_PORT = (
    {"name": name, "containerPort": port} for name, port in (("tfjob-port", 2222), ("own", 1234))
)


@pytest.mark.parametrize(
    ("given", "ports", "filled"),
    [
        # tensorflow_defaults_test.go, TestSetDefaultTFJob, in its order.
        ({"restartPolicy": "Always"}, [DEFAULT_PORT], (1, "Always", [DEFAULT_PORT])),
        ({}, [DEFAULT_PORT], (1, "Never", [DEFAULT_PORT])),
        ({"replicas": 1, "restartPolicy": "Always"}, None, (1, "Always", [DEFAULT_PORT])),
        ({"replicas": 1, "restartPolicy": "Always"}, [CUSTOM_PORT], (1, "Always", [CUSTOM_PORT, DEFAULT_PORT])),
    ],
)
@pytest.mark.parametrize("clean", [None, "All"])
def test_defaults_of_replica_type(given: Doc, ports: Any, filled: tuple[int, str, Any], clean: str | None) -> None:
    content = job(ports=ports)
    if clean:
        content["spec"]["runPolicy"] = {"cleanPodPolicy": clean}
    specs = content["spec"]["tfReplicaSpecs"]
    specs["Worker"] = {"template": specs["Worker"]["template"], **given}
    spec = defaulted(content)["spec"]
    worker = spec["tfReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    assert (worker["replicas"], worker["restartPolicy"], container["ports"]) == filled
    assert (spec["successPolicy"], spec["runPolicy"]["cleanPodPolicy"]) == ("", clean or "None")


def _sidecar_first(content: Doc) -> Doc:
    containers = content["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    containers.insert(0, {"name": "sidecar", "image": "x"})
    return content


@pytest.mark.parametrize(
    ("change", "index"),
    # defaulting_utils.go: the training container, or the first container if none has its name.
    [(lambda content: content, 0), (_sidecar_first, 1), (lambda content: without(content, containers=[{}, {}]), 0)],
)
def test_training_container_gets_default_port(change: Callable[[Doc], Doc], index: int) -> None:
    template = defaulted(change(job()))["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    with_ports = [at for at, one in enumerate(template["spec"]["containers"]) if one.get("ports") == [DEFAULT_PORT]]
    assert with_ports == [index]


@pytest.mark.parametrize("key", ["WORKER", "worker", "Worker", "wORKER"])
def test_set_type_names(key: str) -> None:
    """TestSetTypeNames: names in any case are read as the original writes them."""
    content = job()
    content["spec"]["tfReplicaSpecs"] = {key: content["spec"]["tfReplicaSpecs"]["Worker"]}
    assert set(defaulted(content)["spec"]["tfReplicaSpecs"]) == {"Worker"}

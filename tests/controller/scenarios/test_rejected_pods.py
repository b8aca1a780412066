"""A gang whose pods the API server refuses does not keep capacity from others."""

from __future__ import annotations

import logging
from typing import Any, Final

import pytest

from tests.controller.harness import World, container, disturbed, tfjob
from tf_dist.cluster.api import (
    PODS,
    PRIORITY_CLASSES,
    SERVICES,
    TFJOBS,
    TFJOBS_V1ALPHA1,
    VOLCANO_JOBS,
    Object,
    Resource,
)
from tf_dist.cluster.api_errors import AdmissionDenied, RequestInfo, error_from_status
from tf_dist.controller.controller import Controller
from tf_dist.core.diagnostics.diagnose import diagnose
from tf_dist.core.dialects.parsing import parse, read
from tf_dist.core.model.status_codec import load_status
from tf_dist.errors import ClusterError, Forbidden, Unavailable

# Errors in pods that the API server detects, but no dialect does.
REFUSED: Final[dict[str, dict[str, Any]]] = {
    "as invalid": {"tolerations": [{"operator": "Exists"}, 3]},
    "by a rule": {"priorityClassName": "late"},
}


@pytest.fixture
def world() -> World:
    return World(cpu="3")


def broken(name: str, spec: dict[str, Any]) -> Object:
    document = tfjob(name)
    for one in document["spec"]["tfReplicaSpecs"].values():
        one["template"]["spec"].update(spec)
    return document


def mended(world: World, name: str, priority: str | None = None) -> None:
    document = tfjob(name)
    for one in document["spec"]["tfReplicaSpecs"].values():
        one["template"]["spec"].update(tolerations=None, priorityClassName=priority)
    world.memory.patch(TFJOBS, "default", name, {"spec": document["spec"]})


def passes(world: World, seconds: float) -> None:
    """Let time pass, with a pass of the controller every 0.5 s."""
    until = world.clock.now + seconds
    while world.clock.now < until:
        world.controller.step()
        world.clock.now += 0.5


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_job_with_refused_pods_gives_up_admission_for_waiting_job(world: World, spec: dict[str, Any]) -> None:
    for number in range(5):
        world.submit(broken(f"broken-{number}", spec))
        world.clock.now += 1
    world.submit(tfjob("sound"))
    passes(world, 30)
    assert world.status("sound").get("admission"), world.describe()
    assert len(world.phases()) == 3


def test_job_with_invalid_pods_fails_within_seconds_and_reports_reason(world: World) -> None:
    document = broken("mnist", {})
    document["spec"]["runPolicy"]["cleanPodPolicy"] = "None"
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"].update(REFUSED["as invalid"])
    world.submit(document)
    passes(world, 5)
    world.bury()
    world.settle()
    status, stored = world.status(), world.job()
    assert (status["phase"], status["reason"]) == ("Failed", "PodsRejected"), world.describe()
    failed = next(one for one in stored["status"]["conditions"] if one["type"] == "Failed")
    assert "tolerations" in failed["message"]
    assert ("TFJobFailed", failed["message"]) in world.events()
    assert any(reason == "FailedCreatePod" and "tolerations" in text for reason, text in world.events())
    assert not world.pods(), "the parameter server could be made, and has no worker to serve"
    told = diagnose(read(stored), load_status(stored["status"]), (), world.clock.now)
    assert any("tolerations" in one.summary for one in told), told
    assert not any("got no node" in one.summary + one.resolution for one in told), told


POLICY = 'pods "x" is forbidden: ValidatingAdmissionPolicy "images" with binding "all" denied request: no'
UNREADABLE = (
    'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number into Go value of type string'
)
WEBHOOK = 'admission webhook "pods.example.com" denied the request: not today'
DOWN = 'failed calling webhook "pods.example.com": connection refused'
LIMITS = 'pods "x" is forbidden: maximum cpu usage per Pod is 500m, but limit is 1'
QUOTA = 'pods "x" is forbidden: exceeded quota: all, requested: cpu=1, used: cpu=3, limited: cpu=3'


CREATE = RequestInfo("create", PODS, namespace="default")


def answer(code: int, message: str, *fields: str) -> ClusterError:
    """The error that the client raises for such an answer of the API server."""
    causes = [{"reason": "FieldValueInvalid", "message": message, "field": field} for field in fields]
    status = {"kind": "Status", "code": code, "message": message, "details": {"causes": causes}}
    return error_from_status(code, status, asked=CREATE)


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (answer(422, 'Pod "x" is invalid: spec.containers[0].image: Required value', "spec.containers[0].image"), True),
        (answer(400, UNREADABLE), True),
        # Rules of the cluster and broken webhooks can change without a change of the job.
        (answer(422, POLICY, ""), False),
        (answer(422, POLICY.replace("ValidatingAdmissionPolicy", "AnotherPolicy"), ""), False),
        (answer(422, WEBHOOK), False),
        (answer(400, WEBHOOK, "spec.image"), False),
        # The answer comes from a proxy in front of the API server, for example one that refuses large bodies.
        (error_from_status(400, "<html>", asked=CREATE), False),
        (answer(413, "the request is too large"), False),
        (AdmissionDenied(LIMITS), False),
        (Forbidden(QUOTA), False),
        (Unavailable(DOWN), False),
    ],
)
@pytest.mark.parametrize("version", ["kubeflow.org/v1", "kubeflow.org/v1alpha1", "batch.volcano.sh/v1alpha1"])
def test_job_of_any_dialect_fails_only_on_permanent_errors(
    world: World, version: str, error: ClusterError, fails: bool
) -> None:
    """The original operators retry forever. tf-dist retries only if a retry can succeed."""
    refusing = [True]

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", PODS) and refusing[0]:
            raise error

    world.controller = Controller(disturbed(world.memory, before), clock=world.clock, monotonic=world.clock)
    document, resource = one_worker(version)
    world.submit(document, resource)
    passes(world, 5)
    assert (world.status("mnist", resource)["phase"] == "Failed") is fails, world.describe()
    refusing[0] = False
    world.clock.now += 60
    passes(world, 10)
    assert len(world.pods()) == (0 if fails else 1), world.describe()


def one_worker(version: str) -> tuple[Object, Resource]:
    """A minimal job of a dialect."""
    template = {"spec": {"containers": [container()], "restartPolicy": "Never"}}
    spec: dict[str, Any] = {"tfReplicaSpecs": {"Worker": {"template": template}}}
    if version == "kubeflow.org/v1alpha1":
        spec = {"RuntimeId": "ab12", "replicaSpecs": [{"tfReplicaType": "MASTER", "template": template}]}
    if version == "batch.volcano.sh/v1alpha1":
        spec = {"tasks": [{"name": "worker", "replicas": 1, "template": template}]}
    resource = next(one for one in (TFJOBS, TFJOBS_V1ALPHA1, VOLCANO_JOBS) if one.api_version == version)
    metadata = {"name": "mnist", "namespace": "default"}
    return {"apiVersion": version, "kind": resource.kind, "metadata": metadata, "spec": spec}, resource


@pytest.mark.parametrize(
    ("resource", "name"), [(SERVICES, "mnist-ps-0"), (SERVICES, "mnist-worker-1"), (PODS, "mnist-worker-0")]
)
def test_job_gives_up_admission_when_object_name_is_taken(world: World, resource: Resource, name: str) -> None:
    spec: Object = {"containers": [container()]} if resource == PODS else {"ports": [{"port": 80}]}
    body = {"metadata": {"name": name, "labels": {"app": "other"}}, "spec": spec}
    world.memory.create(resource, "default", body)
    world.submit(tfjob("mnist"))
    world.clock.now += 1
    world.submit(tfjob("sound"))
    passes(world, 10)
    assert not world.status("mnist").get("admission"), world.describe()
    assert world.status("mnist")["reason"] in ("NameConflict", "Backoff"), world.describe()
    assert world.status("sound").get("admission"), world.describe()
    told = diagnose(parse(world.job("mnist")).job, load_status(world.job("mnist")["status"]), (), world.clock.now)
    text = " ".join(one.summary + one.resolution for one in told)
    assert f"{resource.kind} default/{name} exists already and belongs to no controller" in text
    assert "kubectl delete" not in text, "it is not ours to delete"
    assert "admitted" not in text
    assert world.memory.get(resource, "default", name)["metadata"]["labels"] == {"app": "other"}
    world.memory.delete(TFJOBS, "default", "sound")
    world.memory.delete(resource, "default", name)
    passes(world, 90)
    assert world.status("mnist").get("admission"), world.describe()


def test_job_waits_for_deletion_of_objects_of_earlier_job(world: World) -> None:
    """A finalizer keeps the garbage collector from deleting a Service."""
    earlier = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "mnist", "uid": "1", "controller": True}
    metadata = {"name": "mnist-ps-0", "ownerReferences": [earlier], "finalizers": ["example.com/slow"]}
    world.memory.create(SERVICES, "default", {"metadata": metadata, "spec": {"ports": [{"port": 80}]}})
    world.submit(tfjob("mnist"))
    passes(world, 20)
    assert world.status("mnist").get("admission"), world.describe()
    assert "belongs to an earlier TFJob mnist" in str(world.job("mnist")["status"]["conditions"])
    world.memory.patch(SERVICES, "default", "mnist-ps-0", {"metadata": {"finalizers": None}})
    passes(world, 40)
    assert len(world.pods()) == 3, world.describe()


def test_job_fails_when_service_is_invalid(world: World) -> None:
    invalid = answer(422, 'Service "mnist-ps-0" is invalid: metadata.name: Invalid value', "metadata.name")

    def before(verb: str, resource: Resource, *_: Any, **__: Any) -> None:
        if (verb, resource) == ("create", SERVICES):
            raise invalid

    world.controller = Controller(disturbed(world.memory, before), clock=world.clock, monotonic=world.clock)
    world.submit(tfjob("mnist"))
    passes(world, 5)
    status = world.status()
    assert (status["phase"], status["reason"]) == ("Failed", "PodsRejected"), world.describe()
    assert 'Service "mnist-ps-0" is invalid' in str(status)


def test_job_waits_until_cluster_rule_accepts_pods(world: World) -> None:
    spec = REFUSED["by a rule"]
    world.submit(broken("mnist", spec))
    passes(world, 5)
    status = world.status()
    assert "admission" not in status
    assert status["notBefore"]
    stored = world.job()
    told = diagnose(parse(stored).job, load_status(stored["status"]), (), world.clock.now)
    assert any("PriorityClass" in one.summary for one in told), told
    assert not any("got no node" in one.summary + one.resolution for one in told), told
    world.memory.create(PRIORITY_CLASSES, None, {"metadata": {"name": "late"}, "value": 5})
    passes(world, 60)
    assert len(world.phases()) == 3


def test_corrected_job_starts_without_delay(world: World) -> None:
    world.submit(broken("mnist", REFUSED["by a rule"]))
    passes(world, 120)
    assert "admission" not in world.status()
    mended(world, "mnist")
    world.settle()
    assert len(world.phases()) == 3
    assert "notBefore" not in world.status()


def test_error_of_pass_is_logged_only_when_changed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """It is not logged for each pass, because thousands of jobs can have refused pods."""
    world.submit(broken("mnist", REFUSED["by a rule"]))
    with caplog.at_level(logging.WARNING, logger="tf_dist.controller.workers"):
        passes(world, 120)
        assert len(logged(caplog, "name late ")) == 1
        mended(world, "mnist", "later")
        passes(world, 120)
        assert len(logged(caplog, "name later ")) == 1
        mended(world, "mnist")
        world.settle()
        assert len(world.phases()) == 3
        world.memory.delete(TFJOBS, "default", "mnist")
        world.settle()
        world.submit(broken("mnist", REFUSED["by a rule"]))
        passes(world, 120)
        assert len(logged(caplog, "name late ")) == 2, "it is another job"


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """The warnings that contain this text."""
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING and text in one.getMessage()]

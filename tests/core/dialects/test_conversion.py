"""Conversion to TFJobs v1: what v1 can express is kept, and the rest is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.dialects.documents import ALL, Doc, changed, paths, template, v1, v1alpha1, volcano
from tf_dist.core.dialects import convert, parse
from tf_dist.core.dialects.conversion import ASPECTS, job_semantics
from tf_dist.errors import InvalidJob


def own_server() -> Doc:
    return changed(v1alpha1(), "spec.replicaSpecs.2.template", template(restartPolicy="OnFailure"))


@pytest.mark.parametrize("make", ALL)
def test_every_aspect_of_job_has_description(make: Any):
    assert {aspect for aspect, _ in job_semantics(parse(make()).job)} == ASPECTS.keys()


def test_v1_jobs_are_unchanged():
    converted = convert(v1())
    assert (converted.lost, parse(converted.document).job) == ((), parse(v1()).job)


def test_keeps_semantics_that_v1_can_express():
    document = volcano()
    document["spec"] |= {"plugins": {"svc": [], "tensorflow": ["--ps=ps", "--worker=worker"]}, "maxRetry": 5}
    document["spec"] |= {"queue": "research", "ttlSecondsAfterFinished": 60, "priorityClassName": "high"}
    document["spec"]["policies"] = [{"event": "PodEvicted", "action": "RestartPod"}]
    document["spec"]["tasks"][0]["policies"] = [{"event": "PodFailed", "action": "TerminateJob"}]
    document["spec"]["tasks"][1]["policies"] = [
        {"event": "PodFailed", "action": "TerminateJob"},
        {"event": "TaskCompleted", "action": "CompleteJob"},
    ]
    document["spec"]["tasks"][1]["template"]["spec"]["restartPolicy"] = "Never"
    converted = convert(document)
    spec = converted.document["spec"]
    assert spec["successPolicy"] == "AllWorkers"
    assert (spec["runPolicy"]["backoffLimit"], spec["runPolicy"]["ttlSecondsAfterFinished"]) == (4, 60)
    assert spec["runPolicy"]["schedulingPolicy"] == {"queue": "research", "priorityClass": "high"}
    assert {key: one["restartPolicy"] for key, one in spec["tfReplicaSpecs"].items()} == {
        "PS": "Never",
        "Worker": "Never",
    }
    assert [problem.message for problem in converted.lost] == []


def test_converts_exit_codes_of_v1alpha1():
    converted = convert(own_server())
    specs = converted.document["spec"]["tfReplicaSpecs"]
    assert {key: one["restartPolicy"] for key, one in specs.items()} == {
        "Master": "ExitCode",
        "Worker": "OnFailure",
        "PS": "OnFailure",
    }
    assert converted.document["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"
    (problem,) = converted.lost
    assert problem.path == "spec.replicaSpecs[0]"
    assert "FailJob -> RestartPod for exit out of memory" in problem.hint


def test_refuses_standard_parameter_server_of_v1alpha1():
    with pytest.raises(InvalidJob) as caught:
        convert(v1alpha1())
    assert paths(list(caught.value.problems)) == ["spec.replicaSpecs[2].template"]


def test_converts_ports_and_suspension():
    document = changed(own_server(), "spec.replicaSpecs.1.tfPort", 5000)
    document = changed(document, "metadata.annotations", {"tf-dist.dev/suspend": "true", "team": "vision"})
    converted = convert(document).document
    assert converted["spec"]["runPolicy"]["suspend"] is True
    assert converted["metadata"]["annotations"] == {"team": "vision"}
    assert parse(converted).job.spec("worker").port == 5000  # type: ignore[union-attr]


def test_keeps_container_ports():
    ports = [{"name": "tfjob-port", "containerPort": 5000}, {"name": "metrics", "containerPort": 9090}]
    document = changed(own_server(), "spec.replicaSpecs.1.template.spec.containers.0.ports", ports)
    worker = convert(document).document["spec"]["tfReplicaSpecs"]["Worker"]
    assert worker["template"]["spec"]["containers"][0]["ports"] == ports


def test_volcano_volumes_become_pod_volumes():
    document = changed(volcano(), "spec.volumes", [{"mountPath": "/models", "volumeClaimName": "models"}])
    pod = convert(document).document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "models"}
    assert pod["containers"][0]["volumeMounts"][-1]["mountPath"] == "/models"


def test_reports_lost_plugins_and_policies():
    found = paths(list(convert(volcano()).lost))
    assert {"spec.plugins", "spec.plugins.env", "spec.plugins.svc", "spec.tasks[0].policies"} <= set(found)


def test_refuses_tasks_without_tensorflow_role():
    document = changed(volcano(), "spec.tasks", [{"name": "main", "replicas": 3, "template": template()}])
    with pytest.raises(InvalidJob, match="no task is a TensorFlow role"):
        convert(document)


def test_reports_unused_fields_that_are_left_out():
    document = changed(own_server(), "spec.modelName", "resnet")
    assert "spec.modelName" in paths(list(convert(document).lost))


@pytest.mark.parametrize(
    ("change", "value", "path"),
    [
        ("spec.plugins.ssh", [], "spec.plugins.ssh"),
        ("spec.runningEstimate", "1h", "spec.runningEstimate"),
        ("spec.tasks.0.topologyPolicy", "best-effort", "spec.tasks[0].topologyPolicy"),
        ("metadata.annotations", {"sla-waiting-time": "1m"}, 'metadata.annotations["volcano.sh/sla-waiting-time"]'),
        ("metadata.annotations", {"volcano.sh/preemptable": "no"}, 'metadata.annotations["volcano.sh/preemptable"]'),
        (
            "metadata.annotations",
            {"volcano.sh/task-topology-affinity": "ps,worker"},
            'metadata.annotations["volcano.sh/task-topology-affinity"]',
        ),
    ],
)
def test_reports_lost_plugins_and_annotations_of_volcano(change: str, value: Any, path: str):
    before = {problem.path for problem in convert(volcano()).lost}
    found = {problem.path for problem in convert(changed(volcano(), change, value)).lost}
    assert found - before == {path}


@pytest.mark.parametrize(
    ("at", "name", "gang", "kept"),
    [
        ("job", "volcano", "", False),
        ("template", "volcano", "", False),
        ("job", "volcano", "volcano", True),
        ("job", "mine", "", True),
        ("template", "mine", "", True),
    ],
)
def test_volcano_scheduler_name_is_kept_only_with_volcano_as_gang_scheduler(
    at: str, name: str, gang: str, kept: bool
) -> None:
    """Every Volcano Job names Volcano's scheduler, which may not exist in the cluster of a TFJob."""
    document = volcano()
    document["spec"].pop("schedulerName", None)
    spec = document["spec"]
    for place in [spec] if at == "job" else [task["template"]["spec"] for task in spec["tasks"]]:
        place["schedulerName"] = name
    if gang:
        document["metadata"]["annotations"] = {"tf-dist.dev/gang-scheduler": gang}
    found = convert(document)
    assert (name in json.dumps(found.document["spec"])) is kept
    assert "another scheduler would place the pods" not in [problem.message for problem in found.lost]

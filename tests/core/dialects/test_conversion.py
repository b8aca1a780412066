"""Converting: what survives does, and what does not is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.dialects.documents import ALL, Doc, changed, paths, template, v1, v1alpha1, volcano
from tests.thorough import thorough
from tf_dist.core.dialects import convert, parse
from tf_dist.core.dialects.conversion import CONSEQUENCES
from tf_dist.core.dialects.emit import job_semantics
from tf_dist.core.model.job import Dialect
from tf_dist.errors import InvalidJob

V1, ALPHA, VOLCANO = Dialect


def own_server() -> Doc:
    return changed(v1alpha1(), "spec.replicaSpecs.2.template", template(restartPolicy="OnFailure"))


@pytest.mark.parametrize("make", ALL)
def test_there_are_words_for_every_loss(make: Any):
    assert {aspect for aspect, _ in job_semantics(parse(make()).job)} == CONSEQUENCES.keys()


@pytest.mark.parametrize("make", ALL)
def test_into_its_own_format_nothing_changes(make: Any):
    document = make()
    converted = convert(document, Dialect(document["apiVersion"]))
    assert converted.lost == ()
    assert parse(converted.document).job == parse(document).job


def test_a_volcano_job_with_the_tensorflow_plugin_of_a_v1_job():
    document = changed(v1(), "spec.tfReplicaSpecs.Chief.restartPolicy", "Never")
    document = changed(document, "spec.runPolicy.activeDeadlineSeconds", ...)
    document = changed(document, "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds", ...)
    document = changed(document, "spec.tfReplicaSpecs.PS.restartPolicy", "Never")
    converted = convert(document, VOLCANO)
    assert converted.lost == ()
    spec = converted.document["spec"]
    assert (spec["maxRetry"], spec["minAvailable"], spec["queue"]) == (5, 3, "research")
    assert spec["plugins"] == {"svc": [], "tensorflow": ["--chief=chief", "--ps=ps", "--worker=worker"]}
    chief = spec["tasks"][0]
    assert chief["policies"] == [
        {"event": "PodFailed", "action": "TerminateJob"},
        {"event": "PodEvicted", "action": "RestartPod"},
        {"event": "TaskCompleted", "action": "CompleteJob"},
    ]
    assert chief["template"]["spec"]["restartPolicy"] == "Never"
    back = convert(converted.document, V1)
    assert back.lost == ()
    assert job_semantics(parse(back.document).job) == job_semantics(parse(document).job)


def test_what_volcano_cannot_say_of_a_v1_job():
    lost = {problem.path: problem for problem in convert(v1(), VOLCANO).lost}
    assert set(lost) == {
        "spec.runPolicy.activeDeadlineSeconds",
        "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds",
        "spec.runPolicy.backoffLimit",
        "spec.tfReplicaSpecs.Chief.restartPolicy",
    }
    assert "3600" in lost["spec.runPolicy.activeDeadlineSeconds"].hint
    assert "128" in lost["spec.tfReplicaSpecs.Chief.restartPolicy"].hint


def test_what_v1alpha1_cannot_say_of_a_v1_job():
    document = changed(v1(), "spec.enableDynamicWorker", True)
    document = changed(document, "spec.runPolicy.managedBy", "kueue.x-k8s.io/multikueue")
    run = ("activeDeadlineSeconds", "backoffLimit", "managedBy", "ttlSecondsAfterFinished")
    gang = ("minAvailable", "priorityClass", "scheduleTimeoutSeconds")
    assert {problem.path for problem in convert(document, ALPHA).lost} == {
        "spec.enableDynamicWorker",
        *(f"spec.runPolicy.{key}" for key in run),
        *(f"spec.runPolicy.schedulingPolicy.{key}" for key in gang),
        *("spec.tfReplicaSpecs.Chief", "spec.tfReplicaSpecs.Chief.restartPolicy"),
        *("spec.tfReplicaSpecs.Worker", "spec.tfReplicaSpecs.Worker.restartPolicy"),
    }


@pytest.mark.parametrize(
    ("to", "policy", "said"), [(ALPHA, "AllWorkers", True), (VOLCANO, "", True), (VOLCANO, "AllWorkers", False)]
)
def test_workers_whose_success_would_be_the_job_s_at_another_moment(to: Dialect, policy: str, said: bool):
    """Without a chief: worker 0 decides, or all of them; Volcano can say the latter only, v1alpha1 neither."""
    document = changed(changed(v1(), "spec.tfReplicaSpecs.Chief", ...), "spec.successPolicy", policy)
    assert ("spec.successPolicy" in {problem.path for problem in convert(document, to).lost}) is said


def test_roles_a_format_does_not_have_are_left_out_and_said():
    document = changed(v1(), "spec.tfReplicaSpecs.Evaluator", {"template": template()})
    document = changed(document, "spec.runPolicy.schedulingPolicy", ...)
    converted = convert(document, ALPHA)
    assert [spec["tfReplicaType"] for spec in converted.document["spec"]["replicaSpecs"]] == ["MASTER", "PS", "WORKER"]
    assert "spec.tfReplicaSpecs.Evaluator" in paths(list(converted.lost))


def test_the_exit_codes_of_v1alpha1_in_v1():
    converted = convert(own_server(), V1)
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


def test_a_standard_server_is_only_v1alpha1s():
    with pytest.raises(InvalidJob) as caught:
        convert(v1alpha1(), V1)
    assert paths(list(caught.value.problems)) == ["spec.replicaSpecs[2].template"]


def test_ports_elasticity_and_suspension_go_along():
    document = changed(own_server(), "spec.replicaSpecs.1.tfPort", 5000)
    document = changed(document, "metadata.annotations", {"tf-dist.dev/suspend": "true", "team": "vision"})
    converted = convert(document, V1).document
    assert converted["spec"]["runPolicy"]["suspend"] is True
    assert converted["metadata"]["annotations"] == {"team": "vision"}
    assert parse(converted).job.spec("worker").port == 5000  # type: ignore[union-attr]
    back = convert(converted, ALPHA).document
    assert back["spec"]["replicaSpecs"][1]["tfPort"] == 5000
    assert back["metadata"]["annotations"]["tf-dist.dev/suspend"] == "true"


def test_a_container_keeps_its_ports():
    ports = [{"name": "tfjob-port", "containerPort": 5000}, {"name": "metrics", "containerPort": 9090}]
    document = changed(v1(), "spec.tfReplicaSpecs.Worker.template.spec.containers.0.ports", ports)
    (worker,) = (task for task in convert(document, VOLCANO).document["spec"]["tasks"] if task["name"] == "worker")
    assert worker["template"]["spec"]["containers"][0]["ports"] == ports


def test_volcano_volumes_become_part_of_the_pods():
    document = changed(volcano(), "spec.volumes", [{"mountPath": "/models", "volumeClaimName": "models"}])
    pod = convert(document, V1).document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "models"}
    assert pod["containers"][0]["volumeMounts"][-1]["mountPath"] == "/models"


def test_what_a_tutorial_job_relies_on_is_said_to_be_lost():
    found = paths(list(convert(volcano(), V1).lost))
    assert {"spec.plugins", "spec.plugins.env", "spec.plugins.svc", "spec.tasks[0].policies"} <= set(found)


def test_tasks_without_a_role_cannot_be_a_tfjob():
    document = changed(volcano(), "spec.tasks", [{"name": "main", "replicas": 3, "template": template()}])
    with pytest.raises(InvalidJob, match="no task is a TensorFlow role"):
        convert(document, V1)


def test_what_tf_dist_does_not_use_is_left_out_and_said():
    document = changed(own_server(), "spec.modelName", "resnet")
    assert "spec.modelName" in paths(list(convert(document, V1).lost))
    document = changed(v1(), "spec.runPolicy.schedulingPolicy.minResources", {"cpu": 2})
    assert "spec.runPolicy.schedulingPolicy.minResources" in paths(list(convert(document, VOLCANO).lost))


@st.composite
def tfjobs(draw: st.DrawFn) -> Doc:
    """v1 jobs of every kind of policy."""
    policies = st.sampled_from(["Never", "OnFailure", "Always", "ExitCode"])
    types = draw(st.sets(st.sampled_from(["PS", "Worker", "Evaluator"]))) | draw(
        st.sampled_from([{"Chief"}, {"Master"}, {"Worker"}])
    )
    specs = {
        key: {
            "replicas": 1 if key in ("Chief", "Master") else draw(st.integers(1, 3)),
            "restartPolicy": draw(policies),
            "template": {"spec": {"containers": [{"name": "tensorflow", "image": "tf"}]}},
        }
        for key in sorted(types)
    }
    run = {
        "cleanPodPolicy": draw(st.sampled_from(["All", "Running", "None"])),
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "backoffLimit": st.integers(0, 5),
                    "ttlSecondsAfterFinished": st.integers(0, 100),
                    "suspend": st.booleans(),
                    "schedulingPolicy": st.fixed_dictionaries(
                        {}, optional={"queue": st.sampled_from(["a", "default"])}
                    ),
                },
            )
        ),
    }
    success = draw(st.sampled_from(["", "AllWorkers"]))
    spec = {"runPolicy": run, "successPolicy": success, "tfReplicaSpecs": specs}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "j"}, "spec": spec}


@given(tfjobs(), st.sampled_from([ALPHA, VOLCANO]))
@thorough(200)
def test_there_and_back_keeps_the_meaning_unless_something_was_lost(document: Doc, via: Dialect):
    there = convert(document, via)
    back = convert(there.document, V1)
    if not there.lost:
        assert back.lost == ()
        assert job_semantics(parse(back.document).job) == job_semantics(parse(document).job)


@pytest.mark.parametrize(
    ("change", "value", "path"),
    [
        ("spec.plugins.ssh", [], "spec.plugins.ssh"),
        ("metadata.annotations", {"sla-waiting-time": "1m"}, 'metadata.annotations["volcano.sh/sla-waiting-time"]'),
        ("metadata.annotations", {"volcano.sh/preemptable": "no"}, 'metadata.annotations["volcano.sh/preemptable"]'),
        (
            "metadata.annotations",
            {"volcano.sh/task-topology-affinity": "ps,worker"},
            'metadata.annotations["volcano.sh/task-topology-affinity"]',
        ),
    ],
)
def test_what_a_plugin_or_an_annotation_of_volcano_says_is_lost_in_words(change: str, value: Any, path: str):
    before = {problem.path for problem in convert(volcano(), Dialect.TFJOB_V1).lost}
    found = {problem.path for problem in convert(changed(volcano(), change, value), Dialect.TFJOB_V1).lost}
    assert found - before == {path}


@pytest.mark.parametrize("to", [Dialect.TFJOB_V1, Dialect.TFJOB_V1ALPHA1])
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
def test_the_name_of_volcanos_scheduler_is_carried_only_where_volcano_decides(
    to: Dialect, at: str, name: str, gang: str, kept: bool
) -> None:
    """Every Volcano Job names it; in a TFJob it would leave the pods to a scheduler that may not be there."""
    document = volcano()
    document["spec"].pop("schedulerName", None)
    spec = document["spec"]
    for place in [spec] if at == "job" else [task["template"]["spec"] for task in spec["tasks"]]:
        place["schedulerName"] = name
    if gang:
        document["metadata"]["annotations"] = {"tf-dist.dev/gang-scheduler": gang}
    found = convert(document, to)
    assert (name in json.dumps(found.document["spec"])) is kept
    assert "another scheduler would place the pods" not in [problem.message for problem in found.lost]


@pytest.mark.parametrize(
    ("least", "paths"), [(0, set()), (1, {"spec.runPolicy.schedulingPolicy.minAvailable", "spec.tfReplicaSpecs.PS"})]
)
def test_a_minimum_that_is_lost_is_named_where_it_is(least: int, paths: set[str]) -> None:
    """Volcano says a minimum of 0 in its tasks; v1alpha1 has a minimum of its workers only."""
    document = changed(v1(), "spec.runPolicy.schedulingPolicy", {"minAvailable": least})
    found = convert(document, Dialect.VOLCANO)
    assert parse(found.document).job.scheduling.min_available == least
    assert not [problem for problem in found.lost if "at once" in problem.message]
    lost = {problem.path for problem in convert(document, Dialect.TFJOB_V1ALPHA1).lost if "at once" in problem.message}
    assert lost >= paths
    assert not [path for path in lost if path.count("spec.") > 1]

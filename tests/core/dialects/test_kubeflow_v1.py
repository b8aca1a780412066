"""kubeflow.org/v1: defaults, validation, warnings, and the resulting job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.dialects.documents import changed, errors, only_error, paths, template, v1, warnings
from tf_dist.core.dialects import defaulted, parse, read, suspend_patch
from tf_dist.core.model.job import Action, CleanPodPolicy, Event, JobKey, Role, ServiceStyle, SuccessRule, TFConfigStyle
from tf_dist.errors import InvalidJob

SPECS = "spec.tfReplicaSpecs"


def minimal(**specs: Any) -> dict[str, Any]:
    containers = [{"name": "tensorflow", "image": "tf"}]
    listed = {key: {"template": {"spec": {"containers": containers}}, **value} for key, value in specs.items()}
    head = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "j"}}
    return {**head, "spec": {"tfReplicaSpecs": listed}}


def test_defaults_match_training_operator():
    document = defaulted(minimal(WORKER={}, ps={"replicas": None}))
    container = {"name": "tensorflow", "image": "tf", "ports": [{"name": "tfjob-port", "containerPort": 2222}]}
    group = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    assert document["spec"] == {
        "runPolicy": {"cleanPodPolicy": "None"},
        "successPolicy": "",
        "tfReplicaSpecs": {"Worker": group, "PS": group},
    }


def test_port_named_tfjob_port_is_kept():
    document = minimal(Worker={})
    ports = [{"name": "tfjob-port", "containerPort": 5000}]
    document = changed(document, f"{SPECS}.Worker.template.spec.containers.0.ports", ports)
    assert parse(document).job.replica_specs[0].port == 5000
    assert (
        defaulted(document)["spec"]["tfReplicaSpecs"]["Worker"]["template"]
        == (document["spec"]["tfReplicaSpecs"]["Worker"]["template"])
    )


def test_defaulting_is_idempotent_and_keeps_original_document():
    document = v1()
    once = defaulted(document)
    assert document == v1()
    assert defaulted(once) == once


def test_parses_job():
    job = parse(v1()).job
    assert job.key == JobKey("vision", "mnist")
    assert [(spec.name, spec.type, spec.role, spec.replicas, spec.container) for spec in job.replica_specs] == [
        ("Chief", "chief", Role.CHIEF, 1, "tensorflow"),
        ("PS", "ps", Role.PS, 2, "tensorflow"),
        ("Worker", "worker", Role.WORKER, 3, "tensorflow"),
    ]
    assert [spec.pod_restart_policy for spec in job.replica_specs] == ["Never", "OnFailure", "Never"]
    assert job.success == (SuccessRule(type="chief"),)
    assert job.running_types == ("chief",)
    policy = job.run_policy
    assert (policy.clean_pods, policy.max_restarts) == (CleanPodPolicy.RUNNING, 4)
    assert (policy.active_deadline, policy.ttl, policy.suspend) == (3600, 600, False)
    gang = job.scheduling
    assert (gang.min_available, gang.queue, gang.priority_class, gang.timeout) == (3, "research", "high", 120)
    assert (job.tf_config, job.services) == (TFConfigStyle.V1, ServiceStyle.PER_REPLICA)
    assert warnings(v1()) == []


def answers(policy: str, **spec: Any) -> dict[str, Action]:
    document = minimal(Worker={"restartPolicy": policy, "replicas": 2})
    document["spec"] |= spec
    rules = parse(document).job.replica_specs[0].rules
    exits = {"1": (1, False), "137": (137, False), "oom": (137, True), "-9": (-9, False), "unknown": (None, False)}
    found = {}
    for name, exit_ in exits.items():
        found[name] = next(r.action for r in rules if Event.POD_FAILED in r.events and exit_ in r.codes)
    for event in (Event.POD_EVICTED, Event.NODE_LOST):
        found[event.value] = next(r.action for r in rules if event in r.events)
    return found


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always", "ExitCode"])
def test_restart_policies(policy: str):
    fail, again = Action.FAIL_JOB, Action.RESTART_POD
    own, killed = {"Never": (fail, fail), "ExitCode": (fail, again)}.get(policy, (again, again))
    assert answers(policy) == {
        "1": own,
        "137": killed,
        "oom": killed,
        "-9": killed,
        "unknown": killed,
        "PodEvicted": again,
        "NodeLost": again,
    }


def test_failed_workers_are_ignored_with_dynamic_workers():
    assert answers("Never", enableDynamicWorker=True)["1"] is Action.IGNORE
    assert answers("OnFailure", enableDynamicWorker=True)["1"] is Action.RESTART_POD


def test_success_without_chief():
    all_workers = SuccessRule(type="worker")
    first = SuccessRule(type="worker", index=0)
    assert parse(minimal(Worker={"replicas": 2})).job.success == (first, all_workers)
    document = changed(minimal(Worker={"replicas": 2}), "spec.successPolicy", "AllWorkers")
    assert parse(document).job.success == (all_workers,)


def test_replica_type_must_be_text():
    document = minimal(Worker={})
    document["spec"]["tfReplicaSpecs"][7] = {"template": template()}
    assert defaulted(document)["spec"]["tfReplicaSpecs"].keys() == {"Worker", 7}
    with pytest.raises(InvalidJob, match="7"):
        parse(document)


def test_tf_config_styles():
    assert parse(minimal(Worker={})).job.tf_config is TFConfigStyle.NONE
    assert parse(minimal(Worker={"replicas": 2})).job.tf_config is TFConfigStyle.V1
    document = changed(minimal(Worker={"replicas": 2}), "spec.enableDynamicWorker", True)
    assert parse(document).job.tf_config is TFConfigStyle.SPARSE


def test_lone_dynamic_worker_has_tf_config_only_if_job_may_grow() -> None:
    document = changed(minimal(Worker={}), "spec.enableDynamicWorker", True)
    assert parse(document).job.tf_config is TFConfigStyle.NONE
    document["metadata"]["annotations"] = {"tf-dist.dev/max-workers": "3"}
    assert parse(document).job.tf_config is TFConfigStyle.SPARSE


def test_annotations_set_services_and_suspension():
    document = changed(v1(), "metadata.annotations", {"tf-dist.dev/services": "per-job", "tf-dist.dev/suspend": "true"})
    job = parse(document).job
    assert (job.services, job.run_policy.suspend) == (ServiceStyle.PER_JOB, True)


def test_job_of_multikueue_is_managed_elsewhere():
    assert parse(changed(v1(), "spec.runPolicy.managedBy", "kueue.x-k8s.io/multikueue")).job.managed_elsewhere
    assert not parse(changed(v1(), "spec.runPolicy.managedBy", "kubeflow.org/training-operator")).job.managed_elsewhere


@pytest.mark.parametrize(
    ("path", "value", "where", "message", "hint"),
    [
        (f"{SPECS}.Master", {"template": template()}, f"{SPECS}.Master", "two chiefs: Chief and Master", "one"),
        (f"{SPECS}.Chief.replicas", 2, f"{SPECS}.Chief.replicas", "two chiefs or more", "write 1"),
        (f"{SPECS}.Chief.replicas", 0, f"{SPECS}.Chief.replicas", "could never succeed", "write 1"),
        (f"{SPECS}.worker", {"template": template()}, f"{SPECS}.worker", "Worker and worker are the same", "keep one"),
        (f"{SPECS}.Wroker", {"template": template()}, f"{SPECS}.Wroker", "unknown replica type", "mean Worker?"),
        ("spec.runPolicy.schedulingPolicy.minAvailable", 7, "", "the job has 6: it could never start", "6 or less"),
        ("spec.backoffLimit", 3, "spec.backoffLimit", "is 3 here and 4 in spec.runPolicy", "keep the one"),
        ("metadata.name", "a" * 64, "metadata.name", "is 64 characters long; the limit is 63", ""),
        ("metadata.name", "My_Job", "metadata.name", "not a valid Kubernetes name", 'write "my-job"'),
        ("metadata.name", "9-lives", "metadata.name", "must start with a letter", 'write "lives"'),
        ("metadata.name", "a.b", "metadata.name", "not a valid Kubernetes name", 'write "a-b"'),
        (
            "metadata.name",
            "a" * 60,
            "metadata.name",
            "a name of 69 characters; 63 are allowed",
            "may have 54 characters",
        ),
        ("metadata.namespace", "Vision", "metadata.namespace", "not a valid Kubernetes name", 'write "vision"'),
        ("metadata.name", ..., "metadata.name", "is required and missing", "give the job a name"),
        (
            f"{SPECS}.PS.template.spec.containers.0.name",
            "tf",
            f"{SPECS}.PS.template.spec.containers",
            "no container named 'tensorflow'",
            "rename 'tf' to 'tensorflow'",
        ),
        (
            "spec.runPolicy.schedulingPolicy.minResources",
            {"cpu": "much"},
            "spec.runPolicy.schedulingPolicy.minResources.cpu",
            "is not a quantity",
            "",
        ),
    ],
)
def test_validation_errors(path: str, value: Any, where: str, message: str, hint: str):
    problem = only_error(changed(v1(), path, value))
    assert problem.path == (where or path)
    assert message in problem.message
    assert hint in problem.hint


def test_refuses_job_without_replicas_or_without_deciding_replica():
    assert "nothing would run" in only_error(minimal(Worker={"replicas": 0})).message
    assert "no replica decides" in only_error(minimal(Worker={"replicas": 0}, PS={})).message
    assert only_error(minimal()).path == SPECS
    assert parse(minimal(Chief={}, Worker={"replicas": 0})).job.success == (SuccessRule(type="chief"),)


def test_generated_name_is_checked_with_five_characters():
    document = changed(v1(), "metadata", {"generateName": "train-"})
    assert parse(document).job.key == JobKey("default", "train-xxxxx")
    problem = only_error(changed(v1(), "metadata", {"generateName": "a" * 51 + "-"}))
    assert (problem.path, problem.hint) == (
        "metadata.generateName",
        "with these replicas the generateName may have 49 characters",
    )


def test_accepts_longest_name_that_fits():
    assert parse(changed(v1(), "metadata.name", "a" * 54)).job.key.name == "a" * 54


def test_v1_0_policy_fields_are_used_with_warning():
    document = changed(v1(), "spec.runPolicy", ...)
    document["spec"] |= {
        "cleanPodPolicy": "All",
        "backoffLimit": 2,
        "activeDeadlineSeconds": 60,
        "ttlSecondsAfterFinished": 5,
    }
    parsed = parse(document)
    assert paths(list(parsed.warnings)) == [
        "spec.cleanPodPolicy",
        "spec.backoffLimit",
        "spec.activeDeadlineSeconds",
        "spec.ttlSecondsAfterFinished",
    ]
    policy = parsed.job.run_policy
    assert (policy.clean_pods, policy.max_restarts) == (CleanPodPolicy.ALL, 2)
    assert (policy.active_deadline, policy.ttl) == (60, 5)
    assert "backoffLimit" not in parsed.document["spec"]
    assert read(document) == parsed.job


def test_equal_policy_in_both_fields_is_only_a_warning():
    assert paths(warnings(changed(v1(), "spec.backoffLimit", 4))) == ["spec.backoffLimit"]


@pytest.mark.parametrize(
    ("path", "value", "where", "message"),
    [
        ("spec.runPolicy.cleanPodPolicy", ..., "spec.runPolicy.cleanPodPolicy", "parameter servers keep running"),
        (
            f"{SPECS}.Worker.template.spec.restartPolicy",
            "OnFailure",
            f"{SPECS}.Worker.template.spec.restartPolicy",
            "OnFailure is overridden by Worker's restartPolicy Never",
        ),
        (
            f"{SPECS}.PS.template.spec.containers.0.env",
            [{"name": "TF_CONFIG", "value": "{}"}],
            f"{SPECS}.PS.template.spec.containers[0].env",
            "this one is overridden",
        ),
        (
            f"{SPECS}.PS.template.spec.containers.0.image",
            "registry/mnist:${TAG}",
            f"{SPECS}.PS.template.spec.containers[0].image",
            "${TAG}",
        ),
        (
            f"{SPECS}.PS.template.spec.initContainers",
            [{"name": "fetch", "image": "registry/fetch:${TAG}"}],
            f"{SPECS}.PS.template.spec.initContainers[0].image",
            "${TAG}",
        ),
        (
            "spec.runPolicy.schedulingPolicy.minResources",
            {"cpu": 2},
            "spec.runPolicy.schedulingPolicy.minResources",
            "is not used",
        ),
    ],
)
def test_warnings(path: str, value: Any, where: str, message: str):
    (found,) = warnings(changed(v1(), path, value))
    assert found.path == where
    assert message in found.message


@pytest.mark.parametrize(
    ("types", "policies", "where", "message"),
    [
        ({"Worker": {}}, {"backoffLimit": 2}, "Worker", "never succeeds and fails when backoffLimit 2 is spent"),
        ({"Worker": {}}, {}, "Worker", "Worker decides: the job never succeeds"),
        ({"Chief": {}, "Worker": {"restartPolicy": "OnFailure"}}, {}, "Chief", "Chief decides"),
    ],
)
def test_warns_of_always_on_replica_that_decides(types: Any, policies: Any, where: str, message: str) -> None:
    document = changed(minimal(**types), f"{SPECS}.{where}.restartPolicy", "Always")
    document = changed(document, "spec.runPolicy", policies)
    (found,) = warnings(document)
    assert found.path == f"{SPECS}.{where}.restartPolicy"
    assert message in found.message
    assert found.hint == "write OnFailure"


@pytest.mark.parametrize("others", [{"Chief": {}}, {"Worker": {}}])
def test_accepts_always_on_replica_that_does_not_decide(others: Any) -> None:
    document = minimal(**others, Evaluator={"restartPolicy": "Always"})
    assert warnings(document) == []


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("tensorflow/tensorflow:2.16.1-gpu", True),
        ("registry.example:5000/train", True),
        ("tensorflow/tensorflow:1.15.5-gpu", False),
        ("registry.example/1.x/train:v1.4", False),
    ],
)
def test_warns_of_master_unless_image_is_tensorflow_1(image: str, warned: bool) -> None:
    document = changed(minimal(Master={}, Worker={}), f"{SPECS}.Master.template.spec.containers.0.image", image)
    assert paths(warnings(document)) == [f"{SPECS}.Master"] * warned


def test_accepts_lone_master() -> None:
    assert warnings(minimal(Master={})) == []


def test_exit_code_policy_accepts_pods_that_never_restart():
    assert not warnings(changed(v1(), f"{SPECS}.Chief.template.spec.restartPolicy", "Never"))


def test_warns_of_job_that_never_succeeds():
    parsed = parse(minimal(Evaluator={}))
    assert paths(list(parsed.warnings)) == [SPECS]
    assert parsed.job.success == ()


def test_suspend_patch():
    assert suspend_patch(v1(), True) == {"spec": {"runPolicy": {"suspend": True}}}
    assert suspend_patch(v1(), False) == {"spec": {"runPolicy": {"suspend": False}}}
    annotated = changed(v1(), "metadata.annotations", {"tf-dist.dev/suspend": "true"})
    assert suspend_patch(annotated, False) == {
        "metadata": {"annotations": {"tf-dist.dev/suspend": None}},
        "spec": {"runPolicy": {"suspend": False}},
    }


def test_stored_job_may_have_unknown_keys_but_no_invalid_values():
    document = changed(v1(), "spec.newKey", 1)
    document = changed(document, f"{SPECS}.Worker.template.spec.containers.0.comand", ["x"])
    assert read(document).replica_specs[2].replicas == 3
    for path, value in [
        (f"{SPECS}.Master", {"template": template()}),
        (f"{SPECS}.Worker.replicas", "3"),
        (f"{SPECS}.Worker.template.spec.containers", {}),
        (f"{SPECS}.Worker.template.spec.containers.0.env", {}),
        (f"{SPECS}.Worker.template.spec", 3),
        ("spec", None),
    ]:
        with pytest.raises(InvalidJob):
            read(changed(v1(), path, value))


def test_reports_many_mistakes_in_one_replica_type():
    document = minimal(Worker={"replicas": "2", "restartPolicy": "No", "x": 1})
    assert paths(errors(document)) == [f"{SPECS}.Worker.replicas", f"{SPECS}.Worker.restartPolicy", f"{SPECS}.Worker.x"]

"""kubeflow.org/v1alpha1: defaults, validation, and the resulting job."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.core.dialects.documents import changed, errors, only_error, paths, template, v1alpha1, warnings
from tf_dist.core.dialects import defaulted, parse, read, suspend_patch
from tf_dist.core.model.job import Action, CleanPodPolicy, Event, ReplicaSpec, Role, SuccessRule, TFConfigStyle

SPECS = "spec.replicaSpecs"


def test_defaults_match_original_operator():
    document = changed(v1alpha1(), SPECS, [{"template": template()}, {"tfReplicaType": "PS", "replicas": 2}])
    assert defaulted(document)["spec"] == {
        "tfImage": "tensorflow/tensorflow:1.3.0",
        "terminationPolicy": {"chief": {"replicaName": "MASTER", "replicaIndex": 0}},
        "replicaSpecs": [
            {"template": template(), "replicas": 1, "tfPort": 2222, "tfReplicaType": "MASTER"},
            {"tfReplicaType": "PS", "replicas": 2, "tfPort": 2222},
        ],
    }


def test_parses_job():
    job = parse(v1alpha1()).job
    assert [(spec.name, spec.type, spec.role, spec.replicas) for spec in job.replica_specs] == [
        ("MASTER", "master", Role.MASTER, 1),
        ("WORKER", "worker", Role.WORKER, 2),
        ("PS", "ps", Role.PS, 1),
    ]
    assert job.success == (SuccessRule(type="master", index=0),)
    assert (job.running_types, job.tf_config) == (("master",), TFConfigStyle.V1ALPHA1)
    assert job.run_policy.clean_pods is CleanPodPolicy.RUNNING
    assert job.scheduling.min_available == 4
    assert all(spec.last_exit_counts for spec in job.replica_specs)
    assert [spec.pod_restart_policy for spec in job.replica_specs] == ["OnFailure", "OnFailure", "Always"]
    assert warnings(v1alpha1()) == []


def test_parameter_server_without_program_gets_standard_image():
    servers = parse(v1alpha1()).job.replica_specs[2]
    assert servers.server_image == "tensorflow/tensorflow:1.3.0"
    document = changed(v1alpha1(), "spec.tfImage", "tensorflow/tensorflow:1.8.0")
    sidecar = {"spec": {"containers": [{"name": "log", "image": "log:1"}]}}
    document = changed(document, f"{SPECS}.2.template", sidecar)
    servers = parse(document).job.replica_specs[2]
    assert (servers.server_image, servers.template) == ("tensorflow/tensorflow:1.8.0", sidecar)
    own = changed(v1alpha1(), f"{SPECS}.2.template", template())
    assert not parse(own).job.replica_specs[2].server_image


def action(spec: ReplicaSpec, index: int, code: int | None, oom: bool = False) -> Action:
    return next(
        rule.action
        for rule in spec.rules
        if Event.POD_FAILED in rule.events and (code, oom) in rule.codes and rule.index in (None, index)
    )


@pytest.mark.parametrize(
    ("code", "oom", "expected"),
    [
        (1, False, Action.FAIL_JOB),
        (127, False, Action.FAIL_JOB),
        (128, False, Action.RESTART_POD),
        (244, False, Action.RESTART_POD),
        (255, False, Action.RESTART_POD),
        (-1, False, Action.RESTART_POD),
        (None, False, Action.RESTART_POD),
        (137, True, Action.FAIL_JOB),
        (244, True, Action.FAIL_JOB),
    ],
)
def test_exit_codes_of_chief(code: int | None, oom: bool, expected: Action):
    assert action(parse(v1alpha1()).job.replica_specs[0], 0, code, oom) is expected


def test_only_chief_can_fail_job():
    document = changed(v1alpha1(), "spec.terminationPolicy", {"chief": {"replicaName": "WORKER", "replicaIndex": 1}})
    job = parse(document).job
    workers = job.replica_specs[1]
    assert [action(workers, index, 1) for index in (0, 1)] == [Action.RESTART_POD, Action.FAIL_JOB]
    assert job.success == (SuccessRule(type="worker", index=1),)
    assert action(job.replica_specs[0], 0, 1) is Action.RESTART_POD


def test_runtime_id_is_short_and_stable():
    one = parse(v1alpha1()).job.runtime_id
    assert re.fullmatch("[a-z0-9]{4}", one)
    assert parse(v1alpha1()).job.runtime_id == one
    by_uid = {read(changed(v1alpha1(), "metadata.uid", f"uid-{number}")).runtime_id for number in range(50)}
    assert len(by_uid) > 45
    assert parse(changed(v1alpha1(), "spec.RuntimeId", "ab12")).job.runtime_id == "ab12"


@pytest.mark.parametrize(
    ("uid", "own", "written"), [(None, None, False), ("u", None, True), ("u", "ab12", False), (None, "ab12", False)]
)
def test_runtime_id_is_written_into_stored_job_without_it(uid: str | None, own: str | None, written: bool) -> None:
    job = read(changed(changed(v1alpha1(), "metadata.uid", uid), "spec.RuntimeId", own))
    assert job.spec_defaults == ({"RuntimeId": job.runtime_id} if written else {})


def test_parses_fields_of_dragon():
    document = v1alpha1()
    document["spec"] |= {
        "min-instance": 1,
        "max-instance": 4,
        "batch-size": 32,
        "modelName": "resnet",
        "total-number": 1000,
        "schedulerName": "kube-batch",
        "cleanupPodPolicy": "All",
    }
    job = parse(document).job
    assert (job.replica_specs[1].min_replicas, job.scheduling.min_available) == (1, 3)
    assert job.scheduling.scheduler_name == "kube-batch"
    assert job.run_policy.clean_pods is CleanPodPolicy.ALL
    assert [spec.batches for spec in job.replica_specs] == [0, 1000, 0]


@pytest.mark.parametrize(
    ("total", "arguments", "message"),
    [
        (1000, ["--num_batches=1"], ""),
        (1000, ["--num_batches", "1"], ""),
        (0, ["--steps", "500"], ""),
        (1000, ["--steps", "500"], "no worker has an argument --num_batches"),
        (1, ["--num_batches=1"], "1 batch is fewer than the 2 workers"),
    ],
)
def test_warns_of_unusable_total_number(total: int, arguments: list[str], message: str) -> None:
    document = changed(v1alpha1(), f"{SPECS}.1.template.spec.containers.0.args", arguments)
    found = warnings(changed(document, "spec.total-number", total))
    assert [problem.path for problem in found] == ["spec.total-number"] * bool(message)
    assert all(message in problem.message for problem in found)


@pytest.mark.parametrize(
    ("path", "value", "where", "message", "hint"),
    [
        (f"{SPECS}.0.tfReplicaType", "PS", "", "", ""),
        (f"{SPECS}.0.replicas", 2, f"{SPECS}[0].replicas", "2 masters", "write 1"),
        (f"{SPECS}.1.template", ..., f"{SPECS}[1].template", "is required and missing", "only PS"),
        (
            f"{SPECS}.1.template.spec.containers.0.name",
            "tf",
            f"{SPECS}[1].template.spec.containers",
            "no container named 'tensorflow'",
            "rename 'tf'",
        ),
        (
            "spec.terminationPolicy",
            {"chief": {"replicaName": "WORKER", "replicaIndex": 2}},
            "spec.terminationPolicy.chief.replicaIndex",
            "the chief is WORKER 2, but there are 2 of it",
            "the last index is 1",
        ),
        ("spec.terminationPolicy", {}, "spec.terminationPolicy.chief", "is required and missing", ""),
        ("spec.RuntimeId", "A_b", "spec.RuntimeId", "is not a valid Kubernetes name", "a-b"),
        ("spec.min-instance", 3, f"{SPECS}[1].replicas", "2 workers are fewer than min-instance 3", "3 or more"),
        ("spec.max-instance", 1, f"{SPECS}[1].replicas", "2 workers are more than max-instance 1", "1 or fewer"),
        (SPECS, [], SPECS, "at least one entry", ""),
        (f"{SPECS}.1.template.spec.containers.0.image", 5, f"{SPECS}[1].template.spec.containers[0].image", "text", ""),
        (f"{SPECS}.0.tfPort", 0, f"{SPECS}[0].tfPort", "must be at least 1", ""),
        ("metadata.name", "9lives", "metadata.name", "must start with a letter", "lives"),
    ],
)
def test_validation_errors(path: str, value: Any, where: str, message: str, hint: str):
    found = errors(changed(v1alpha1(), path, value))
    problem = next(problem for problem in found if where in ("", problem.path))
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize("replicas", [1, 2])
def test_runtime_id_is_limited_by_length_of_service_names(replicas: int):
    specs = [{"template": template(), "replicas": replicas, "tfReplicaType": "WORKER"}]
    chief = {"chief": {"replicaName": "WORKER", "replicaIndex": 0}}
    longest = 63 - len(f"{v1alpha1()['metadata']['name']}-worker--{replicas - 1}")
    document = changed(changed(v1alpha1(), SPECS, specs), "spec.terminationPolicy", chief)
    parse(changed(document, "spec.RuntimeId", "r" * longest))
    problem = only_error(changed(document, "spec.RuntimeId", "r" * (longest + 1)))
    assert (problem.path, problem.hint) == ("spec.RuntimeId", f"with this name it may have {longest}")
    assert "would have 64 characters" in problem.message


def test_chief_must_exist():
    document = changed(v1alpha1(), SPECS, v1alpha1()["spec"]["replicaSpecs"][1:])
    problem = only_error(document)
    assert problem.path == "spec.terminationPolicy.chief.replicaName"
    assert "the chief is a MASTER (the default, as there is no terminationPolicy)" in problem.message
    assert "WORKER, PS" in problem.hint


def test_replica_types_must_be_unique():
    document = v1alpha1()
    document["spec"]["replicaSpecs"].append({"tfReplicaType": "PS"})
    document["spec"]["replicaSpecs"].append({"template": template()})
    assert paths(errors(document)) == [f"{SPECS}[3].tfReplicaType", f"{SPECS}[4].tfReplicaType"]


def test_refuses_contradicting_worker_bounds():
    document = v1alpha1()
    document["spec"] |= {"min-instance": 3, "max-instance": 2}
    assert "spec.min-instance" in paths(errors(document))


def test_accepts_workers_equal_to_both_bounds():
    document = v1alpha1()
    document["spec"] |= {"min-instance": 2, "max-instance": 2}
    job = parse(document).job
    (workers,) = [spec for spec in job.replica_specs if spec.role is Role.WORKER]
    assert (workers.replicas, workers.min_replicas, workers.max_replicas) == (2, 2, 2)


def test_warns_that_tensorboard_is_not_started():
    assert paths(warnings(changed(v1alpha1(), "spec.tensorboard", {"logDir": "/logs"}))) == ["spec.tensorboard"]


@pytest.mark.parametrize(("key", "value"), [("batch-size", 32), ("modelName", "resnet")])
def test_warns_of_unused_fields_of_dragon(key: str, value: Any) -> None:
    (found,) = warnings(changed(v1alpha1(), f"spec.{key}", value))
    assert (found.path, "is not used" in found.message) == (f"spec.{key}", True)


def test_suspending_sets_annotation():
    assert suspend_patch(v1alpha1(), True) == {"metadata": {"annotations": {"tf-dist.dev/suspend": "true"}}}
    assert suspend_patch(v1alpha1(), False) == {"metadata": {"annotations": {"tf-dist.dev/suspend": None}}}
    assert parse(changed(v1alpha1(), "metadata.annotations", {"tf-dist.dev/suspend": "true"})).job.run_policy.suspend

"""The ``TFJob`` class."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from tf_dist import InvalidJob, TFJob
from tf_dist.client.job_files import InvalidFiles
from tf_dist.core.dialects import parse
from tf_dist.core.model.job import Dialect

EXAMPLES = Path(__file__).parents[2] / "examples"
VOLCANO = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "v", "namespace": "ml"},
    "spec": {
        "minAvailable": 2,
        "tasks": [
            {
                "name": name,
                "replicas": 1,
                "template": {"spec": {"containers": [{"name": "tensorflow", "image": "tf"}]}},
            }
            for name in ("ps", "worker")
        ],
    },
}
V1ALPHA1 = {
    "apiVersion": "kubeflow.org/v1alpha1",
    "kind": "TFJob",
    "metadata": {"name": "old"},
    "spec": {
        "replicaSpecs": [
            {
                "replicas": count,
                "tfReplicaType": name,
                "template": {"spec": {"containers": [{"name": "tensorflow", "image": "tf"}], "restartPolicy": "Never"}},
            }
            for name, count in (("MASTER", 1), ("WORKER", 2))
        ]
    },
}


def test_job_without_name_can_be_replaced() -> None:
    nameless = TFJob(image="x", command=["true"])
    assert nameless.replace(name="mine") == TFJob("mine", image="x", command=["true"])
    changed = TFJob(image="x", command=["true"], workers=3, packages=["tiny==1"])
    assert nameless.replace(workers=3, packages=["tiny==1"]) == changed


def test_minimal_job_has_one_worker() -> None:
    parsed = parse(TFJob("a", image="tf", command=["python", "train.py"]).to_dict())
    assert [str(replica) for replica in parsed.job.replicas] == ["worker-0"]
    assert parsed.warnings == ()


def test_arguments_are_in_document() -> None:
    job = TFJob(
        "a",
        image="tf",
        command=["python", "train.py"],
        args=["--steps=5"],
        workers=2,
        ps=1,
        chief=True,
        evaluator=True,
        env_vars={"A": "b", "TOKEN": {"secretKeyRef": {"name": "s", "key": "k"}}},
        resources={"cpu": "2", "nvidia.com/gpu": 1},
        ps_resources={"cpu": 1},
        namespace="ml",
        pod={"nodeSelector": {"disk": "fast"}},
        container={"workingDir": "/w"},
        run_policy={"backoffLimit": 3, "schedulingPolicy": {"scheduleTimeoutSeconds": 60}},
        queue_name="spot",
        success_policy="AllWorkers",
        priority_class="low",
        labels={"team": "vision"},
        annotations={"note": "n"},
    )
    document = job.to_dict()
    parse(document)
    assert document["metadata"] == {
        "name": "a",
        "namespace": "ml",
        "labels": {"team": "vision"},
        "annotations": {"note": "n"},
    }
    assert document["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "backoffLimit": 3,
        "schedulingPolicy": {"scheduleTimeoutSeconds": 60, "queue": "spot", "priorityClass": "low"},
    }
    assert document["spec"]["successPolicy"] == "AllWorkers"
    groups = document["spec"]["tfReplicaSpecs"]
    assert {name: group["replicas"] for name, group in groups.items()} == {
        "Chief": 1,
        "PS": 1,
        "Worker": 2,
        "Evaluator": 1,
    }
    assert (groups["PS"]["restartPolicy"], groups["Worker"]["restartPolicy"]) == ("OnFailure", "ExitCode")
    spec = groups["Worker"]["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "fast"}
    (container,) = spec["containers"]
    assert container["workingDir"] == "/w"
    assert container["env"] == [
        {"name": "A", "value": "b"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    assert container["resources"] == {"requests": {"cpu": "2", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}
    (server,) = groups["PS"]["template"]["spec"]["containers"]
    assert server["resources"] == {"requests": {"cpu": 1}}
    assert (job.name, job.namespace, repr(job)) == ("a", "ml", "<TFJob a>")


def test_elastic_job_has_bounds() -> None:
    job = TFJob("a", image="tf", workers=4, min_workers=2, max_workers=8, enable_dynamic_worker=True)
    (worker,) = job.job.replica_specs
    assert (worker.min_replicas, worker.replicas, worker.most) == (2, 4, 8)
    assert parse(job.to_dict()).warnings == ()


WRONG = {
    "command": ("python train.py", "command", "['python', 'train.py']"),
    "args": (["--steps", 5], "args[1]", "'5'"),
    "workers": (-1, "workers", "from 0 up"),
    "ps": ("two", "ps", "whole number"),
    "min_workers": (1.5, "min_workers", "whole number"),
    "env_vars": ({"A": 1}, "env_vars['A']", '{"RATE": "0.1"}'),
    "resources": ({"cpu": "lots"}, "resources['cpu']", "500m"),
    "ps_resources": (["cpu"], "ps_resources", '{"cpu": "2"'),
    "image": ("", "image", "name the image"),
    "queue_name": (3, "queue_name", "text"),
    "labels": (["a"], "labels", '{"team": "research"}'),
    "annotations": ("a", "annotations", '{"note": "weekly"}'),
    "pod": (["a"], "pod", "nodeSelector"),
    "container": ("a", "container", "workingDir"),
    "run_policy": ("x", "run_policy", "backoffLimit"),
    "chief": ("yes", "chief", "True or False"),
    "evaluator": (2, "evaluator", "True or False"),
    "enable_dynamic_worker": ("yes", "enable_dynamic_worker", "True or False"),
}


@pytest.mark.parametrize("argument", WRONG)
def test_invalid_argument_is_reported_with_hint(argument: str) -> None:
    value, path, remedy = WRONG[argument]
    arguments: dict[str, Any] = {"image": "tf", argument: value}
    with pytest.raises(InvalidJob) as caught:
        TFJob("a", **arguments)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert remedy in f"{problem.message} {problem.hint}"


@pytest.mark.parametrize(
    ("given", "path", "remedy"),
    [
        ({"run_policy": {"schedulingPolicy": None}}, "run_policy.schedulingPolicy", "minAvailable"),
        ({"env_vars": {3: "a"}}, "env_vars[3]", "RATE"),
        ({"resources": {3: "1"}}, "resources[3]", '{"cpu": "2"'),
        ({"pod": {"containers": []}}, "pod.containers", "container"),
        ({"env_vars": {"A": "b"}, "container": {"env": []}}, "container.env", "env_vars"),
        ({"container": {"image": "other"}}, "container.image", "image"),
        ({"ps_resources": {"cpu": 1}, "container": {"resources": {}}}, "container.resources", "resources"),
    ],
)
def test_conflicting_argument_is_rejected(given: dict[str, Any], path: str, remedy: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        TFJob("a", **{"image": "tf", **given})
    (problem,) = caught.value.problems
    assert problem.path == path
    assert remedy in problem.hint


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"overrides": ["a"]}, "overrides"),
        ({"overrides": {3: 1}}, "overrides[3]"),
        ({"overrides": {"spec.nonsense": 3}}, "spec.nonsense"),
        ({"labels": ["a"]}, "labels"),
        ({"annotations": 3}, "annotations"),
    ],
)
def test_invalid_replacement_is_rejected(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        TFJob("a", image="tf").replace(**given)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert problem.hint


def test_pod_and_container_fields_are_merged() -> None:
    job = TFJob("a", image="tf", pod={"nodeSelector": {"pool": "a"}}, container={"env": [{"name": "A", "value": "b"}]})
    spec = job.to_dict()["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    assert (spec["nodeSelector"], spec["containers"][0]["env"][0]["name"]) == ({"pool": "a"}, "A")


POLICIES: dict[str, Any] = {
    "fallback": [{"workers": 1}, {"queue_name": "spot"}],
    "admission_timeout": "10m",
    "on_eviction": "fallback",
    "on_preemption": "requeue",
}


def test_policies_are_in_document() -> None:
    job = TFJob("a", image="tf", workers=4, annotations={"note": "n"}, **POLICIES)
    assert job == TFJob("a", image="tf", workers=4, annotations={"note": "n"}).replace(**POLICIES)
    assert job.to_dict()["metadata"]["annotations"]["note"] == "n"
    found = job.job
    assert [len(one.replicas) for one in found.fallbacks] == [1, 4]
    assert (found.scheduling.admission_timeout, found.fallbacks[1].scheduling.queue) == (600, "spot")
    assert (found.run_policy.on_eviction, found.run_policy.on_preemption) == ("fallback", "requeue")
    assert parse(job.to_dict()).warnings == ()
    assert job.replace(admission_timeout="2d").job.scheduling.admission_timeout == 172_800
    again = job.replace(admission_timeout=5, on_preemption="fallback").job
    assert (again.scheduling.admission_timeout, len(again.fallbacks)) == (5, 2)


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"fallback": [{"workers": -1}, {"gpus": 1}]}, ["fallback[0].workers", "fallback[1].gpus", "fallback"]),
        ({"on_eviction": "retry", "on_preemption": "fallback"}, ["on_eviction", "on_preemption"]),
        ({"fallback": [{"workers": 1}]}, ["fallback"]),
        ({"admission_timeout": 60}, ["admission_timeout"]),
        ({"admission_timeout": "soon", "fallback": [{"workers": 1}]}, ["admission_timeout"]),
    ],
)
def test_invalid_policies_are_rejected(given: dict[str, Any], paths: list[str]) -> None:
    for make in (lambda: TFJob("a", image="tf", **given), lambda: TFJob("a", image="tf").replace(**given)):
        with pytest.raises(InvalidJob) as caught:
            make()
        assert [problem.path for problem in caught.value.problems] == paths
        assert all(problem.hint for problem in caught.value.problems)


def test_replace_changes_job_from_document() -> None:
    changes: dict[str, Any] = {
        "namespace": "ml",
        "command": ["python"],
        "args": ["-V"],
        "env_vars": {"A": "b", "TOKEN": {"secretKeyRef": {"name": "s", "key": "k"}}},
        "resources": {"cpu": 1},
        "labels": {"team": "vision"},
        "annotations": {"note": "n"},
        "overrides": {"spec.maxRetry": 1, "spec.tasks[1].replicas": 2},
    }
    found = TFJob.from_dict(VOLCANO).replace(**changes).to_dict()
    assert found["metadata"] == {
        "name": "v",
        "namespace": "ml",
        "labels": {"team": "vision"},
        "annotations": {"note": "n"},
    }
    (container,) = found["spec"]["tasks"][1]["template"]["spec"]["containers"]
    assert (container["command"], container["args"]) == (["python"], ["-V"])
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}} in container["env"]
    assert (found["spec"]["tasks"][1]["replicas"], found["spec"]["tasks"][0]["replicas"]) == (2, 1)
    with pytest.raises(InvalidJob) as caught:
        TFJob("a", image="tf").replace(command="python train.py", env_vars={"A": 1}, admission_timeout=5)  # type: ignore[arg-type, dict-item]
    assert [problem.path for problem in caught.value.problems] == ["command", "env_vars['A']", "admission_timeout"]
    with pytest.raises(InvalidJob, match="overrides"):
        TFJob("a", image="tf").replace(overrides={"spec..replicas": 1})


def test_operator_and_class_have_same_arguments() -> None:
    pytest.importorskip("airflow", reason="Airflow is missing: pip install 'tf-dist[airflow]'")
    from tf_dist.airflow import TFJobOperator

    mine = inspect.signature(TFJob).parameters.keys()
    of_a_run = {
        *("job", "overrides", "kubernetes_conn_id", "in_cluster", "config_file", "cluster_context", "driver"),
        *("durable", "wait_for_completion", "deferrable", "poll_interval", "get_logs", "startup_timeout_seconds"),
        *("on_finish_action", "on_kill_action", "skip_on_exit_code", "callbacks", "job_url", "tensorboard_url"),
        "kwargs",
    }
    assert inspect.signature(TFJobOperator).parameters.keys() - mine == of_a_run


def test_all_invalid_arguments_are_reported_at_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        TFJob("a", **{name: value for name, (value, _, _) in WRONG.items()})
    assert [problem.path for problem in caught.value.problems] == sorted(
        (path for _, path, _ in WRONG.values()), key=[one.path for one in caught.value.problems].index
    )


def test_document_is_validated_when_read() -> None:
    job = TFJob("9", image="tf", workers=4, min_workers=9)  # valid for a Volcano job, but not for a TFJob
    with pytest.raises(InvalidFiles, match=r"metadata\.name"):
        _ = job.job
    paths = {found.problem.path for found in job.files().errors}
    assert {'metadata.annotations["tf-dist.dev/min-workers"]', "metadata.name"} <= paths


FILLED: Any = "{{ params.value }}"


def test_accepts_templates_for_text_and_numbers() -> None:
    job = TFJob(FILLED, image=FILLED, args=[FILLED], workers=FILLED, env_vars={"A": FILLED}, resources={"cpu": FILLED})
    assert job.to_dict()["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == FILLED
    changed = TFJob("a", image="tf").replace(image=FILLED, args=[FILLED], env_vars={"B": FILLED}, labels={"a": FILLED})
    assert changed.to_dict()["metadata"]["labels"] == {"a": FILLED}


# Templates render to text.
STRUCTURED = ("command", "args", "env_vars", "resources", "labels", "annotations")
ONLY_NEW = ("ps_resources", "chief", "evaluator", "enable_dynamic_worker", "pod", "container", "run_policy")


@pytest.mark.parametrize(
    ("arguments", "make"),
    [
        ((*STRUCTURED, *ONLY_NEW), lambda given: TFJob("a", image="tf", **given)),
        ((*STRUCTURED, "overrides"), lambda given: TFJob("a", image="tf").replace(**given)),
    ],
    ids=["new", "replace"],
)
def test_rejects_templates_for_lists_mappings_and_booleans(arguments: tuple[str, ...], make: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        make(dict.fromkeys(arguments, FILLED))
    assert sorted(problem.path for problem in caught.value.problems) == sorted(arguments)
    assert all(problem.hint and FILLED.split()[1] not in problem.hint for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("document", "dialect"), [(VOLCANO, Dialect.VOLCANO), (V1ALPHA1, Dialect.TFJOB_V1ALPHA1)], ids=["volcano", "old"]
)
def test_reads_every_job_format(document: dict[str, Any], dialect: Dialect, tmp_path: Path) -> None:
    job = TFJob.from_dict(document)
    assert job.job.dialect is dialect
    assert job.to_dict() == document
    file = tmp_path / "job.yaml"
    file.write_text(job.to_yaml())
    assert TFJob.from_file(file) == TFJob.from_yaml(file.read_text()) == job
    assert job.replace(workers=3, image="tf:2", name="n").job.key.name == "n"
    more = next(one for one in job.replace(workers=3).job.replica_specs if one.type == "worker")
    assert more.replicas == 3
    assert job.to_dict() == document


def test_keeps_companions_of_file(tmp_path: Path) -> None:
    companion = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
    text = yaml.safe_dump_all([companion, V1ALPHA1])
    job = TFJob.from_yaml(text)
    assert [one.content for one in job.files().companions] == [companion]
    assert list(yaml.safe_load_all(job.to_yaml())) == [companion, V1ALPHA1]
    assert job != TFJob.from_dict(V1ALPHA1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: TFJob\n", "the text:1: apiVersion"),
        (yaml.safe_dump_all([VOLCANO, V1ALPHA1]), "one job is run at a time"),
        ("a: [", "the text:"),
        (yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}), "there is no job in it"),
    ],
)
def test_invalid_text_is_reported_with_position(text: str, said: str) -> None:
    with pytest.raises(InvalidFiles) as caught:
        TFJob.from_yaml(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("document", [[], {"kind": "TFJob"}, {"metadata": 5}])
def test_invalid_document_is_rejected(document: Any) -> None:
    with pytest.raises(InvalidJob):
        TFJob.from_dict(document)


def test_job_can_be_copied_and_pickled() -> None:
    for job in (TFJob.from_file(EXAMPLES / "digits/tfjob.yaml"), TFJob("a", image="tf")):
        assert pickle.loads(pickle.dumps(job)) == copy.deepcopy(job) == job
    job.to_dict()["metadata"]["name"] = "changed"
    assert job.name == "a"

"""A TFJob in Python."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from tf_dist import InvalidJob, TFJob
from tf_dist.client.job_files import InvalidFiles
from tf_dist.core.api.job import Dialect
from tf_dist.core.dialects import parse

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


def test_the_least_job() -> None:
    parsed = parse(TFJob("a", image="tf", command=["python", "train.py"]).to_dict())
    assert [str(replica) for replica in parsed.job.replicas] == ["worker-0"]
    assert parsed.warnings == ()


def test_what_it_says_is_in_the_document() -> None:
    job = TFJob(
        "a",
        image="tf",
        command=["python", "train.py"],
        args=["--steps=5"],
        workers=2,
        ps=1,
        chief=True,
        evaluator=True,
        env={"A": "b", "TOKEN": {"secretKeyRef": {"name": "s", "key": "k"}}},
        resources={"cpu": "2", "nvidia.com/gpu": 1},
        ps_resources={"cpu": 1},
        namespace="ml",
        pod={"nodeSelector": {"disk": "fast"}},
        container={"workingDir": "/w"},
        run_policy={"backoffLimit": 3, "schedulingPolicy": {"scheduleTimeoutSeconds": 60}},
        queue="spot",
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


def test_an_elastic_job_has_bounds() -> None:
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
    "env": ({"A": 1}, "env['A']", "'1'"),
    "resources": ({"cpu": "lots"}, "resources['cpu']", "500m"),
    "ps_resources": (["cpu"], "ps_resources", '{"cpu": "2"}'),
    "image": ("", "image", "name the image"),
    "queue": (None, "queue", "text"),
}


@pytest.mark.parametrize("argument", WRONG)
def test_an_argument_that_cannot_be_used_is_named_with_what_helps(argument: str) -> None:
    value, path, remedy = WRONG[argument]
    arguments: dict[str, Any] = {"image": "tf", argument: value}
    with pytest.raises(InvalidJob) as caught:
        TFJob("a", **arguments)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert remedy in f"{problem.message} {problem.hint}"


def test_all_of_them_are_named_at_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        TFJob("a", **{name: value for name, (value, _, _) in WRONG.items()})
    assert [problem.path for problem in caught.value.problems] == sorted(
        (path for _, path, _ in WRONG.values()), key=[one.path for one in caught.value.problems].index
    )


def test_what_only_the_whole_document_shows_is_said_when_it_is_read() -> None:
    job = TFJob("no name!", image="tf", workers=4, min_workers=9)
    with pytest.raises(InvalidFiles, match=r"metadata\.name"):
        _ = job.job
    paths = {found.problem.path for found in job.files().errors}
    assert {'metadata.annotations["tf-dist.dev/min-workers"]', "metadata.name"} <= paths


def test_a_pipeline_may_fill_in_any_argument() -> None:
    filled: Any = "{{ params.value }}"
    job = TFJob(filled, image=filled, args=[filled], workers=filled, env={"A": filled}, resources={"cpu": filled})
    assert job.to_dict()["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == filled


@pytest.mark.parametrize(
    ("document", "dialect"), [(VOLCANO, Dialect.VOLCANO), (V1ALPHA1, Dialect.TFJOB_V1ALPHA1)], ids=["volcano", "old"]
)
def test_every_format_is_a_job(document: dict[str, Any], dialect: Dialect, tmp_path: Path) -> None:
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


def test_what_stands_beside_the_job_in_its_file_comes_with_it(tmp_path: Path) -> None:
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
def test_a_file_that_is_no_job_says_where_and_why(text: str, said: str) -> None:
    with pytest.raises(InvalidFiles) as caught:
        TFJob.from_yaml(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("document", [[], {"kind": "TFJob"}, {"metadata": 5}])
def test_a_document_that_is_no_job_is_refused(document: Any) -> None:
    with pytest.raises(InvalidJob):
        TFJob.from_dict(document)


def test_it_can_be_copied_and_sent_to_another_process() -> None:
    for job in (TFJob.from_file(EXAMPLES / "digits/tfjob.yaml"), TFJob("a", image="tf")):
        assert pickle.loads(pickle.dumps(job)) == copy.deepcopy(job) == job
    job.to_dict()["metadata"]["name"] = "changed"
    assert job.name == "a"

"""A TFJob in Python."""

from __future__ import annotations

import pytest

from tf_dist.client.tfjob import TFJob
from tf_dist.core.dialects import parse
from tf_dist.errors import InvalidJob


def test_the_least_job() -> None:
    parsed = parse(TFJob(name="a", image="tf", command=["python", "train.py"]).document())
    assert [str(replica) for replica in parsed.job.replicas] == ["worker-0"]
    assert parsed.warnings == ()


def test_what_it_says_is_in_the_document() -> None:
    job = TFJob(
        name="a",
        image="tf",
        command=["python", "train.py"],
        args=["--steps=5"],
        workers=2,
        ps=1,
        chief=True,
        evaluators=1,
        env={"A": "b"},
        resources={"cpu": "2", "nvidia.com/gpu": 1},
        pod={"nodeSelector": {"disk": "fast"}},
        container={"workingDir": "/w"},
        run_policy={"backoffLimit": 3},
        labels={"team": "vision"},
        annotations={"note": "n"},
    )
    document = job.document()
    parse(document)
    assert document["metadata"] == {"name": "a", "labels": {"team": "vision"}, "annotations": {"note": "n"}}
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
    assert container["env"] == [{"name": "A", "value": "b"}]
    assert container["resources"] == {"requests": {"cpu": "2", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}


def test_a_command_that_is_one_text_is_refused_and_not_taken_letter_by_letter() -> None:
    with pytest.raises(InvalidJob, match="command"):
        parse(TFJob(name="a", image="tf", command="python train.py").document())

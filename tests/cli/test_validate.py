"""``validate``: every problem of a file, with its place and a way out; exit code 2 and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Program

EXAMPLES = Path(__file__).parents[2] / "examples" / "digits"


def test_the_examples_are_valid(tf_dist: Program) -> None:
    files = sorted(EXAMPLES.glob("*.yaml"))
    found = tf_dist("validate", *map(str, files))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count(": valid: ") == len(files) > 0


def test_files_that_are_not_there(tf_dist: Program) -> None:
    (tf_dist.folder / "folder").mkdir()
    found = tf_dist("validate", "missing.yaml", "folder")
    assert found.returncode == 2
    assert "missing.yaml: does not exist" in found.stdout
    assert "folder: is a folder" in found.stdout


def _set(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value

    return change


WORKER = ("spec", "tfReplicaSpecs", "Worker")
CONTAINER = (*WORKER, "template", "spec", "containers", 0)


def _serving(name: str) -> dict[str, Any]:
    return {"name": name, "image": "none", "command": ["true"], "ports": [{"containerPort": 2222}]}


JOBS = {
    "a typo in a key": (_set(*WORKER, "replica", value=1), "replica", "replicas"),
    "zero replicas": (_set(*WORKER, "replicas", value=0), "spec.tfReplicaSpecs: there are no replicas", ""),
    "a word for a number": (_set(*WORKER, "replicas", value="two"), "spec.tfReplicaSpecs.Worker.replicas", ""),
    "a long name": (_set("metadata", "name", value="a" * 64), "metadata.name", ""),
    "a port twice": (
        _set(*CONTAINER[:-1], value=[_serving("tensorflow"), _serving("sidecar")]),
        "containers[1].ports[0]",
        "",
    ),
}


@pytest.mark.parametrize(("change", "path", "hint"), JOBS.values(), ids=JOBS.keys())
def test_jobs_that_are_wrong(tf_dist: Program, change: Callable[[dict[str, Any]], None], path: str, hint: str) -> None:
    job = copy.deepcopy(tf_dist.job())
    change(job)
    found = tf_dist("validate", tf_dist.write("job.yaml", job))
    assert found.returncode == 2
    assert "error: job.yaml:1: " in found.stdout
    assert path in found.stdout
    assert hint in found.stdout
    assert "Traceback" not in found.stderr


def test_two_chiefs(tf_dist: Program) -> None:
    job = tf_dist.job()
    chief = {**job["spec"]["tfReplicaSpecs"]["Worker"], "replicas": 2}
    job["spec"]["tfReplicaSpecs"]["Chief"] = chief
    found = tf_dist("validate", tf_dist.write("job.yaml", job))
    assert found.returncode == 2
    assert "spec.tfReplicaSpecs.Chief" in found.stdout


def test_every_problem_of_every_document_at_once(tf_dist: Program) -> None:
    good, bad = tf_dist.job(), tf_dist.job(name="Bad_Name")
    bad["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = -1
    companion = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    file = tf_dist.write("all.yaml", good, companion, bad, "x: [")
    found = tf_dist("validate", file, "missing.yaml", "-o", "json")
    report = json.loads(found.stdout)
    assert found.returncode == 2
    assert not report["valid"]
    places = [(one["file"], one["document"], one["path"]) for one in report["problems"] if one["severity"] == "error"]
    assert ("all.yaml", 3, "metadata.name") in places
    assert ("all.yaml", 3, "spec.tfReplicaSpecs.Worker.replicas") in places
    assert ("missing.yaml", None, "") in places
    assert [job["name"] for job in report["jobs"]] == ["job"]


def test_one_name_twice(tf_dist: Program) -> None:
    first, second = tf_dist.write("a.yaml", tf_dist.job()), tf_dist.write("b.yaml", tf_dist.job())
    found = tf_dist("validate", first, second)
    assert found.returncode == 2
    assert "b.yaml:1: metadata.name: TFJob job is there twice: in a.yaml too" in found.stdout


def test_the_line_is_that_of_the_problem(tf_dist: Program) -> None:
    text = (EXAMPLES / "tfjob.yaml").read_text().replace("replicas: 2", "replicas: two")
    line = text[: text.index("replicas: two")].count("\n") + 1
    found = tf_dist("validate", tf_dist.write("job.yaml", text))
    assert f"error: job.yaml:{line}: spec.tfReplicaSpecs.Worker.replicas:" in found.stdout


def test_standard_input_windows_lines_and_a_byte_order_mark(tf_dist: Program) -> None:
    text = (EXAMPLES / "tfjob.yaml").read_text()
    for data in (
        text.replace("\n", "\r\n").encode("utf-8-sig"),
        text.encode("utf-16"),
        text.encode(),
    ):
        found = tf_dist("validate", "-", stdin=data)
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.startswith("(standard input): valid: TFJob default/digits")


def test_values_are_read_as_a_cluster_reads_them(tf_dist: Program) -> None:
    job = tf_dist.job()
    text = json.dumps(job)[:-1] + ', "x": 1}'
    values = 'env: [{name: A, value: 12:30}, {name: B, value: 2027-01-15}, {name: C, value: "1"}]'
    text = json.dumps(job).replace('"name": "tensorflow"', f'"name": "tensorflow", {values}')
    found = tf_dist("validate", tf_dist.write("job.yaml", text))
    assert (found.returncode, found.stderr) == (0, ""), found.stdout


def test_warnings_count_only_when_strict(tf_dist: Program) -> None:
    job = tf_dist.job()
    spec = job["spec"]
    del spec["runPolicy"]
    spec["tfReplicaSpecs"]["PS"] = spec["tfReplicaSpecs"]["Worker"]
    file = tf_dist.write("job.yaml", job)
    relaxed, strict = tf_dist("validate", file), tf_dist("validate", file, "--strict")
    assert (relaxed.returncode, strict.returncode) == (0, 2)
    assert "warning: job.yaml:1: spec.runPolicy" in relaxed.stdout
    assert "  hint: " in relaxed.stdout

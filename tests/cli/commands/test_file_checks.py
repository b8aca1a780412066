"""``validate`` reports every problem of a file with its position and a hint, and exits with 2.

``plan`` and ``convert``: the output, byte for byte where users depend on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Program

EXAMPLES = Path(__file__).parents[3] / "examples" / "digits"


def test_examples_are_valid(tf_dist: Program) -> None:
    files = sorted(EXAMPLES.glob("*.yaml"))
    found = tf_dist("validate", *map(str, files))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count(": valid: ") == len(files) > 0


def test_missing_files_and_folders_are_reported(tf_dist: Program) -> None:
    (tf_dist.folder / "folder").mkdir()
    found = tf_dist("validate", "missing.yaml", "folder", "")
    assert found.returncode == 2
    assert "missing.yaml: does not exist" in found.stdout
    assert "error: '': is not the name of a file\n  hint: check the path: a variable in it may be empty" in found.stdout
    assert "standard input" not in found.stdout
    assert "folder: is a folder" in found.stdout


def test_reports_all_problems_of_all_documents(tf_dist: Program) -> None:
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


def test_reports_duplicate_name(tf_dist: Program) -> None:
    first, second = tf_dist.write("a.yaml", tf_dist.job()), tf_dist.write("b.yaml", tf_dist.job())
    found = tf_dist("validate", first, second)
    assert found.returncode == 2
    assert "b.yaml:1: metadata.name: TFJob job appears twice: in a.yaml too" in found.stdout


def test_problem_has_line_number(tf_dist: Program) -> None:
    text = (EXAMPLES / "tfjob.yaml").read_text().replace("replicas: 2", "replicas: two")
    line = text[: text.index("replicas: two")].count("\n") + 1
    found = tf_dist("validate", tf_dist.write("job.yaml", text))
    assert f"error: job.yaml:{line}: spec.tfReplicaSpecs.Worker.replicas:" in found.stdout


def test_reads_standard_input_in_every_encoding(tf_dist: Program) -> None:
    text = (EXAMPLES / "tfjob.yaml").read_text()
    for data in (
        text.replace("\n", "\r\n").encode("utf-8-sig"),
        text.encode("utf-16"),
        text.encode(),
    ):
        found = tf_dist("validate", "-", stdin=data)
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.startswith("(standard input): valid: TFJob default/digits")


def test_yaml_values_are_read_like_in_cluster(tf_dist: Program) -> None:
    job = tf_dist.job()
    values = 'env: [{name: A, value: 12:30}, {name: B, value: 2027-01-15}, {name: C, value: "1"}]'
    text = json.dumps(job).replace('"name": "tensorflow"', f'"name": "tensorflow", {values}')
    found = tf_dist("validate", tf_dist.write("job.yaml", text))
    assert (found.returncode, found.stderr) == (0, ""), found.stdout


def test_warnings_fail_only_with_strict(tf_dist: Program) -> None:
    job = tf_dist.job()
    spec = job["spec"]
    del spec["runPolicy"]
    spec["tfReplicaSpecs"]["PS"] = spec["tfReplicaSpecs"]["Worker"]
    file = tf_dist.write("job.yaml", job)
    relaxed, strict = tf_dist("validate", file), tf_dist("validate", file, "--strict")
    assert (relaxed.returncode, strict.returncode) == (0, 2)
    assert "warning: job.yaml:1: spec.runPolicy" in relaxed.stdout
    assert "  hint: " in relaxed.stdout


ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "examples" / "digits"

PLAN = """\
TFJob default/job (kubeflow.org/v1)
gang: at least 2 of 2 pods start together; it needs cpu 1, memory 2Gi, pods 2

KIND     NAME          DETAIL
Service  job-worker-0  port 2222
Service  job-worker-1  port 2222
Pod      job-worker-0  tensorflow: none
Pod      job-worker-1  tensorflow: none

worker-0 TF_CONFIG
  {"cluster":{"worker":["job-worker-0.default.svc:2222","job-worker-1.default.svc:2222"]},\
"task":{"type":"worker","index":0},"environment":"cloud"}

worker-1 TF_CONFIG
  {"cluster":{"worker":["job-worker-0.default.svc:2222","job-worker-1.default.svc:2222"]},\
"task":{"type":"worker","index":1},"environment":"cloud"}
"""


def sized(tf_dist: Program) -> dict[str, Any]:
    job = tf_dist.job(workers=1)
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    return job


def test_plan_prints_table(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", sized(tf_dist))
    found = tf_dist("plan", file, "--set", "spec.tfReplicaSpecs.Worker.replicas=2")
    assert (found.returncode, found.stdout, found.stderr) == (0, PLAN, "")


@pytest.mark.parametrize(("replicas", "shown"), [(20, 20), (21, 3), (2_000, 3)])
def test_plan_table_abbreviates_many_replicas(tf_dist: Program, replicas: int, shown: int) -> None:
    """Each TF_CONFIG of 2,000 replicas has 2,000 addresses. All of them together have 140 MB."""
    file = tf_dist.write("job.yaml", sized(tf_dist))
    found = tf_dist("plan", file, "--set", f"spec.tfReplicaSpecs.Worker.replicas={replicas}")
    lines = found.stdout.splitlines()
    for begin in ("Pod ", "Service ", "worker-"):
        assert sum(line.startswith(begin) for line in lines) == shown
    note = f"and {replicas - shown} more of Worker like these: -o yaml has them all"
    assert [line for line in lines if line.startswith("and ")] == [note] * (shown < replicas)
    assert f"gang: at least {replicas} of {replicas} pods" in found.stdout


def test_plan_json_abbreviates_many_replicas(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", sized(tf_dist))
    found = tf_dist("plan", file, "-o", "json", "--set", "spec.tfReplicaSpecs.Worker.replicas=1500")
    report = json.loads(found.stdout)
    assert report["replicas"] == {"worker": {"count": 1500, "shown": 3}}
    assert list(report["tfConfig"]) == ["worker-0", "worker-1", "worker-2"]
    assert [one["kind"] for one in report["objects"]] == ["Service"] * 3 + ["Pod"] * 3
    assert len(found.stdout) < 1_000_000


def test_plan_yaml_contains_all_replicas(tf_dist: Program) -> None:
    file = tf_dist.write("job.yaml", sized(tf_dist))
    found = tf_dist("plan", file, "-o", "yaml", "--set", "spec.tfReplicaSpecs.Worker.replicas=21")
    objects = list(yaml.safe_load_all(found.stdout))
    assert [one["kind"] for one in objects] == ["Service"] * 21 + ["Pod"] * 21


@pytest.mark.parametrize("example", ["tfjob.yaml", "tfjob-v1alpha1.yaml", "volcano-job.yaml"])
def test_plan_yaml_contains_objects_without_owner(tf_dist: Program, example: str) -> None:
    found = tf_dist("plan", str(DIGITS / example), "-o", "yaml")
    objects = list(yaml.safe_load_all(found.stdout))
    assert found.returncode == 0
    assert all({"apiVersion", "kind", "metadata", "spec"} <= set(one) or one["kind"] == "ConfigMap" for one in objects)
    assert not any("ownerReferences" in one["metadata"] for one in objects)
    assert [one["kind"] for one in objects if one["kind"] == "Pod"] == ["Pod"] * 3
    selectors = [one["spec"]["selector"] for one in objects if one["kind"] == "Service"]
    labels = [one["metadata"]["labels"] for one in objects if one["kind"] == "Pod"]
    assert all(any(selector.items() <= found.items() for found in labels) for selector in selectors)


def test_plan_json_contains_tf_config(tf_dist: Program) -> None:
    companion = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}
    file = tf_dist.write("job.yaml", companion, sized(tf_dist))
    found = tf_dist("plan", file, "-o", "json", "--set", "spec.tfReplicaSpecs.Worker.replicas=2")
    report = json.loads(found.stdout)
    assert report["job"] == {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "job", "namespace": "default"}
    assert report["requests"] == {"cpu": "1", "memory": "2Gi", "pods": "2"}
    assert report["objects"][0] == companion
    assert report["tfConfig"]["worker-0"]["task"] == {"type": "worker", "index": 0}


@pytest.mark.parametrize("asked", [("--cluster-domain", "example.local"), ("CUSTOM_CLUSTER_DOMAIN", ".example.local")])
def test_plan_uses_cluster_domain(tf_dist: Program, asked: tuple[str, str]) -> None:
    file = tf_dist.write("job.yaml", sized(tf_dist))
    arguments = ["plan", file, "-o", "json", "--set", "spec.tfReplicaSpecs.Worker.replicas=2"]
    by_option = asked[0].startswith("--")
    found = tf_dist(*arguments, *asked) if by_option else tf_dist(*arguments, **dict([asked]))
    workers = json.loads(found.stdout)["tfConfig"]["worker-0"]["cluster"]["worker"]
    assert workers == [f"job-worker-{index}.default.svc.example.local:2222" for index in range(2)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("spec.tfReplicaSpecs.Wroker.replicas=3", "did you mean Worker?"),
        ("spec.tfReplicaSpecs.Worker.replicas=many", "spec.tfReplicaSpecs.Worker.replicas"),
        ("nonsense", "--set: there is no '=' in 'nonsense'"),
    ],
)
def test_plan_rejects_invalid_set_option(tf_dist: Program, change: str, told: str) -> None:
    found = tf_dist("plan", tf_dist.write("job.yaml", tf_dist.job()), "--set", change)
    assert (found.returncode, found.stdout) == (2, "")
    assert told in found.stderr


def test_plan_rejects_two_jobs(tf_dist: Program) -> None:
    found = tf_dist("plan", tf_dist.write("job.yaml", tf_dist.job(), tf_dist.job(name="other")))
    assert found.returncode == 2
    assert "document 2: one job is run at a time, and there are 2: job, other" in found.stderr


@pytest.mark.parametrize("kind", ["tfjob", "volcano-job"])
def test_convert_prints_valid_job(tf_dist: Program, kind: str) -> None:
    found = tf_dist("convert", str(DIGITS / f"{kind}.yaml"), "--to", "kubeflow.org/v1")
    assert found.returncode == 0, found.stderr
    assert yaml.safe_load(found.stdout)["apiVersion"] == "kubeflow.org/v1"
    again = tf_dist("validate", "-", stdin=found.stdout)
    assert again.returncode == 0, again.stdout


def test_convert_reports_lost_fields(tf_dist: Program) -> None:
    job = yaml.safe_load((DIGITS / "volcano-job.yaml").read_text())
    job["spec"]["plugins"]["ssh"] = []
    file = tf_dist.write("job.yaml", job)
    found, strict = tf_dist("convert", file), tf_dist("convert", file, "--strict")
    assert (found.returncode, strict.returncode) == (0, 2)
    assert "job.yaml:1: spec.plugins.ssh: the keys of the ssh plugin would not exist" in found.stderr
    assert found.stdout == strict.stdout


def test_convert_keeps_companions(tf_dist: Program) -> None:
    companion = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    found = tf_dist("convert", tf_dist.write("job.yaml", companion, tf_dist.job()), "--to", "kubeflow.org/v1")
    assert [one["kind"] for one in yaml.safe_load_all(found.stdout)] == ["ConfigMap", "TFJob"]


def test_convert_translates_volcano_queues(tf_dist: Program) -> None:
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    spec = {"capability": {"cpu": 8}, "reclaimable": False, "type": "batch"}
    lab = {**head, "metadata": {"name": "lab"}, "spec": spec}
    team = {**head, "metadata": {"name": "team"}, "spec": {"parent": "lab", "capability": {"cpu": 4}}}
    file = tf_dist.write("queues.yaml", lab, team, tf_dist.job())
    refused = tf_dist("validate", file)
    assert refused.returncode == 2
    assert "hint: tf-dist convert FILE --to tf-dist.dev/v1alpha1" in refused.stdout
    found = tf_dist("convert", file, "--to", "tf-dist.dev/v1alpha1")
    assert found.returncode == 0
    assert "document 1: spec.type: is left out" in found.stderr
    assert tf_dist("convert", file, "--to", "tf-dist.dev/v1alpha1", "--strict").returncode == 2
    mine = [one["spec"] for one in yaml.safe_load_all(found.stdout) if one["kind"] == "Queue"]
    assert mine == [
        {"quotas": {"cpu": {"nominal": "8"}}, "reclaimable": False},
        {"parent": "lab", "quotas": {"cpu": {"nominal": "0", "borrowingLimit": "4"}}},
    ]
    (tf_dist.folder / "converted.yaml").write_text(found.stdout)
    assert tf_dist("validate", "converted.yaml").returncode == 0


def test_convert_rejects_invalid_queue(tf_dist: Program) -> None:
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "lab"}}
    file = tf_dist.write("queues.yaml", {**head, "spec": {"capability": {"cpu": "much"}}})
    found = tf_dist("convert", file, "--to", "tf-dist.dev/v1alpha1")
    assert (found.returncode, found.stdout) == (2, "")
    assert "spec.capability.cpu: is not a quantity" in found.stderr


def test_convert_rejects_unsupported_format(tf_dist: Program) -> None:
    found = tf_dist("convert", tf_dist.write("job.yaml", tf_dist.job()), "--to", "kubeflow.org/v1alpha1")
    assert found.returncode == 2
    assert "--to: there is no conversion to 'kubeflow.org/v1alpha1'" in found.stderr

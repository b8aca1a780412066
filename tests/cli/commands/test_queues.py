"""``queues``, and queue documents in ``validate`` and ``submit``, with an API server over HTTP."""

from __future__ import annotations

import copy
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Program
from tf_dist.cli.main import run
from tf_dist.cluster.api import NODES, QUEUES, TFJOBS, VOLCANO_QUEUES
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster
from tf_dist.core.dialects.queue_resource import read_queue
from tf_dist.core.gang.quota import Quotas, queue_status, queue_usage
from tf_dist.core.model.fieldpath import value_at

EXAMPLES = Path(__file__).parents[3] / "examples" / "queues"
TEAMS = str(EXAMPLES / "two-teams.yaml")
GPU = "nvidia.com/gpu"
STATUS = {"pending": 2, "admitted": 1, "usage": "cpu 1/4", "share": "25%", "borrowed": {"cpu": "1"}, "message": "m"}


def document(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "tf-dist.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def report(memory: MemoryCluster, **gpus: int) -> None:
    """Write the status of every queue, like a leader would with this number of GPUs in use."""
    stored = memory.list(QUEUES).items
    quotas = Quotas([read_queue(one) for one in stored])
    for name, count in gpus.items():
        quotas.take(name, {GPU: Decimal(count)})
    for one in stored:
        name = one["metadata"]["name"]
        status = queue_status(queue_usage(quotas, name, pending=2, admitted=1))
        memory.replace(QUEUES, None, name, {**one, "status": status}, subresource="status")


def test_cluster_without_queues_suggests_submit(tf_dist: Program, config: str) -> None:
    found = tf_dist("queues", "--kubeconfig", config)
    assert (found.returncode, found.stdout) == (0, "")
    assert "there are no queues: every job is in the queue default" in found.stderr
    assert "tf-dist submit FILE" in found.stderr
    listed = tf_dist("queues", "--kubeconfig", config, "-o", "json")
    assert (json.loads(listed.stdout)["items"], listed.stderr) == ([], "")


def test_submit_creates_and_updates_queues(tf_dist: Program, memory: MemoryCluster, config: str) -> None:
    assert tf_dist("validate", TEAMS).stdout.count(": valid: Queue ") == 4
    for done in ("created", "unchanged"):
        found = tf_dist("submit", "--kubeconfig", config, TEAMS)
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.splitlines()[0] == f"queue/research {done}"
    assert {one["metadata"]["name"] for one in memory.list(QUEUES).items} == {"research", "vision", "speech", "spare"}
    assert read_queue(memory.get(QUEUES, None, "vision")).weight == 2


def test_queues_prints_tree_with_usage(tf_dist: Program, memory: MemoryCluster, config: str) -> None:
    for written in yaml.safe_load_all(Path(TEAMS).read_text()):
        memory.create(QUEUES, None, written)
    fresh = tf_dist("queues", "--kubeconfig", config).stdout.splitlines()
    assert fresh[1].split()[:6] == ["research", "-", "-", "-", "-", "-"]
    report(memory, vision=10)
    found = tf_dist("queues", "--kubeconfig", config)
    assert (found.returncode, found.stderr) == (0, "")
    titles, *rows = found.stdout.splitlines()
    assert titles.split() == ["NAME", "PENDING", "ADMITTED", "USED", "SHARE", "PARENT", "AGE"]
    assert [row.split()[0] for row in rows] == ["research", "spare", "speech", "vision"]
    assert rows[3].startswith("  vision ")
    assert rows[3].split()[1:-2] == ["2", "1", "nvidia.com/gpu", "10/8,", "cpu", "0/64,", "memory", "0/256Gi", "125%"]
    assert rows[0].split()[1:5] == ["2", "1", "nvidia.com/gpu", "10/12,"]
    wide = tf_dist("queues", "--kubeconfig", config, "-o", "wide").stdout.splitlines()
    assert wide[4].endswith("2       BestEffortFIFO  Reclaim     all         nvidia.com/gpu 2")


def test_wide_output_shows_namespace_selectors(tf_dist: Program, memory: MemoryCluster, config: str) -> None:
    rule = {"key": "tier", "operator": "NotIn", "values": ["test", "dev"]}
    selector = {"matchLabels": {"team": "vision"}, "matchExpressions": [rule]}
    for name, spec in {"closed": {"namespaceSelector": selector}, "open": {"namespaceSelector": {}}, "a": {}}.items():
        memory.create(QUEUES, None, document(name, **spec))
    titles, *rows = tf_dist("queues", "--kubeconfig", config, "-o", "wide").stdout.splitlines()
    at = titles.index("NAMESPACES")
    assert [row[at:].split("  ")[0] for row in rows] == ["all", "team=vision,tier notin (dev, test)", "all"]


def test_volcano_queues_are_listed(tf_dist: Program, memory: MemoryCluster, config: str) -> None:
    """If two queues have the same name, tf-dist uses and shows its own."""
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    spec = {"weight": 3, "deserved": {"cpu": 8}}
    for name in ("default", "root", "both", "theirs"):
        memory.create(VOLCANO_QUEUES, None, {**head, "metadata": {"name": name}, "spec": spec if name > "s" else {}})
    memory.create(QUEUES, None, document("both", weight=2))
    found = tf_dist("queues", "--kubeconfig", config, "-o", "wide")
    titles, *rows = found.stdout.splitlines()
    at = titles.index("WEIGHT")
    assert [(row.split()[0], row[at:].split()[0]) for row in rows] == [
        ("both", "2"),
        ("default", "1"),
        ("root", "1"),
        ("theirs", "3"),
    ]
    assert "queues of Volcano: default, root, theirs; tf-dist reads them" in found.stderr
    listed = json.loads(tf_dist("queues", "--kubeconfig", config, "-o", "json").stdout)["items"]
    stored = {one["metadata"]["name"]: (one["apiVersion"], one["spec"]) for one in listed}
    assert stored["theirs"] == ("scheduling.volcano.sh/v1beta1", spec)
    named = tf_dist("queues", "--kubeconfig", config, "-o", "name").stdout.split()
    assert "queue.scheduling.volcano.sh/theirs" in named
    assert "queue/both" in named


def test_queue_is_printed_as_table_json_and_name(tf_dist: Program, memory: MemoryCluster, config: str) -> None:
    memory.create(QUEUES, None, document("vision", parent="research"))
    shown = tf_dist("queues", "vision", "--kubeconfig", config)
    assert shown.stdout.splitlines()[1].startswith("vision ")
    stored = json.loads(tf_dist("queues", "vision", "--kubeconfig", config, "-o", "json").stdout)
    assert (stored["kind"], stored["spec"]) == ("Queue", {"parent": "research"})
    assert tf_dist("queues", "--kubeconfig", config, "-o", "name").stdout == "queue/vision\n"
    near = tf_dist("queues", "vison", "--kubeconfig", config)
    assert near.returncode == 2
    assert "there is no queue vison" in near.stderr
    assert "did you mean vision?" in near.stderr


def test_invalid_queues_are_listed_with_warnings(tf_dist: Program, memory: MemoryCluster, config: str) -> None:
    memory.create(QUEUES, None, document("a", parent="b"))
    memory.create(QUEUES, None, document("b", parent="a"))
    memory.create(QUEUES, None, document("c", parent="a"))
    report(memory)
    memory.create(QUEUES, None, document("d", weight="two"))
    found = tf_dist("queues", "--kubeconfig", config, "-o", "wide")
    assert found.returncode == 0
    assert sorted(row.split()[0] for row in found.stdout.splitlines()[1:]) == ["a", "b", "c", "d"]
    assert "warning: queue a: its parents lead back to itself" in found.stderr
    assert "warning: queue d: spec.weight: must be a whole number" in found.stderr


@pytest.mark.parametrize("value", [None, 5, "x", [], [{}], {"x": None}], ids=str)
@pytest.mark.parametrize(
    "path", [f"status.{key}" for key in (*STATUS, "borrowed.cpu")] + ["spec.parent", "spec.quotas"]
)
def test_queues_with_values_of_other_clients_are_listed(
    path: str, value: Any, memory: MemoryCluster, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body: Any = {**document("odd", quotas={}), "status": copy.deepcopy(STATUS)}
    *above, last = path.split(".")
    value_at(body, *above)[last] = value
    made = memory.create(QUEUES, None, {**body, "status": {}})
    memory.replace(QUEUES, None, "odd", {**made, "status": body["status"]}, subresource="status")
    memory.create(QUEUES, None, document("sound", quotas={"cpu": {"nominal": "4"}}))
    assert run(["queues", "--kubeconfig", config, "-o", "wide"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()] == ["NAME", "odd", "sound"]


def test_odd_queue_does_not_hide_others(tf_dist: Program, memory: MemoryCluster, config: str) -> None:
    """A cluster with another definition of queues may have values of any type."""
    odd: list[Any] = [None, "x", 1, True, [1], {"a": [1]}]
    memory.create(QUEUES, None, document("red", parent="\x1b[31m\nfake"))
    for number, value in enumerate(odd):
        stored = memory.create(QUEUES, None, document(f"odd-{number}", weight=value, parent=value))
        status = dict.fromkeys(("borrowed", "message", "pending", "share"), value)
        memory.replace(QUEUES, None, f"odd-{number}", {**stored, "status": status}, subresource="status")
    found = tf_dist("queues", "--kubeconfig", config, "-o", "wide")
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 2 + len(odd)
    assert "\x1b" not in found.stdout


def test_problems_of_queues_have_line_numbers(tf_dist: Program) -> None:
    (tf_dist.folder / "queues.yaml").write_text(
        "apiVersion: tf-dist.dev/v1alpha1\nkind: Queue\nmetadata: {name: a}\n"
        "spec:\n  parent: b\n  quotas:\n    gpu: {nominal: 8}\n"
        "---\napiVersion: tf-dist.dev/v1alpha1\nkind: Queue\nmetadata: {name: b}\nspec: {parent: c}\n"
        "---\napiVersion: tf-dist.dev/v1alpha1\nkind: Queue\nmetadata: {name: c}\nspec: {parent: b}\n"
        "---\napiVersion: tf-dist.dev/v1alpha1\nkind: Queue\nmetadata: {name: e}\nspec: {parent: cc}\n"
        "---\napiVersion: tf-dist.dev/v1alpha1\nkind: Queue\nmetadata: {name: e, namespace: ml}\nspec: {}\n"
    )
    found = tf_dist("validate", "queues.yaml")
    assert (found.returncode, found.stderr) == (2, "")
    assert "error: queues.yaml:7: document 1: spec.quotas.gpu: is not a resource" in found.stdout
    assert "did you mean nvidia.com/gpu?" in found.stdout
    assert "error: queues.yaml:12: document 2: spec.parent: the parents of b form a cycle" in found.stdout
    assert "warning: queues.yaml:22: document 4: spec.parent: cc is not in these files" in found.stdout
    assert "Queue e appears twice" in found.stdout
    refused = tf_dist("submit", "queues.yaml")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "spec.quotas.gpu: is not a resource" in refused.stderr


def test_run_accepts_job_and_queue_in_one_file(tf_dist: Program) -> None:
    job = tf_dist.job("echo up")
    job["spec"]["runPolicy"]["schedulingPolicy"] = {"queue": "mine"}
    file = tf_dist.write("job.yaml", document("mine", quotas={"cpu": {"nominal": 1}}), job)
    assert tf_dist("plan", file).returncode == 0
    found = tf_dist("run", "--embedded", file)
    assert found.returncode == 0, found.stderr


def test_submit_creates_queue_companion_and_job(tf_dist: Program, memory: MemoryCluster, config: str) -> None:
    memory.create(NODES, None, {"metadata": {"name": "n"}})
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}
    file = tf_dist.write("all.yaml", document("mine"), settings, tf_dist.job())
    found = tf_dist("submit", "--kubeconfig", config, file)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["queue/mine created", "configmap/settings created", "tfjob/job submitted"]
    assert [one["metadata"]["namespace"] for one in memory.list(TFJOBS).items] == ["default"]
    assert "namespace" not in memory.get(QUEUES, None, "mine")["metadata"]

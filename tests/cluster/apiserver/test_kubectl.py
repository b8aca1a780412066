"""The real kubectl on the embedded cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cluster.support import FixedLogs, config_map, job, node, pod
from tf_dist.cluster.api import CONFIG_MAPS, NODES, PODS, PRIORITY_CLASSES, QUEUES, SECRETS, TFJOBS
from tf_dist.cluster.apiserver.scheduler import Scheduler
from tf_dist.cluster.apiserver.server import ApiServer, make_kubeconfig
from tf_dist.cluster.apiserver.storage.memory_cluster import MemoryCluster

KUBECTL = os.environ.get("TF_DIST_TEST_KUBECTL", "kubectl")
"""A kubectl that differs from that of the PATH."""
pytestmark = pytest.mark.skipif(not shutil.which(KUBECTL), reason="kubectl is not on the PATH")
PAGE = Path(__file__).parents[3] / "docs" / "node.md"

Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(server: ApiServer, tmp_path: Path) -> Kubectl:
    """Runs kubectl in an empty folder and returns its output. Unless ``fails``, a failure raises AssertionError."""
    config = tmp_path / "config"
    config.touch(mode=0o600)
    config.write_text(yaml.safe_dump(make_kubeconfig(server.app.url, server.token)))

    def run(*args: str, stdin: object = None, fails: bool = False) -> str:
        done = subprocess.run(
            [KUBECTL, f"--kubeconfig={config}", f"--cache-dir={tmp_path}/cache", *args],
            input=json.dumps(stdin) if stdin else None,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "KUBE_EDITOR": f"{sys.executable} editor.py"},
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def manifest(body: dict, kind: str, api_version: str = "v1") -> dict:
    return {"apiVersion": api_version, "kind": kind, **body}


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def commands(table: str) -> list[list[str]]:
    """The commands in a table of the page. The column titles select the table."""
    text = PAGE.read_text(encoding="utf-8")
    rows = text[text.index(f"| {table} |") :].partition("\n\n")[0].splitlines()[2:]
    column = 1 if table.endswith("commands that work") else 0
    found = [shlex.split(one) for row in rows for one in re.findall(r"`kubectl (.*?)`", row.split(" | ")[column])]
    assert len(found) > 10
    return found


@pytest.fixture
def mnist(memory: MemoryCluster, tmp_path: Path) -> None:
    """The objects and the files that the commands of the page need."""
    memory.create(NODES, None, node("laptop"))
    memory.create(TFJOBS, "default", job("mnist"))
    conditions = [{"type": "Succeeded", "status": "True"}]
    memory.patch(TFJOBS, "default", "mnist", {"status": {"conditions": conditions}}, subresource="status")
    worker = pod("mnist-worker-0", nodeName="laptop")
    worker["metadata"]["labels"] = {"job-name": "mnist"}
    memory.create(PODS, "default", worker)
    memory.patch(PODS, "default", "mnist-worker-0", {"status": {"phase": "Succeeded"}}, subresource="status")
    memory.log_source = FixedLogs([b"step 1\n"]).logs
    memory.create(CONFIG_MAPS, "default", config_map("settings", a="b"))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest(job("cifar", x=1), "TFJob", "kubeflow.org/v1")))
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(manifest(config_map("settings", a="w"), "ConfigMap")))
    edit = "import pathlib, sys; f = pathlib.Path(sys.argv[1]); f.write_text(f.read_text().replace('a: w', 'a: z'))"
    (tmp_path / "editor.py").write_text(edit)


@pytest.mark.usefixtures("mnist")
def test_documented_commands_work(kubectl: Kubectl, memory: MemoryCluster) -> None:
    seen: dict[str, str] = {}
    for command in commands("to | commands that work"):
        # A watch does not end by itself.
        seen[shlex.join(command)] = kubectl(*command, *(["--request-timeout=2s"] if "-w" in command else []))
        if command[:3] == ["patch", "configmap", "settings"]:
            assert memory.get(CONFIG_MAPS, "default", "settings")["data"] == {"a": "z", "c": "d"}
    assert seen["logs -f mnist-worker-0"] == "step 1\n"
    assert "mnist-worker-0" in seen["get pods -w"]
    assert [one["metadata"]["name"] for one in memory.list(PODS).items] == ["shell"]
    assert memory.list(TFJOBS).items == []


@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize("command", commands("does not work | use instead"), ids=" ".join)
def test_commands_documented_as_missing_are_refused(kubectl: Kubectl, command: list[str]) -> None:
    assert kubectl(*command, fails=True)


def test_apply_creates_configures_and_prunes_fields(kubectl: Kubectl, memory: MemoryCluster) -> None:
    body = manifest(job("j", x=1, gone=1), "TFJob", "kubeflow.org/v1")
    assert "created" in kubectl("apply", "-f", "-", stdin=body)
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=body)
    changed = manifest(job("j", x=2), "TFJob", "kubeflow.org/v1")
    assert "configured" in kubectl("apply", "-f", "-", stdin=changed)
    assert memory.get(TFJOBS, "default", "j")["spec"] == job("j", x=2)["spec"]


def test_server_side_apply_is_refused(kubectl: Kubectl, memory: MemoryCluster) -> None:
    memory.create(CONFIG_MAPS, "default", config_map("a", key="1"))
    for name in ("a", "b"):
        body = manifest(config_map(name, key="2"), "ConfigMap")
        said = kubectl("apply", "--server-side", "-f", "-", stdin=body, fails=True)
        assert "use kubectl apply without --server-side" in said
    assert [item["data"] for item in memory.list(CONFIG_MAPS).items] == [{"key": "1"}]


def test_dry_run_stores_nothing(kubectl: Kubectl, memory: MemoryCluster) -> None:
    body = manifest(config_map("a"), "ConfigMap")
    assert "server dry run" in kubectl("apply", "--dry-run=server", "-f", "-", stdin=body)
    assert memory.list(CONFIG_MAPS).items == []


def test_get_tfjobs_shows_columns(kubectl: Kubectl, memory: MemoryCluster) -> None:
    memory.create(TFJOBS, "default", job("a"))
    status = {"tfDist": {"state": "Running", "ready": "2/3", "why": "WorkersStarting"}}
    memory.patch(TFJOBS, "default", "a", {"status": status}, subresource="status")
    found = rows(kubectl("get", "tfjobs"))
    assert found[0] == ["NAME", "STATE", "READY", "REASON", "AGE"]
    assert found[1][:4] == ["a", "Running", "2/3", "WorkersStarting"]
    assert kubectl("get", "tfjobs.v1alpha1.kubeflow.org/a", "-o", "jsonpath={.apiVersion}") == "kubeflow.org/v1alpha1"


def test_get_pods_shows_columns(kubectl: Kubectl, memory: MemoryCluster) -> None:
    memory.create(PODS, "default", pod("a", nodeName="n1"))
    state = {"terminated": {"exitCode": 1, "reason": "Error"}}
    status = {"phase": "Failed", "podIP": "10.0.0.7", "containerStatuses": [{"name": "main", "state": state}]}
    memory.patch(PODS, "default", "a", {"status": status}, subresource="status")
    assert rows(kubectl("get", "po"))[1][:4] == ["a", "0/1", "Error", "0"]
    wide = rows(kubectl("get", "po", "-o", "wide"))
    assert wide[0][5:7] == ["IP", "NODE"]
    assert wide[1][5:7] == ["10.0.0.7", "n1"]
    assert json.loads(kubectl("get", "po", "a", "-o", "json"))["status"]["podIP"] == "10.0.0.7"
    assert kubectl("get", "pods", "-A", "--no-headers").split()[:2] == ["default", "a"]


def test_describe_shows_why_pod_is_pending(kubectl: Kubectl, memory: MemoryCluster) -> None:
    memory.create(NODES, None, node("n1", cpu="1"))
    body = pod("big")
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    memory.create(PODS, "default", body)
    Scheduler(memory).step()
    said = kubectl("describe", "pod", "big")
    assert "FailedScheduling" in said
    assert "0/1 nodes are available: 1 Insufficient cpu." in said
    assert "n1" in kubectl("describe", "node", "n1")
    assert rows(kubectl("get", "events"))[1][1:4] == ["Warning", "FailedScheduling", "pod/big"]


def test_logs_are_shown_and_followed(kubectl: Kubectl, memory: MemoryCluster) -> None:
    memory.create(PODS, "default", pod("a"))
    memory.log_source = FixedLogs([b"one\n", b"two\n"]).logs
    assert kubectl("logs", "a") == "one\ntwo\n"
    assert kubectl("logs", "-f", "--tail=5", "--timestamps", "--since=1h", "-c", "main", "a") == "one\ntwo\n"
    assert "not valid" in kubectl("logs", "a", "-c", "none", fails=True)


def test_drained_pod_has_eviction_reason_before_deletion(kubectl: Kubectl, memory: MemoryCluster) -> None:
    memory.create(NODES, None, node("n1"))
    since = memory.create(PODS, "default", pod("p", nodeName="n1"))["metadata"]["resourceVersion"]
    assert "server dry run" in kubectl("drain", "n1", "--force", "--dry-run=server")
    kubectl("drain", "n1", "--force", "--grace-period=0", "--timeout=20s")
    with memory.watch(PODS, "default", since=since) as changes:
        seen = [next(changes) for _ in range(2)]
    reasons = [[one["reason"] for one in event.object["status"].get("conditions", [])] for event in seen]
    assert [event.type for event in seen] == ["MODIFIED", "DELETED"]
    assert reasons == [["EvictionByEvictionAPI"]] * 2


def test_kubectl_shows_why_object_is_refused(kubectl: Kubectl) -> None:
    bad = manifest(pod("p", restartPolicy="Sometimes"), "Pod")
    said = kubectl("create", "-f", "-", stdin=bad, fails=True)
    assert 'The Pod "p" is invalid: spec.restartPolicy: Unsupported value' in said
    assert "forbidden" in kubectl("delete", "namespace", "default", fails=True)


def test_typed_create_commands_work_with_protobuf(kubectl: Kubectl, memory: MemoryCluster) -> None:
    kubectl("create", "namespace", "team")
    kubectl("-n", "team", "create", "configmap", "c", "--from-literal=a=b", "--from-literal=c=")
    assert memory.get(CONFIG_MAPS, "team", "c")["data"] == {"a": "b", "c": ""}
    kubectl("-n", "team", "create", "secret", "generic", "s", "--from-literal=a=b", "--type=own")
    secret = memory.get(SECRETS, "team", "s")
    assert (secret["type"], secret["data"]) == ("own", {"a": "Yg=="})
    kubectl("create", "priorityclass", "low", "--value=-7", "--global-default", "--description=d")
    low = memory.get(PRIORITY_CLASSES, None, "low")
    assert (low["value"], low["globalDefault"], low["description"]) == (-7, True, "d")


def test_get_queues_shows_columns(kubectl: Kubectl, memory: MemoryCluster) -> None:
    spec = {"parent": "research", "quotas": {"cpu": {"nominal": 8}}}
    memory.create(QUEUES, None, {"metadata": {"name": "vision"}, "spec": spec})
    memory.create(QUEUES, None, {"metadata": {"name": "fresh"}, "spec": {}})
    status = {"pending": 3, "admitted": 1, "usage": "cpu 4/8", "share": "50%", "used": {"cpu": "4"}}
    memory.patch(QUEUES, None, "vision", {"status": status}, subresource="status")
    found = rows(kubectl("get", "queues"))
    assert found[0] == ["NAME", "PENDING", "ADMITTED", "USED", "SHARE", "PARENT", "AGE"]
    assert found[1][0] == "fresh"
    assert found[2][:-1] == ["vision", "3", "1", "cpu", "4/8", "50%", "research"]

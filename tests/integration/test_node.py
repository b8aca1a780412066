"""This machine as a node of a real cluster: its objects, its pods, its logs, its end."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cluster.support import exists
from tests.integration.conftest import MakeNode, NodeProcess
from tests.waiting import until
from tf_dist.cli.install.rbac import node_roles
from tf_dist.cluster.api import CONFIG_MAPS, EVENTS, LEASES, NODES, PODS, Cluster, LogOptions, Object, Resource
from tf_dist.cluster.client.rest import RestCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TAINT = {"key": "tf-dist.dev/processes", "effect": "NoSchedule"}
RBAC = {
    kind: Resource(
        "rbac.authorization.k8s.io", "v1", kind, f"{kind.lower()}s", namespaced=not kind.startswith("Cluster")
    )
    for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
}
FOREIGN = "!tf-dist.dev/node"


def run_pod(cluster: Cluster, namespace: str, node: NodeProcess, name: str, script: str, **spec: Any) -> Object:
    """A pod that only this node may take."""
    main = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
    body = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
        "containers": [main],
        **spec,
    }
    return cluster.create(PODS, namespace, {"metadata": {"name": name}, "spec": body})


def status(cluster: Cluster, namespace: str, name: str) -> Object:
    return dict(cluster.get(PODS, namespace, name).get("status") or {})


def until_phase(cluster: Cluster, namespace: str, name: str, *phases: str) -> Object:
    until(lambda: status(cluster, namespace, name).get("phase") in phases, 60)
    return status(cluster, namespace, name)


def conditions(obj: Object) -> dict[str, str]:
    return {item["type"]: item["status"] for item in obj["status"]["conditions"]}


def lines(cluster: Cluster, namespace: str, pod: str, **options: Any) -> list[str]:
    with cluster.logs(namespace, pod, LogOptions(**options)) as found:
        return b"".join(found).decode().splitlines()


def test_a_pod_lives_on_the_node_as_on_a_kubelet(real: RestCluster, namespace: str, node: NodeProcess) -> None:
    node.start()
    found = node.object()
    assert conditions(found)["Ready"] == "True"
    assert (
        real.get(LEASES, "kube-node-lease", node.name)["metadata"]["ownerReferences"][0]["uid"]
        == (found["metadata"]["uid"])
    )

    run_pod(real, namespace, node, "one", "echo first; echo second; sleep 1000")
    shown = until_phase(real, namespace, "one", "Running")
    assert shown["hostIP"] == found["status"]["addresses"][0]["address"]
    assert {item["type"]: item["status"] for item in shown["conditions"]}["Ready"] == "True"
    until(lambda: lines(real, namespace, "one") == ["first", "second"], 90)
    assert lines(real, namespace, "one", tail=1) == ["second"]

    version = real.get(PODS, namespace, "one")["metadata"]["resourceVersion"]
    run_pod(real, namespace, node, "two", "echo here; sleep 1; echo there")
    until_phase(real, namespace, "two", "Running", "Succeeded")
    assert lines(real, namespace, "two", follow=True) == ["here", "there"]
    until_phase(real, namespace, "two", "Succeeded")  # the agent went round meanwhile
    assert real.get(PODS, namespace, "one")["metadata"]["resourceVersion"] == version

    real.delete(PODS, namespace, "one", grace_period=1)
    until(lambda: not exists(real, PODS, namespace, "one"), 90)


def test_what_needs_an_image_fails_with_a_reason(real: RestCluster, namespace: str, node: NodeProcess) -> None:
    node.start()
    run_pod(real, namespace, node, "one", "", containers=[{"name": "main", "image": "nginx"}])
    shown = until_phase(real, namespace, "one", "Failed")
    assert shown["reason"] == "ErrImageEntrypoint"
    assert "nginx" in shown["message"]


def test_a_signal_ends_pods_node_and_lease(real: RestCluster, namespace: str, node: NodeProcess) -> None:
    node.start()
    run_pod(real, namespace, node, "polite", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done")
    run_pod(real, namespace, node, "rude", "trap '' TERM; echo up; sleep 1000", terminationGracePeriodSeconds=2)
    for name in ("polite", "rude"):
        until_phase(real, namespace, name, "Running")
        until(lambda name=name: lines(real, namespace, name) == ["up"], 90)
    assert node.end() == 0
    assert status(real, namespace, "polite")["phase"] == "Succeeded"
    ended = status(real, namespace, "rude")
    assert (ended["phase"], ended["reason"]) == ("Failed", "NodeShutdown")
    assert not exists(real, NODES, None, node.name)
    assert not exists(real, LEASES, "kube-node-lease", node.name)
    assert not node.state.exists()


def test_a_kept_node_is_closed_until_its_agent_is_back(real: RestCluster, nodes: MakeNode) -> None:
    node = nodes("--no-logs", "--keep-node")
    node.start()
    assert node.end() == 0
    left = node.object()
    assert left["spec"]["unschedulable"]
    assert conditions(left)["Ready"] == "False"
    node.start()
    again = node.object()
    assert again["metadata"]["uid"] == left["metadata"]["uid"]
    assert not again["spec"].get("unschedulable")
    assert conditions(again)["Ready"] == "True"


def test_a_second_agent_of_one_name_is_refused(nodes: MakeNode) -> None:
    first = nodes("--no-logs")
    first.start()
    second = nodes("--no-logs", name=first.name)
    second.spawn()
    assert second.process is not None
    assert second.process.wait(timeout=120) != 0
    assert f"another agent runs node {first.name}" in second.output.read_text()
    assert conditions(first.object())["Ready"] == "True"


def test_a_deleted_node_comes_back(real: RestCluster, nodes: MakeNode) -> None:
    node = nodes("--no-logs")
    node.start()
    before = node.object()["metadata"]["uid"]
    real.delete(NODES, None, node.name)
    until(lambda: exists(real, NODES, None, node.name), 60)
    assert node.object()["metadata"]["uid"] != before


def test_the_taint_depends_on_the_other_nodes(real: RestCluster, nodes: MakeNode) -> None:
    node = nodes("--no-logs")
    node.start()

    def tainted() -> bool:
        return TAINT in (node.object()["spec"].get("taints") or [])

    if real.list(NODES, labels=FOREIGN).items:
        assert tainted()
        return
    until(lambda: not tainted(), 90)
    other = f"kubelet-of-{node.name}"
    real.create(NODES, None, {"metadata": {"name": other}})
    try:
        until(tainted, 90)
    finally:
        real.delete(NODES, None, other)
    until(lambda: not tainted(), 90)


def get(url: str, token: str = "") -> tuple[int, str]:
    """Over HTTPS; the node's certificate is its own work and is not verified."""
    place = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with closing(HTTPSConnection(place.netloc, timeout=30, context=context)) as connection:
        connection.request("GET", place.path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_logs_are_for_those_whom_the_cluster_lets_in(
    real: RestCluster, namespace: str, nodes: MakeNode, kubeconfig: str
) -> None:
    kubectl = shutil.which("kubectl")
    with open(kubeconfig) as file:
        mine = yaml.safe_load(file)["users"][0]["user"].get("token")
    if not kubectl or not mine:
        pytest.skip("needs kubectl and an administrator with a token")
    node = nodes()
    node.start()
    run_pod(real, namespace, node, "one", "echo secret")
    until_phase(real, namespace, "one", "Succeeded")
    found = node.object()["status"]
    base = f"https://{found['addresses'][0]['address']}:{found['daemonEndpoints']['kubeletEndpoint']['Port']}"
    log = f"{base}/containerLogs/{namespace}/one/main"

    asked = [kubectl, "create", "token", "default", "--namespace", namespace]
    nobody = subprocess.run(
        asked, capture_output=True, text=True, check=True, env={**os.environ, "KUBECONFIG": kubeconfig}
    ).stdout.strip()
    assert get(log)[0] == 401
    assert get(log, "made-up")[0] == 401
    assert get(log, nobody)[0] == 403
    assert get(log, mine) == (200, "secret\n")
    assert get(f"{base}/containerLogs/{namespace}/none/main", mine)[0] == 404
    assert get(f"{base}/exec/{namespace}/one/main", mine)[0] == 404
    assert get(f"{base}/healthz") == (200, "ok")


@pytest.fixture
def modest_kubeconfig(real: RestCluster, namespace: str, kubeconfig: str, tmp_path: Path) -> Iterator[str]:
    """Of a service account that has the roles that ``tf-dist install`` brings for nodes, and nothing else."""
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("needs kubectl to get a token")
    name = f"tf-dist-node-{namespace}"
    account = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    for role in node_roles():
        place = role["metadata"].get("namespace")
        kind = RBAC[role["kind"]], RBAC[f"{role['kind']}Binding"]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": name}
        real.create(kind[0], place, {**role, "metadata": {"name": name}})
        real.create(kind[1], place, {"metadata": {"name": name}, "roleRef": reference, "subjects": [account]})
    token = subprocess.run(
        [kubectl, "create", "token", "default", "--namespace", namespace],
        capture_output=True, text=True, check=True, env={**os.environ, "KUBECONFIG": kubeconfig},
    ).stdout.strip()  # fmt: skip
    document = yaml.safe_load(Path(kubeconfig).read_text())
    document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
    modest = tmp_path / "modest"
    modest.touch(mode=0o600)
    modest.write_text(yaml.safe_dump(document))
    yield str(modest)
    for role in node_roles():
        for kind in (f"{role['kind']}Binding", role["kind"]):
            real.delete(RBAC[kind], role["metadata"].get("namespace"), name)


def test_the_installed_roles_are_enough(
    real: RestCluster, namespace: str, nodes: MakeNode, modest_kubeconfig: str
) -> None:
    node = nodes(kubeconfig=modest_kubeconfig)
    node.start()
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}}]
    main = {"name": "main", "image": "any", "command": ["sh", "-c", "test $A = here"], "env": env}
    run_pod(real, namespace, node, "one", "", containers=[main])
    until(lambda: [item for item in real.list(EVENTS, namespace).items if "late" in item.get("message", "")], 90)
    real.create(CONFIG_MAPS, namespace, {"metadata": {"name": "late"}, "data": {"a": "here"}})
    until_phase(real, namespace, "one", "Succeeded")
    real.delete(PODS, namespace, "one")
    until(lambda: not exists(real, PODS, namespace, "one"), 90)
    assert node.end() == 0
    assert not exists(real, NODES, None, node.name)
    assert "orbidden" not in node.output.read_text()

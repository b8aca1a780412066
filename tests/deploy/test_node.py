"""``tf-dist node`` on a real API server, with nothing but the role that is shipped for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.support import config_map, exists, names, pod
from tests.deploy.conftest import Object
from tests.waiting import until
from tf_dist.cluster.api import CONFIG_MAPS, NODES, PODS
from tf_dist.cluster.client.rest import RestCluster

pytestmark = pytest.mark.cluster

Kubectl = Callable[..., str]


@pytest.fixture
def machine(kubectl: Kubectl, namespace: str, config_of: Callable[[str, str], str]) -> Iterator[str]:
    """The kubeconfig of an account to which the role was given as docs/install.md says."""
    name, account = f"machine-{namespace}", f"--serviceaccount={namespace}:machine"
    kubectl("create", "serviceaccount", "machine", "-n", namespace)
    kubectl("create", "clusterrolebinding", name, "--clusterrole=tf-dist-node", account)
    kubectl("create", "rolebinding", name, "--role=tf-dist-node", account, "-n", "kube-node-lease")
    yield config_of("machine", namespace)
    kubectl("delete", "clusterrolebinding", name)
    kubectl("delete", "rolebinding", name, "-n", "kube-node-lease")


def test_the_nodes_role_suffices(admin: RestCluster, machine: str, namespace: str, tmp_path: Path) -> None:
    name = f"n-{namespace}"
    admin.create(CONFIG_MAPS, namespace, config_map("settings", word="hello"))
    variable = {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "word"}}}
    container = {"name": "main", "image": "none", "command": ["sh", "-c", "test $WORD = hello"], "env": [variable]}
    # The path of a socket is short, and pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="td-") as state, (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "tf_dist.cli.main", "node", name, f"--kubeconfig={machine}"]
        command += ["--network=shared", f"--state-dir={state}", "--taint=example.com/test:NoSchedule"]
        agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(lambda: ready(admin, name), 60)
            admin.create(PODS, namespace, pod("p", nodeName=name, containers=[container]))
            until(lambda: phase(admin, namespace) == "Succeeded", 60)
            admin.delete(PODS, namespace, "p")
            until(lambda: not names(admin, PODS, namespace), 60)
        finally:
            agent.send_signal(signal.SIGTERM)
            code = agent.wait(timeout=60)
    said = (tmp_path / "log").read_text()
    assert code == 0, said
    assert "forbidden" not in said.lower(), said
    assert not exists(admin, NODES, None, name)


def ready(admin: RestCluster, name: str) -> bool:
    found: list[Object] = admin.list(NODES, fields=f"metadata.name={name}").items
    conditions = [one for node in found for one in (node.get("status") or {}).get("conditions") or ()]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def phase(admin: RestCluster, namespace: str) -> str:
    return str((admin.get(PODS, namespace, "p").get("status") or {}).get("phase"))

"""tf-dist installed on a real API server, and clients with other identities."""

from __future__ import annotations

import copy
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import SERVICE_ACCOUNTS, kubeconfig
from tests.cluster.support import cluster_of_kubeconfig, wait_for
from tests.deploy.kubelet import Kubelet
from tests.deploy.manifests import SYSTEM
from tests.waiting import until
from tf_dist.cluster.api import NAMESPACES, NODES, QUEUES, TFJOBS, TFJOBS_V1ALPHA1, Resource
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.errors import NotFound

__all__ = ["SYSTEM", "kubeconfig"]

Object = dict[str, Any]


@pytest.fixture(scope="session")
def kubectl(kubeconfig: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs kubectl on the real API server and returns its output. With ``fails``, the command must fail."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not on the PATH")
    cache = tmp_path_factory.mktemp("kubectl-cache")

    def run(*args: str, stdin: object = None, fails: bool = False) -> str:
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}", *args],
            input=stdin if isinstance(stdin, str) else json.dumps(stdin) if stdin else None,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + (done.stderr if fails else "")

    return run


@pytest.fixture(scope="session")
def install(kubeconfig: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``tf-dist install`` against the real API server."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tf_dist.cli.main", "install", f"--kubeconfig={kubeconfig}", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    return run


@pytest.fixture(scope="session")
def admin(kubeconfig: str) -> Iterator[RestCluster]:
    """A client of the API server with all rights."""
    with cluster_of_kubeconfig(kubeconfig) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def installed(admin: RestCluster, kubectl: Callable[..., str], install: Callable[..., Any]) -> Iterator[str]:
    """The output of ``tf-dist install | kubectl apply -f -``. At the end, only the definitions are kept."""
    printed = install()
    assert printed.returncode == 0, printed.stderr
    said = kubectl("apply", "-f", "-", stdin=printed.stdout)
    for resource in (TFJOBS, TFJOBS_V1ALPHA1, QUEUES):
        until(lambda resource=resource: is_served(admin, resource), 60)
    yield said
    # The pods may be bound to a simulated node, and no kubelet would remove them.
    kubectl("delete", "deployment", "tf-dist-controller", "-n", SYSTEM)
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "-n", SYSTEM)
    objects = [one for one in yaml.safe_load_all(printed.stdout) if one["kind"] != "CustomResourceDefinition"]
    kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(objects))


def is_served(cluster: RestCluster, resource: Resource) -> bool:
    """Whether the server serves a kind, because its definition is installed and established."""
    try:
        cluster.list(resource, limit=1)
    except NotFound:
        return False
    return True


@pytest.fixture
def namespace(admin: RestCluster, installed: str) -> Iterator[str]:
    """A namespace for one test."""
    name = f"test-{secrets.token_hex(4)}"
    admin.create(NAMESPACES, None, {"metadata": {"name": name}})
    wait_for(admin, SERVICE_ACCOUNTS, name, "default", lambda account: account is not None)
    yield name
    with suppress(NotFound):
        admin.delete(NAMESPACES, None, name)


@pytest.fixture
def drivers(kubectl: Callable[..., str], installed: str, namespace: str) -> Iterator[str]:
    """A namespace in which an account may run jobs without a controller, after the commands of docs/namespaces.md."""
    account = f"--serviceaccount={namespace}:tf-dist-driver"
    kubectl("create", "serviceaccount", "tf-dist-driver", "-n", namespace)
    kubectl("create", "rolebinding", "tf-dist-driver", "--clusterrole=tf-dist-driver", account, "-n", namespace)
    kubectl("create", "clusterrolebinding", f"tf-dist-driver-{namespace}", "--clusterrole=tf-dist-queues", account)
    yield namespace
    kubectl("delete", "clusterrolebinding", f"tf-dist-driver-{namespace}")


@pytest.fixture
def config_of(kubeconfig: str, kubectl: Callable[..., str], tmp_path: Path) -> Callable[[str, str], str]:
    """The kubeconfig of a service account, with its token and its namespace."""
    original = yaml.safe_load(Path(kubeconfig).read_text())

    def write(account: str, namespace: str) -> str:
        document = copy.deepcopy(original)
        document["users"][0]["user"] = {"token": kubectl("create", "token", account, "-n", namespace).strip()}
        document["contexts"][0]["context"]["namespace"] = namespace
        file = tmp_path / f"{namespace}-{account}"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(document))
        return str(file)

    return write


@pytest.fixture
def as_account(config_of: Callable[[str, str], str]) -> Iterator[Callable[[str, str], RestCluster]]:
    """A client of the API server with a service account."""
    with ExitStack() as stack:
        yield lambda account, namespace: stack.enter_context(cluster_of_kubeconfig(config_of(account, namespace)))


@pytest.fixture
def room(admin: RestCluster, namespace: str) -> Iterator[Kubelet]:
    """A node with capacity for a gang. Its label ``test`` is the namespace."""
    name = f"node-{namespace}"
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    admin.create(NODES, None, {"metadata": {"name": name, "labels": {"test": namespace}}})
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    admin.patch(NODES, None, name, {"status": status}, subresource="status")
    try:
        yield Kubelet(admin, namespace)
    finally:
        admin.delete(NODES, None, name)

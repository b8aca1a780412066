"""tf-dist on a real API server, installed by ``tf-dist install``, and teams with the rights that the docs recommend.

The controller is the program of the Deployment with the token of its account. A thread acts as the kubelet, because
these tests need no running containers.
"""

from __future__ import annotations

import re
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import SERVICE_ACCOUNTS
from tests.cluster.support import cluster_of_kubeconfig, wait_for
from tests.deploy.conftest import SYSTEM, admin, install, installed, kubeconfig, kubectl
from tests.deploy.manifests import container, shipped
from tests.tenants.teams import Controller, Nodes, Team
from tf_dist.cluster.api import NAMESPACES, NODES
from tf_dist.cluster.client.rest import RestCluster

__all__ = ["admin", "install", "installed", "kubeconfig", "kubectl"]

ROOT = Path(__file__).parents[2]
Token = Callable[[str, str], str]


@pytest.fixture(scope="session")
def config_of(kubeconfig: str, kubectl: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Token:
    """The kubeconfig of a service account, with its own token."""
    folder = tmp_path_factory.mktemp("tokens")

    def write(account: str, namespace: str) -> str:
        document = yaml.safe_load(Path(kubeconfig).read_text())
        document["users"][0]["user"] = {"token": kubectl("create", "token", account, "-n", namespace).strip()}
        document["contexts"][0]["context"]["namespace"] = namespace
        file = folder / f"{namespace}-{account}"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(document))
        return str(file)

    return write


@pytest.fixture(scope="package")
def queues_are_public(kubectl: Callable[..., str], installed: str) -> Iterator[None]:
    """Allow all users to see why jobs wait, with the command of docs/queue-recipes.md."""
    text = (ROOT / "docs" / "queue-recipes.md").read_text()
    command = re.search(r"^\$ kubectl (create clusterrolebinding .*)$", text, re.MULTILINE)
    assert command, "docs/queue-recipes.md has no such command any more"
    arguments = shlex.split(command[1])
    kubectl(*arguments)
    yield
    kubectl("delete", "clusterrolebinding", arguments[2])


@pytest.fixture(scope="package")
def controller(config_of: Token, installed: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """The process of the Deployment, with only the rights of its account."""
    given = ["--metrics-port=0" if one.startswith("--metrics-port") else one for one in container(shipped())["args"]]
    log = tmp_path_factory.mktemp("controller") / "log"
    command = [sys.executable, "-m", "tf_dist.cli.main", *given]
    with Controller(command, config_of("tf-dist-controller", SYSTEM), log) as running:
        yield running
        assert running.alive()


@pytest.fixture(scope="package")
def nodes(admin: RestCluster, installed: str) -> Iterator[Nodes]:
    """A large node, and a thread that acts as its kubelet."""
    name = f"node-{secrets.token_hex(4)}"
    capacity = {"cpu": "64", "memory": "256Gi", "pods": "1000"}
    admin.create(NODES, None, {"metadata": {"name": name}})
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    admin.patch(NODES, None, name, {"status": status}, subresource="status")
    with Nodes(admin, name) as nodes:
        yield nodes
    admin.delete(NODES, None, name)


@pytest.fixture
def new_team(
    admin: RestCluster,
    kubectl: Callable[..., str],
    config_of: Token,
    controller: Controller,
    nodes: Nodes,
    queues_are_public: None,
) -> Iterator[Callable[[str], Team]]:
    """A namespace with a queue, and a user with Kubernetes' role ``edit``, as docs/security.md recommends."""
    with ExitStack() as stack:

        def team(name: str) -> Team:
            namespace = f"{name}-{secrets.token_hex(4)}"
            admin.create(NAMESPACES, None, {"metadata": {"name": namespace}})
            wait_for(admin, SERVICE_ACCOUNTS, namespace, "default", lambda account: account is not None)
            kubectl("create", "serviceaccount", "tenant", "-n", namespace)
            binding = ("create", "rolebinding", "tenant", "-n", namespace, "--clusterrole=edit")
            kubectl(*binding, f"--serviceaccount={namespace}:tenant")
            tenant = stack.enter_context(cluster_of_kubeconfig(config_of("tenant", namespace)))
            made = Team(admin, tenant, namespace, nodes)
            nodes.serve(namespace)
            stack.callback(made.leave)
            return made

        yield team


@pytest.fixture
def team(new_team: Callable[[str], Team]) -> Team:
    """The team that attacks."""
    return new_team("red")


@pytest.fixture
def other(new_team: Callable[[str], Team]) -> Team:
    """The team that must not be affected."""
    return new_team("blue")

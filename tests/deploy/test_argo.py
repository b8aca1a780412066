"""The role of Argo steps suffices for a launcher, on a real API server. The test acts as Argo and as the kubelet."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.argo.launcher.launching import definition
from tests.argo.stage import Launcher, Stage, Step
from tests.cli.conftest import surroundings
from tests.cli.ready import Started
from tests.controller.harness import tfjob
from tests.deploy.conftest import is_served
from tests.deploy.kubelet import Kubelet
from tests.waiting import until
from tf_dist.argo.launcher import contract
from tf_dist.cli.commands.argo_workflows import documents
from tf_dist.cluster.client.rest import RestCluster
from tf_dist.controller.controller import Controller

pytestmark = pytest.mark.cluster


@pytest.fixture
def place(
    admin: RestCluster,
    kubectl: Callable[..., str],
    config_of: Callable[[str, str], str],
    installed: str,
    namespace: str,
    tmp_path: Path,
) -> Iterator[tuple[Stage, str]]:
    """A stage in a namespace with workflows, and the kubeconfig of the account of their steps."""
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    kubectl("apply", "-f", "-", stdin={**crd, **definition("Workflow", "workflows")})
    until(lambda: is_served(admin, contract.WORKFLOWS), 60)
    rights = [*documents("rbac.yaml", namespace), *documents("rbac-driver.yaml", namespace)]
    account = {"apiVersion": "v1", "kind": "List", "items": rights}
    kubectl("apply", "-f", "-", stdin=account)
    with tempfile.TemporaryDirectory(prefix="ta-") as scratch:
        stage = Stage(admin, "", "", tmp_path, scratch, namespace)
        try:
            yield stage, config_of("tf-dist-argo", namespace)
        finally:
            for launcher in stage.launchers:
                launcher.close()
            kubectl("delete", "clusterrolebinding", f"tf-dist-argo-{namespace}", "--ignore-not-found")


def job() -> dict[str, Any]:
    document = tfjob()
    metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
    return {**document, "metadata": metadata}


def phase(step: Step) -> str:
    return next((one["status"]["tfDist"]["phase"] for one in step.jobs() if "tfDist" in (one.get("status") or {})), "")


def played(kubelet: Kubelet, launcher: Launcher, condition: Callable[[], bool], **ends: int) -> None:
    """Act as the kubelet until the condition holds."""
    left = {name.replace("_", "-"): code for name, code in ends.items()}

    def step() -> bool:
        kubelet.step(left)
        return condition()

    try:
        until(step, 120, every=0.2)
    except AssertionError as error:
        raise AssertionError(launcher.text) from error


def test_argo_role_suffices_for_step(place: tuple[Stage, str], room: Kubelet) -> None:
    stage, kubeconfig = place
    step = stage.step(job())
    launcher = step.launch(kubeconfig=kubeconfig)
    played(room, launcher, lambda: phase(step) == "Running")
    played(room, launcher, lambda: launcher.process.poll() is not None, worker_0=0, worker_1=0)
    assert launcher.code() == 0, launcher.text
    assert step.outputs()["status"] == "Succeeded"
    (stored,) = step.jobs()
    assert stored["metadata"]["annotations"][contract.REPORTED] == "true"
    stage.cluster.delete(contract.WORKFLOWS, stage.namespace, step.workflow["metadata"]["name"])
    played(room, launcher, lambda: not step.jobs() and not step.pods())  # the server's own garbage collector


@pytest.mark.parametrize("stopped", [True, False])
def test_argo_role_suffices_to_handle_signals(place: tuple[Stage, str], room: Kubelet, stopped: bool) -> None:
    stage, kubeconfig = place
    step = stage.step(job())
    launcher = step.launch("retries=3", kubeconfig=kubeconfig)
    played(room, launcher, lambda: phase(step) == "Running")
    if stopped:
        step.shut_down()
    launcher.signal(signal.SIGTERM)
    played(room, launcher, lambda: launcher.process.poll() is not None)
    assert launcher.code() == 143, launcher.text
    if stopped:
        assert "shut down (Stop)" in launcher.text
        played(room, launcher, lambda: not step.jobs() and not step.pods())
    else:
        assert "only this pod must stop" in launcher.text
        assert len(step.pods()) == len(step.jobs()) * 3


def test_argo_role_suffices_for_exit_handler(place: tuple[Stage, str], room: Kubelet) -> None:
    # An account that may not list a kind cannot find out whether it exists. Volcano Jobs are forbidden here.
    stage, kubeconfig = place
    step = stage.step(job())
    launcher = step.launch(kubeconfig=kubeconfig)
    played(room, launcher, lambda: phase(step) == "Running")
    launcher.process.kill()
    launcher.code()
    command = ["argo-clean", f"--workflow-uid={step.workflow['metadata']['uid']}"]
    env = surroundings(stage.folder, stage.scratch) | {"KUBECONFIG": kubeconfig}
    cleaning = Launcher(Started(command, stage.folder, env))
    stage.launchers.append(cleaning)
    played(room, cleaning, lambda: cleaning.process.poll() is not None)
    assert cleaning.code() == 0, cleaning.text
    assert "1 job deleted" in cleaning.text
    assert not step.jobs()


ARGO_ADMIN: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {
        "name": "argo-aggregate-to-admin",
        "labels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"},
    },
    "rules": [
        {
            "apiGroups": ["argoproj.io"],
            "resources": ["workflows", "workfloweventbindings", "workflowtemplates", "workflowtaskresults"],
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        }
    ],
}
"""The rules that Argo 4.1 adds to the role ``admin`` (workflow-aggregate-roles.yaml) and that steps need."""


@pytest.fixture
def namespace_admin(admin: RestCluster, kubectl: Callable[..., str], namespace: str) -> Iterator[str]:
    """A user with the role ``admin`` in the namespace, on a cluster with Argo."""
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    kubectl("apply", "-f", "-", stdin={**crd, **definition("Workflow", "workflows")})
    until(lambda: is_served(admin, contract.WORKFLOWS), 60)
    kubectl("apply", "-f", "-", stdin=ARGO_ADMIN)
    kubectl("create", "rolebinding", "ann", "--clusterrole=admin", "--user=ann", "-n", namespace)
    may = ("auth", "can-i", "create", "workflows.argoproj.io", "-n", namespace, "--as=ann")
    until(lambda: _said_yes(kubectl, *may), 60)
    try:
        yield "ann"
    finally:
        kubectl("delete", "clusterrole", ARGO_ADMIN["metadata"]["name"])


def _said_yes(kubectl: Callable[..., str], *may: str) -> bool:
    try:
        return kubectl(*may).strip() == "yes"
    except AssertionError:
        return False


def test_namespace_admin_can_grant_role_of_steps(
    admin: RestCluster,
    kubectl: Callable[..., str],
    config_of: Callable[[str, str], str],
    namespace_admin: str,
    namespace: str,
    room: Kubelet,
    tmp_path: Path,
) -> None:
    listed = {"apiVersion": "v1", "kind": "List"}
    kubectl("apply", "-f", "-", f"--as={namespace_admin}", stdin={**listed, "items": documents("rbac.yaml", namespace)})
    driving = {**listed, "items": documents("rbac-driver.yaml", namespace)}
    refused = kubectl("apply", "-f", "-", f"--as={namespace_admin}", stdin=driving, fails=True)
    assert "forbidden" in refused
    with tempfile.TemporaryDirectory(prefix="ta-") as scratch, ExitStack() as stack:
        stage = Stage(admin, "", "", tmp_path, scratch, namespace)
        stack.callback(lambda: [launcher.close() for launcher in stage.launchers])
        controller = Controller(admin)
        stack.callback(controller.stop)
        controller.start()
        step = stage.step(job())
        launcher = step.launch("driver=controller", kubeconfig=config_of("tf-dist-argo", namespace))
        played(room, launcher, lambda: phase(step) == "Running")
        played(room, launcher, lambda: launcher.process.poll() is not None, worker_0=0, worker_1=0)
        assert launcher.code() == 0, launcher.text
        assert step.outputs()["outcome"] == "succeeded"

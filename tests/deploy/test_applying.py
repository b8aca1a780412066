"""The manifests of ``tf-dist install`` and ``deploy/``, applied to a real API server."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.deploy.conftest import SYSTEM, Object
from tests.deploy.manifests import CHART, DEPLOY, helm, shipped
from tests.waiting import until
from tf_dist.cluster.api import PODS
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster

pytestmark = pytest.mark.cluster

Kubectl = Callable[..., str]
Install = Callable[..., "subprocess.CompletedProcess[str]"]
PART_OF = "app.kubernetes.io/part-of"


def test_printed_manifests_are_accepted(installed: str) -> None:
    assert len(installed.splitlines()) == len(shipped())


def changed(said: str) -> list[str]:
    """The changes that kubectl reports, without disruption budgets, whose selector kubectl always sends."""
    return [line for line in said.splitlines() if not line.endswith(" unchanged") and "poddisruptionbudget" not in line]


def test_second_apply_changes_nothing(kubectl: Kubectl, install: Install, installed: str) -> None:
    assert changed(kubectl("apply", "-f", "-", stdin=install().stdout)) == []


def test_shipped_file_equals_printed_manifests(kubectl: Kubectl, installed: str) -> None:
    assert changed(kubectl("apply", "-f", str(DEPLOY / "tf-dist.yaml"))) == []


def test_chart_equals_installed_manifests(kubectl: Kubectl, kubeconfig: str, installed: str) -> None:
    """Compares the chart as Helm renders it for this server. kubectl diff fails if something differs."""
    values = ("--set", "createNamespace=true", "--take-ownership")
    made = helm(
        "install", "tf-dist", str(CHART), "--namespace", SYSTEM, "--dry-run=server", *values, kubeconfig=kubeconfig
    )
    manifests = made.partition("MANIFEST:\n")[2].partition("\nNOTES:")[0]
    assert "kind: Deployment" in manifests
    assert kubectl("diff", "-f", "-", stdin=manifests) == ""


def test_pods_of_controller_are_admitted(admin: RestCluster, installed: str) -> None:
    """Service account, pod security and quota admit the pods. Their image is not pulled."""

    def controllers() -> list[Object]:
        return admin.list(PODS, SYSTEM, labels="app.kubernetes.io/component=controller").items

    until(lambda: len(controllers()) >= 2, 60)
    assert {pod["spec"]["serviceAccountName"] for pod in controllers()} == {"tf-dist-controller"}


@pytest.fixture
def foreign(admin: RestCluster, kubectl: Kubectl, installed: str) -> Iterator[None]:
    """The definition of TFJob as another operator installs it, without the label and the columns of tf-dist."""
    name = "tfjobs.kubeflow.org"
    versions = admin.get(CRDS, None, name)["spec"]["versions"]
    bare = [{k: v for k, v in one.items() if k != "additionalPrinterColumns"} for one in versions]
    admin.patch(CRDS, None, name, {"metadata": {"labels": {PART_OF: None}}, "spec": {"versions": bare}})
    try:
        yield
    finally:
        admin.patch(CRDS, None, name, {"metadata": {"labels": {PART_OF: "tf-dist"}}, "spec": {"versions": versions}})


def test_definition_of_another_operator_is_not_changed(
    admin: RestCluster, kubectl: Kubectl, install: Install, foreign: None
) -> None:
    before = admin.get(CRDS, None, "tfjobs.kubeflow.org")
    printed = install()
    assert printed.returncode == 0
    assert "not tf-dist's" in printed.stderr
    assert "kubectl get shows no State, Ready, Reason" in printed.stderr
    said = kubectl("apply", "-f", "-", stdin=printed.stdout)
    assert "tfjobs" not in said
    assert admin.get(CRDS, None, "tfjobs.kubeflow.org")["metadata"]["generation"] == before["metadata"]["generation"]


def test_printed_command_makes_foreign_definition_tf_dists(kubectl: Kubectl, install: Install, foreign: None) -> None:
    checked = install("--check")
    assert checked.returncode == 1
    (command,) = re.findall(r"kubectl (label crd \S+ \S+ --overwrite)", checked.stdout)
    kubectl(*command.split())
    checked = install("--check")
    assert (checked.returncode, checked.stdout) == (0, "nothing prevents the installation\n")
    applied = kubectl("apply", "-f", "-", stdin=install().stdout)
    assert "customresourcedefinition.apiextensions.k8s.io/tfjobs.kubeflow.org configured" in applied

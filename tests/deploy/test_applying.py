"""``tf-dist install`` and ``deploy/`` on a real API server, as a platform engineer applies them."""

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


def test_all_that_is_printed_is_accepted(installed: str) -> None:
    assert len(installed.splitlines()) == len(shipped())


def changed(said: str) -> list[str]:
    """What kubectl says it has changed. The selector of a disruption budget it sends every time, changed or not."""
    return [line for line in said.splitlines() if not line.endswith(" unchanged") and "poddisruptionbudget" not in line]


def test_applied_again_nothing_changes(kubectl: Kubectl, install: Install, installed: str) -> None:
    assert changed(kubectl("apply", "-f", "-", stdin=install().stdout)) == []


def test_shipped_file_is_accepted_as_it_is(kubectl: Kubectl, installed: str) -> None:
    assert changed(kubectl("apply", "-f", str(DEPLOY / "tf-dist.yaml"))) == []


def test_chart_differs_in_nothing_from_what_is_installed(kubectl: Kubectl, kubeconfig: str, installed: str) -> None:
    """As Helm renders it for this server; kubectl diff fails if something differs."""
    values = ("--set", "createNamespace=true", "--take-ownership")
    made = helm(
        "install", "tf-dist", str(CHART), "--namespace", SYSTEM, "--dry-run=server", *values, kubeconfig=kubeconfig
    )
    manifests = made.partition("MANIFEST:\n")[2].partition("\nNOTES:")[0]
    assert "kind: Deployment" in manifests
    assert kubectl("diff", "-f", "-", stdin=manifests) == ""


def test_the_controllers_pods_are_admitted(admin: RestCluster, installed: str) -> None:
    """By service account, pod security and quota; whether a machine has their image is another matter."""

    def controllers() -> list[Object]:
        return admin.list(PODS, SYSTEM, labels="app.kubernetes.io/component=controller").items

    until(lambda: len(controllers()) >= 2, 60)
    assert {pod["spec"]["serviceAccountName"] for pod in controllers()} == {"tf-dist-controller"}


@pytest.fixture
def foreign(admin: RestCluster, kubectl: Kubectl, installed: str) -> Iterator[None]:
    """The definition of TFJob as another operator installs it: without our label, columns and scale."""
    name = "tfjobs.kubeflow.org"
    versions = admin.get(CRDS, None, name)["spec"]["versions"]
    bare = [{k: v for k, v in one.items() if k != "additionalPrinterColumns"} for one in versions]
    admin.patch(CRDS, None, name, {"metadata": {"labels": {PART_OF: None}}, "spec": {"versions": bare}})
    try:
        yield
    finally:
        admin.patch(CRDS, None, name, {"metadata": {"labels": {PART_OF: "tf-dist"}}, "spec": {"versions": versions}})


def test_somebody_elses_definition_is_left_as_it_is(
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


def test_the_command_it_tells_makes_the_definition_ours(kubectl: Kubectl, install: Install, foreign: None) -> None:
    checked = install("--check")
    assert checked.returncode == 1
    (command,) = re.findall(r"kubectl (label crd \S+ \S+ --overwrite)", checked.stdout)
    kubectl(*command.split())
    checked = install("--check")
    assert (checked.returncode, checked.stdout) == (0, "nothing prevents the installation\n")
    applied = kubectl("apply", "-f", "-", stdin=install().stdout)
    assert "customresourcedefinition.apiextensions.k8s.io/tfjobs.kubeflow.org configured" in applied

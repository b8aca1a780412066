"""``tf-dist install`` and ``deploy/`` on a real API server, as a platform engineer applies them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.conftest import SYSTEM, Object
from tests.waiting import until
from tf_dist.cli.install.install_options import InstallOptions
from tf_dist.cli.install.workload import manifest_files
from tf_dist.cluster.api import PODS
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster

pytestmark = pytest.mark.cluster

DEPLOY = Path(__file__).parents[2] / "deploy"
Kubectl = Callable[..., str]
Install = Callable[..., "subprocess.CompletedProcess[str]"]
PART_OF = "app.kubernetes.io/part-of"


def minor(kubectl: Kubectl) -> int:
    """The server's minor version."""
    found = yaml.safe_load(kubectl("version", "-o", "yaml"))["serverVersion"]["minor"]
    return int(re.sub(r"\D", "", found))


def test_all_that_is_printed_is_accepted(installed: str) -> None:
    expected = sum(len(part) for part in manifest_files(InstallOptions()).values())
    assert len(installed.splitlines()) == expected


def changed(said: str) -> list[str]:
    """What kubectl says it has changed. The selector of a disruption budget it sends every time, changed or not."""
    return [line for line in said.splitlines() if not line.endswith(" unchanged") and "poddisruptionbudget" not in line]


def test_applied_again_nothing_changes(kubectl: Kubectl, install: Install, installed: str) -> None:
    assert changed(kubectl("apply", "-f", "-", stdin=install().stdout)) == []


def test_the_folder_is_accepted_as_it_is(kubectl: Kubectl, installed: str) -> None:
    if minor(kubectl) >= 21:
        kubectl("apply", "-k", str(DEPLOY))
        return
    # policy/v1 came with 1.21; tf-dist needs 1.27, and this older server can judge all the rest. It drops validation
    # rules, which its kubectl would not even send: tf-dist install leaves them out where it finds such a server.
    said = kubectl("apply", "--validate=false", "--dry-run=server", "-k", str(DEPLOY), fails=True)
    refused = [line for line in said.splitlines() if not line.endswith(" (server dry run)")]
    assert [line for line in refused if "PodDisruptionBudget" not in line and "CRDs are installed" not in line] == []


def test_a_folder_can_be_written_for_any_cluster(
    kubectl: Kubectl, install: Install, installed: str, tmp_path: Path
) -> None:
    assert install("--output", str(tmp_path)).returncode == 0
    assert changed(kubectl("apply", "-k", str(tmp_path))) == []


def test_the_drivers_account_goes_into_any_namespace_by_an_overlay(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "driver").mkdir()
    for file in (DEPLOY / "driver").iterdir():
        (tmp_path / "driver" / file.name).write_text(file.read_text())
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump({"namespace": namespace, "resources": ["../driver"]}))
    kubectl("apply", "-k", str(overlay))
    account = f"--as=system:serviceaccount:{namespace}:tf-dist-driver"
    assert kubectl("auth", "can-i", "create", "pods", "-n", namespace, account).strip() == "yes"
    assert kubectl("auth", "can-i", "create", "pods", "-n", "default", account, fails=True).strip() == "no"


def test_the_controllers_pods_are_admitted(admin: RestCluster, installed: str) -> None:
    """By service account, pod security and quota; whether a machine has their image is another matter."""

    def controllers() -> list[Object]:
        return admin.list(PODS, SYSTEM, labels="app.kubernetes.io/name=tf-dist-controller").items

    until(lambda: len(controllers()) >= 2, 60)
    assert {pod["spec"]["serviceAccountName"] for pod in controllers()} == {"tf-dist-controller"}


def test_a_service_monitor_only_needs_its_own_kind(kubectl: Kubectl, install: Install, installed: str) -> None:
    """Where the Prometheus operator is not, everything else is accepted and kubectl names the kind that is missing."""
    if "ServiceMonitor" in kubectl("api-resources"):
        pytest.skip("the Prometheus operator is in this cluster")
    said = kubectl("apply", "--dry-run=server", "-f", "-", stdin=install("--service-monitor").stdout, fails=True)
    refused = [line for line in said.splitlines() if "(server dry run)" not in line]
    assert len([line for line in refused if 'no matches for kind "ServiceMonitor"' in line]) == 1
    assert len(refused) == 2


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
    assert (checked.returncode, checked.stdout) == (0, "nothing stands in the way\n")
    assert "customresourcedefinition.apiextensions.k8s.io/tfjobs.kubeflow.org configured" in kubectl(
        "apply", "-f", "-", stdin=install("--crds-only").stdout
    )

"""The chart on a real API server: install, upgrade, rollback and uninstall. Definitions and jobs are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.cluster.support import exists
from tests.controller.harness import tfjob
from tests.deploy.conftest import is_served
from tests.deploy.manifests import CHART, helm
from tests.waiting import until
from tf_dist.cluster.api import LEASES, NAMESPACES, NETWORK_POLICIES, TFJOBS, Resource
from tf_dist.cluster.apiserver.storage.api_resources import CRDS
from tf_dist.cluster.client.rest import RestCluster

pytestmark = pytest.mark.cluster

DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
RELEASE, HOME, JOBS = "tf-dist", "tf-dist-helm", "tf-dist-helm-jobs"
# Options of every release. Other tests on this cluster use tf-dist-system.
ALWAYS = ("--namespace", HOME, "--set", f"systemNamespace={HOME}", "--set", "image.repository=mine/tf-dist")
PART_OF = "app.kubernetes.io/part-of"


Run = Callable[..., str]


@pytest.fixture(name="helm")
def helm_on_cluster(kubeconfig: str) -> Run:
    return partial(helm, kubeconfig=kubeconfig)


@pytest.fixture
def released(helm: Run, admin: RestCluster, kubectl: Callable[..., str]) -> Iterator[str]:
    """Installs the chart as documented, and yields the output of Helm. Other tests may have left definitions."""
    said = helm("install", RELEASE, str(CHART), *ALWAYS, "--create-namespace", "--take-ownership")
    until(lambda: is_served(admin, TFJOBS), 60)
    admin.create(NAMESPACES, None, {"metadata": {"name": JOBS}})
    yield said
    if RELEASE in helm("list", "--short", *ALWAYS[:2]):
        helm("uninstall", RELEASE, *ALWAYS[:2])
    kubectl("delete", "namespace", HOME, JOBS)


def deployment(admin: RestCluster) -> dict[str, Any]:
    return admin.get(DEPLOYMENTS, HOME, "tf-dist-controller")["spec"]


def test_release_is_installed_upgraded_rolled_back_and_uninstalled(
    helm: Run, admin: RestCluster, released: str, kubectl: Callable[..., str]
) -> None:
    assert "STATUS: deployed" in released
    assert "WARNING" not in released
    assert deployment(admin)["replicas"] == 2
    job = admin.create(TFJOBS, JOBS, {**tfjob(), "metadata": {"name": "mnist"}})
    held = {"spec": {"holderIdentity": "a-controller", "leaseDurationSeconds": 15}}
    admin.patch(LEASES, HOME, "tf-dist-controller", held)

    more = ("replicas=3", "networkPolicy.enabled=true", "tolerations[0].key=only", "tolerations[0].operator=Exists")
    more += ("podLabels.team=ml",)
    helm("upgrade", RELEASE, str(CHART), *ALWAYS, *(f"--set={one}" for one in more))
    assert deployment(admin)["replicas"] == 3
    assert deployment(admin)["template"]["spec"]["tolerations"] == [{"key": "only", "operator": "Exists"}]
    assert deployment(admin)["template"]["metadata"]["labels"]["team"] == "ml"
    assert exists(admin, NETWORK_POLICIES, HOME, "tf-dist-controller")
    lease = admin.get(LEASES, HOME, "tf-dist-controller")
    assert lease["spec"]["holderIdentity"] == "a-controller", "an upgrade leaves Leases to their holders"

    said = helm("upgrade", RELEASE, str(CHART), *ALWAYS, "--set", "replicas=0", fails=True)
    assert "replicas" in said
    assert deployment(admin)["replicas"] == 3, "nothing is half done"

    helm("rollback", RELEASE, "1", *ALWAYS[:2])
    assert deployment(admin)["replicas"] == 2
    assert not exists(admin, NETWORK_POLICIES, HOME, "tf-dist-controller")

    helm("uninstall", RELEASE, *ALWAYS[:2])
    assert not exists(admin, DEPLOYMENTS, HOME, "tf-dist-controller")
    assert "tf-dist-controller" not in kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert admin.get(TFJOBS, JOBS, "mnist")["metadata"]["uid"] == job["metadata"]["uid"]

    # A new installation takes over its own definitions without further options.
    helm("install", RELEASE, str(CHART), *ALWAYS)
    assert admin.get(TFJOBS, JOBS, "mnist")["metadata"]["uid"] == job["metadata"]["uid"]


def test_definition_of_another_operator_is_not_changed(helm: Run, admin: RestCluster, released: str) -> None:
    name = "tfjobs.kubeflow.org"
    admin.patch(CRDS, None, name, {"metadata": {"labels": {PART_OF: "training-operator"}}})
    try:
        before = admin.get(CRDS, None, name)["metadata"]["generation"]
        said = helm("upgrade", RELEASE, str(CHART), *ALWAYS, "--set", "replicas=1")
        assert "that is not tf-dist's" in said
        assert admin.get(CRDS, None, name)["metadata"]["generation"] == before
        manifest = helm("get", "manifest", RELEASE, *ALWAYS[:2])
        assert "name: queues.tf-dist.dev" in manifest
        assert f"name: {name}" not in manifest
    finally:
        admin.patch(CRDS, None, name, {"metadata": {"labels": {PART_OF: "tf-dist"}}})


def test_volcano_jobs_are_refused_if_volcano_is_installed(helm: Run, admin: RestCluster, released: str) -> None:
    helm("upgrade", RELEASE, str(CHART), *ALWAYS, "--set", "volcanoJobs=true")
    name = "jobs.batch.volcano.sh"
    admin.patch(CRDS, None, name, {"metadata": {"labels": {PART_OF: None}}})
    try:
        said = helm("upgrade", RELEASE, str(CHART), *ALWAYS, "--set", "volcanoJobs=true", fails=True)
        assert "would run the same jobs; set volcanoJobs: false" in said
    finally:
        admin.patch(CRDS, None, name, {"metadata": {"labels": {PART_OF: "tf-dist"}}})


def test_applied_manifests_become_helm_release(
    helm: Run, admin: RestCluster, released: str, kubectl: Callable[..., str], install: Callable[..., Any]
) -> None:
    """Change from ``tf-dist install | kubectl apply`` to Helm with ``--take-ownership``, as in docs/install.md."""
    helm("uninstall", RELEASE, *ALWAYS[:2])
    printed = install(f"--namespace={HOME}", "--image=mine/tf-dist:1").stdout
    kubectl("apply", "-f", "-", stdin=printed)
    refused = helm("install", "another", str(CHART), *ALWAYS, fails=True)
    assert "invalid ownership metadata" in refused
    helm("install", RELEASE, str(CHART), *ALWAYS, "--take-ownership")
    annotations = admin.get(DEPLOYMENTS, HOME, "tf-dist-controller")["metadata"]["annotations"]
    assert annotations["meta.helm.sh/release-name"] == RELEASE
    assert json.loads(helm("list", "-o", "json", *ALWAYS[:2]))[0]["status"] == "deployed"

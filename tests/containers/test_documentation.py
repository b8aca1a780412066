"""The commands of the pages for administrators: installation, a first job, upgrade and removal.

They need a cluster without tf-dist, so this module runs first.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.conftest import IMAGE, ROOT, SYSTEM, TRAINER, Namespace, Nodes, small_job
from tests.docs.test_tutorials import commands, files
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]
# Kinds of the objects of an installation and of jobs.
_KINDS = (
    "clusterroles,clusterrolebindings,configmaps,crd,deployments,endpoints,leases,namespaces,networkpolicies,pods,"
    "poddisruptionbudgets,replicasets,rolebindings,roles,secrets,serviceaccounts,services"
)
# Commands for the registry, the checkout, or Helm, which tests/helm tests.
_NOT_OF_THE_CLUSTER = ("docker ", "make images", "git ", "helm ")
_NEXT = "tf-dist:next"
# In an order in which an administrator may read the pages.
INSTALLATION = ("install.md", "namespaces.md", "other-operators.md", "remove.md")


class Administrator:
    """Runs the commands of a page, in a checkout that has the files that the page tells the reader to save."""

    def __init__(self, cluster: Namespace, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        for name in ("deploy", "examples"):
            shutil.copytree(ROOT / name, folder / name)

    def save(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def types(self, line: str, *, image: str = IMAGE) -> str:
        """Run a command with the image that this cluster has, and return its output."""
        command = re.sub(r"my-registry/tf-dist:\S+", image, line)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-ec", command],
            env=self.cluster.environment, cwd=self._folder, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def types_all(self, lines: list[str]) -> dict[str, str]:
        """Run the commands that concern the cluster, and return their outputs."""
        return {line: self.types(line) for line in lines if not line.startswith(_NOT_OF_THE_CLUSTER)}

    def leftovers(self) -> list[str]:
        """The remaining objects of tf-dist, in all namespaces."""
        found = self.cluster.run(
            "kubectl", "get", _KINDS, "-A", "-l", "app.kubernetes.io/part-of=tf-dist", "-o", "name"
        )
        return found.split()


@pytest.fixture
def administrator(cluster: Namespace, tmp_path: Path) -> Iterator[Administrator]:
    """The administrator of a cluster without tf-dist."""
    if cluster.kubectl("get", "namespace", SYSTEM, "--ignore-not-found"):
        pytest.skip("tf-dist is installed on this cluster: its documentation is tried on one without it")
    found = Administrator(cluster, tmp_path)
    try:
        yield found
    finally:
        for line in page("remove.md"):
            cluster.run("bash", "-ec", line, check=False)


def page(name: str) -> list[str]:
    """The commands of a page. Commands of several lines are joined."""
    text = (ROOT / "docs" / name).read_text().replace("\\\n", " ")
    return re.findall(r"^\$ (.*)$", text, flags=re.MULTILINE)


def after(lines: list[str], beginning: str) -> list[str]:
    """The commands, starting with the command with this beginning."""
    return lines[next(number for number, line in enumerate(lines) if line.startswith(beginning)) :]


def test_commands_of_installation_tutorial_work(administrator: Administrator) -> None:
    for name, text in files("first-installation.md").items():
        administrator.save(name, text.replace("python:3.12", TRAINER))
    told = administrator.types_all(commands("first-installation.md"))
    assert told["tf-dist install --check"] == "nothing prevents the installation\n"
    assert {"research", "vision", "speech"} <= set(re.findall(r"^(\w+)", told["kubectl get queues"], re.MULTILINE))
    assert "Succeeded" in told["kubectl describe tfjob hello"]
    assert not administrator.leftovers()
    until(lambda: not administrator.cluster.pods(), 120, every=1)  # pods of jobs deleted with their definition


# Kubeflow does not run here, so grep exits with 1.
_FINDS_NOTHING = "kubectl get deployments -A | grep -E"


def test_commands_of_installation_pages_work_and_leave_nothing(administrator: Administrator) -> None:
    cluster, lines = administrator.cluster, [line for name in INSTALLATION for line in page(name)]
    teams = ("research", "vision")
    for name in teams:
        cluster.kubectl("create", "namespace", name)
    try:
        for line in lines:
            if line.startswith(_FINDS_NOTHING):
                assert administrator.types(f"! {line}") == ""
            elif not line.startswith(_NOT_OF_THE_CLUSTER):
                administrator.types(line)
        assert not administrator.leftovers()
    finally:
        cluster.kubectl("delete", "clusterrolebinding", "tf-dist-driver-research", "--ignore-not-found")
        for name in teams:
            cluster.kubectl("delete", "namespace", name, "--timeout", "120s")


def test_job_keeps_running_during_upgrade_and_downgrade(administrator: Administrator, nodes: Nodes) -> None:
    cluster = administrator.cluster
    for node in nodes.names:
        nodes.tag_image(node, IMAGE, _NEXT)
    rollout = ["kubectl rollout status deployment/tf-dist-controller -n tf-dist-system"]
    install = page("install.md")[1]
    administrator.types_all([install, *rollout])
    name = cluster.apply(small_job("through", "echo up; while [ ! -e /tmp/end ]; do sleep 0.2; done"))
    pod = f"{name}-worker-0"
    try:
        cluster.until_said(pod, "up")
        began = cluster.pods()[pod]
        for line in after(page("upgrade.md"), "tf-dist install --check")[:3]:
            administrator.types(line, image=_NEXT)
        assert _images(cluster) == {_NEXT}
        administrator.types_all([install, *rollout])
        assert _images(cluster) == {IMAGE}
        assert cluster.pods()[pod]["metadata"]["uid"] == began["metadata"]["uid"]
        cluster.kubectl("exec", pod, "--", "touch", "/tmp/end")
        assert cluster.until_ended(name) == "Succeeded"
    finally:
        cluster.delete(name)


def _images(cluster: Namespace) -> set[str]:
    """The images of the controllers that are not being deleted."""
    pods = cluster.sibling(SYSTEM).objects("pods", "-l", "app.kubernetes.io/component=controller")
    ready = [one for one in pods if "deletionTimestamp" not in one["metadata"]]
    return {container["image"] for one in ready for container in one["spec"]["containers"]}

"""GitOps tools and kubectl users change running jobs: jobs do not drift, and no client undoes the changes of others.

Argo CD applies and compares like ``kubectl apply`` and ``kubectl diff``. Flux does so with ``--server-side`` and its
own field manager.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from tests.containers.conftest import FORMATS, SYSTEM, Namespace, small_gang
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]
RUNS = "echo up; while [ ! -e /tmp/end ]; do sleep 0.2; done"
FLUX = ("--server-side", "--field-manager=kustomize-controller", "--force-conflicts")
every_format = pytest.mark.parametrize("format_", FORMATS)


class Repository:
    """A job in Git, and the running job."""

    def __init__(self, space: Namespace, format_: str, name: str, **gang: Any) -> None:
        self.space, self.format, self.name, self.kind = space, format_, name, FORMATS[format_]
        self.document = yaml.safe_load(small_gang(format_, name, RUNS, **gang))

    def sync(self, *options: str) -> str:
        return self.space.kubectl("apply", *options, "-f", "-", given=yaml.safe_dump(self.document))

    def drift(self, *options: str) -> str:
        """The differences between Git and the cluster. kubectl fails if there are any."""
        options = tuple(one for one in options if one != "--force-conflicts")
        forced = ("--force-conflicts",) if options else ()
        return self.space.kubectl("diff", *options, *forced, "-f", "-", given=yaml.safe_dump(self.document))

    def stored(self) -> dict[str, Any]:
        return self.space.job(self.name, self.kind)

    def pods(self) -> dict[str, str]:
        """The running pods of the job, and their uids."""
        pods = self.space.objects("pods", "-l", f"tf-dist.dev/job-name={self.name}")
        return {
            one["metadata"]["name"]: one["metadata"]["uid"]
            for one in pods
            if one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"]
        }

    def until_running(self, replicas: int) -> dict[str, str]:
        until(lambda: len(self.pods()) == replicas, 180, every=1)
        return self.pods()

    def finish(self) -> None:
        for pod in self.pods():
            self.space.kubectl("exec", pod, "--", "touch", "/tmp/end", check=False)
        over = (
            "--for=jsonpath={.status.state.phase}=Completed"
            if self.format == "volcano"
            else "--for=condition=Succeeded"
        )
        self.space.kubectl("wait", f"{self.kind}/{self.name}", over, "--timeout=180s")
        self.space.delete(self.name, self.kind)


@every_format
@pytest.mark.parametrize("tool", [(), FLUX], ids=["argo-cd", "flux"])
def test_running_job_does_not_drift_from_git(namespace: Namespace, format_: str, tool: tuple[str, ...]) -> None:
    git = Repository(namespace, format_, f"{'flux' if tool else 'argo'}-{format_}", replicas=2)
    git.sync(*tool)
    pods, generation = git.until_running(2), git.stored()["metadata"]["generation"]
    for _ in range(3):
        assert git.drift(*tool) == ""
        git.sync(*tool)
    assert git.stored()["metadata"]["generation"] == generation
    assert git.pods() == pods
    git.finish()


@every_format
def test_two_tools_and_controller_share_job(namespace: Namespace, format_: str) -> None:
    """Each field is managed by its writer. The controller manages only the status."""
    git = Repository(namespace, format_, f"shared-{format_}", replicas=2)
    git.sync()
    pods = git.until_running(2)
    label = {**git.document, "metadata": {"name": git.name, "labels": {"team": "vision"}}, "spec": {}}
    namespace.kubectl("apply", "--server-side", "--field-manager=labeller", "-f", "-", given=json.dumps(label))
    git.sync()
    assert git.stored()["metadata"]["labels"]["team"] == "vision"
    assert git.drift() == ""
    managers = git.space.kubectl("get", git.kind, git.name, "-o", "json", "--show-managed-fields")
    for one in json.loads(managers)["metadata"]["managedFields"]:
        if "status" in (fields := one["fieldsV1"].keys()) or "f:status" in fields:
            assert one["subresource"] == "status"
            assert "f:spec" not in fields
    assert git.pods() == pods
    git.finish()


@every_format
def test_kubectl_replaces_and_edits_running_job(namespace: Namespace, format_: str) -> None:
    git = Repository(namespace, format_, f"edited-{format_}", replicas=2)
    git.sync()
    pods = git.until_running(2)
    namespace.kubectl("replace", "-f", "-", given=yaml.safe_dump(git.document))
    if format_ == "v1alpha1":  # like the original operator, the controller writes a field that is not in Git
        until(lambda: bool(git.stored()["spec"].get("RuntimeId")), 60, every=0.5)
    editor = ("env", "KUBE_EDITOR=sed -i 's/^  name: /  labels: {edited: \"yes\"}\\n  name: /'", "kubectl")
    namespace.run(*editor, "-n", namespace.name, "edit", git.kind, git.name)
    assert git.stored()["metadata"]["labels"] == {"edited": "yes"}
    git.sync()
    assert git.drift() == ""
    assert git.pods() == pods
    git.finish()


def test_scaled_job_keeps_its_size_until_next_sync(namespace: Namespace) -> None:
    git = Repository(namespace, "v1", "scaled", replicas=2)
    git.sync()
    git.until_running(2)
    namespace.kubectl("scale", "tfjobs.kubeflow.org/scaled", "--replicas=3")
    git.until_running(3)
    assert "replicas" in namespace.kubectl("diff", "-f", "-", given=yaml.safe_dump(git.document), check=False)
    git.sync()
    git.until_running(2)
    assert git.drift() == ""
    git.finish()


@pytest.mark.parametrize(
    ("kind", "version", "field"),
    [
        ("tfjobs", "kubeflow.org/v1", "spec.runPolicy"),
        ("tfjobs", "kubeflow.org/v1alpha1", "spec.replicaSpecs"),
        ("jobs", "batch.volcano.sh/v1alpha1", "spec.minAvailable"),
        ("queues", "tf-dist.dev/v1alpha1", "spec"),
    ],
)
def test_kubectl_explains_fields(namespace: Namespace, kind: str, version: str, field: str) -> None:
    said = namespace.kubectl("explain", f"{kind}.{field}", f"--api-version={version}")
    assert said.partition("DESCRIPTION:")[2].split("\n")[1].strip() not in ("", "<empty>")


def test_rollout_under_load_starts_no_pod_twice(namespace: Namespace) -> None:
    """Jobs arrive and run while all controllers are replaced, and a GitOps tool compares them."""
    jobs = [Repository(namespace, [*FORMATS][number % 3], f"load-{number}") for number in range(9)]
    for git in jobs[:6]:
        git.sync()
    first = {git.name: git.until_running(1) for git in jobs[:3]}
    system = namespace.sibling(SYSTEM)
    system.kubectl("rollout", "restart", "deployment", "tf-dist-controller")
    rollout = ["kubectl", "rollout", "status", "deployment", "tf-dist-controller", "-n", SYSTEM, "--timeout=240s"]
    with subprocess.Popen(rollout, env=namespace.environment, stdout=subprocess.DEVNULL) as waiting:
        for git in jobs[6:]:
            git.sync()
        for git in jobs:
            assert git.drift() == ""
        assert waiting.wait(timeout=280) == 0
    for git in jobs:
        git.until_running(1)
    assert {git.name: git.pods() for git in jobs[:3]} == first
    for git in jobs:
        git.finish()

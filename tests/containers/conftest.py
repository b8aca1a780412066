"""A cluster with real containers, tf-dist on it by the commands of docs/install.md, and a namespace of our own."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import until

ROOT = Path(__file__).parents[2]
VARIABLE = "TF_DIST_TEST_CONTAINERS"
IMAGE = os.environ.get("TF_DIST_TEST_IMAGE", "tf-dist:test")
SYSTEM = "tf-dist-system"
TRAINER = "tf-dist/digits:latest"
_TF_DIST = (sys.executable, "-m", "tf_dist")
_INSTALL = re.compile(r"^\$ (tf-dist install) --image \S+ \| (kubectl apply -f -)$", re.MULTILINE)


class Namespace:
    """A namespace of a real cluster, used as people use it: by kubectl and tf-dist."""

    def __init__(self, kubeconfig: str, name: str) -> None:
        self.kubeconfig, self.name = kubeconfig, name
        self.environment = {**os.environ, "KUBECONFIG": kubeconfig, "PYTHONPATH": str(ROOT), "COLUMNS": "400"}

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        return self.run("kubectl", "-n", self.name, *arguments, given=given, check=check)

    def tf_dist(self, *arguments: str, check: bool = True) -> str:
        return self.run(*_TF_DIST, *arguments, "-n", self.name, check=check)

    def run(self, *command: str, given: str | None = None, check: bool = True) -> str:
        """What a command writes; with ``check`` it has to succeed."""
        done = subprocess.run(
            command, input=given, env=self.environment, capture_output=True, text=True, timeout=280, cwd=ROOT
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def objects(self, kind: str, *options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-o", "json", *options))["items"]
        return found

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.objects("pods")}

    def job(self, name: str, kind: str = "tfjobs.kubeflow.org") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def condition(self, name: str) -> dict[str, Any]:
        """The condition of a TFJob v1 that holds and came last; empty before there is one."""
        conditions = self.job(name).get("status", {}).get("conditions") or []
        true = [one for one in conditions if one["status"] == "True" and "/" not in one["type"]]
        return true[-1] if true else {}

    def until_ended(self, name: str, seconds: float = 240) -> dict[str, Any]:
        until(lambda: self.condition(name).get("type") in ("Succeeded", "Failed"), seconds, every=1)
        return self.condition(name)

    def until_said(self, name: str, *words: str, seconds: float = 60) -> None:
        """Until its log says all of these words."""

        def said() -> bool:
            log = self.kubectl("logs", name, check=False)
            return all(word in log for word in words)

        until(said, seconds, every=0.5)

    def delete(self, name: str, kind: str = "tfjobs.kubeflow.org") -> None:
        """Delete a job; nothing of it stays."""
        self.kubectl("delete", kind, name, "--wait=false")

        def left() -> list[str]:
            kinds = "pods,services,configmaps,secrets"
            found = self.objects(kinds, "-l", "tf-dist.dev/job-uid")
            return [f"{one['kind']} {one['metadata']['name']}" for one in found]

        until(lambda: not left(), 60, every=0.5)


@pytest.fixture(scope="session")
def installed() -> Iterator[str]:
    """The kubeconfig of the cluster, on which tf-dist runs: what is there stays, what is installed here goes again."""
    kubeconfig = os.environ.get(VARIABLE)
    if not kubeconfig:
        pytest.skip(f"no cluster with real containers: {VARIABLE} names its kubeconfig (docs/testing.md)")
    cluster = Namespace(kubeconfig, "default")
    if cluster.kubectl("get", "namespace", SYSTEM, "--ignore-not-found"):
        yield kubeconfig
        return
    written = _INSTALL.search((ROOT / "docs" / "install.md").read_text())
    assert written is not None, "docs/install.md has no command to install tf-dist"
    documents = cluster.run(*_TF_DIST, *written[1].split()[1:], "--image", IMAGE, "--volcano-jobs")
    try:
        cluster.run(*written[2].split(), given=documents)
        cluster.run(
            "kubectl", "rollout", "status", "deployment", "tf-dist-controller", "-n", SYSTEM, "--timeout", "120s"
        )
        yield kubeconfig
    finally:
        cluster.run("kubectl", "delete", "--ignore-not-found", "--timeout", "120s", "-f", "-", given=documents)


@pytest.fixture(scope="session")
def namespace(installed: str) -> Iterator[Namespace]:
    """An empty namespace."""
    space = Namespace(installed, f"tf-dist-{secrets.token_hex(4)}")
    space.kubectl("create", "namespace", space.name)
    try:
        yield space
    finally:
        space.kubectl("delete", "namespace", space.name, "--timeout", "120s")


def small_job(name: str, *scripts: str, **worker: Any) -> str:
    """A TFJob v1 of workers that run shell scripts; ``worker``: other fields of the replica spec and run policy."""
    policy = worker.pop("policy", {})
    resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, **worker.pop("resources", {})}
    container = {
        "name": "tensorflow",
        "image": worker.pop("image", TRAINER),
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", scripts[0]],
        "resources": resources,
    }
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    return yaml.safe_dump(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": {"name": name},
            "spec": {
                "runPolicy": {"cleanPodPolicy": "None", **policy},
                "tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template, **worker}},
            },
        }
    )

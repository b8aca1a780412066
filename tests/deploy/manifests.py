"""The shipped manifests, and the chart rendered with other values."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "chart"
KUBERNETES = "1.35"  # a Helm built with go install would assume 1.20
SYSTEM = "tf-dist-system"

Manifest = dict[str, Any]
Place = tuple[str, str, str]
"""Kind, namespace and name of an object."""


def documents(text: str) -> list[Manifest]:
    """The documents that are not empty. The definitions are long, so libyaml reads them if it is available."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for one in yaml.load_all(text, Loader=loader) if one is not None]


@cache
def _shipped(name: str) -> str:
    return (DEPLOY / name).read_text()


def shipped(name: str = "tf-dist.yaml") -> list[Manifest]:
    """The objects of a file in ``deploy``."""
    return documents(_shipped(name))


def by_place(objects: list[Manifest]) -> dict[Place, Manifest]:
    found: dict[Place, Manifest] = {}
    for one in objects:
        metadata = one["metadata"]
        place = (one["kind"], metadata.get("namespace", ""), metadata["name"])
        assert place not in found, f"written twice: {place}"
        found[place] = one
    return found


def of_kind(objects: list[Manifest], *kinds: str) -> list[Manifest]:
    return [one for one in objects if one["kind"] in kinds]


def container(objects: list[Manifest]) -> Manifest:
    """The container of the controller."""
    (deployment,) = of_kind(objects, "Deployment")
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def helm(*arguments: str, kubeconfig: str = "", fails: bool = False) -> str:
    """Run Helm from TF_DIST_TEST_HELM or the PATH, and return its output. ``.ci/helm`` builds Helm with Go."""
    program = os.environ.get("TF_DIST_TEST_HELM") or shutil.which("helm")
    if program is None:
        pytest.skip("no Helm: set TF_DIST_TEST_HELM to its path (.ci/helm builds it with Go)")
    with tempfile.TemporaryDirectory() as home:
        homes = {f"HELM_{name}_HOME": f"{home}/{name.lower()}" for name in ("CACHE", "CONFIG", "DATA")}
        # Templates must not look up objects of a real cluster.
        environment = {**os.environ, **homes, "KUBECONFIG": kubeconfig or f"{home}/no-cluster"}
        done = subprocess.run(
            [program, *arguments], env=environment, capture_output=True, text=True, timeout=180, check=False
        )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


@cache
def template(*values: str, namespace: str = SYSTEM, release: str = "tf-dist") -> str:
    """The output of ``helm template`` with these values of ``--set``."""
    given = [part for value in values for part in ("--set", value)]
    return helm("template", release, str(CHART), "--namespace", namespace, f"--kube-version={KUBERNETES}", *given)


def rendered(*values: str, namespace: str = SYSTEM, release: str = "tf-dist") -> list[Manifest]:
    """The objects in the output of ``template``."""
    return documents(template(*values, namespace=namespace, release=release))

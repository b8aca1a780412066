"""Helm, where it is at hand: TF_DIST_TEST_HELM, else on the PATH (``.ci/helm`` builds it where Go is)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "chart"

Manifest = dict[str, Any]
Place = tuple[str, str, str]


class Helm:
    """Runs Helm; ``kubeconfig``: on this cluster. Its own files go to ``home``."""

    def __init__(self, home: Path, kubeconfig: str = "") -> None:
        program = os.environ.get("TF_DIST_TEST_HELM") or shutil.which("helm")
        if program is None:
            pytest.skip("no Helm: set TF_DIST_TEST_HELM to its path (.ci/helm builds it with Go)")
        self._program = program
        homes = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        # A cluster that is not there, else templates might look at one.
        self._environment = {**os.environ, **homes, "KUBECONFIG": kubeconfig or str(home / "no-cluster")}

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        done = subprocess.run(
            [self._program, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) is fails, said
        return done.stderr if fails else done.stdout

    def template(self, *arguments: str, namespace: str = "tf-dist-system") -> dict[Place, Manifest]:
        """What it would install, by kind, namespace and name. What a Helm takes for a cluster's release differs."""
        release = () if "--kube-version" in arguments else ("--kube-version", "1.31")
        text = self("template", "tf-dist", str(CHART), "--namespace", namespace, *release, *arguments)
        return by_place(documents(text))


def documents(text: str) -> list[Manifest]:
    """Those that are not empty. The definitions are long: read by libyaml, where it is."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for one in yaml.load_all(text, Loader=loader) if one is not None]


def by_place(objects: list[Manifest]) -> dict[Place, Manifest]:
    found: dict[Place, Manifest] = {}
    for one in objects:
        metadata = one["metadata"]
        place = (one["kind"], metadata.get("namespace", ""), metadata["name"])
        assert place not in found, f"written twice: {place}"
        found[place] = one
    return found

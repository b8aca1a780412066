"""The last step of the image build (`deploy/image.py`): which packages it removes, and the SBOM."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def image() -> Any:
    specification = importlib.util.spec_from_file_location("image", ROOT / "deploy/image.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


_WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from tf_dist.cli.main import main
import tf_dist.controller.manager, tf_dist.argo.launcher.main, tf_dist.core.gang.placement
main({arguments})
"""


def test_only_login_plugins_need_official_client(image: Any, tmp_path: Path) -> None:
    modules = packages_distributions()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [re.split(r"[^\w.-]", one)[0] for one in project["dependencies"]]
    taken = image.closure("kubernetes").difference(*(image.closure(one) for one in needed))
    assert "kubernetes" in taken
    names = {name for name, owners in modules.items() if taken & {image.normal(one) for one in owners}}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = _WITHOUT.format(names=names, arguments=list(arguments))
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    done = run("install", "--offline", "--image=mine:1")
    assert (done.returncode, done.stderr) == (0, "")
    user = {"name": "me", "user": {"exec": {"command": "kubelogin", "apiVersion": "client.authentication.k8s.io/v1"}}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [user],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "me"}}],
        "current-context": "c",
    }
    file = tmp_path / "config"
    file.touch(mode=0o600)
    file.write_text(json.dumps(config))
    done = run("get", f"--kubeconfig={file}")
    assert done.returncode != 0
    assert "the login plugin kubelogin needs the package kubernetes, which is not installed" in done.stderr
    assert "the pod's service account" in done.stderr


def test_sbom_lists_all_packages_of_image(image: Any) -> None:
    kept = image.closure("tf-dist")
    found = image.sbom(kept)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    assert found["metadata"]["component"]["purl"] == f"pkg:pypi/tf-dist@{metadata.version('tf-dist')}"
    named = {one["name"]: one for one in found["components"]}
    assert {*named, "tf-dist"} == kept
    assert all(re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.+!]+", one["purl"]) for one in named.values())
    references = {one["bom-ref"] for one in [*named.values(), found["metadata"]["component"]]}
    assert {one["ref"] for one in found["dependencies"]} == references
    assert all(set(one["dependsOn"]) <= references for one in found["dependencies"])
    assert f"pkg:pypi/numpy@{metadata.version('numpy')}" in next(
        one["dependsOn"] for one in found["dependencies"] if one["ref"].startswith("pkg:pypi/tf-dist@")
    )


def test_image_programs_include_controller_launcher_and_commands(image: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["tf-dist"].partition(":")[0] in image.PROGRAMS
    code = "import sys, " + ", ".join(image.PROGRAMS) + "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"tf_dist.controller.controller", "tf_dist.argo.launcher.launcher", "numpy"} <= set(done.stdout.split())

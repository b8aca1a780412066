"""The image, as far as it can be judged without an engine: what is copied is there, and what it runs as fits."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import of_kind, shipped

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IGNORED = (ROOT / ".dockerignore").read_text().split("\n")

Instruction = tuple[str, str]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage; those before the first FROM are a stage of their own."""
    text = re.sub(r"\\\n\s*", "", "\n".join(x for x in DOCKERFILE.read_text().splitlines() if not x.startswith("#")))
    found: list[list[Instruction]] = [[]]
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def values(stage: list[Instruction], word: str) -> list[str]:
    return [rest for found, rest in stage if found == word]


HEAD, BUILD, FINAL = stages()


def test_it_is_built_from_any_python_and_is_one_layer() -> None:
    assert HEAD == [("ARG", "BASE=python:3.13-slim")]
    assert BUILD[0] == ("FROM", "${BASE} AS build")
    assert FINAL[0] == ("FROM", "scratch")
    assert values(FINAL, "COPY") == ["--from=build / /"]


@pytest.mark.parametrize(
    "source", [name for copied in values(BUILD, "COPY") for name in copied.split()[:-1]], ids=lambda name: name
)
def test_what_is_copied_is_there_and_reaches_the_engine(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in IGNORED


def test_nothing_else_reaches_the_engine() -> None:
    let_through = {line[1:] for line in IGNORED if line.startswith("!")}
    copied = {name for rest in values(BUILD, "COPY") for name in rest.split()[:-1]}
    assert IGNORED[1] == "*"
    assert let_through == copied
    assert any(fnmatch("tf_dist/core/__pycache__", line) for line in IGNORED)


def test_the_versions_are_those_of_the_constraints() -> None:
    (run,) = values(BUILD, "RUN")
    assert "--constraint constraints.txt" in run


def test_nothing_that_was_only_built_with_is_in_the_last_stage() -> None:
    (run,) = values(BUILD, "RUN")
    last = run.split("&&")[-1].split()
    assert last == ["rm", "-rf", "/source", "/wheels"]
    assert values(BUILD, "WORKDIR") == ["/source"]
    assert not values(FINAL, "RUN")


def test_the_program_is_found_without_the_variables_of_the_base() -> None:
    (variables,) = values(FINAL, "ENV")
    path = dict(one.split("=", 1) for one in variables.split())["PATH"].split(":")
    assert path[0] == "/opt/tf-dist/bin"
    assert {"/usr/bin", "/bin"} < set(path)
    assert json.loads(values(FINAL, "ENTRYPOINT")[0]) == ["tf-dist"]


def test_it_runs_as_the_user_that_the_deployment_names() -> None:
    (deployment,) = of_kind(shipped(), "Deployment")
    security = deployment["spec"]["template"]["spec"]["securityContext"]
    assert values(FINAL, "USER") == [f"{security['runAsUser']}:{security['runAsGroup']}"]


# What finishes the image: deploy/image.py.


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
import tf_dist.controller.manager, tf_dist.argo.launcher.main, tf_dist.core.gang.placement, tf_dist.controller.key_pairs
main({arguments})
"""


def test_without_the_official_client_everything_runs_but_login_plugins(image: Any, tmp_path: Path) -> None:
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
    assert "the login plugin kubelogin is run by the package kubernetes, which is not installed" in done.stderr
    assert "the pod's service account" in done.stderr


def test_the_list_of_what_is_in_the_image_is_whole(image: Any) -> None:
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


def test_of_other_packages_what_nothing_imports_is_left_out(image: Any) -> None:
    found = {str(path) for path in image.unused_files({"numpy"})}
    assert any(path.endswith("numpy/linalg/tests") for path in found)
    assert any(path.endswith("numpy/_core/include") for path in found)
    assert any(path.endswith("numpy/f2py") for path in found)
    assert not any(path.endswith((".py", ".so")) for path in found)


def test_of_the_base_s_python_pip_and_tests_are_left_out(image: Any, tmp_path: Path) -> None:
    library = tmp_path / "lib" / "python3.11"
    gone = (
        "test/support",
        "idlelib",
        "site-packages/pip",
        "config-3.11-x86_64-linux-gnu",
        "../python3/dist-packages/pip",
    )
    for name in (*gone, "json", "lib-dynload"):
        (library / name).mkdir(parents=True)
    image.remove(image.unused_of_python(library))
    assert sorted(path.name for path in library.iterdir()) == ["json", "lib-dynload"]
    assert not list((tmp_path / "lib" / "python3").iterdir())


def test_compiled_is_what_the_programs_import(image: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "compiled_for_image"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__" / f"left.{sys.implementation.cache_tag}.pyc").touch()
    for name, text in {"__init__": "", "program": "from . import used", "used": "", "other": ""}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    image.keep_compiled(["compiled_for_image.program"], [tmp_path])
    compiled = {path.name.partition(".")[0]: path for path in package.glob("__pycache__/*")}
    assert sorted(compiled) == ["__init__", "program", "used"]
    unchecked = b"\x01\0\0\0"  # independent of the modification times of the sources
    assert all(path.read_bytes()[4:8] == unchecked for path in compiled.values())


def test_the_programs_of_the_image_are_the_controller_a_step_and_the_commands(image: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["tf-dist"].partition(":")[0] in image.PROGRAMS
    code = "import sys, " + ", ".join(image.PROGRAMS) + "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"tf_dist.controller.controller", "tf_dist.argo.launcher.launcher", "numpy"} <= set(done.stdout.split())


def test_a_command_that_does_not_run_any_more_ends_the_build(image: Any) -> None:
    image.try_command("install", "--offline", "--image=any")
    with pytest.raises(SystemExit) as ended:
        image.try_command("install", "--offline", "--image=any", "--no-such-option")
    assert ended.value.code == 2


def test_labels_say_what_it_is() -> None:
    (labels,) = values(FINAL, "LABEL")
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels

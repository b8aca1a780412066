"""The public names of ``tf_dist``, and the modules that ``import tf_dist`` loads."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import tf_dist

_NOWHERE = """
apiVersion: v1
kind: Config
current-context: nowhere
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: me}}]
"""
_IMPORTED = """
import sys
before = set(sys.modules)
import tf_dist
print(*{name.partition(".")[0] for name in set(sys.modules) - before if not name.startswith("_")})
tf_dist.TFJob("a", image="b").to_dict()
heavy = ("numpy", "kubernetes", "pydantic", "rich", "typer", "asyncio")
print(*(name for name in heavy if name in sys.modules))
tf_dist.Client
print(*(name for name in ("numpy", "kubernetes", "rich", "typer") if name in sys.modules))
"""


def test_import_loads_no_other_packages() -> None:
    found = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    package, of_a_job, of_a_client = found.stdout.splitlines()
    assert set(package.split()) <= {"tf_dist", "importlib", "warnings"}
    assert of_a_job == ""
    assert of_a_client == ""


_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from tf_dist.cli.main import run
sys.exit(run(sys.argv[2:]))
"""
_OF_EXTRAS = {"controller": "numpy,cryptography,prometheus_client", "local": "jsonpatch"}


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("local", ["run", "job.yaml"], "local"),
        ("controller", ["controller", "--kubeconfig", "kubeconfig"], "controller"),
        ("controller", ["run", "job.yaml"], "controller"),
        ("controller", ["run", "job.yaml", "--kubeconfig", "kubeconfig"], "controller"),
        ("controller", ["simulate", "--jobs", "3"], "controller"),
    ],
)
def test_missing_extra_is_named(missing: str, command: list[str], extra: str, tmp_path: Path) -> None:
    tmp_path.joinpath("job.yaml").write_text(yaml.safe_dump(tf_dist.TFJob("a", image="b").to_dict()))
    tmp_path.joinpath("kubeconfig").write_text(_NOWHERE)
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT, _OF_EXTRAS[missing], *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert f"tf-dist[{extra}]" in found.stderr
    assert "Traceback" not in found.stderr
    assert found.returncode == 1


def test_job_is_validated_without_extras(tmp_path: Path) -> None:
    tmp_path.joinpath("job.yaml").write_text(yaml.safe_dump(tf_dist.TFJob("a", image="b").to_dict()))
    every = ",".join(_OF_EXTRAS.values())
    subprocess.run([sys.executable, "-c", _WITHOUT, every, "validate", "job.yaml"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("name", sorted(set(tf_dist.__all__) - {"__version__"}))
def test_public_name_exists_and_is_documented(name: str) -> None:
    found = getattr(tf_dist, name)
    assert getattr(importlib.import_module(found.__module__), name) is found
    assert inspect.getdoc(found)
    assert name in dir(tf_dist)


def test_stub_has_same_names() -> None:
    stub = ast.parse(Path(tf_dist.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    seen = {(alias.asname, node.module) for node in imports for alias in node.names}
    assert seen == {(name, getattr(tf_dist, name).__module__) for name in tf_dist.__all__ if name != "__version__"}


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="tf_dist"):
        _ = tf_dist.TfJob  # type: ignore[attr-defined]


@pytest.mark.parametrize("one", [tf_dist.Client, tf_dist.TFJob, tf_dist.Result, tf_dist.StoredJob])
def test_public_methods_are_documented_and_typed(one: type) -> None:
    for name, method in inspect.getmembers(one, inspect.isfunction):
        if not name.startswith("_"):
            assert method.__doc__, name
            assert inspect.signature(method).return_annotation is not inspect.Signature.empty, name

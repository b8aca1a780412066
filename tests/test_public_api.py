"""What ``import tf_dist`` offers, and what it costs: nothing but itself."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tf_dist

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


def test_importing_it_imports_nothing_else() -> None:
    found = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    package, of_a_job, of_a_client = found.stdout.splitlines()
    assert set(package.split()) <= {"tf_dist", "importlib", "warnings"}
    assert of_a_job == ""
    assert of_a_client == ""


@pytest.mark.parametrize("name", sorted(set(tf_dist.__all__) - {"__version__"}))
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(tf_dist, name)
    assert getattr(importlib.import_module(found.__module__), name) is found
    assert inspect.getdoc(found)
    assert name in dir(tf_dist)


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse(Path(tf_dist.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    seen = {(alias.asname, node.module) for node in imports for alias in node.names}
    assert seen == {(name, getattr(tf_dist, name).__module__) for name in tf_dist.__all__ if name != "__version__"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="tf_dist"):
        _ = tf_dist.TfJob  # type: ignore[attr-defined]


@pytest.mark.parametrize("one", [tf_dist.Client, tf_dist.TFJob, tf_dist.Result, tf_dist.StoredJob])
def test_every_public_method_is_documented_and_typed(one: type) -> None:
    for name, method in inspect.getmembers(one, inspect.isfunction):
        if not name.startswith("_"):
            assert method.__doc__, name
            assert inspect.signature(method).return_annotation is not inspect.Signature.empty, name

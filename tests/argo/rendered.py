"""The workflows of the examples, rendered from Python and read from YAML."""

from __future__ import annotations

import copy
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tf_dist.argo.render import render

FOLDER = Path(__file__).parents[2] / "workflows"
MODULES = sorted(FOLDER.glob("*.py"))


def golden(module: Path) -> Path:
    """The YAML file of a module."""
    return module.with_name(f"{module.stem.replace('_', '-')}.yaml")


def rendered(module: Path) -> str:
    """The YAML that the module renders."""
    with _importable(FOLDER):
        built = runpy.run_path(str(module))["w"]
    return f"# Written from {module.name}: tf-dist workflows export\n{render(built)}"


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [module.stem for module in MODULES]:
            sys.modules.pop(name, None)


def documents() -> dict[str, Any]:
    """All golden documents by file name."""
    return copy.deepcopy(_documents())


@cache
def _documents() -> dict[str, Any]:
    return {path.name: yaml.safe_load(path.read_text()) for path in map(golden, MODULES)}

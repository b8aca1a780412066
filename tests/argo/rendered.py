"""The workflows of the examples, from their Python and from the YAML beside it."""

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
    """The YAML beside a module."""
    return module.with_name(f"{module.stem.replace('_', '-')}.yaml")


def rendered(module: Path) -> str:
    """What the module makes."""
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
    """Every golden document by its file."""
    return copy.deepcopy(_documents())


@cache
def _documents() -> dict[str, Any]:
    return {path.name: yaml.safe_load(path.read_text()) for path in map(golden, MODULES)}

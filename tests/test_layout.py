"""The layout of the package: modules and folders of a size one can work in, and no name with two meanings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import tf_dist

PACKAGE = Path(tf_dist.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
SAME_NAME = {
    "tfjob": "providers of Airflow name operator, hook, trigger, sensor, links after the one thing they are for",
    "main": "the entry points of the command line and of the launcher",
    "kubelet": "the Kubelet of the package kubelet",
    "simulate": "the command and the simulator",
}


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_a_module_has_at_most_500_lines() -> None:
    assert [named(path) for path in MODULES if len(path.read_text().splitlines()) > 500] == []


def test_a_folder_has_at_most_14_modules() -> None:
    counted = Counter(named(path.parent) for path in MODULES)
    assert [folder for folder, count in counted.items() if count > 14] == []


def test_no_two_modules_have_one_name() -> None:
    counted = Counter(path.stem for path in MODULES)
    assert {name for name, count in counted.items() if count > 1} <= SAME_NAME.keys()

"""The layout of the package: no name with two meanings, plain words."""

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
    "controller": "the command and what it runs",
}


def test_no_two_modules_have_one_name() -> None:
    counted = Counter(path.stem for path in MODULES)
    assert {name for name, count in counted.items() if count > 1} <= SAME_NAME.keys()

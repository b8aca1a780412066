"""What Airflow finds when it looks for providers."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tf_dist.airflow import __all__ as public
from tf_dist.airflow.provider import get_provider_info

pytest.importorskip("airflow", reason="Airflow is missing: pip install 'tf-dist[airflow]'")


def test_airflow_lists_it() -> None:
    program = Path(sys.executable).with_name("airflow")
    done = subprocess.run(
        [program, "providers", "list", "-o", "json"], capture_output=True, text=True, check=True, timeout=240
    )
    listed = json.loads(done.stdout[done.stdout.index("[{") :])
    assert "tf-dist" in [one["package_name"] for one in listed]


def test_every_name_it_gives_is_there() -> None:
    info = get_provider_info()

    def there(path: str) -> Any:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)

    assert callable(there(info["task-decorators"][0]["class-name"]))
    assert all(there(path) for path in info["extra-links"])
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for module in info[kind][0]["python-modules"]:
            import_module(module)
    package = import_module("tf_dist.airflow")
    assert all(getattr(package, name) for name in public)


def test_looking_for_providers_imports_nothing_of_what_a_task_needs() -> None:
    code = "import sys; from tf_dist.airflow.provider import get_provider_info as g; g(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert not loaded & {"airflow", "pydantic", "numpy", "yaml", "tf_dist.core.dialects", "tf_dist.controller.driver"}


def test_reading_dags_imports_nothing_of_what_a_task_needs() -> None:
    code = "import sys; from tf_dist.airflow import *; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "numpy",
        "tf_dist.controller.driver",
        "tf_dist.core.gang.admission",
        "tf_dist.airflow.shared.job_informer",
    }

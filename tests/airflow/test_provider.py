"""What Airflow finds when it looks for providers."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tf_dist.airflow import __all__ as public
from tf_dist.airflow.provider import get_provider_info

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")


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


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        (
            "from tf_dist.airflow.provider import get_provider_info as g; g()",
            {
                "airflow",
                "numpy",
                "pydantic",
                "yaml",
                "tf_dist.cluster",
                "tf_dist.controller",
                "tf_dist.core.dialects",
                "tf_dist.local",
            },
        ),
        (
            "from tf_dist.airflow import *",
            {
                "numpy",
                "tf_dist.airflow.informers.job_informer",
                "tf_dist.controller.controller",
                "tf_dist.core.gang.admission",
                "tf_dist.local",
            },
        ),
    ],
    ids=["looking for providers", "reading DAGs"],
)
def test_nothing_of_what_a_task_needs_is_imported(code: str, forbidden: set[str]) -> None:
    assert [name for name in sorted(forbidden) if name.startswith("tf_dist.") and not find_spec(name)] == []
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert not forbidden & set(done.stdout.split())


def test_needs_no_kubernetes_provider() -> None:
    """It brings the form of a connection in the UI, and only who wants that installs it."""
    package = Path(import_module("tf_dist.airflow").__path__[0])
    assert [path.name for path in package.rglob("*.py") if "providers.cncf" in path.read_text()] == []

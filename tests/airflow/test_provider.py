"""What Airflow reads when it discovers providers."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tf_dist import __version__
from tf_dist.airflow import __all__ as public
from tf_dist.airflow.provider import get_provider_info

pytest.importorskip("airflow", reason="Airflow is missing: pip install '.[airflow]'")


def test_airflow_lists_provider() -> None:
    program = Path(sys.executable).with_name("airflow")
    done = subprocess.run(
        [program, "providers", "list", "-o", "json"], capture_output=True, text=True, check=True, timeout=240
    )
    listed = json.loads(done.stdout[done.stdout.index("[{") :])
    assert "tf-dist" in [one["package_name"] for one in listed]


def test_provider_names_exist() -> None:
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
def test_discovery_and_parsing_import_no_task_dependencies(code: str, forbidden: set[str]) -> None:
    assert [name for name in sorted(forbidden) if name.startswith("tf_dist.") and not find_spec(name)] == []
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert not forbidden & set(done.stdout.split())


BLOCKED = """
import importlib, pkgutil, sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        own = name.removeprefix("airflow.providers.cncf.kubernetes")
        if own != name and own not in ("", ".get_provider_info"):  # Airflow lists what is installed
            raise ImportError(f"{name} is not installed")


sys.meta_path.insert(0, Blocker())
import tf_dist.airflow

names = [one.name for one in pkgutil.walk_packages(tf_dist.airflow.__path__, "tf_dist.airflow.")]
for name in names:
    importlib.import_module(name)
task = tf_dist.airflow.TFJobOperator(task_id="train", image="train:7", kubernetes_conn_id="kubernetes_default")
task.dry_run()
print(*sys.modules)
print(len(names))
"""


def test_works_without_kubernetes_provider() -> None:
    """All modules import and a task is created. The provider adds only the connection form in the UI."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=True, timeout=240)
    *_, modules, count = done.stdout.splitlines()
    package = Path(import_module("tf_dist.airflow").__path__[0])
    assert int(count) == len([*package.rglob("*.py")]) - 1  # without the package itself
    assert [name for name in modules.split() if name.startswith("kubernetes")] == []


def test_provider_info_matches_schema_version_and_modules() -> None:
    """The info is valid by Airflow's schema, starts with the package's version, and lists all public modules."""
    import jsonschema
    from airflow import __path__ as airflow

    info = get_provider_info()
    jsonschema.validate(info, json.loads(Path(airflow[0], "provider_info.schema.json").read_text()))
    assert Version(info["versions"][0]).release == Version(__version__).release
    package = Path(import_module("tf_dist.airflow").__path__[0])
    for kind in ("operators", "sensors", "hooks", "triggers"):
        homes = {
            f"tf_dist.airflow.{kind}.{name}"
            for name in ("tfjob", "job_actions")
            if Path(package, kind, f"{name}.py").exists()
        }
        assert set(info[kind][0]["python-modules"]) == homes

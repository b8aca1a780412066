"""An Airflow of these tests' own (SQLite, in a temporary folder), and an embedded cluster that it reaches over HTTP."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.site import Site
from tests.waiting import until
from tf_dist.cluster.node.settings import NetworkMode
from tf_dist.driver.embedded import EmbeddedCluster, EmbeddedSettings, dump

INSTALLED = importlib.util.find_spec("airflow") is not None

if INSTALLED:
    # Before anything of Airflow is imported: it reads these once.
    HOME = tempfile.mkdtemp(prefix="td-airflow-")
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
    os.environ |= {
        "AIRFLOW_HOME": HOME,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW__CORE__DAGS_FOLDER": f"{HOME}/dags",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    Path(HOME, "dags").mkdir()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Airflow and what it brings warn of what they do themselves: only our own warnings are errors here."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:::tf_dist"))
            item.add_marker(pytest.mark.filterwarnings("error::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"))


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Its database."""
    from airflow.utils import db

    db.initdb()


@pytest.fixture(scope="module")
def cluster_site() -> Iterator[Site]:
    """A cluster on this machine, as a kubeconfig names it: whoever submits there drives, too."""
    with tempfile.TemporaryDirectory(prefix="td-") as scratch:
        settings = EmbeddedSettings(state_dir=Path(scratch, "node"), network=NetworkMode.SHARED)
        with EmbeddedCluster(settings) as embedded:
            kubeconfig = Path(scratch, "kubeconfig")
            dump(embedded.kubeconfig(), kubeconfig)
            # The cluster's own driver follows the last of its kinds: what begins from now on is not its thread.
            until(lambda: "reflect-priorityclasses" in {thread.name for thread in threading.enumerate()}, 60)
            yield Site(embedded, str(kubeconfig))


@pytest.fixture(scope="module")
def site(airflow_db: None, cluster_site: Site) -> Site:
    """The same, with a database for Airflow."""
    return cluster_site

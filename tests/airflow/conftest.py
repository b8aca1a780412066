"""An Airflow home with SQLite in a temporary folder, and an embedded cluster that Airflow reaches over HTTP."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.instance import Instance, MakeOperator
from tests.airflow.light import LightSite, light_site
from tests.airflow.site import SECONDS, Site
from tests.airflow.stack import Stack
from tests.leaderless import LeaderlessCluster, controller
from tests.waiting import until
from tf_dist.airflow.informers.informer_registry import SHARED_INFORMERS
from tf_dist.cluster.kubelet.node.node_settings import NetworkMode
from tf_dist.local.embedded import EmbeddedSettings, write_private_json

INSTALLED = importlib.util.find_spec("airflow") is not None

if INSTALLED:
    # Airflow reads these variables once, when it is imported.
    HOME = tempfile.mkdtemp(prefix="td-airflow-")
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
    os.environ |= {
        "AIRFLOW_HOME": HOME,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW__CORE__DAGS_FOLDER": f"{HOME}/dags",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
        "AIRFLOW__TRIGGERER__ON_KILL_TIMEOUT": "5",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    Path(HOME, "dags").mkdir()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Treat only warnings of tf-dist as errors, because Airflow and its dependencies warn about their own code."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:::tf_dist"))
            item.add_marker(pytest.mark.filterwarnings("error::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"))


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Create the tables of Airflow's database."""
    from airflow.utils import db

    db.initdb()


@pytest.fixture(scope="module")
def cluster_site() -> Iterator[Site]:
    """A cluster on this machine with a kubeconfig and without a controller: a process that waits becomes the leader."""
    with tempfile.TemporaryDirectory(prefix="td-") as scratch:
        settings = EmbeddedSettings(state_dir=Path(scratch, "node"), network=NetworkMode.SHARED)
        with LeaderlessCluster(settings) as embedded:
            kubeconfig = Path(scratch, "kubeconfig")
            write_private_json(embedded.kubeconfig(), kubeconfig)
            yield Site(embedded, str(kubeconfig))


@pytest.fixture(scope="module")
def controller_leads(cluster_site: Site) -> Iterator[None]:
    """A controller leads the whole cluster."""
    with controller(cluster_site.cluster) as leadership:
        until(lambda: bool(leadership.kinds()), SECONDS)
        yield


@pytest.fixture(scope="module")
def site(airflow_db: None, cluster_site: Site) -> Site:
    """``cluster_site``, with a database for Airflow."""
    return cluster_site


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database for a complete Airflow deployment."""
    if request.param == "sqlite":
        with tempfile.TemporaryDirectory(prefix="td-db-") as folder:
            yield f"sqlite:///{folder}/airflow.db?timeout=60"
        return
    server = os.environ.get("TF_DIST_TEST_POSTGRES")
    if not server:
        how = "set TF_DIST_TEST_POSTGRES=postgresql+psycopg2://USER:PASSWORD@HOST/postgres (and pip install asyncpg)"
        pytest.skip(f"no PostgreSQL server: {how}")
    from sqlalchemy import create_engine, make_url, text

    name = f"td_{uuid.uuid4().hex[:12]}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()


@pytest.fixture(scope="module")
def stack(cluster_site: Site, database: str) -> Iterator[Stack]:
    """A complete Airflow deployment that submits its jobs to the cluster."""
    with tempfile.TemporaryDirectory(prefix="td-stack-") as folder:
        found = Stack(Path(folder), cluster_site, database)
        try:
            found.start()
            yield found
        finally:
            found.stop()


@pytest.fixture
def light(tmp_path: Path) -> Iterator[LightSite]:
    """A cluster that runs no pods."""
    with light_site(tmp_path) as found:
        yield found


@pytest.fixture
def nothing_is_left(cluster_site: Site) -> Iterator[None]:
    """Delete the test's jobs, and check that no pod, Lease, shared informer or informer thread remains."""
    yield
    for job in cluster_site.jobs():
        cluster_site.delete(job["metadata"]["name"])
    cluster_site.until_empty()
    assert len(SHARED_INFORMERS) == 0
    until(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("shared-informer")], SECONDS
    )


@pytest.fixture
def instance() -> Instance:
    """The first try of a task in a new run."""
    return Instance(f"run-{uuid.uuid4().hex[:6]}")


@pytest.fixture
def operator(cluster_site: Site) -> MakeOperator:
    """A function that creates the operator of the task."""
    from tf_dist.airflow import TFJobOperator

    def make(job: Any, **arguments: Any) -> TFJobOperator:
        return TFJobOperator(task_id="train", job=job, config_file=cluster_site.kubeconfig, **arguments)

    return make

"""A complete Airflow with the Celery executor, whose workers take tasks from a broker and can be lost."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.airflow.site import Site
from tests.airflow.stack import Stack, eventually
from tests.waiting import until

pytest.importorskip("airflow", reason="Airflow is missing: pip install 'tf-dist[airflow]'")

WORKER = "celery worker"
pytestmark = [
    pytest.mark.airflow_stack,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        importlib.util.find_spec("airflow.providers.celery") is None,
        reason="no Celery executor: pip install apache-airflow-providers-celery 'celery<5.7' redis",
    ),
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="no Celery executor: apt-get install redis-server"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """A new Redis server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="td-redis-") as folder:
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        )
        try:
            until(lambda: _listens(port), 60)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(30)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture(scope="module")
def celery(cluster_site: Site, broker: str) -> Iterator[Stack]:
    """A complete Airflow with SQLite and one Celery worker."""
    with tempfile.TemporaryDirectory(prefix="td-celery-") as folder:
        database = f"sqlite:///{folder}/airflow.db?timeout=60"
        found = Stack(Path(folder), cluster_site, database, broker)
        try:
            found.start()
            yield found
        finally:
            found.stop()


@pytest.mark.parametrize("dag", ["here", "deferred"])
def test_task_shows_log_and_result(celery: Stack, dag: str) -> None:
    task = celery.run(dag, f"whole-{dag}")
    task.until_running()
    eventually(lambda: "worker-0 | up" in task.log())
    celery.let_end(task.run_id)
    task.until("success")
    assert task.xcom()["metrics"] == {"accuracy": 0.5}
    eventually(lambda: not task.job())


def test_task_in_worker_marked_failed_deletes_job(celery: Stack) -> None:
    task = celery.run("here", "marked")
    task.until("running")
    task.until_running()
    task.set_state("failed")
    eventually(lambda: not task.job())


def test_retry_after_killed_worker_adopts_job(celery: Stack) -> None:
    task = celery.run("here", "lost")
    task.until("running")
    uid = task.until_running()
    celery.end(WORKER, signal.SIGKILL)
    celery.launch(WORKER)
    eventually(lambda: task.try_number == 2 and task.state == "running")
    assert task.until_running() == uid
    celery.let_end(task.run_id)
    task.until("success")
    assert task.xcom()["uid"] == uid
